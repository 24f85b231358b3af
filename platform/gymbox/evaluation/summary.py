"""Summary: the figures of a run, by environment, subset and task, with what is missing counted and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from gymbox.evaluation import formulas
from gymbox.evaluation.intervals import Intervals
from gymbox.evaluation.parts import Part, Planned, pad, pad_agents, parts_of, planned_of
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.tallies import Latency, Missing, Spread, Tally, together

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
    latency: Latency | None
    turns: Spread
    tool_calls: Spread
    tool_errors: Spread
    stop_reasons: dict[str, int]


class TaskFigures(_Frozen):
    """Of one task."""

    environment: str
    agent: str | None
    """Who tried, where the run has several agents."""
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
    agents: dict[str, dict[str, Figures]] = Field(default_factory=dict)
    """By environment and agent, where the run has several. The figures of an environment take all their tries for
    tries of its tasks; where each agent did all of them, what is told of k tries is told of each agent alone."""
    agent_totals: dict[str, Figures] = Field(default_factory=dict)
    """By agent, over all environments, where the run has several."""
    subsets: dict[str, dict[str, Figures]] = Field(default_factory=dict)
    """By environment and value of the field that tells subsets apart."""
    tasks: list[TaskFigures] = Field(default_factory=list)


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
        ConfigError: a line is damaged, or no rollout has the field `by` or `answer`.
    """
    found = parts_of(reader, by, answer)
    planned = planned_of(reader)
    pad(found.environments, planned)
    of_each = pad_agents(found, reader)
    mixed = reader.crossed and bool(reader.agents)  # then k tries of a task are of several agents, and tell of none
    whole = sum(each.rollouts for each in planned.values()) if planned else None

    def figures(parts: Iterable[Part], planned: int | None, *, mixed: bool = False) -> Figures:
        listed, tries = list(parts), None if mixed else ks
        return _figures(listed, planned, missing, success, level, tries, answer is not None, seed)

    intervals = Intervals(level, seed) if task_intervals else None

    def told(agent: str | None, parts: Mapping[str, Part]) -> list[TaskFigures]:
        return [
            task_figures(name, agent, task, tally, missing, success, intervals)
            for name in sorted(parts)
            for task, tally in parts[name].tallies.items()
            if tally.lines
        ]

    return Summary(
        run=reader.name,
        missing_policy=missing,
        success=success,
        level=level,
        torn_bytes=reader.torn,
        total=figures(found.environments.values(), whole, mixed=mixed),
        environments={
            name: figures([part], planned[name].rollouts if name in planned else None, mixed=mixed)
            for name, part in sorted(found.environments.items())
        },
        agents={
            name: {
                agent: figures([part], of_each[name].rollouts if name in of_each else None)
                for agent, part in sorted(each.items())
            }
            for name, each in sorted(found.agents.items())
        },
        agent_totals={
            agent: figures(shares.values(), _planned_in(of_each, shares))
            for agent in reader.agents
            if (shares := found.of_agent(agent))
        },
        subsets={
            name: {value: figures([part], None, mixed=mixed) for value, part in sorted(each.items())}
            for name, each in sorted(found.subsets.items())
        },
        tasks=[]
        if not tasks
        else [task for agent in reader.agents for task in told(agent, found.of_agent(agent))]
        if reader.agents
        else told(None, found.environments),
    )


def _planned_in(planned: Mapping[str, Planned], environments: Iterable[str]) -> int | None:
    """Rollouts in all of them; None where that is not told of each."""
    told = [planned[name].rollouts if name in planned else None for name in environments]
    return None if None in told else sum(each or 0 for each in told)


def task_figures(
    environment: str,
    agent: str | None,
    task: str,
    tally: Tally,
    missing: Missing,
    success: float,
    intervals: Intervals | None = None,
) -> TaskFigures:
    """Of one task."""
    rewards = tally.counted(missing)
    return TaskFigures(
        environment=environment,
        agent=agent,
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


def _figures(
    parts: list[Part],
    planned: int | None,
    policy: Missing,
    success: float,
    level: float,
    ks: Sequence[int] | None,
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
    tries = [] if ks is None else list(ks) or _ks(max((len(task) for task in tried), default=0))
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
        pass_at={k: _at([formulas.pass_at(k, n, c) for n, c in passed]) for k in tries},
        pass_all={k: _at([formulas.pass_all(k, n, c) for n, c in passed]) for k in tries},
        best_of={k: _at([formulas.best_of(k, task) for task in counted]) for k in tries},
        majority_at={k: _at([formulas.majority_at(k, each, seed=seed) for each in ballots]) for k in tries if votes},
        no_answer=silent / sum(len(tally.votes) for tally in tallies) if votes and rewards else None,
        components=sums.spreads("components"),
        metrics=sums.spreads("metrics"),
        input_tokens=sums.spread("input_tokens"),
        output_tokens=sums.spread("output_tokens"),
        cost=sums.spread("cost"),
        seconds=sums.spread("seconds"),
        latency=sums.latency(),
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
