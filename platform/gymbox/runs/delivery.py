"""Delivery: the results of a run on their way to whoever takes them, one by one or as whole groups."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from gymbox.cancels import Cancels
from gymbox.errors import Stage
from gymbox.models.token_ids import token_ids_of
from gymbox.plan import Plan, Slot
from gymbox.results import ROLLOUTS
from gymbox.rollout import RolloutResult
from gymbox.runs.pace import Pace
from gymbox.runs.policy import PolicyModel

STALE = "stale: sampled by version {first} of the policy, which is now at {now} (max_staleness={most})"


class Result(RolloutResult):
    """What came of one rollout, and of which. `reward` is None exactly where `error` is set."""

    row: dict[str, Any] = Field(default_factory=dict, repr=False)
    """The task's row, as it was asked."""
    task_index: int
    """Position of the row among those of its environment, from 0."""
    repeat: int
    """Which of the task's rollouts, from 0."""
    group: str
    """The same for all rollouts of a task in a run, and for no others."""
    policy_version: int | None = None
    """The version that answered its first model call, where versions were told."""
    policy_version_end: int | None = None
    """The version at the end of its last model call."""
    stale: bool = False
    """Whether `policy_version` was more than `max_staleness` behind when this was taken."""
    stored: bool = False
    """Whether it was there already when this start of the run began."""

    @property
    def trainable(self) -> bool:
        """Whether it has a reward and nothing speaks against training on it (`mask_reason` says what does)."""
        return self.reward is not None and not self.mask_sample

    @property
    def token_ids(self) -> list[dict[str, Any]]:
        """`prompt_token_ids`, `generation_token_ids` and `generation_log_probs` of each model call of the trajectory
        that has them, in order."""
        items = self.response.output if self.response is not None else []
        return [found for item in items if (found := token_ids_of(item))]


_OWN = frozenset({*RolloutResult.model_fields, "policy_version", "policy_version_end", "calls", "_ng_token_capture"})
"""Of a line, what a result has."""


@dataclass
class Counts:
    """What became of the rollouts of a run so far, as its taker sees it."""

    taken: int = 0
    """Results that were yielded, in groups or by themselves."""
    stale: int = 0
    """Rollouts that were too old, yielded masked or dropped."""
    dropped: int = 0
    """Rollouts that were not yielded because they, or one of their group, were too old."""
    too_few_scored: int = 0
    """Groups that were not yielded because fewer than `min_scored` of them have a reward."""
    incomplete: int = 0
    """Groups of which some rollouts had ended when the run did, and others had not."""


@dataclass
class Delivery:
    """Also the run's `Watcher`: what has ended waits here until it is taken."""

    cancels: Cancels
    pace: Pace
    policy: PolicyModel
    plan: Plan
    run: str
    folder: Path | None
    """Whose results so far come first; None for none."""
    max_staleness: int | None
    drop_stale: bool
    counts: Counts = field(default_factory=Counts)
    _ready: deque[Result] = field(default_factory=deque)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _over: bool = False
    _outdated: set[str] = field(default_factory=set)
    """Rollouts that were cancelled because they are too old."""
    _ended: dict[str, set[int]] = field(default_factory=dict)
    """Of groups that have begun to end, the repeats that have."""
    _taking: bool = False

    def __post_init__(self) -> None:
        path = self.folder / ROLLOUTS if self.folder else None
        self._stored_bytes = path.stat().st_size if path and path.exists() else 0

    def started(self, slot: Slot) -> None:
        """Nothing to do."""

    def entered(self, slot: Slot, stage: Stage) -> None:
        """Nothing to do."""

    def ended(self, slot: Slot, result: RolloutResult | None) -> None:
        if result is None:
            self.policy.forget(slot.id(self.run))
            self.pace.taken()
            return
        self.policy.forget(result.rollout_id)
        self._note_ended(slot, group_of(result.rollout_id))
        told = {**result.__dict__, **(result.model_extra or {})}
        place = {"row": slot.row.fields, "task_index": slot.row.index, "repeat": slot.repeat}
        self._ready.append(Result.model_validate({**told, **place, "group": group_of(result.rollout_id)}))
        self._news.set()

    def left_of(self, group: str, size: int) -> list[str]:
        """The rollouts of a group that have not ended in this start of the run, as far as is known."""
        return [f"{group}-{repeat}" for repeat in range(size) if repeat not in self._ended.get(group, ())]

    def _note_ended(self, slot: Slot, group: str) -> None:
        ended = self._ended.setdefault(group, set())
        ended.add(slot.repeat)
        if len(ended) == self.plan.settings.repeats_of(slot.environment.name):
            del self._ended[group]

    def over(self) -> None:
        """Nothing more will come."""
        self._over = True
        self._news.set()

    def outdate(self) -> None:
        """End the rollouts under way that are too old already."""
        if self.drop_stale and self.max_staleness is not None and self.policy.version is not None:
            for rollout in self.policy.sampled_before(self.policy.version - self.max_staleness):
                self._outdated.add(rollout)
                self.cancels.cancel(rollout)

    async def results(self) -> AsyncGenerator[Result]:
        """Each result, once, those of earlier starts first."""
        async for result in self._all():
            self._make_room(result)
            marked = self._marked(result)
            if marked.stale and self.drop_stale:
                self.counts.dropped += 1
                continue
            self.counts.taken += 1
            yield marked

    async def groups(self, min_scored: int) -> AsyncGenerator[list[Result]]:
        """All rollouts of a task, in the order of their repeats, once the last of them has ended."""
        begun: dict[str, list[Result]] = {}
        try:
            async for result in self._all():
                group = begun.setdefault(result.group, [])
                group.append(result)
                if len(group) < self.plan.settings.repeats_of(result.environment):
                    continue
                del begun[result.group]
                for member in group:
                    self._make_room(member)
                # how old it is counts when it is taken
                whole = sorted(map(self._marked, group), key=lambda member: member.repeat)
                if self.drop_stale and any(member.stale for member in whole):
                    self.counts.dropped += len(whole)
                elif sum(member.reward is not None for member in whole) < min_scored:
                    self.counts.too_few_scored += 1
                else:
                    self.counts.taken += len(whole)
                    yield whole
        finally:
            self.counts.incomplete += len(begun)

    async def _all(self) -> AsyncGenerator[Result]:
        if self._taking:
            raise RuntimeError("the results of this run are being taken by another loop")
        self._taking = True
        try:
            async with aclosing(self._coming()) as results:
                async for result in results:
                    yield result
        finally:
            self._taking = False

    async def _coming(self) -> AsyncGenerator[Result]:
        async for result in self._stored():
            yield result
        while True:
            while self._ready:
                yield self._ready.popleft()
            if self._over:
                return
            self._news.clear()
            await self._news.wait()

    async def _stored(self) -> AsyncIterator[Result]:
        if not self._stored_bytes or self.folder is None:
            return
        read, self._stored_bytes = self._stored_bytes, 0
        with (self.folder / ROLLOUTS).open("rb") as file:
            while file.tell() < read:
                line = json.loads(await asyncio.to_thread(file.readline))
                index, repeat = line["_ng_task_index"], line["_ng_rollout_index"]
                row = self.plan.row(line["environment"], index, repeat).fields
                place = {"task_index": index, "repeat": repeat, "row": row}
                kept = {name: value for name, value in line.items() if name in _OWN}
                yield Result.model_validate({**kept, **place, "group": group_of(line["rollout_id"]), "stored": True})

    def _make_room(self, result: Result) -> None:
        if not result.stored:
            self.pace.taken()

    def _marked(self, result: Result) -> Result:
        """The result, as stale where it is."""
        outdated = result.rollout_id in self._outdated
        self._outdated.discard(result.rollout_id)
        now, first, most = self.policy.version, result.policy_version, self.max_staleness
        old = most is not None and now is not None and first is not None and now - first > most
        if not (old or outdated):
            return result
        self.counts.stale += 1
        reason = result.mask_reason or STALE.format(
            first="an earlier one" if first is None else first, now=now, most=most
        )
        return result.model_copy(update={"stale": True, "mask_sample": True, "mask_reason": reason})


def group_of(rollout: str) -> str:
    """The group of the rollout with this id."""
    return rollout.rpartition("-")[0]
