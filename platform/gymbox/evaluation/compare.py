"""Compare: whether one run does better than another on the same tasks, and how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gymbox.errors import ConfigError
from gymbox.evaluation import formulas
from gymbox.evaluation.parts import NO_SUBSET, Part, pad, parts_of, planned_of
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import LEVEL
from gymbox.evaluation.tallies import Missing, Spread, Tally, together

SHOWN = 3
"""Tasks that an error names."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TaskDifference(_Frozen):
    """A task on which two runs differ: the mean reward in each."""

    task: str
    first: float
    second: float


class Difference(_Frozen):
    """Of a run to the first one, on the tasks of one environment, or of one subset of it, for which both have a
    reward."""

    environment: str
    subset: str | None = None
    """Of the task in the first run; in the second, where the first has not the task. None: all of the environment."""
    first: str
    second: str
    paired: int
    """Tasks that are compared."""
    left_out: int
    """Tasks of both runs of which one has no reward; with `as_failure` there are none."""
    only_in_one: int
    """Tasks that only one of them has; allowed with `common`."""
    first_mean: float | None
    """Over tasks, of the mean of each."""
    second_mean: float | None
    difference: float | None
    """The second's mean less the first's: above 0, the second is better."""
    standard_error: float | None
    interval: tuple[float, float] | None
    """Of the difference: a bootstrap over tasks."""
    test: Literal["mcnemar", "sign_flip"] | None
    """Exact McNemar where each task has one try in each run that fails or succeeds; else a permutation test."""
    p: float | None
    p_holm: float | None
    """Adjusted (Holm) for all environments and runs that are compared; of a subset, for all subsets of all of them."""
    verdict: Literal["better", "worse", "no_difference_shown", "unknown"]
    better: list[TaskDifference]
    worse: list[TaskDifference]


class RunTold(_Frozen):
    """What a run took, beside its rewards."""

    run: str
    rollouts: int
    missing: int
    errors: dict[str, int]
    cost: Spread
    seconds: Spread
    input_tokens: Spread
    output_tokens: Spread


class Comparison(_Frozen):
    """Of some runs to the first of them."""

    missing_policy: Missing
    level: float
    alpha: float
    """An adjusted p-value below it shows a difference."""
    runs: list[RunTold]
    differences: list[Difference]
    by: str | None = None
    """The field that tells subsets apart."""
    subsets: list[Difference] = Field(default_factory=list)
    """Where a field tells them apart. What is said of whole environments does not depend on them."""

    @property
    def worse(self) -> list[Difference]:
        """Those that show a run to be worse than the first, in an environment or a subset of one."""
        return [each for each in (*self.differences, *self.subsets) if each.verdict == "worse"]


def comparison(
    readers: Sequence[RunReader],
    *,
    missing: Missing = "excluded",
    common: bool = False,
    level: float = LEVEL,
    alpha: float = 0.05,
    by: str | None = None,
    seed: int = 0,
) -> Comparison:
    """Every further run against the first, environment by environment, paired by task. Of runs with several agents,
    each agent is compared with itself; those of one run alone with the first of them, by name.

    Args:
        common: also where they have not the same tasks; those that both have are compared.
        by: dotted path of a field in the lines whose values tell subsets apart, each of which is compared, too.

    Raises:
        ConfigError: fewer than two runs, and no agents to compare; runs of different agents, without a common
            environment, or of different tasks (without `common`); or a line is damaged.
    """
    found: list[Difference] = []
    subsets: list[Difference] = []
    groups = _sides(readers, by)
    for first, *others in groups:
        for other in others:
            for environment in _environments(first, other, common=common):
                mine, theirs = first.parts[environment].tallies, other.parts[environment].tallies
                _check_tasks(first, other, environment, set(mine), set(theirs), common=common)
                names = first.name, other.name
                found.append(_difference(environment, None, names, mine, theirs, missing, level, seed))
                subsets += [
                    _difference(environment, subset, names, *each, missing, level, seed)
                    for subset, each in (_subsets(mine, theirs) if by else ())
                ]
    return Comparison(
        missing_policy=missing,
        level=level,
        alpha=alpha,
        runs=[_told(side) for side in chain(*groups)],
        differences=_judged(found, alpha),
        by=by,
        subsets=_judged(subsets, alpha),
    )


@dataclass(frozen=True)
class _Side:
    """A run that is compared, or what one of its agents did."""

    reader: RunReader
    agent: str | None
    name: str
    parts: dict[str, Part]

    @property
    def place(self) -> str:
        return _place(self.reader.path, self.agent or self.reader.agent)


def _sides(readers: Sequence[RunReader], by: str | None) -> list[list[_Side]]:
    """What is compared with what: in each list, all others with the first.

    Raises:
        ConfigError: one run of one agent alone, or runs of different agents.
    """
    if len(readers) == 1 and len(readers[0].agents) > 1:  # its agents, with one another
        return [_of_agents(readers[0], readers[0].name, by)]
    if len(readers) < 2:
        raise ConfigError(
            "give two runs or more: each is compared with the first; one alone only where it has several agents"
        )
    names = names_of(readers)
    pairs = list(zip(readers, names, strict=True))
    if not any(reader.agents for reader in readers):
        return [[_Side(reader, None, name, parts_of(reader, by).environments) for reader, name in pairs]]
    for reader in readers[1:]:
        if reader.agents != readers[0].agents:
            several = next(each for each in (readers[0], reader) if each.agents)
            raise ConfigError(
                f"{readers[0].path} and {reader.path} have not the same agents; of one with several, "
                f"compare one agent: {several.path}:{several.agents[0]}"
            )
    return [list(group) for group in zip(*(_of_agents(reader, name, by) for reader, name in pairs), strict=True)]


def _of_agents(reader: RunReader, name: str, by: str | None) -> list[_Side]:
    parts = parts_of(reader, by)
    return [_Side(reader, agent, f"{name}:{agent}", parts.of_agent(agent)) for agent in reader.agents]


def names_of(readers: Sequence[RunReader]) -> list[str]:
    """Folders' names, or whole paths where two have the same; with the agent, where one is read."""
    names = [reader.name for reader in readers]
    return names if len(set(names)) == len(names) else [_place(reader.path, reader.agent) for reader in readers]


def _place(path: Path, agent: str | None) -> str:
    return str(path) if agent is None else f"{path}:{agent}"


def _environments(first: _Side, second: _Side, *, common: bool) -> list[str]:
    mine, theirs = first.parts.keys(), second.parts.keys()
    both = sorted(mine & theirs)
    if not both:
        told = f"{', '.join(sorted(mine)) or 'nothing'} and {', '.join(sorted(theirs)) or 'nothing'}"
        raise ConfigError(f"{first.place} and {second.place} have no environment in common: {told}")
    if (differ := sorted(mine ^ theirs)) and not common:
        raise ConfigError(
            f"only one of {first.place} and {second.place} has environment {', '.join(differ)}; --common compares the "
            "others"
        )
    return both


def _check_tasks(
    first: _Side, second: _Side, environment: str, mine: set[str], theirs: set[str], *, common: bool
) -> None:
    if not mine & theirs:
        raise ConfigError(f"{first.place} and {second.place} have no task of {environment} in common")
    if common:
        return
    digests = first.reader.dataset_of(environment), second.reader.dataset_of(environment)
    if None not in digests and digests[0] != digests[1]:
        raise ConfigError(
            f"{first.place} and {second.place} have different datasets of {environment} ({digests[0]:.12} and "
            f"{digests[1]:.12}); --common compares the tasks that both have"
        )
    if differ := sorted(mine ^ theirs):
        more = f" and {len(differ) - SHOWN} more" if len(differ) > SHOWN else ""
        raise ConfigError(
            f"only one of {first.place} and {second.place} has of {environment}: {', '.join(differ[:SHOWN])}{more}; "
            "--common compares the tasks that both have"
        )


def _difference(
    environment: str,
    subset: str | None,
    names: tuple[str, str],
    mine: dict[str, Tally],
    theirs: dict[str, Tally],
    missing: Missing,
    level: float,
    seed: int,
) -> Difference:
    both = [task for task in mine if task in theirs]
    pairs = _pairs(both, mine, theirs, missing)
    means = _means(pairs)
    gaps = [other - one for one, other in means.values()]
    single = all(len(one) == len(other) == 1 for one, other in pairs.values())
    rewards = {reward for pair in pairs.values() for side in pair for reward in side}
    test: Literal["mcnemar", "sign_flip"] | None = None
    p = None
    if pairs and single and rewards <= {0.0, 1.0}:
        test, p = "mcnemar", formulas.mcnemar(sum(gap < 0 for gap in gaps), sum(gap > 0 for gap in gaps))
    elif pairs:
        test, p = "sign_flip", formulas.sign_flip(gaps, seed=seed)
    changed = [
        TaskDifference(task=task, first=one, second=other) for task, (one, other) in means.items() if one != other
    ]
    changed.sort(key=lambda each: (-abs(each.second - each.first), each.task))
    return Difference(
        environment=environment,
        subset=subset,
        first=names[0],
        second=names[1],
        paired=len(pairs),
        left_out=len(both) - len(pairs),
        only_in_one=len(mine.keys() ^ theirs.keys()),
        first_mean=formulas.mean([one for one, _ in means.values()]),
        second_mean=formulas.mean([other for _, other in means.values()]),
        difference=formulas.mean(gaps),
        standard_error=formulas.standard_error(gaps),
        interval=formulas.bootstrap_interval([(gap, 1) for gap in gaps], level=level, seed=seed),
        test=test,
        p=p,
        p_holm=None,
        verdict="unknown",
        better=[each for each in changed if each.second > each.first],
        worse=[each for each in changed if each.second < each.first],
    )


def _subsets(
    mine: dict[str, Tally], theirs: dict[str, Tally]
) -> Iterator[tuple[str, tuple[dict[str, Tally], dict[str, Tally]]]]:
    """By name: the share of each of two runs in each subset of an environment."""
    shares: dict[str, tuple[dict[str, Tally], dict[str, Tally]]] = {}
    for task, tally in (theirs | mine).items():
        share = shares.setdefault(tally.subset or NO_SUBSET, ({}, {}))
        for whole, part in zip((mine, theirs), share, strict=True):
            if task in whole:
                part[task] = whole[task]
    yield from sorted(shares.items())


def _pairs(
    tasks: list[str], mine: dict[str, Tally], theirs: dict[str, Tally], missing: Missing
) -> dict[str, tuple[list[float], list[float]]]:
    """The rewards in both runs of those of the tasks that have some in both."""
    pairs = {task: (mine[task].counted(missing), theirs[task].counted(missing)) for task in tasks}
    return {task: (one, other) for task, (one, other) in pairs.items() if one and other}


def _means(pairs: dict[str, tuple[list[float], list[float]]]) -> dict[str, tuple[float, float]]:
    return {task: (sum(one) / len(one), sum(other) / len(other)) for task, (one, other) in pairs.items()}


def _judged(found: list[Difference], alpha: float) -> list[Difference]:
    """The same with verdicts, each adjusted for all of them."""
    adjusted = iter(formulas.holm([each.p for each in found if each.p is not None]))
    return [each if each.p is None else _with_verdict(each, next(adjusted), alpha) for each in found]


def _with_verdict(found: Difference, adjusted: float, alpha: float) -> Difference:
    verdict = "no_difference_shown"
    if adjusted < alpha and found.difference:
        verdict = "better" if found.difference > 0 else "worse"
    return found.model_copy(update={"p_holm": adjusted, "verdict": verdict})


def _told(side: _Side) -> RunTold:
    pad(side.parts, planned_of(side.reader, of_each_agent=side.agent is not None))
    tallies = [tally for part in side.parts.values() for tally in part.tallies.values()]
    sums = together([part.sums for part in side.parts.values()])
    return RunTold(
        run=side.name,
        rollouts=sum(tally.lines for tally in tallies),
        missing=sum(tally.missing for tally in tallies),
        errors=dict(sum((tally.errors for tally in tallies), Counter[str]())),
        cost=sums.spread("cost"),
        seconds=sums.spread("seconds"),
        input_tokens=sums.spread("input_tokens"),
        output_tokens=sums.spread("output_tokens"),
    )
