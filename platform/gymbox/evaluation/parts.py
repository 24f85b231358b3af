"""Parts: what is kept of a run's environments, agents and subsets while its lines go by."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gymbox.errors import ConfigError, nearest
from gymbox.evaluation.rollouts import Rollout, RunReader
from gymbox.evaluation.tallies import Sums, Tally
from gymbox.runner_settings import RunnerSettings

NO_SUBSET = "(none)"
"""Where the tasks stand whose lines have not the field that tells subsets apart."""


LOOKED_AT = 100
"""Rollouts of which a mistyped field is compared with the fields."""


@dataclass(frozen=True)
class Planned:
    """Of an environment, or an agent's of it: how many tasks, and the rollouts of each."""

    tasks: int
    repeats: int
    by_task: Mapping[str, int] = field(default_factory=dict)
    """The rollouts of each task, where its row is known; then not all need have `repeats`."""

    @property
    def rollouts(self) -> int:
        return sum(self.by_task.values()) if self.by_task else self.tasks * self.repeats

    def of(self, task: str) -> int:
        """Rollouts of a task."""
        return self.by_task.get(task, 0) if self.by_task else self.repeats


@dataclass
class Part:
    """What is read of an environment, of an agent's share of it, or of a subset of its tasks."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)

    def add(self, rollout: Rollout, answer: str | None) -> Tally:
        """Count a rollout; the tally of its task."""
        tally = self.tallies.setdefault(rollout.task, Tally())
        self.sums.add(rollout)
        tally.lines += 1
        if rollout.reward is not None:
            tally.rewards.append(rollout.reward)
            if answer:
                tally.votes.append((_vote(rollout.at(answer)), rollout.reward))
        else:
            tally.errors[rollout.error or "no_reward"] += 1
        return tally


@dataclass
class Parts:
    """A run, taken apart in three ways. A subset shares the tallies of its environment."""

    environments: dict[str, Part] = field(default_factory=dict)
    agents: dict[str, dict[str, Part]] = field(default_factory=dict)
    """By environment and agent, where the run has several."""
    subsets: dict[str, dict[str, Part]] = field(default_factory=dict)

    def of_agent(self, agent: str) -> dict[str, Part]:
        """An agent's share of each environment, as far as it has lines there, or was planned to."""
        return {name: found[agent] for name, found in self.agents.items() if agent in found}


def agent_of(rollout: Rollout) -> str:
    """Under which name it counts where the agents of a run are told apart."""
    return rollout.agent or "(none)"


def parts_of(reader: RunReader, by: str | None = None, answer: str | None = None) -> Parts:
    """What the lines of a run tell, read once.

    Args:
        by: dotted path of a field whose values tell subsets apart.
        answer: dotted path of the answer, for votes.

    Raises:
        ConfigError: a line is damaged, no rollout has the field `by`, or none of those with a reward has `answer`.
    """
    parts, several = Parts(), bool(reader.agents)
    unseen_by, unseen_answer, voted = bool(by), bool(answer), False
    for rollout in reader:
        name = rollout.environment
        tallies = [parts.environments.setdefault(name, Part()).add(rollout, answer)]
        if several:
            share = parts.agents.setdefault(name, {}).setdefault(agent_of(rollout), Part())
            tallies.append(share.add(rollout, answer))
        if answer and rollout.reward is not None:
            voted = True
            unseen_answer = unseen_answer and not _may_have(rollout.line, answer)
        if by:
            value = rollout.at(by)
            unseen_by = unseen_by and not _may_have(rollout.line, by)
            for tally in tallies:
                tally.subset = NO_SUBSET if value is None else str(value)
            subset = parts.subsets.setdefault(name, {}).setdefault(str(tallies[0].subset), Part())
            subset.tallies[rollout.task] = tallies[0]
            subset.sums.add(rollout)
    if by and unseen_by and parts.environments:
        raise ConfigError(f"no rollout of {reader.path} has a field {by}; {_near(by, reader)}")
    if answer and unseen_answer and voted:
        raise ConfigError(
            f"no rollout of {reader.path} with a reward has a field {answer} for its answer; {_near(answer, reader)}"
        )
    return parts


def _near(field: str, reader: RunReader) -> str:
    names = {name for rollout in islice(reader, LOOKED_AT) for name in _fields(rollout.line)}
    return nearest(field, sorted(names))


def _may_have(line: Mapping[str, Any], path: str) -> bool:
    """Whether the field is there, or what it is part of is null: so `error.kind` where nothing has failed."""
    value: Any = line
    for name in path.split("."):
        if value is None:
            return True
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True


def _fields(line: Mapping[str, Any]) -> Iterator[str]:
    """Dotted paths of what may tell subsets apart: single values of the line and one level below."""
    for name, value in line.items():
        below = value if isinstance(value, dict) and name not in ("response", "responses_create_params") else {}
        yield from (f"{name}.{each}" for each, inner in below.items() if not isinstance(inner, dict | list))
        if not isinstance(value, dict | list):
            yield name


def planned_of(reader: RunReader, *, of_each_agent: bool = False) -> dict[str, Planned]:
    """What each environment was planned to have, as the manifest says, or the rows beside NeMo Gym's rollouts; or, of
    a run with several agents, each agent of it. Empty where that is not told: so for agents that were chosen by rows.

    Raises:
        ConfigError: see `RunReader.given`.
    """
    if not of_each_agent and (given := reader.given()):
        return {name: Planned(len(tasks), max(tasks.values()), tasks) for name, tasks in given.items()}
    if not reader.inputs.get("environments"):
        return {}
    of_each_agent = of_each_agent or reader.share_of is not None
    if of_each_agent and not reader.crossed:
        return {}
    runner = reader.inputs.get("runner") or {}
    kept = {name: runner[name] for name in ("limit", "repeats", "shard") if runner.get(name) is not None}
    settings, planned = RunnerSettings.model_validate(kept), {}
    times = len(reader.agents) if reader.crossed and not of_each_agent else 1
    for name, told in reader.inputs["environments"].items():
        if "rows" in told:
            tasks = settings.of_shard(range(settings.tasks_of(name, told["rows"])))
            planned[name] = Planned(len(tasks), settings.repeats_of(name) * times)
    return planned


def pad(parts: dict[str, Part], planned: Mapping[str, Planned]) -> None:
    """Enter what was planned and never done."""
    for name, whole in planned.items():
        tallies = parts.setdefault(name, Part()).tallies
        for task in whole.by_task:
            tallies.setdefault(task, Tally())
        for task, tally in tallies.items():
            tally.padding = max(0, whole.of(task) - tally.lines)
        for number in range(whole.tasks - len(tallies)):
            tallies[f"(not done {number + 1})"] = Tally(padding=whole.repeats)


def pad_agents(parts: Parts, reader: RunReader) -> dict[str, Planned]:
    """The same for each agent of a run with several; what was planned for each."""
    planned = planned_of(reader, of_each_agent=True)
    for agent in reader.agents:
        shares = parts.of_agent(agent)
        pad(shares, planned)
        for name, share in shares.items():
            parts.agents.setdefault(name, {})[agent] = share
    return planned


def _vote(answer: Any) -> Hashable | None:
    if answer is None or (isinstance(answer, str) and not answer.strip()):
        return None
    return answer.strip() if isinstance(answer, str) else repr(answer)
