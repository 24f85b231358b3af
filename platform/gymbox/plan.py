"""Plan: what a run consists of, as its settings say."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from gymbox_sandbox.lifecycle import Priority
from gymbox_sandbox.tasks import HIDDEN
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, field_validator

from gymbox.budget import Budget
from gymbox.dataset import Dataset, Row, open_datasets
from gymbox.datasets.templates import Prompt
from gymbox.environment import Environment
from gymbox.errors import ConfigError, ErrorKind, nearest
from gymbox.models.capture import Mode
from gymbox.row_check import PARAMS, agent_named

Tasks = Annotated[int, Field(ge=1)]
Repeats = Annotated[int, Field(ge=1, le=100_000)]
Attempts = Annotated[int, Field(ge=1, le=10)]
Weight = Annotated[float, Field(gt=0, le=1_000_000)]
DEFAULT = "_default"
AGENT_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,49}$"
"""Of agents that are told apart by a name: it is part of a sandbox's name where each does all tasks."""
DEFAULT_AGENT = "agent"
"""What the one that does all else is called where there are others."""


def _for_all(value: Any) -> Any:
    """A number alone counts for everything that is not named."""
    return {DEFAULT: value} if isinstance(value, int | str | Path) and not isinstance(value, bool) else value


def _plain(setting: dict[str, Any]) -> Any:
    told = {name: str(value) if isinstance(value, Path) else value for name, value in setting.items()}
    return told[DEFAULT] if told.keys() == {DEFAULT} else told


ForAll, Plain = BeforeValidator(_for_all), PlainSerializer(_plain)


class RunnerSettings(BaseModel):
    """How a run goes about its rollouts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    output: Path | None = None
    """Folder for the results, new or empty. Default: `runs/<time>-<environments>`."""
    limit: Annotated[dict[str, Tasks], ForAll, Plain] | None = None
    """Tasks of each environment; default all. Also by environment: `{counter: 5, _default: 100}`."""
    repeats: Annotated[dict[str, Repeats], ForAll, Plain] = Field(default={DEFAULT: 1})
    """Rollouts of each task. Also by environment: `{counter: 4, _default: 1}`."""
    weights: dict[str, Weight] = Field(default_factory=dict)
    """How many turns an environment gets while another, of weight 1, gets one. All tasks are done in any case."""
    shard: str | None = Field(None, pattern=r"^[0-9]+/[0-9]+$")
    """`2/8`: only the second of eight parts of the tasks, to be put together by `gymbox merge`. All repeats of a
    task are in the same part."""
    params: dict[str, Any] = Field(default_factory=dict)
    """What every row's `responses_create_params` are given in place of their own: `{temperature: 0.2}`."""
    params_of: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """The same for an environment's rows alone, beside and before `params`: `{counter: {temperature: 0}}`."""
    prompt: Annotated[dict[str, Path], ForAll, Plain] | None = None
    """Template that makes each row's input from its fields: a YAML file with `user` and perhaps `system`. Also by
    environment: `{counter: counter.yaml, _default: any.yaml}`."""
    replace_input: bool = False
    """With `prompt`: also of rows that have an input, in the place of it; else such rows are refused."""
    agent_of: dict[str, str] = Field(default_factory=dict)
    """Which of `agents` does an environment's tasks where their rows name none: `{counter: one, _default: two}`."""
    cross_agents: bool = False
    """Each of `agents` does every task, whatever the rows say, and each with all repeats."""
    seed_repeats: bool = False
    """Ask for each repeat with a `seed` of its own, `seed` plus its number, where the endpoint knows such a field."""
    concurrency: int = Field(8, ge=1, le=65_536)
    """Rollouts under way at once."""
    order: Literal["dataset", "shuffled"] = "dataset"
    """`shuffled` draws the tasks in an order that `seed` fixes, so `limit` becomes a sample."""
    seed: int = 0
    attempts: Annotated[dict[str, Attempts], ForAll, Plain] = Field(default={DEFAULT: 1})
    """How often a rollout may be tried in all when it ends in an error that a retry can help; each failed attempt is
    recorded. Also by kind: `{model_rate_limited: 5, _default: 1}`; what no retry can help is never tried again. More
    than one gives slow rollouts a second chance too: mind it when you compare scores."""
    resume: bool = False
    """Go on with the run in `output`: what has its line there is not done again."""
    retry_failed: bool = False
    """With `resume`: do again what has ended in an error; the lines that said so move to `failures.jsonl`."""
    priority: Priority = "normal"
    """Where several runs share a controller: `high`, `normal` and `low` have its places as 100 : 10 : 1 while they are
    scarce. Nothing under way is stopped for it, and none waits for ever."""
    share: float = Field(1, gt=0, le=1_000_000)
    """Its part of the places of a shared controller, beside other runs of its priority: 3 has three for one of 1."""
    give_up_after: int = Field(10, ge=0)
    """Stop the run when this many rollouts have ended and every one with the same error, `model_unauthorized`,
    `model_unavailable` or `judge_failed`: all others would fail alike. 0: never."""
    capture: Mode = "off"
    """Whether the model's calls are recorded in the run's folder; `sampled`: those of a part of the rollouts."""
    capture_rate: float = Field(0.1, ge=0, le=1)
    """That part; the same rollouts in every run of the same tasks."""
    layout: Literal["gymbox", "nemo"] = "gymbox"
    """`nemo`: when the run ends, write its rollouts as NeMo Gym's files, too, into `nemo_gym/` of its folder."""
    ready_timeout: float = Field(60, ge=0)
    """Seconds for which a run waits, before it starts anything, until the model (and the judge) give any answer at
    all; where they give none, it says so and ends. 0: it begins at once."""
    grace: float = Field(30, ge=0)
    """Seconds that running rollouts get to end after Ctrl-C, or once the budget is used up; then they are dropped, for
    a resume to do again."""
    budget: Budget = Budget()
    """What the run may use in all its starts, such as `{tokens: 1_000_000, cost: 5, seconds: 3600}`. When a limit is
    reached no further rollout starts and the run ends as `stopped`, to be gone on with by a larger budget."""

    @field_validator("capture", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value  # YAML's reading

    @field_validator("shard")
    @classmethod
    def _part(cls, value: str | None) -> str | None:
        if value is not None:
            part, parts = map(int, value.split("/"))
            if not 1 <= part <= parts:
                raise ValueError(
                    f"shard {value}: write PART/PARTS, from 1/{max(parts, 1)} to {max(parts, 1)}/{max(parts, 1)}"
                )
        return value

    @field_validator("attempts")
    @classmethod
    def _kinds(cls, value: dict[str, int]) -> dict[str, int]:
        known = [kind.value for kind in ErrorKind]
        for name in value.keys() - {DEFAULT, *known}:
            raise ValueError(f"there is no kind of error {name!r}; {nearest(name, known)}")
        return value

    def inputs(self) -> dict[str, Any]:
        """The part on which the results depend."""
        always = {"limit", "repeats", "order", "seed", "shard", "params", "seed_repeats"}
        used = {name for name in ("params_of", "agent_of", "cross_agents") if getattr(self, name)}
        return self.model_dump(mode="json", include=always | used)

    def attempts_at(self, kind: ErrorKind) -> int:
        """How often a rollout that ends so may be tried in all."""
        return self.attempts.get(kind.value, self.attempts.get(DEFAULT, 1))

    def limit_of(self, environment: str) -> int | None:
        """Tasks of an environment; None: all."""
        return None if self.limit is None else self.limit.get(environment, self.limit.get(DEFAULT))

    def tasks_of(self, environment: str, rows: int) -> int:
        """Tasks of an environment whose dataset has so many rows, those of all shards together."""
        return min(rows, self.limit_of(environment) or rows)

    def of_shard(self, tasks: Sequence[int]) -> Sequence[int]:
        """Those of an environment's tasks that this run does."""
        if self.shard is None:
            return tasks
        part, parts = map(int, self.shard.split("/"))
        return tasks[part - 1 :: parts]

    def repeats_of(self, environment: str) -> int:
        """Rollouts of each task of an environment."""
        return self.repeats.get(environment, self.repeats.get(DEFAULT, 1))

    def params_for(self, environment: str, repeat: int) -> dict[str, Any]:
        """What a request is given in place of the row's own."""
        seed = {"seed": self.seed + repeat} if self.seed_repeats else {}
        return {**self.params, **self.params_of.get(environment, {}), **seed}

    def agent_for(self, environment: str) -> str | None:
        """Which of several agents does an environment's tasks whose rows name none; None: `agent`."""
        return self.agent_of.get(environment, self.agent_of.get(DEFAULT))

    def prompt_of(self, environment: str) -> Path | None:
        """The template of an environment's rows; None: they have their input."""
        return None if self.prompt is None else self.prompt.get(environment, self.prompt.get(DEFAULT))


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
    for field in ("limit", "repeats", "weights", "params_of", "prompt", "agent_of"):
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
