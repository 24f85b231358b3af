"""Cancels: rollouts of a run that are not wanted any more, each ended by itself while the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Cancelled(Exception):
    """The rollout was cancelled by whoever asked for it."""


class Cancels:
    """Ends rollouts by their ids, those under way at once and those to come before they start. Used from one loop."""

    def __init__(self) -> None:
        self._scopes: dict[str, asyncio.Timeout] = {}
        self._wanted: set[str] = set()

    @property
    def under_way(self) -> list[str]:
        """Ids of the rollouts that have started and not ended."""
        return list(self._scopes)

    def cancel(self, rollout: str) -> None:
        """End this rollout, or have it end before it starts; of one that has ended, the name stays remembered."""
        if rollout in self._wanted:
            return
        self._wanted.add(rollout)
        if scope := self._scopes.get(rollout):
            scope.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def scope(self, rollout: str) -> AsyncIterator[None]:
        """Within the block the rollout is under way.

        Raises:
            Cancelled: it was cancelled, before (on entering) or meanwhile (on leaving).
        """
        try:
            if rollout in self._wanted:
                raise Cancelled("it was cancelled before it began")
            async with asyncio.timeout(None) as scope:
                self._scopes[rollout] = scope
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise Cancelled("it was cancelled before it ended") from None
        finally:
            self._scopes.pop(rollout, None)
            self._wanted.discard(rollout)
