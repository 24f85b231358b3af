"""Pace: a run that does no more ahead than whoever takes its results lets it."""

from __future__ import annotations

import asyncio

from gymbox.plan import Slot
from gymbox.run_control import RunControl
from gymbox.runner import Feed


class Pace:
    """Room for `ahead` rollouts that have started and were not taken."""

    def __init__(self, ahead: int) -> None:
        self._room = asyncio.Semaphore(ahead)

    def taken(self) -> None:
        """One of those that have started needs no room any more."""
        self._room.release()

    async def room(self, control: RunControl) -> bool:
        """Take room for one more; False where the run is stopped before there is any."""
        if not self._room.locked():
            return await self._room.acquire()
        coming = asyncio.create_task(self._room.acquire())
        stopped = asyncio.create_task(control.stopped.wait())
        try:
            await asyncio.wait({coming, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return coming.done()
        finally:
            for task in (coming, stopped):
                task.cancel()
            await asyncio.gather(coming, stopped, return_exceptions=True)


class PacedFeed:
    """A feed that gives out a slot only when there is room for its rollout."""

    def __init__(self, feed: Feed, pace: Pace, control: RunControl) -> None:
        self._feed = feed
        self._pace = pace
        self._control = control

    @property
    def ended(self) -> bool:
        return self._feed.ended

    async def next(self) -> Slot | None:
        if not await self._pace.room(self._control):
            return None
        slot: Slot | None = None
        try:
            # it may have been paused or stopped while there was none
            if await self._control.may_start():
                slot = await self._feed.next()
            return slot
        finally:
            if slot is None:
                self._pace.taken()
