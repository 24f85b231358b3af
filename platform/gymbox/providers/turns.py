"""Turns: of one id, one start or stop at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

from gymbox_sandbox.lifecycle import Ended

from gymbox.errors import StartFailed
from gymbox.providers import Started


class Turns:
    """First come, first served; but a stop does not wait for the start under way: it ends it.

    So of two starts the later finds what the earlier has made, a start begins when a stop under way is through, and
    nobody loses what another has started.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._starts: dict[str, asyncio.Task[Started]] = {}

    async def start(self, id: str, work: Coroutine[Any, Any, Started]) -> Started:
        """What `work` comes to, once it is its turn; it must clean up behind itself if it is cancelled.

        Raises:
            StartFailed: with the cause `deleted`, if a stop came while it was at work.
        """
        try:
            async with self._lock(id):
                start = self._starts[id] = asyncio.create_task(work)
                try:
                    return await start
                except asyncio.CancelledError:
                    caller = asyncio.current_task()
                    if caller is not None and caller.cancelling():
                        raise
                    raise StartFailed(Ended(cause="deleted", detail=f"{id} was stopped while it started")) from None
                finally:
                    del self._starts[id]
        finally:
            work.close()  # if it was cancelled in line

    @asynccontextmanager
    async def stop(self, id: str) -> AsyncIterator[None]:
        """Hold the turn, to stop what is there."""
        if id in self._starts:
            self._starts[id].cancel()
        async with self._lock(id):
            yield

    def _lock(self, id: str) -> asyncio.Lock:
        return self._locks.setdefault(id, asyncio.Lock())
