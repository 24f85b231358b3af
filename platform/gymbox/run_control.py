"""Control: what a run is asked for while it goes on."""

from __future__ import annotations

import asyncio

from gymbox.cancels import Cancels


class RunControl:
    """Pause, resume, stop and drop, asked from any task of the run's loop. Asking again changes nothing, and nothing
    undoes a stop."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        """No further rollout starts; those under way have the run's `grace` to end."""
        self.dropped = asyncio.Event()
        """What is under way ends at once, for a resume to do again."""
        self.cancels = Cancels()
        """Single rollouts that are to end."""
        self._going = asyncio.Event()
        self._going.set()

    @property
    def paused(self) -> bool:
        return not self._going.is_set()

    def pause(self) -> None:
        """No further rollout starts until `resume`; those under way go on."""
        if not self.stopped.is_set():
            self._going.clear()

    def resume(self) -> None:
        self._going.set()

    def stop(self) -> None:
        self.stopped.set()
        self._going.set()

    def drop(self) -> None:
        self.stop()
        self.dropped.set()

    async def may_start(self) -> bool:
        """Whether another rollout may start; while the run is paused, the answer waits."""
        await self._going.wait()
        return not self.stopped.is_set()
