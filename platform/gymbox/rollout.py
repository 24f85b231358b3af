"""Rollout: agent × model × task × sandbox → reward, or no reward and a typed error. Read this first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import IO, Any, Protocol

from gymbox_sandbox.responses import Response
from gymbox_sandbox.tasks import Task, Verdict
from pydantic import BaseModel, ConfigDict, Field

from gymbox.agents import Agent, Tools
from gymbox.agents.outcome import check_answered, check_let_through, given_up, outcome_of
from gymbox.artifacts import Keep
from gymbox.environment import Environment
from gymbox.errors import ModelFailure, RolloutError, Stage
from gymbox.http import HttpClient
from gymbox.models import BoundModel, Model
from gymbox.models.rollout_endpoints import RolloutEndpoints
from gymbox.models.token_ids import mask_reason
from gymbox.network import way_out


class RolloutSandbox(Protocol):
    """What a rollout needs of its sandbox."""

    id: str

    @property
    def tools(self) -> Tools: ...

    @property
    def lead_models(self) -> Callable[[str, str], None] | None:
        """Sends model calls from inside to an address, with a key, if that can be; where the network is `models`."""

    @property
    def models_unanswered(self) -> Callable[[], int]:
        """How many model calls from inside got no answer, since the last that got one."""

    async def reset(self, task: dict[str, Any]) -> None: ...

    async def verify(
        self,
        task: dict[str, Any],
        response: Response,
        *,
        keep: Keep | None = None,
        artifacts: IO[bytes] | None = None,
    ) -> Verdict:
        """`keep` and `artifacts` only come where the manifest says `reverify: artifacts`."""


class RolloutController(Protocol):
    """What a rollout needs of the controller."""

    def sandbox(
        self, environment: Environment, *, id: str | None = None
    ) -> AbstractAsyncContextManager[RolloutSandbox]:
        """A sandbox of its own, deleted on the way out, whatever happened inside. Leaving it never raises: what could
        not be deleted is left to the controller's sweeper."""


class RolloutResult(BaseModel):
    """One line of `rollouts.jsonl`. `reward` is None exactly where `error` is set."""

    model_config = ConfigDict(extra="allow")

    rollout_id: str
    task_id: str
    environment: str
    reward: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    reward_components: dict[str, float] = Field(default_factory=dict)
    error: RolloutError | None = None
    response: Response | None = None
    sandbox: str | None = None
    began: float | None = None
    """Seconds since 1970 at which this attempt began."""
    timings: dict[str, float] = Field(default_factory=dict)
    """Seconds of each stage: provision, reset, agent, verify, total."""
    mask_sample: bool = False
    """Not to be trained on, for `mask_reason`; the reward counts all the same."""
    mask_reason: str | None = None


async def run_rollout(
    row: dict[str, Any],
    environment: Environment,
    agent: Agent,
    model: Model,
    controller: RolloutController,
    http: HttpClient,
    rollout_id: str,
    *,
    entered: Callable[[Stage], None] = lambda stage: None,
    endpoints: RolloutEndpoints | None = None,
    keep: Keep | None = None,
) -> RolloutResult:
    """Take one row all the way to a reward; whatever fails on the way is recorded in `error`, never raised.

    `entered` hears of each stage as it begins; `keep` is handed what the agent has left, where the manifest says
    `reverify: artifacts`.
    """
    result = RolloutResult(rollout_id=rollout_id, task_id=str(row.get("id", "")), environment=environment.name)
    result.began = round(time.time(), 3)
    bound = BoundModel(model, http, rollout=rollout_id, gold=row.get("gold_replies"), endpoints=endpoints)
    public = environment.public(row)
    clock = _Clock(result.timings, entered)
    try:
        async with asyncio.timeout(environment.manifest.timeouts.rollout):
            async with controller.sandbox(environment, id=rollout_id) as sandbox:
                result.sandbox = sandbox.id
                if calls_models(environment) and sandbox.lead_models is not None:
                    endpoint = await bound.endpoint()
                    sandbox.lead_models(endpoint.url, endpoint.key)
                clock.enter(Stage.RESET)
                await sandbox.reset(public)
                clock.enter(Stage.AGENT)
                result.response = await outcome_of(agent, Task.model_validate(public), bound, sandbox.tools)
                result.mask_reason = mask_reason(result.response.output)
                if calls_models(environment) or bound.account.by_endpoint:
                    check_answered(bound)
                    result.mask_reason = result.mask_reason or given_up(bound)
                clock.enter(Stage.VERIFY)
                task, response = environment.for_verify(row), result.response
                if keep is not None and environment.manifest.reverify == "artifacts":
                    verdict = await sandbox.verify(task, response, keep=keep)
                else:
                    verdict = await sandbox.verify(task, response)
                if calls_models(environment):  # of what its network saw, the last may be heard of only now
                    check_let_through(sandbox.models_unanswered())
                result.reward, result.metrics = verdict.reward, verdict.metrics
                result.reward_components = verdict.reward_components
    except Exception as error:  # the one broad except: a bad rollout is data, not a crash
        if result.reward is None:  # once scored it stays so, whatever becomes of the sandbox
            # the model's failure was the agent's, whenever it is heard of
            result.error = RolloutError.at(Stage.AGENT if isinstance(error, ModelFailure) else clock.stage, error)
    finally:
        await bound.close()
    result.mask_sample = result.mask_reason is not None
    clock.stop()
    return result


def calls_models(environment: Environment) -> bool:
    """Whether what runs in its sandboxes may call models."""
    way = way_out(environment.manifest.network)
    return way is not None and way.models


class _Clock:
    """Which stage a rollout is in, and how long each took."""

    def __init__(self, timings: dict[str, float], entered: Callable[[Stage], None]) -> None:
        self.stage = Stage.PROVISION
        self._timings = timings
        self._told = entered
        self._began = self._entered = time.perf_counter()
        entered(self.stage)

    def enter(self, stage: Stage) -> None:
        self._leave()
        self.stage = stage
        self._told(stage)

    def stop(self) -> None:
        self._leave()
        self._timings["total"] = round(time.perf_counter() - self._began, 6)

    def _leave(self) -> None:
        now = time.perf_counter()
        self._timings[self.stage.value] = round(now - self._entered, 6)
        self._entered = now
