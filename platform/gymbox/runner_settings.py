"""Runner settings: how a run goes about its rollouts, as its caller says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from gymbox_sandbox.lifecycle import Priority
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, field_validator

from gymbox.budget import Budget
from gymbox.errors import ErrorKind, nearest
from gymbox.models.capture import Mode

Tasks = Annotated[int, Field(ge=1)]
Repeats = Annotated[int, Field(ge=1, le=100_000)]
Attempts = Annotated[int, Field(ge=1, le=10)]
Weight = Annotated[float, Field(gt=0, le=1_000_000)]
DEFAULT = "_default"
BY_ENVIRONMENT = ("limit", "repeats", "weights", "params_of", "prompt", "agent_of")
"""Settings that may be told by an environment's name."""
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
