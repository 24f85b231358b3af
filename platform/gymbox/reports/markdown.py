"""Markdown: a report's figures as text that reads well raw and rendered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gymbox.evaluation.compare import Comparison, Difference
from gymbox.evaluation.summary import Figures, Summary, TaskFigures
from gymbox.evaluation.tallies import Spread
from gymbox.printable import printable
from gymbox.reports.report import Report, RunReport

SHOWN = 50
"""Tasks of a list; the JSON twin has all."""
LONGEST = 500
"""Characters of a metric that is a text, a list or an object; the JSON twin has all."""
UNKNOWN = "unknown"
POLICIES = {"excluded": "left out of the figures", "as_failure": "counted as a reward of 0"}
_SPECIAL = "\\`*_{}[]<>|#~&"


def markdown(report: Report) -> str:
    """The report, but for its trajectories and plots."""
    parts = [f"# {told(report.title)}", ""]
    if report.comparison is not None:
        parts += [*_compared(report), ""]
    for run in report.runs:
        parts += [*_run(run, report.by), ""]
    parts.append(f"Made by gymbox {told(report.gymbox)}, {report.made_at:%Y-%m-%d %H:%M} UTC.")
    return "\n".join(parts) + "\n"


def told(text: object) -> str:
    """Anything as text of which Markdown takes no character for its own, on one line."""
    line = printable(str(text), None)
    return "".join(f"\\{character}" if character in _SPECIAL else character for character in line)


def _run(run: RunReport, by: str | None) -> Iterator[str]:
    summary, total = run.summary, run.summary.total
    when = f", {run.started_at:%Y-%m-%d %H:%M} UTC" if run.started_at else ""
    yield f"## {told(run.name)}"
    yield ""
    if run.status:
        yield f"{run.status.capitalize()}{when}."
        yield ""
    if total.missing:
        kinds = ", ".join(f"{told(kind)} {count}" for kind, count in total.errors.items()) or "not done"
        yield f"{total.missing} rollouts without a reward, {POLICIES[summary.missing_policy]} ({kinds})."
        yield ""
    if summary.torn_bytes:
        yield f"The last line, of {summary.torn_bytes} bytes, is not whole and was left out."
        yield ""
    for title, found in (("Key metrics", run.key_metrics), ("The environments' own metrics", run.own_metrics)):
        if found:
            yield f"### {title}"
            yield ""
            yield from _table(("environment", "metric", "value"), _own(found))
            yield ""
    several = {**summary.environments, "all": total} if len(summary.environments) > 1 else summary.environments
    yield from _table(("figure", *several), _figures(list(several.values()), summary.level))
    if summary.agent_totals:
        yield ""
        yield from _agents(run)
    if summary.subsets:
        yield ""
        yield f"### By {told(by)}"
        yield ""
        yield from _subsets(summary)
    tasks = sorted(summary.tasks, key=lambda task: (task.mean is not None, task.mean or 0.0))
    if tasks:
        yield ""
        yield f"### The {min(SHOWN, len(tasks))} tasks of {len(tasks)} with the lowest rewards"
        yield ""
        agent = ("agent",) if summary.agent_totals else ()
        columns = ("task", "environment", *agent, "solved", "mean reward", "missing", "errors")
        yield from _table(columns, map(_task, tasks[:SHOWN]))


def _own(found: Mapping[str, dict[str, Any]]) -> Iterator[Sequence[object]]:
    for environment, metrics in found.items():
        for name, value in metrics.items():
            plain = value if value is None or isinstance(value, int | float | str) else json.dumps(value)
            whole = not isinstance(plain, str) or len(plain) <= LONGEST
            yield environment, name, plain if whole else f"{str(plain)[:LONGEST]}…"


def _subsets(summary: Summary) -> Iterator[str]:
    """Figures of each subset, a line each: there may be dozens."""
    listed = [(name, value, each) for name, found in summary.subsets.items() for value, each in found.items()]
    ks = sorted({k for _, _, each in listed for k in each.pass_at})[-1:]
    interval = f"{summary.level:.4g} interval"
    columns = ("environment", "subset", "tasks", "with a reward", "without", "mean reward", "standard error", interval)
    yield from _table(
        (*columns, "solved", *(f"pass@{k}" for k in ks), "cost each"),
        (
            (
                *(name, value, each.tasks, each.scored, each.missing, each.mean, each.standard_error),
                *(_interval(each.interval), each.solved),
                *(at.value if (at := each.pass_at.get(k)) else None for k in ks),
                each.cost.mean,
            )
            for name, value, each in listed
        ),
    )


def _agents(run: RunReport) -> Iterator[str]:
    """Figures of each agent, in each environment where there are several, and how they compare."""
    summary = run.summary
    columns = dict(summary.agent_totals)
    if len(summary.environments) > 1:
        each = {f"{name}: {agent}": one for name, agents in summary.agents.items() for agent, one in agents.items()}
        columns = {**each, **{f"all: {agent}": figures for agent, figures in columns.items()}}
    yield "### The agents"
    yield ""
    yield from _table(("figure", *columns), _figures(list(columns.values()), summary.level))
    if run.agents is not None:
        yield ""
        yield f"Compared with {told(run.agents.runs[0].run)}:"
        yield ""
        yield from _differences(run.agents)


def _figures(columns: Sequence[Figures], level: float) -> Iterator[Sequence[object]]:
    def row(name: str, *values: object) -> Sequence[object]:
        return (name, *values)

    yield row("tasks", *(each.tasks for each in columns))
    yield row("rollouts", *(each.rollouts for each in columns))
    yield row("planned", *(each.planned for each in columns))
    yield row("with a reward", *(each.scored for each in columns))
    yield row("without", *(each.missing for each in columns))
    yield row("mean reward", *(each.mean for each in columns))
    yield row("spread (standard deviation)", *(each.deviation for each in columns))
    yield row("standard error", *(each.standard_error for each in columns))
    yield row(f"{level:.4g} interval", *(_interval(each.interval) for each in columns))
    yield row("mean over tasks", *(each.task_mean for each in columns))
    yield row("solved", *(each.solved for each in columns))
    for name, field in (("pass@", "pass_at"), ("pass^", "pass_all"), ("best@", "best_of")):
        for k in sorted({k for each in columns for k in getattr(each, field)}):
            yield row(f"{name}{k}", *(at.value if (at := getattr(each, field).get(k)) else None for each in columns))
    for kind in ("components", "metrics"):
        for name in sorted({name for each in columns for name in getattr(each, kind)}):
            yield row(f"{kind[:-1]} {name}", *(_mean(getattr(each, kind).get(name)) for each in columns))
    yield row("cost in all", *(each.cost.total if each.cost.count else None for each in columns))
    for name in ("cost", "input_tokens", "output_tokens", "seconds", "turns", "tool_calls", "tool_errors"):
        yield row(f"{name.replace('_', ' ')} each", *(_mean(getattr(each, name)) for each in columns))


def _task(task: TaskFigures) -> Sequence[object]:
    errors = ", ".join(f"{kind} {count}" for kind, count in task.errors.items())
    agent = () if task.agent is None else (task.agent,)
    return (task.task, task.environment, *agent, f"{task.c} of {task.n}", task.mean, task.missing, errors)


def _compared(report: Report) -> Iterator[str]:
    found = report.comparison
    assert found is not None
    firsts = list(dict.fromkeys(each.first for each in found.differences))
    to = told(firsts[0]) if len(firsts) == 1 else f"{told(', '.join(firsts))}, each agent with itself"
    yield f"Compared with {to}; without a reward: {POLICIES[found.missing_policy]}."
    yield ""
    yield from _differences(found)
    if found.subsets:
        yield ""
        yield f"By {told(found.by)}, adjusted for all subsets:"
        yield ""
        yield from _subset_differences(found)
    yield ""
    yield from _table(
        ("run", "rollouts", "without a reward", "cost in all", "seconds each", "tokens in each", "tokens out each"),
        (
            (
                run.run,
                run.rollouts,
                run.missing,
                run.cost.total if run.cost.count else None,
                run.seconds.mean,
                run.input_tokens.mean,
                run.output_tokens.mean,
            )
            for run in found.runs
        ),
    )
    for each in found.differences:
        for title, tasks in (("Worse", each.worse), ("Better", each.better)):
            if tasks:
                shown = f", the first {SHOWN} of {len(tasks)}" if len(tasks) > SHOWN else ""
                yield ""
                yield f"### {title} in {told(each.second)}: {told(each.environment)}{shown}"
                yield ""
                yield from _table(("task", "first", "second"), ((t.task, t.first, t.second) for t in tasks[:SHOWN]))


def _differences(found: Comparison) -> Iterator[str]:
    interval = f"{found.level:.4g} interval"
    columns = ("environment", "run", "verdict", "difference", interval, "p", "adjusted p", "means", "tasks")
    yield from _table(columns, map(_difference, found.differences))


def _subset_differences(found: Comparison) -> Iterator[str]:
    interval = f"{found.level:.4g} interval"
    yield from _table(
        (
            *("environment", "subset", "run", "verdict", "difference", interval, "p", "adjusted p", "means", "tasks"),
            *("better", "worse"),
        ),
        (
            (each.environment, each.subset, *_difference(each)[1:], len(each.better), len(each.worse))
            for each in found.subsets
        ),
    )


def _difference(each: Difference) -> Sequence[object]:
    return (
        each.environment,
        each.second,
        each.verdict.replace("_", " "),
        each.difference,
        _interval(each.interval),
        each.p,
        each.p_holm,
        _means(each),
        each.paired,
    )


def _table(columns: Sequence[object], rows: Iterator[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(map(told, columns))} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(told(_said(value)) for value in row)} |"


def _said(value: object) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _interval(ends: tuple[float, float] | None) -> str | None:
    return None if ends is None else f"{ends[0]:.4g} to {ends[1]:.4g}"


def _means(each: Difference) -> str:
    return f"{_said(each.first_mean)} → {_said(each.second_mean)}"


def _mean(spread: Spread | None) -> float | None:
    return spread.mean if spread else None
