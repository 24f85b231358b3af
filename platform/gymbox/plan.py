"""Plan: what a run consists of, as its settings say."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, field_validator

from gymbox.budget import Budget
from gymbox.dataset import Dataset, Row, open_datasets
from gymbox.environment import Environment
from gymbox.errors import ConfigError, ErrorKind, nearest
from gymbox.models.capture import Mode
from gymbox.row_check import PARAMS

Tasks = Annotated[int, Field(ge=1)]
Repeats = Annotated[int, Field(ge=1, le=100_000)]
Attempts = Annotated[int, Field(ge=1, le=10)]
Weight = Annotated[float, Field(gt=0, le=1_000_000)]
DEFAULT = "_default"


def _for_all(value: Any) -> Any:
    """A number alone counts for everything that is not named."""
    return {DEFAULT: value} if isinstance(value, int | str) and not isinstance(value, bool) else value


def _plain(setting: dict[str, int]) -> Any:
    return setting[DEFAULT] if setting.keys() == {DEFAULT} else setting


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
    give_up_after: int = Field(10, ge=0)
    """Stop the run when this many rollouts have ended and every one with the same error, `model_unauthorized`,
    `model_unavailable` or `judge_failed`: all others would fail alike. 0: never."""
    capture: Mode = "off"
    """Whether the model's calls are recorded in the run's folder; `sampled`: those of a part of the rollouts."""
    capture_rate: float = Field(0.1, ge=0, le=1)
    """That part; the same rollouts in every run of the same tasks."""
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
        return self.model_dump(
            mode="json", include={"limit", "repeats", "order", "seed", "shard", "params", "seed_repeats"}
        )

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


@dataclass(frozen=True, slots=True)
class Slot:
    """One rollout to do: which task of which environment, and which of its repeats."""

    environment: Environment
    row: Row
    repeat: int

    def id(self, run: str) -> str:
        """The same in every start of the run `run`, and fit for a sandbox's name."""
        name = self.environment.name
        if len(name) > 60:
            name = f"{name[:50]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return f"{run}-{name}-{self.row.index}-{self.repeat}"


class Plan:
    """What a run consists of: every row checked, each read again only when its turn comes."""

    def __init__(
        self, environments: Sequence[Environment], settings: RunnerSettings, cache: Path | None = None
    ) -> None:
        """
        Args:
            cache: see `open_datasets`.

        Raises:
            ConfigError: faulty rows, all of them, or a dataset that cannot be read; or a setting by environment names
                one that is not in the run.
        """
        self.settings = settings
        self.environments = environments
        _check_names(settings, [environment.name for environment in environments])
        self._datasets: list[Dataset] = open_datasets(environments, cache)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for dataset in self._datasets:
            dataset.close()

    def __len__(self) -> int:
        return sum(self.sizes().values())

    def sizes(self) -> dict[str, int]:
        """Rollouts of each environment."""
        return {
            environment.name: len(self._order(environment, dataset)) * self.settings.repeats_of(environment.name)
            for environment, dataset in zip(self.environments, self._datasets, strict=True)
        }

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
        names = [each.name for each in self.environments]
        return self._asked(self._datasets[names.index(environment)][index], repeat)

    def inputs(self) -> dict[str, Any]:
        """Digests and settings on which the results depend; see `RunManifest.inputs`."""
        return {
            "runner": self.settings.inputs(),
            "environments": {
                environment.name: {"digest": environment.digest, "dataset": dataset.sha256, "rows": len(dataset)}
                for environment, dataset in zip(self.environments, self._datasets, strict=True)
            },
        }

    def _slots(self, environment: Environment, dataset: Dataset) -> Iterator[Slot]:
        for index in self._order(environment, dataset):
            row = dataset[index]
            for repeat in range(self.settings.repeats_of(environment.name)):
                yield Slot(environment, self._asked(row, repeat), repeat)

    def _asked(self, row: Row, repeat: int) -> Row:
        """The row with what the settings say of every request."""
        own = dict(self.settings.params)
        if self.settings.seed_repeats:
            own["seed"] = self.settings.seed + repeat
        return replace(row, fields={**row.fields, PARAMS: {**row.fields[PARAMS], **own}}) if own else row

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
    for field in ("limit", "repeats", "weights"):
        for name in getattr(settings, field) or ():
            if name not in names and (name != DEFAULT or field == "weights"):
                raise ConfigError(f"runner.{field}: this run has no environment {name!r}; {nearest(name, names)}")
