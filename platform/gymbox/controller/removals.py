"""Removals: containers on their way out, each tried again until it is gone, after a crash too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

from gymbox.controller.container import Container
from gymbox.controller.state import StateDirectory
from gymbox.errors import Unavailable
from gymbox.http import HttpClient
from gymbox.providers import SandboxProvider, Started

log = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0
"""Seconds between tries to stop what does not want to stop."""
LONGEST_GOODBYE = 10.0
"""Seconds for which a controller that ends waits for removals under way; the next one goes on with them."""


class _Removal(NamedTuple):
    tried: asyncio.Event
    """The first try has been made."""
    task: asyncio.Task[None]
    """Ends once it is gone."""


class Removals:
    """All that a controller is removing."""

    def __init__(self, provider: SandboxProvider, state: StateDirectory, http: HttpClient) -> None:
        self._provider = provider
        self._state = state
        self._http = http
        self._under_way: dict[str, _Removal] = {}

    def begin(self, id: str, started: Started | None = None) -> asyncio.Event:
        """Remove a container, however many tries it takes; nothing of its id is started before.

        Returns: what is set once the first try has been made.
        """
        self._state.intend_delete(id)
        if id not in self._under_way:
            tried = asyncio.Event()
            task = asyncio.create_task(self._remove_at_last(id, started, tried), name=f"remove {id}")
            self._under_way[id] = _Removal(tried, task)
        return self._under_way[id].tried

    async def until_gone(self, container: Container) -> None:
        """
        Raises:
            Unavailable: what an earlier start of its id left behind cannot be removed.
        """
        removal, timeout = self._under_way.get(container.id), container.environment.manifest.timeouts.start
        if removal is not None and (await asyncio.wait({removal.task}, timeout=timeout))[1]:
            raise Unavailable(f"what an earlier start of {container.id} left behind cannot be removed yet")

    async def close(self, others: Iterable[asyncio.Task[None]]) -> None:
        """Give all first tries, and the other work, some seconds to end; then try no more."""
        first_tries = [asyncio.create_task(removal.tried.wait()) for removal in self._under_way.values()]
        if ends := {*others, *first_tries}:
            await asyncio.wait(ends, timeout=LONGEST_GOODBYE)
        for task in [*first_tries, *(removal.task for removal in self._under_way.values())]:
            task.cancel()
            await asyncio.wait({task})

    async def _remove_at_last(self, id: str, started: Started | None, tried: asyncio.Event) -> None:
        pause = 0.5
        try:
            if started is not None and started.socket is not None:
                await self._http.forget(started.socket)
            while not await self._removed(id):
                tried.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            del self._under_way[id]
            tried.set()

    async def _removed(self, id: str) -> bool:
        try:
            await self._provider.stop(id)
        except Exception as error:
            log.warning("container %s cannot be removed yet: %s", id, error)
            return False
        self._state.claims.container_gone(id)
        self._state.deleted(id)
        return True
