"""Pace: a run that does no more ahead than whoever takes its results lets it."""

from __future__ import annotations

import asyncio

from gymbox.runs.control import RunControl


class PacedControl(RunControl):
    """Lets a rollout start while fewer than `ahead` have started and were not taken."""

    def __init__(self, ahead: int) -> None:
        super().__init__()
        self.ahead = ahead
        self._room = asyncio.Semaphore(ahead)
        self._waiting = 0

    def taken(self, rollouts: int = 1) -> None:
        """So many of those that have started need no room any more."""
        for _ in range(rollouts):
            self._room.release()

    def stop(self) -> None:
        super().stop()
        self.taken(self._waiting)  # so that those who wait for room hear of it

    async def may_start(self) -> bool:
        if self.stopped.is_set():
            return False
        self._waiting += 1
        try:
            await self._room.acquire()
        finally:
            self._waiting -= 1
        return await super().may_start()
