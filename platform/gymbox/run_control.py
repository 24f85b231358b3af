"""Control: what a run is asked for while it goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gymbox.cancels import Cancels


class RunControl:
    """Pause, resume, stop and drop, asked from any task of the run's loop. Asking again changes nothing, and nothing
    undoes a stop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.stopped = asyncio.Event()
        """No further rollout starts; those under way have the run's `grace` to end."""
        self.dropped = asyncio.Event()
        """What is under way ends at once, for a resume to do again."""
        self.cancels = Cancels()
        """Single rollouts that are to end."""
        self._going = asyncio.Event()
        self._going.set()
        self._clock = clock
        self._paused_at = 0.0
        self._pauses = 0.0
        """Seconds of those that are over."""

    @property
    def paused(self) -> bool:
        return not self._going.is_set()

    def pause(self) -> None:
        """No further rollout starts until `resume`; those under way go on."""
        if not self.stopped.is_set() and not self.paused:
            self._paused_at = self._clock()
            self._going.clear()

    def resume(self) -> None:
        if self.paused:
            self._pauses += self._clock() - self._paused_at
            self._going.set()

    def stop(self) -> None:
        self.stopped.set()
        self.resume()

    def drop(self) -> None:
        self.stop()
        self.dropped.set()

    def time(self) -> float:
        """Of a clock that stands still while the run is paused, in seconds: what its pace is told by."""
        return (self._paused_at if self.paused else self._clock()) - self._pauses

    async def may_start(self) -> bool:
        """Whether another rollout may start; while the run is paused, the answer waits."""
        await self._going.wait()
        return not self.stopped.is_set()
