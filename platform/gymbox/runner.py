"""Runner: many rollouts at once, each result on disk as it ends, to be stopped and resumed at will."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from gymbox_sandbox.responses import Response
from pydantic import BaseModel, Field

from gymbox import logs
from gymbox.artifacts import ArtifactStore, KeptArtifacts
from gymbox.budget import Meter, Reached
from gymbox.cancels import Cancelled
from gymbox.errors import ErrorKind, RolloutError, Stage
from gymbox.http import HttpClient
from gymbox.models.capture import Capture
from gymbox.models.cassettes import CALLS
from gymbox.models.trajectories import has_token_ids, rebuilt, told_of
from gymbox.plan import Plan, Slot
from gymbox.players import Member, Players, members_of
from gymbox.results import RunFolder
from gymbox.rollout import RolloutController, RolloutResult, run_rollout
from gymbox.run_control import RunControl
from gymbox.run_manifest import Status
from gymbox.runner_settings import DEFAULT_AGENT
from gymbox.scores import Score

RETRY_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the second attempt, doubled for each further one; and at most."""
HOPELESS = (ErrorKind.MODEL_UNAUTHORIZED, ErrorKind.MODEL_UNAVAILABLE, ErrorKind.JUDGE_FAILED)
"""What says more of the models than of the rollout, where it is all that is heard."""
ATTEMPT = {"error", "began", "timings"}
"""What a line tells of an attempt before the last."""
log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Told what happens, for display."""

    def started(self, slot: Slot) -> None: ...

    def entered(self, slot: Slot, stage: Stage) -> None:
        """An attempt at it has come to that stage."""

    def ended(self, slot: Slot, result: RolloutResult | None) -> None:
        """`result` is None if it was cancelled; else it is on disk."""


class Feed(Protocol):
    """Where a run's workers have their slots from."""

    @property
    def ended(self) -> bool:
        """Whether there will be no further one."""

    async def next(self) -> Slot | None:
        """The next one, waited for; None when there is none."""


class Summary(BaseModel):
    """How a run ended."""

    run: str
    folder: Path
    status: Status
    planned: int
    done: int
    total: Score
    environments: dict[str, Score]
    agents: dict[str, dict[str, Score]] = Field(default_factory=dict)
    """By environment and agent, where there are several."""
    gave_up: str = ""
    """Why the run stopped of its own accord."""
    stopped_by: Reached | None = None
    """The limit of its budget that it came to."""

    @property
    def complete(self) -> bool:
        """Whether every planned rollout has a reward."""
        return self.total.scored == self.planned


async def run(
    plan: Plan,
    players: Players,
    controller: RolloutController,
    http: HttpClient,
    folder: RunFolder,
    *,
    watcher: Watcher | None = None,
    control: RunControl | None = None,
    meter: Meter | None = None,
    feed: Feed | None = None,
    notes: Callable[[str], dict[str, Any]] = lambda attempt: {},
    retry_pause: float = RETRY_PAUSE,
) -> Summary:
    """Do what `folder` has no line for yet, then close it.

    One failed rollout never ends the others. Once `control` is stopped no new one starts, and those under way get
    `settings.grace` seconds; once they are dropped, or this call is cancelled, they end at once. What was dropped has
    no line. A run that gives up (`settings.give_up_after`) drops them itself; one whose budget is used up stops.

    Args:
        players: who does the rollouts whose slots name that agent of the plan's `agents`; under None, all others.
        meter: counts what the models' calls use; whoever calls this may have it count the judge's, too.
        feed: gives the slots, in place of all that the plan lists.
        notes: what to add to the result of an attempt, by its id.
        retry_pause: seconds before the second attempt at a rollout.

    Raises:
        WriteFailed: a result could not be written; everything under way was dropped.
    """
    control = control or RunControl()
    status: Status = "failed"
    capture, settings = None, plan.settings
    meter = meter or Meter(settings.budget, folder.manifest.used)
    if feed is None:  # a feed may be empty so far
        feed = Listed(plan, folder)
    if settings.capture != "off":
        rate, secrets = settings.capture_rate, logs.hidden()
        capture = Capture(folder.path / CALLS, mode=settings.capture, rate=rate, secrets=secrets)
    members = members_of(players, http, meter, capture)
    run = _Run(
        plan=plan,
        members=members,
        controller=controller,
        http=http,
        folder=folder,
        watcher=watcher,
        control=control,
        feed=feed,
        notes=notes,
        retry_pause=retry_pause,
        capture=capture,
    )
    try:
        async with capture or nullcontext():
            try:
                async with meter.running(control.stop, control.stopped.is_set, folder.save):
                    await run.work()
            finally:
                for member in members.values():
                    await member.endpoints.close()
        run.gave_up = run.gave_up or meter.fault
        if folder.total.rollouts == len(plan) and feed.ended:
            status = "finished"
        elif meter.reached:
            status, folder.manifest.stopped_by = "stopped", meter.reached
        elif not run.gave_up:
            status = "interrupted"
    except asyncio.CancelledError:
        status = "interrupted"
        raise
    finally:
        folder.manifest.planned = len(plan)
        await folder.close(status)
    return Summary(
        run=folder.manifest.run,
        folder=folder.path,
        status=status,
        planned=len(plan),
        done=folder.total.rollouts,
        total=folder.total,
        environments=folder.scores,
        agents=folder.agents,
        gave_up=run.gave_up if status == "failed" else "",
        stopped_by=folder.manifest.stopped_by,
    )


class Listed:
    """The slots of a plan, one after the other, without those that have their line in the folder."""

    ended = True
    """There are no others than those that the plan lists."""

    def __init__(self, plan: Plan, folder: RunFolder) -> None:
        self._slots = (slot for slot in plan if slot.id(folder.manifest.run) not in folder.done)

    async def next(self) -> Slot | None:
        return next(self._slots, None)


@dataclass
class _Run:
    plan: Plan
    members: Mapping[str | None, Member]
    controller: RolloutController
    http: HttpClient
    folder: RunFolder
    watcher: Watcher | None
    control: RunControl
    feed: Feed
    notes: Callable[[str], dict[str, Any]]
    retry_pause: float
    capture: Capture | None
    gave_up: str = ""
    artifacts: ArtifactStore = field(init=False)
    heard: Counter[ErrorKind | None] = field(default_factory=Counter)
    """How rollouts have ended in this start of the run; None: with a reward."""
    stages: dict[str, Stage] = field(default_factory=dict)
    """How far the rollouts under way are."""

    def __post_init__(self) -> None:
        self.artifacts = ArtifactStore(self.folder.path, secrets=logs.hidden())

    async def work(self) -> None:
        """A crew of workers shares the slots that are left; memory does not grow with their number."""
        size = self.plan.settings.concurrency
        if self.feed.ended:
            size = min(size, len(self.plan) - len(self.folder.done))
        crew = [asyncio.create_task(self._worker()) for _ in range(size)]
        everyone = asyncio.gather(*crew)
        control = self.control
        stopped, dropped = asyncio.create_task(control.stopped.wait()), asyncio.create_task(control.dropped.wait())
        ends: set[asyncio.Future[Any]] = {everyone, dropped}
        try:
            await asyncio.wait({*ends, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not everyone.done() and not control.dropped.is_set():
                grace = self.plan.settings.grace
                log.warning("stopping: rollouts under way have %g s to end; again: drop them now", grace)
                await asyncio.wait(ends, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            if everyone.done():
                everyone.result()
        finally:
            for task in (*crew, stopped, dropped):
                task.cancel()
            await asyncio.gather(*crew, stopped, dropped, everyone, return_exceptions=True)

    async def _worker(self) -> None:
        while await self.control.may_start() and (slot := await self.feed.next()):
            if self.watcher:
                self.watcher.started(slot)
            result: RolloutResult | None = None
            try:
                finished, failed = await self._unless_cancelled(slot)
                await self.folder.add(self._record(slot, finished, failed))
                result = finished
                log.info("rollout %s: %s", result.rollout_id, result.error.kind if result.error else result.reward)
                self._hear(result)
            finally:
                if self.watcher:
                    self.watcher.ended(slot, result)

    def _hear(self, result: RolloutResult) -> None:
        """Give up where every rollout so far says that the model cannot be used."""
        self.heard[result.error.kind if result.error else None] += 1
        [kind, *others] = self.heard
        enough = self.plan.settings.give_up_after
        if result.error and kind in HOPELESS and not others and self.heard[kind] == enough:
            self.gave_up = f"the first {enough} rollouts all ended in {kind}: {result.error.detail}"
            self.control.drop()

    async def _unless_cancelled(self, slot: Slot) -> tuple[RolloutResult, list[RolloutResult]]:
        """See `_attempts`; a rollout that is cancelled ends with an error that says so."""
        id, began = slot.id(self.folder.manifest.run), time.perf_counter()
        try:
            async with self.control.cancels.scope(id):
                return await self._attempts(slot)
        except Cancelled as error:
            stage = self.stages.get(id, Stage.PROVISION)
            told = RolloutError(stage=stage, kind=ErrorKind.CANCELLED, detail=str(error), retryable=False)
            result = RolloutResult(rollout_id=id, task_id=slot.row.id, environment=slot.environment.name, error=told)
            result.timings["total"] = round(time.perf_counter() - began, 6)
            return result, []
        finally:
            self.stages.pop(id, None)

    async def _attempts(self, slot: Slot) -> tuple[RolloutResult, list[RolloutResult]]:
        """The last attempt, and the failed ones before it."""
        failed: list[RolloutResult] = []
        while True:
            result = await self._attempt(slot, len(failed) + 1)
            if result.error is None or not result.error.retryable or self.control.stopped.is_set():
                return result, failed
            if len(failed) + 1 >= self.plan.settings.attempts_at(result.error.kind):
                return result, failed
            log.info("rollout %s: trying again after %s", result.rollout_id, result.error.kind)
            failed.append(result)
            pause = min(LONGEST_PAUSE, self.retry_pause * 2 ** (len(failed) - 1))
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))

    async def _attempt(self, slot: Slot, attempt: int) -> RolloutResult:
        manifest = self.folder.manifest
        id = slot.id(manifest.run)
        # a sandbox of an earlier attempt may still be there, and the same id would mean the same, used sandbox
        sandbox = id if (manifest.starts, attempt) == (1, 1) else f"{id}.{manifest.starts}.{attempt}"
        kept: list[KeptArtifacts | None] = []

        async def keep(file: IO[bytes]) -> None:
            try:
                kept.append(await self.artifacts.keep(file))
            except OSError as error:  # a verdict is worth having without them
                log.warning("rollout %s: its artifacts are not kept: %s", id, error)

        member = self.members[slot.agent]

        def entered(stage: Stage) -> None:
            self.stages[id] = stage
            if self.watcher:
                self.watcher.entered(slot, stage)

        result = await run_rollout(
            slot.row.fields,
            slot.environment,
            member.agent,
            member.model,
            self.controller,
            self.http,
            sandbox,
            entered=entered,
            endpoints=member.endpoints,
            keep=keep,
        )
        if kept and kept[-1] is not None:
            result = result.model_copy(update={"kept_artifacts": kept[-1].model_dump()})
        if self.capture is not None and self.capture.records(sandbox):
            result = await with_calls(result, self.capture, sandbox)
        return result.model_copy(update={"rollout_id": id, **self.notes(sandbox)})

    def _record(self, slot: Slot, result: RolloutResult, failed: list[RolloutResult]) -> dict[str, Any]:
        """The line in `rollouts.jsonl`: the row as it was, NeMo Gym's keys, and what came of it.

        Fields of the row that have the name of one of ours are overwritten.
        """
        response = result.response.dump() if result.response else None
        agent = self.members[slot.agent].agent
        return {
            **slot.row.fields,
            "_ng_task_index": slot.row.index,
            "_ng_rollout_index": slot.repeat,
            "agent_ref": self._agent_ref(slot),
            **({"skills_ref": agent.skills.ref} if agent.skills else {}),
            **result.model_dump(mode="json", exclude={"response"}),
            "response": response,
            "usage": response and response.get("usage"),
            "attempts": len(failed) + 1,
            "failed_attempts": [attempt.model_dump(mode="json", include=ATTEMPT) for attempt in failed],
        }

    def _agent_ref(self, slot: Slot) -> Any:
        """By its name, where the run has several; else as the row has it, or by its class."""
        if self.plan.agents:
            name = slot.agent or DEFAULT_AGENT
        elif named := slot.row.fields.get("agent_ref"):
            return named
        else:
            name = type(self.members[None].agent).__name__
        return {"type": "responses_api_agents", "name": name}


async def with_calls(result: RolloutResult, capture: Capture, attempt: str) -> RolloutResult:
    """The result with what its recorded calls tell: `calls` (their number, time, tokens and cost) and, where they bear
    token ids, `_ng_token_capture`. An output without ids, as of an agent that knows nothing of tokens, becomes the
    trajectory that was rebuilt; what cannot be trusted is masked."""
    calls, missing = await capture.calls_of(attempt)
    update: dict[str, Any] = {"calls": told_of(calls, missing)}
    made = await asyncio.to_thread(rebuilt, calls, missing=missing, rollout=attempt)
    if made.summary["generated_tokens_captured"]:
        reason = result.mask_reason or made.mask_reason
        update |= {"_ng_token_capture": made.summary, "mask_sample": reason is not None, "mask_reason": reason}
        if result.response is not None and made.main is not None and not has_token_ids(result.response.output):
            output = Response.model_validate({"output": made.main.output}).output
            update["response"] = result.response.model_copy(update={"output": output})
    return result.model_copy(update=update)
