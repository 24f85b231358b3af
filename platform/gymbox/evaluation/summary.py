"""Summary: the figures of a run, by environment, subset and task, with what is missing counted and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from gymbox.evaluation import formulas
from gymbox.evaluation.intervals import Intervals
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.tallies import Missing, Spread, Sums, Tally, together
from gymbox.plan import RunnerSettings

SUCCESS = 1.0
LEVEL = 0.95


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AtK(_Frozen):
    """A figure of k tries: the mean over the tasks that have so many."""

    value: float | None
    """None where no task has."""
    tasks: int
    left_out: int
    """Tasks with fewer than k tries, which cannot tell."""


ByK = Annotated[dict[int, AtK], PlainSerializer(lambda found: {str(k): at for k, at in found.items()})]


class Figures(_Frozen):
    """Of some rollouts: of a run, an environment, or a subset of its tasks."""

    tasks: int
    rollouts: int
    """Lines of the run."""
    planned: int | None
    """Rollouts there should be, as the run's manifest says; None where it does not."""
    scored: int
    missing: int
    """Rollouts without a reward: those that ended in an error, and those that were planned and not done."""
    tasks_without_reward: int
    errors: dict[str, int]
    counted: int
    """Rewards that the following is computed from: the scored, and with `as_failure` the missing."""
    mean: float | None
    """Over rollouts."""
    task_mean: float | None
    """Over tasks, of the mean of each: avg@k, and pass@1 where a reward is 0 or 1."""
    deviation: float | None
    median: float | None
    smallest: float | None
    largest: float | None
    standard_error: float | None
    """Of the mean; rewards of one task hang together."""
    interval: tuple[float, float] | None
    """Of the mean, at the summary's `level`: a bootstrap over tasks."""
    solved: float | None
    """Part of the rewards that reach the summary's `success`."""
    pass_at: ByK
    """Chance that one of k tries succeeds."""
    pass_all: ByK
    """Chance that all of k tries succeed."""
    best_of: ByK
    """Expected best reward of k tries."""
    majority_at: ByK
    """Expected reward of the answer that most of k tries give; empty where no answers are known."""
    no_answer: float | None
    """Part of the rollouts with a reward that gave no answer; None where answers were not asked for."""
    components: dict[str, Spread]
    metrics: dict[str, Spread]
    input_tokens: Spread
    output_tokens: Spread
    cost: Spread
    seconds: Spread
    turns: Spread
    tool_calls: Spread
    tool_errors: Spread
    stop_reasons: dict[str, int]


class TaskFigures(_Frozen):
    """Of one task."""

    environment: str
    task: str
    subset: str | None
    lines: int
    """Rollouts that the run has of it."""
    n: int
    """Rewards counted."""
    c: int
    """Of them, successes."""
    missing: int
    mean: float | None
    deviation: float | None
    standard_error: float | None
    """Of the mean, tries taken as independent."""
    interval: tuple[float, float] | None
    """Of the mean: a bootstrap over tries; None unless `task_intervals` were asked for."""
    errors: dict[str, int]


class Summary(_Frozen):
    """Of a run."""

    run: str
    missing_policy: Missing
    success: float
    """A reward from which on a try has succeeded."""
    level: float
    """Of the intervals."""
    torn_bytes: int
    """Of an unfinished last line, which was left out."""
    total: Figures
    environments: dict[str, Figures]
    subsets: dict[str, dict[str, Figures]] = Field(default_factory=dict)
    """By environment and value of the field that tells subsets apart."""
    tasks: list[TaskFigures] = Field(default_factory=list)


@dataclass
class Part:
    """What is read of an environment, or of a subset of its tasks."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)


def parts_of(reader: RunReader) -> dict[str, Part]:
    """The environments of a run, as far as it has lines of them.

    Raises:
        ConfigError: a line is damaged.
    """
    return _read(reader, None, None)[0]


def pad(parts: dict[str, Part], reader: RunReader) -> dict[str, int]:
    """Enter what was planned and never done; the rollouts that were planned of each environment."""
    if given := reader.given():
        for name, tasks in given.items():
            tallies = parts.setdefault(name, Part()).tallies
            for task, count in tasks.items():
                tally = tallies.setdefault(task, Tally())
                tally.padding = max(0, count - tally.lines)
        return {name: sum(tasks.values()) for name, tasks in given.items()}
    planned = _planned(reader)
    for name, (count, repeats) in planned.items():
        tallies = parts.setdefault(name, Part()).tallies
        for tally in tallies.values():
            tally.padding = max(0, repeats - tally.lines)
        for number in range(count - len(tallies)):
            tallies[f"(not done {number + 1})"] = Tally(padding=repeats)
    return {name: count * repeats for name, (count, repeats) in planned.items()}


def summary(
    reader: RunReader,
    *,
    missing: Missing = "excluded",
    success: float = SUCCESS,
    level: float = LEVEL,
    ks: Sequence[int] = (),
    by: str | None = None,
    answer: str | None = None,
    tasks: bool = False,
    task_intervals: bool = False,
    seed: int = 0,
) -> Summary:
    """The figures of a run. What is kept in memory grows with its rewards, not with its lines.

    Args:
        missing: what becomes of rollouts without a reward.
        success: a reward from which on a try has succeeded.
        level: of the intervals.
        ks: tries to tell pass@k and the like of; default: powers of two as far as the tasks have tries, and that many.
        by: dotted path of a field in the lines whose values tell subsets apart.
        answer: dotted path of the answer, for votes.
        tasks: with the figures of each task.
        task_intervals: and their intervals, which take milliseconds each where rewards are not just 0 and 1.

    Raises:
        ConfigError: a line is damaged.
    """
    parts, subsets = _read(reader, by, answer)
    planned = pad(parts, reader)

    def figures(parts: Iterable[Part], planned: int | None) -> Figures:
        listed = list(parts)
        return _figures(listed, planned, missing, success, level, ks, answer is not None, seed)

    intervals = Intervals(level, seed) if task_intervals else None
    whole = sum(planned.values()) if planned else None
    return Summary(
        run=reader.name,
        missing_policy=missing,
        success=success,
        level=level,
        torn_bytes=reader.torn,
        total=figures(parts.values(), whole),
        environments={name: figures([parts[name]], planned.get(name)) for name in sorted(parts)},
        subsets={
            name: {value: figures([part], None) for value, part in sorted(found.items())}
            for name, found in sorted(subsets.items())
        },
        tasks=[
            task_figures(name, task, tally, missing, success, intervals)
            for name in sorted(parts)
            for task, tally in parts[name].tallies.items()
            if tally.lines
        ]
        if tasks
        else [],
    )


def task_figures(
    environment: str, task: str, tally: Tally, missing: Missing, success: float, intervals: Intervals | None = None
) -> TaskFigures:
    """Of one task."""
    rewards = tally.counted(missing)
    return TaskFigures(
        environment=environment,
        task=task,
        subset=tally.subset,
        lines=tally.lines,
        n=len(rewards),
        c=sum(reward >= success for reward in rewards),
        missing=tally.missing,
        mean=formulas.mean(rewards),
        deviation=formulas.deviation(rewards),
        standard_error=formulas.standard_error(rewards),
        interval=intervals.of(rewards) if intervals else None,
        errors=dict(tally.errors),
    )


def _read(reader: RunReader, by: str | None, answer: str | None) -> tuple[dict[str, Part], dict[str, dict[str, Part]]]:
    """Its environments, and their subsets; both share the tallies of tasks."""
    parts: dict[str, Part] = {}
    subsets: dict[str, dict[str, Part]] = {}
    for rollout in reader:
        part = parts.setdefault(rollout.environment, Part())
        tally = part.tallies.setdefault(rollout.task, Tally())
        part.sums.add(rollout)
        tally.lines += 1
        if rollout.reward is not None:
            tally.rewards.append(rollout.reward)
            if answer:
                tally.votes.append((_vote(rollout.at(answer)), rollout.reward))
        else:
            tally.errors[rollout.error or "no_reward"] += 1
        if by:
            value = rollout.at(by)
            tally.subset = "(none)" if value is None else str(value)
            subset = subsets.setdefault(rollout.environment, {}).setdefault(tally.subset, Part())
            subset.tallies[rollout.task] = tally
            subset.sums.add(rollout)
    return parts, subsets


def _vote(answer: Any) -> Hashable | None:
    if answer is None or (isinstance(answer, str) and not answer.strip()):
        return None
    return answer.strip() if isinstance(answer, str) else repr(answer)


def _planned(reader: RunReader) -> dict[str, tuple[int, int]]:
    """Of each environment, as the manifest has it, its tasks and the rollouts of each."""
    if reader.manifest is None or not reader.manifest.inputs.get("environments"):
        return {}
    runner = reader.manifest.inputs.get("runner") or {}
    kept = {name: runner[name] for name in ("limit", "repeats", "shard") if runner.get(name) is not None}
    settings, planned = RunnerSettings.model_validate(kept), {}
    for name, told in reader.manifest.inputs["environments"].items():
        if "rows" in told:
            tasks = settings.of_shard(range(settings.tasks_of(name, told["rows"])))
            planned[name] = (len(tasks), settings.repeats_of(name))
    return planned


def _figures(
    parts: list[Part],
    planned: int | None,
    policy: Missing,
    success: float,
    level: float,
    ks: Sequence[int],
    votes: bool,
    seed: int,
) -> Figures:
    tallies = [tally for part in parts for tally in part.tallies.values()]
    counted = [tally.counted(policy) for tally in tallies]
    tried = [rewards for rewards in counted if rewards]
    rewards = [reward for task in tried for reward in task]
    clusters = [(sum(task), len(task)) for task in tried]
    passed = [(len(task), sum(reward >= success for reward in task)) for task in counted]
    ballots = [
        tally.votes if policy == "excluded" else [*tally.votes, *[(None, 0.0)] * tally.missing] for tally in tallies
    ]
    ks = list(ks) or _ks(max((len(task) for task in tried), default=0))
    sums = together([part.sums for part in parts])
    silent = sum(answer is None for tally in tallies for answer, _ in tally.votes)
    return Figures(
        tasks=len(tallies),
        rollouts=sum(tally.lines for tally in tallies),
        planned=planned,
        scored=sum(len(tally.rewards) for tally in tallies),
        missing=sum(tally.missing for tally in tallies),
        tasks_without_reward=sum(not tally.rewards for tally in tallies),
        errors=dict(sum((tally.errors for tally in tallies), Counter[str]())),
        counted=len(rewards),
        mean=formulas.mean(rewards),
        task_mean=formulas.mean([total / n for total, n in clusters]),
        deviation=formulas.deviation(rewards),
        median=formulas.median(rewards),
        smallest=min(rewards, default=None),
        largest=max(rewards, default=None),
        standard_error=formulas.clustered_error(clusters),
        interval=formulas.bootstrap_interval(clusters, level=level, seed=seed),
        solved=sum(c for _, c in passed) / len(rewards) if rewards else None,
        pass_at={k: _at([formulas.pass_at(k, n, c) for n, c in passed]) for k in ks},
        pass_all={k: _at([formulas.pass_all(k, n, c) for n, c in passed]) for k in ks},
        best_of={k: _at([formulas.best_of(k, task) for task in counted]) for k in ks},
        majority_at={k: _at([formulas.majority_at(k, each, seed=seed) for each in ballots]) for k in ks if votes},
        no_answer=silent / sum(len(tally.votes) for tally in tallies) if votes and rewards else None,
        components=sums.spreads("components"),
        metrics=sums.spreads("metrics"),
        input_tokens=sums.spread("input_tokens"),
        output_tokens=sums.spread("output_tokens"),
        cost=sums.spread("cost"),
        seconds=sums.spread("seconds"),
        turns=sums.spread("turns"),
        tool_calls=sums.spread("tool_calls"),
        tool_errors=sums.spread("tool_errors"),
        stop_reasons=dict(sums.stops),
    )


def _ks(most: int) -> list[int]:
    ks = [1 << bit for bit in range(most.bit_length()) if 1 << bit <= most]
    return ks if not ks or ks[-1] == most else [*ks, most]


def _at(values: Sequence[float | None]) -> AtK:
    known = [value for value in values if value is not None]
    return AtK(value=formulas.mean(known), tasks=len(known), left_out=len(values) - len(known))
