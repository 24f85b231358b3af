"""Session ends: tell a container that sandboxes which shared it are over, those that end meanwhile together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from gymbox.controller.container import MOST_TOLD, Container
from gymbox.errors import Problem, TimedOut
from gymbox.http import HttpClient

log = logging.getLogger(__name__)

TIMEOUT = 15.0
"""Seconds that a container may take to end sessions."""


class SessionEnds:
    """Of each container at most one request is under way. What ends while it is goes with the next one: alone it does
    not wait for others, and of many that end at once there are few requests.

    One that does not answer in time is not asked again for those that wait: it is not going to.

    Args:
        spawn: runs something beside its caller, until the controller closes at most.
    """

    def __init__(self, http: HttpClient, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._http = http
        self._spawn = spawn
        self._waiting: dict[Container, dict[str, asyncio.Future[bool]]] = {}
        self._asked: dict[Container, dict[str, asyncio.Future[bool]]] = {}
        """Those that the request under way is for."""
        self._is_closed = False

    def close(self) -> None:
        """Ask no container any more, and let nobody wait: all of them are stopped."""
        self._is_closed = True
        for waiting in self._waiting.values():
            _tell(waiting, False)
        for waiting in self._asked.values():
            _tell(waiting, False)

    async def end(self, container: Container, sandbox: str) -> bool:
        """End the session of a sandbox. Returns: whether it is certain that nothing of it is left in there."""
        if self._is_closed:
            return False
        under_way = container in self._waiting
        waiting = self._waiting.setdefault(container, {})
        ended = waiting.setdefault(sandbox, asyncio.get_running_loop().create_future())
        if not under_way:
            self._spawn(self._end_all(container))
        return await ended

    async def _end_all(self, container: Container) -> None:
        try:
            while not self._is_closed and (waiting := self._waiting[container]):
                self._asked[container], self._waiting[container] = waiting, {}
                try:
                    ended = await self._ended(container, list(waiting))
                except TimedOut:
                    return
                _tell(waiting, ended)
        finally:
            _tell({**self._asked.pop(container, {}), **self._waiting.pop(container)}, False)

    async def _ended(self, container: Container, sessions: list[str]) -> bool:
        """
        Raises:
            TimedOut: it does not answer.
        """
        base, socket = container.server()
        try:
            answer = await self._http.request(
                "DELETE",
                f"{base}/sessions",
                json={"sessions": sessions},
                timeout=TIMEOUT,
                socket=socket,
                most=MOST_TOLD,
            )
            answer.raise_for_status()
        except Problem as error:
            told = ", ".join([*sessions[:5], *(["…"] if len(sessions) > 5 else [])])
            log.warning("%d sessions (%s) did not end on %s: %s", len(sessions), told, container.id, error)
            if isinstance(error, TimedOut):
                raise
            return False
        return True


def _tell(waiting: dict[str, asyncio.Future[bool]], ended: bool) -> None:
    for future in waiting.values():
        if not future.done():
            future.set_result(ended)
