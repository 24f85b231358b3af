"""Figures: what `gymbox eval` prints for people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gymbox.cli.output import say, say_json
from gymbox.errors import ConfigError, nearest
from gymbox.printable import printable

if TYPE_CHECKING:
    from gymbox.evaluation.compare import Comparison, Difference
    from gymbox.evaluation.profile import Profile
    from gymbox.evaluation.summary import AtK, Figures, Summary
    from gymbox.evaluation.tallies import Missing

POLICIES: tuple[Missing, ...] = ("excluded", "as_failure")
SHOWN = 10
"""Tasks of a list that are shown; --json has all."""


def policy(missing: str) -> Missing:
    """What --missing says.

    Raises:
        ConfigError: nothing that there is.
    """
    for known in POLICIES:
        if missing == known:
            return known
    raise ConfigError(f"--missing {missing}: {nearest(missing, list(POLICIES))}")


def print_figures(name: str, figures: Figures, summary: Summary, key: dict[str, Any], own: dict[str, Any]) -> None:
    """An environment of a run."""
    planned = f" of {figures.planned}" if figures.planned is not None else ""
    say(f"{name}: {figures.tasks} tasks, {figures.rollouts}{planned} rollouts, {figures.scored} with a reward")
    if figures.missing:
        told = ", ".join(f"{kind} {count}" for kind, count in figures.errors.items())
        way = "left out" if summary.missing_policy == "excluded" else "counted as failures"
        say(f"  without a reward      {figures.missing}, {way} ({told or 'not done'})")
        say(f"  tasks without reward  {figures.tasks_without_reward}")
    if summary.torn_bytes:
        say(f"  torn last line        {summary.torn_bytes} bytes, left out")
    for each, value in key.items():
        say(f"  {printable(each, 20):<22}{_said(value)}")
    error = f" ± {_said(figures.standard_error)}" if figures.standard_error is not None else ""
    sure = f"  {summary.level:.4g} interval {interval(figures.interval)}" if figures.interval else ""
    say(f"  mean reward           {_said(figures.mean)}{error}{sure}")
    say(f"  mean over tasks       {_said(figures.task_mean)}")
    if figures.deviation is not None:
        ends = f"{_said(figures.smallest)} to {_said(figures.largest)}"
        say(f"  spread                {_said(figures.deviation)}, from {ends}, median {_said(figures.median)}")
    for label, found in (
        ("pass@", figures.pass_at),
        ("pass^", figures.pass_all),
        ("best@", figures.best_of),
        ("majority@", figures.majority_at),
    ):
        if found:
            say(f"  {label + 'k':<22}{'  '.join(_at(k, at) for k, at in found.items())}")
    if figures.no_answer is not None:
        say(f"  no answer             {_said(figures.no_answer)}")
    for title, spreads in (("component", figures.components), ("metric", figures.metrics)):
        for each, spread in spreads.items():
            of = f"{spread.count} rollout{'' if spread.count == 1 else 's'}"
            say(f"  {f'{title} {printable(each, 40)}':<20}  {_said(spread.mean)} each, of {of}")
    for title, spread in (
        ("input tokens", figures.input_tokens),
        ("output tokens", figures.output_tokens),
        ("cost", figures.cost),
        ("seconds", figures.seconds),
        ("turns", figures.turns),
        ("tool errors", figures.tool_errors),
    ):
        if spread.count:
            say(f"  {title:<22}{_said(spread.mean)} each, {spread.total:.6g} in all")
    if (slow := figures.latency) is not None:
        parts = [f"{part} {_said(seconds)} s" for part, seconds in slow.model_dump().items()]
        say(f"  {'latency':<22}{'  '.join(parts)}")
    for each, value in own.items():
        say(f"  {f'own {printable(each, 40)}':<20}  {printable(json.dumps(value), 200)}")


def _at(k: int, at: AtK) -> str:
    out = f" ({at.left_out} tasks with fewer tries left out)" if at.left_out else ""
    return f"{k}: {_said(at.value)}{out}"


def print_comparison(found: Comparison) -> None:
    """Runs beside the first of them."""
    firsts = list(dict.fromkeys(each.first for each in found.differences))
    first = printable(firsts[0], 100) if len(firsts) == 1 else "the same agent of the first run"
    say(f"compared with {first}; rollouts without a reward: {found.missing_policy}")
    for each in found.differences:
        _print_difference(each, found)
    for environment in dict.fromkeys(each.environment for each in found.subsets):
        _print_subsets(environment, found)
    table(
        ["run", "rollouts", "missing", "cost", "seconds each", "output tokens each"],
        [
            [
                run.run,
                run.rollouts,
                run.missing,
                run.cost.total if run.cost.count else None,
                run.seconds.mean,
                run.output_tokens.mean,
            ]
            for run in found.runs
        ],
    )


def _print_difference(each: Difference, found: Comparison) -> None:
    say(f"{each.environment}: {printable(each.second, 100)}: {each.verdict.replace('_', ' ')}")
    say(f"  mean over {each.paired} tasks    {_said(each.first_mean)} -> {_said(each.second_mean)}")
    if each.left_out or each.only_in_one:
        say(f"  left out              {each.left_out} without a reward, {each.only_in_one} only in one")
    say(f"  difference            {_said(each.difference)}  {found.level:.4g} interval {interval(each.interval)}")
    if each.p is not None:
        say(f"  p                     {each.p:.4g}, adjusted {_said(each.p_holm)} ({each.test})")
    for title, tasks in (("worse", each.worse), ("better", each.better)):
        for task in tasks[:SHOWN]:
            say(f"  {title:<8}{printable(task.task, 60)}: {_said(task.first)} -> {_said(task.second)}")
        if len(tasks) > SHOWN:
            say(f"  {title:<8}and {len(tasks) - SHOWN} more")


def _print_subsets(environment: str, found: Comparison) -> None:
    table(
        [
            *(f"{environment}, by {found.by}", "run", "verdict", "means", "difference", "interval"),
            *("p", "adjusted", "tasks", "left out", "better", "worse"),
        ],
        [
            [
                *(each.subset, each.second, each.verdict.replace("_", " ")),
                *(f"{_said(each.first_mean)} -> {_said(each.second_mean)}", each.difference, interval(each.interval)),
                *(each.p, each.p_holm, each.paired, each.left_out + each.only_in_one),
                *(len(each.better), len(each.worse)),
            ]
            for each in found.subsets
            if each.environment == environment
        ],
    )


def print_profile(found: Profile) -> None:
    """Tasks by kind."""
    from gymbox.evaluation.profile import TOLD

    for kind, told in TOLD.items():
        tasks = [task for task in found.tasks if task.kind == kind]
        if not tasks:
            continue
        say(f"{kind.replace('_', ' ')}: {len(tasks)} ({told})")
        for task in tasks[:SHOWN] if kind != "useful" else ():
            figures = task.figures
            place = f"{printable(figures.environment, 40)} {printable(figures.task, 60)}"
            say(f"  {place}{f' by {figures.agent}' if figures.agent else ''}: {task.why}")
        if len(tasks) > SHOWN and kind != "useful":
            say(f"  and {len(tasks) - SHOWN} more")


def table(columns: list[str], rows: list[list[Any]]) -> None:
    """Rows of anything."""
    from gymbox.cli.env import print_table

    print_table(columns, [[_said(value) for value in row] for row in rows])


def print_json(value: Any) -> None:
    """Strict JSON."""
    say_json(json.dumps(value, indent=2, allow_nan=False))


def _said(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value), 200)


def interval(ends: tuple[float, float] | None) -> str:
    """From where to where."""
    return "unknown" if ends is None else f"{ends[0]:.4g} to {ends[1]:.4g}"
