"""Plan: what a run consists of, as its settings say."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from gymbox_sandbox.tasks import HIDDEN

from gymbox.dataset import Dataset, Row, open_datasets
from gymbox.datasets.templates import Prompt
from gymbox.environment import Environment
from gymbox.errors import ConfigError, nearest
from gymbox.row_check import PARAMS, agent_named
from gymbox.runner_settings import BY_ENVIRONMENT, DEFAULT, DEFAULT_AGENT, RunnerSettings


@dataclass(frozen=True, slots=True)
class Slot:
    """One rollout to do: which task of which environment, which of its repeats, and by whom."""

    environment: Environment
    row: Row
    repeat: int
    agent: str | None = None
    """Name of one of the run's `agents`; None: its `agent` does it."""
    crossed: bool = False
    """Whether other agents do the same task, so that the name is part of the id."""

    def id(self, run: str) -> str:
        """The same in every start of the run `run`, and fit for a sandbox's name."""
        name = f"{self.environment.name}.{self.agent}" if self.crossed else self.environment.name
        if len(name) > 60:
            name = f"{name[:50]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return f"{run}-{name}-{self.row.index}-{self.repeat}"


class Plan:
    """What a run consists of: every row checked, each read again only when its turn comes."""

    def __init__(
        self,
        environments: Sequence[Environment],
        settings: RunnerSettings,
        cache: Path | None = None,
        agents: Collection[str] = (),
    ) -> None:
        """
        Args:
            cache: see `open_datasets`.
            agents: names of the agents that rows and settings may choose from; with none, what rows say of agents
                does not count.

        Raises:
            ConfigError: faulty rows, all of them, or a dataset that cannot be read; or a setting by environment names
                one that is not in the run; or an agent that is not in the run is chosen, or one that is there never.
        """
        self._set_up(environments, settings, agents)
        chosen = [] if settings.cross_agents else self.agents
        self._datasets: list[Dataset] = open_datasets(environments, cache, prompts=self._prompts, agents=chosen)
        try:
            self._check_use()
        except ConfigError:
            self.close()
            raise

    def _set_up(self, environments: Sequence[Environment], settings: RunnerSettings, agents: Collection[str]) -> None:
        """Everything but the rows."""
        self.settings = settings
        self.environments = environments
        self.agents = sorted(agents)
        _check_names(settings, [environment.name for environment in environments])
        _check_agents(settings, self.agents)
        self._prompts = {environment.name: _prompt(settings, environment) for environment in environments}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for dataset in self._datasets:
            dataset.close()

    def __len__(self) -> int:
        return sum(self.sizes().values())

    def sizes(self) -> dict[str, int]:
        """Rollouts of each environment."""
        return {
            environment.name: len(self._order(environment, dataset)) * self._rollouts_of_a_task(environment)
            for environment, dataset in zip(self.environments, self._datasets, strict=True)
        }

    @property
    def uses_default_agent(self) -> bool:
        """Whether `agent` has anything to do where there are named ones."""
        if self.settings.cross_agents:
            return False
        chosen = (self.settings.agent_for(each.name) for each in self.environments)
        pairs = zip(chosen, self._datasets, strict=True)
        return not self.agents or any(name is None and dataset.unnamed for name, dataset in pairs)

    def __iter__(self) -> Iterator[Slot]:
        """Environments take turns, so that what is wrong with one of them shows early; one of a greater weight has
        more of them, evenly spread (smooth weighted round-robin, as in nginx)."""
        turns = [self._slots(*pair) for pair in zip(self.environments, self._datasets, strict=True)]
        weights = [self.settings.weights.get(environment.name, 1) for environment in self.environments]
        credit = [0.0] * len(turns)
        left = list(range(len(turns)))
        while left:
            for number in left:
                credit[number] += weights[number]
            chosen = max(left, key=credit.__getitem__)
            credit[chosen] -= sum(weights[number] for number in left)
            slot = next(turns[chosen], None)
            if slot is None:
                left.remove(chosen)
            else:
                yield slot

    def row(self, environment: str, index: int, repeat: int) -> Row:
        """A task's row as its slot has it."""
        number = [each.name for each in self.environments].index(environment)
        found = self.environments[number]
        return self._asked(found, self._rendered(found, self._datasets[number][index]), repeat)

    def inputs(self) -> dict[str, Any]:
        """Digests and settings on which the results depend; see `RunManifest.inputs`."""
        return {
            "runner": self.settings.inputs(),
            "environments": {
                environment.name: {
                    "digest": environment.digest,
                    "dataset": dataset.sha256,
                    "rows": len(dataset),
                    **({"prompt": prompt.sha256} if (prompt := self._prompts[environment.name]) else {}),
                }
                for environment, dataset in zip(self.environments, self._datasets, strict=True)
            },
        }

    def _slots(self, environment: Environment, dataset: Dataset) -> Iterator[Slot]:
        for index in self._order(environment, dataset):
            yield from self._slots_of(environment, dataset[index])

    def _slots_of(self, environment: Environment, row: Row) -> Iterator[Slot]:
        """All that is to be done of one task."""
        row, crossed = self._rendered(environment, row), self.settings.cross_agents
        for agent in self.agents if crossed else [self._agent_of(environment, row)]:
            for repeat in range(self.settings.repeats_of(environment.name)):
                yield Slot(environment, self._asked(environment, row, repeat), repeat, agent, crossed)

    def _rendered(self, environment: Environment, row: Row) -> Row:
        prompt = self._prompts[environment.name]
        return row if prompt is None else replace(row, fields=prompt.rendered(row.fields))

    def _agent_of(self, environment: Environment, row: Row) -> str | None:
        if not self.agents:
            return None
        return agent_named(row.fields) or self.settings.agent_for(environment.name)

    def _asked(self, environment: Environment, row: Row, repeat: int) -> Row:
        """The row with what the settings say of every request."""
        own = self.settings.params_for(environment.name, repeat)
        return replace(row, fields={**row.fields, PARAMS: {**row.fields[PARAMS], **own}}) if own else row

    def _rollouts_of_a_task(self, environment: Environment) -> int:
        return self.settings.repeats_of(environment.name) * (len(self.agents) if self.settings.cross_agents else 1)

    def _check_use(self) -> None:
        """
        Raises:
            ConfigError: an agent that was named has nothing to do.
        """
        if self.settings.cross_agents:
            return
        used = {*self.settings.agent_of.values(), *(name for dataset in self._datasets for name in dataset.agents)}
        for name in self.agents:
            if name not in used:
                raise ConfigError(
                    f"agents.{name} has nothing to do: no row names it (as agent_ref.name or agent), and neither does "
                    "runner.agent_of; with runner.cross_agents=true each agent does every task"
                )

    def _order(self, environment: Environment, dataset: Dataset) -> Sequence[int]:
        tasks = self.settings.tasks_of(environment.name, len(dataset))
        order: Sequence[int] = range(tasks)
        if self.settings.order == "shuffled":
            order = random.Random(f"{self.settings.seed}/{environment.name}").sample(range(len(dataset)), tasks)
        return self.settings.of_shard(order)


def _check_names(settings: RunnerSettings, names: list[str]) -> None:
    """
    Raises:
        ConfigError: a setting names an environment that is not one of these.
    """
    for field in BY_ENVIRONMENT:
        for name in getattr(settings, field) or ():
            if name not in names and (name != DEFAULT or field in ("weights", "params_of")):
                raise ConfigError(f"runner.{field}: this run has no environment {name!r}; {nearest(name, names)}")


def _check_agents(settings: RunnerSettings, names: list[str]) -> None:
    """
    Raises:
        ConfigError: the settings choose an agent that is not one of these, or contradict themselves.
    """
    if DEFAULT_AGENT in names:
        raise ConfigError(f"agents.{DEFAULT_AGENT}: choose another name; this one is for what agent= sets")
    if settings.cross_agents and settings.agent_of:
        raise ConfigError("with runner.cross_agents=true each agent does every task: leave runner.agent_of out")
    if not names and (settings.cross_agents or settings.agent_of):
        setting = "cross_agents" if settings.cross_agents else "agent_of"
        raise ConfigError(f"runner.{setting} needs agents with names: add agents.NAME=tool_loop for each")
    for environment, name in settings.agent_of.items():
        if name not in names:
            raise ConfigError(f"runner.agent_of.{environment}: there is no agent {name!r}; {nearest(name, names)}")


def _prompt(settings: RunnerSettings, environment: Environment) -> Prompt | None:
    """
    Raises:
        ConfigError: see `Prompt.load`.
    """
    path = settings.prompt_of(environment.name)
    hidden = {*HIDDEN, *environment.manifest.hidden_fields}
    return None if path is None else Prompt.load(path, hidden, replace=settings.replace_input)
