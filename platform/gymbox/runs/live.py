"""Live run: a run that this process does, as others see it."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence

from gymbox.errors import NotFound, Stage, nearest
from gymbox.plan import Slot
from gymbox.results import RunFolder
from gymbox.rollout import RolloutResult
from gymbox.run_control import RunControl
from gymbox.runner import Watcher
from gymbox.runs.log import RunLog
from gymbox.runs.view import RunView, State

PACE = 256
"""Rollouts by whose ends the rate is told."""


class LiveRun:
    """Counts what its runner tells (it is a `Watcher`), and shows it.

    Args:
        id: by which it is addressed; default: the manifest's.
    """

    def __init__(self, folder: RunFolder, control: RunControl, *, concurrency: int, id: str | None = None) -> None:
        self.id = id or folder.manifest.run
        self.folder = folder
        self.control = control
        self.log = RunLog(folder.path)
        self.over = False
        """It has ended: nothing more is written."""
        self.detail = ""
        self._concurrency = concurrency
        self._stages: dict[str, Stage] = {}
        self._running = 0
        self._ended = 0
        self._pace: deque[float] = deque([control.time()], maxlen=PACE)
        self._changed = asyncio.Event()

    # --- told by the runner

    def started(self, slot: Slot) -> None:
        self._running += 1

    def entered(self, slot: Slot, stage: Stage) -> None:
        self._stages[slot.id("")] = stage

    def ended(self, slot: Slot, result: RolloutResult | None) -> None:
        self._stages.pop(slot.id(""), None)
        self._running -= 1
        if result is not None:
            self._ended += 1
            self._pace.append(self.control.time())
        self._touch()

    def end(self, detail: str = "") -> None:
        """It has ended, as its manifest says."""
        self.detail, self.over = detail, True
        self._touch()

    # --- asked by others

    @property
    def size(self) -> int:
        """Bytes of its log that are acknowledged."""
        return self.folder.size

    async def changed(self, within: float) -> None:
        """Return once something has changed, or after `within` seconds."""
        try:
            async with asyncio.timeout(within):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def view(self) -> RunView:
        folder = self.folder
        return RunView.of(
            folder.manifest,
            folder.path.resolve(),
            folder.total,
            folder.scores,
            id=self.id,
            status=self._status(),
            live=not self.over,
            running=self._running,
            stages=dict(Counter(self._stages.values())),
            rate=(rate := self._rate()),
            eta=self._eta(rate),
            detail=self.detail,
        )

    async def pause(self) -> None:
        self.control.pause()
        self._touch()

    async def resume(self) -> None:
        self.control.resume()
        self._touch()

    async def cancel(self, *, now: bool) -> None:
        """Stop it softly, or with `now` drop what is under way."""
        if now:
            self.control.drop()
        else:
            self.control.stop()
        self._touch()

    def _status(self) -> State:
        if self.over:
            return self.folder.manifest.status
        if self.control.stopped.is_set():
            return "stopping"
        return "paused" if self.control.paused else "running"

    def _rate(self) -> float | None:
        if self.over or self._ended == 0:
            return None
        seconds = self.control.time() - self._pace[0]
        return min(self._ended, len(self._pace) - 1 or 1) / seconds if seconds > 0 else None

    def _eta(self, rate: float | None) -> float | None:
        """Not before as many have ended as run at once: until then the pace is anyone's guess."""
        if not rate or self._ended < self._concurrency or self.control.paused or self.control.stopped.is_set():
            return None
        return (self.folder.manifest.planned - self.folder.total.rollouts) / rate

    def _touch(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class LiveRuns:
    """The runs that this process does, by id."""

    def __init__(self) -> None:
        self._runs: dict[str, LiveRun] = {}

    def add(self, run: LiveRun) -> None:
        self._runs[run.id] = run

    async def all(self) -> list[RunView]:
        return [await run.view() for run in self._runs.values()]

    def get(self, id: str) -> LiveRun:
        """
        Raises:
            NotFound: there is none of that id.
        """
        if id not in self._runs:
            raise NotFound(f"there is no run {id!r} in this process; {nearest(id, list(self._runs))}")
        return self._runs[id]

    async def pause(self, id: str) -> RunView:
        await (run := self.get(id)).pause()
        return await run.view()

    async def resume(self, id: str, overrides: Sequence[str] = (), retry_failed: bool = False) -> RunView:
        await (run := self.get(id)).resume()
        return await run.view()

    async def cancel(self, id: str, *, now: bool) -> RunView:
        await (run := self.get(id)).cancel(now=now)
        return await run.view()


class Watchers:
    """Several, told one after another."""

    def __init__(self, *watchers: Watcher | None) -> None:
        self._watchers = [watcher for watcher in watchers if watcher is not None]

    def started(self, slot: Slot) -> None:
        for watcher in self._watchers:
            watcher.started(slot)

    def entered(self, slot: Slot, stage: Stage) -> None:
        for watcher in self._watchers:
            watcher.entered(slot, stage)

    def ended(self, slot: Slot, result: RolloutResult | None) -> None:
        for watcher in self._watchers:
            watcher.ended(slot, result)
