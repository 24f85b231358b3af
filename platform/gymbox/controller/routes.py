"""Routes: keep the proxy told where sandboxes are. Always the whole table, one push at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from gymbox_sandbox.lifecycle import Route, RouteTable

from gymbox.errors import Conflict, Unavailable
from gymbox.http import HttpClient

log = logging.getLogger(__name__)

PATIENCE = 15.0
"""Seconds that a create waits for the proxy to take its route."""
REFRESH = 5.0
"""Seconds after which an unchanged table is sent again, so that a proxy that was restarted learns it."""


class RouteSink(Protocol):
    """What takes the routes: the proxy's table in this process, or its admin listener elsewhere."""

    async def replace(self, table: RouteTable) -> None:
        """Use this table from now on. An older one than it has is refused."""


class RemoteRoutes:
    """The admin listener of a proxy in another process: a unix socket, or an address with the listener's token."""

    def __init__(self, http: HttpClient, *, url: str = "http://proxy", socket: str | None = None, token: str = ""):
        self._http = http
        self._url = f"{url.rstrip('/')}/routes"
        self._socket = socket
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    async def replace(self, table: RouteTable) -> None:
        body = table.model_dump_json().encode()
        answer = await self._http.request(
            "PUT", self._url, data=body, headers=self._headers, timeout=10, retry=False, socket=self._socket
        )
        answer.raise_for_status()


class Routes:
    """All routes of a controller, and the one task that pushes them."""

    def __init__(self, sink: RouteSink, admin_token: str = "", *, refresh: float | None = None) -> None:
        self._sink = sink
        self._admin_token = admin_token
        self._refresh = refresh
        self._routes: dict[str, Route] = {}
        self._version = time.time_ns() // 1000  # from the clock: it must grow across restarts, however busy
        self._taken = 0
        self._changed = asyncio.Event()
        self._pushed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start pushing, beginning with the table as it is."""
        self._changed.set()
        self._task = asyncio.create_task(self._push_forever(), name="routes")

    async def close(self) -> None:
        """Stop pushing; the proxy keeps what it has."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def put(self, route: Route) -> int:
        """Add or replace the route of a sandbox; returns the version of the table that has it."""
        self._routes[route.sandbox] = route
        return self._touch()

    def drop(self, sandbox: str) -> None:
        """The sandbox is forgotten."""
        if self._routes.pop(sandbox, None) is not None:
            self._touch()

    def has_taken(self, version: int) -> bool:
        """Whether the proxy uses a table as new as this."""
        return self._taken >= version

    async def taken(self, version: int) -> None:
        """Return once the proxy uses a table as new as this.

        Raises:
            Unavailable: it does not take one.
        """
        if self.has_taken(version):
            return
        try:
            async with asyncio.timeout(PATIENCE), self._pushed:
                await self._pushed.wait_for(lambda: self.has_taken(version))
        except TimeoutError:
            raise Unavailable("the proxy does not take routes; is it running?", retry_after=PATIENCE) from None

    def _touch(self) -> int:
        self._version += 1
        self._changed.set()
        return self._version

    async def _push_forever(self) -> None:
        pause = 0.05
        while True:
            try:
                async with asyncio.timeout(self._refresh):
                    await self._changed.wait()
            except TimeoutError:
                pass  # nothing new: send it again
            self._changed.clear()
            version = self._version
            # built without validating again: each route was when it was made
            table = RouteTable.model_construct(
                version=version, routes=list(self._routes.values()), admin_token=self._admin_token
            )
            try:
                await self._sink.replace(table)
            except Conflict as error:
                newer = error.extra.get("version")
                self._version = max(self._version, newer if isinstance(newer, int) else 0) + 1
                self._changed.set()
                log.warning("the proxy has a newer table, which is replaced: %s", error)
                continue
            except Exception as error:
                log.warning("the proxy did not take the routes, trying again in %.2g s: %s", pause, error)
                await asyncio.sleep(pause)
                self._changed.set()
                pause = min(2 * pause, 5.0)
                continue
            pause = 0.05
            async with self._pushed:
                self._taken = version
                self._pushed.notify_all()
