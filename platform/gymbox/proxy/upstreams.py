"""Upstreams: the pooled connections to sandboxes and to model and agent servers."""

from __future__ import annotations

import asyncio

import aiohttp
from gymbox_sandbox.wire import Route

from gymbox.proxy.settings import ProxySettings
from gymbox.sockets import PinnedSocket

KEEP_ALIVE = 3
"""Seconds; shorter than any server's own (uvicorn: 5), so that no request is sent into a connection being closed."""


class Upstreams:
    """One session a sandbox socket, pinned to its inode, and one for everything reached by address."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._by_address: aiohttp.ClientSession | None = None
        self._by_socket: dict[str, tuple[PinnedSocket, aiohttp.ClientSession]] = {}

    def of(self, route: Route) -> aiohttp.ClientSession:
        """The session for a sandbox.

        Raises:
            Unavailable: its socket cannot be opened.
        """
        if route.socket is None:
            return self.by_address()
        if route.socket not in self._by_socket:
            pinned = PinnedSocket(route.socket)
            connector = aiohttp.UnixConnector(
                pinned.address, limit=self._settings.connections_per_sandbox, keepalive_timeout=KEEP_ALIVE
            )
            self._by_socket[route.socket] = pinned, self._session(connector)
        return self._by_socket[route.socket][1]

    def by_address(self) -> aiohttp.ClientSession:
        """The session for everything that is reached over TCP."""
        if self._by_address is None:
            self._by_address = self._session(
                aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=KEEP_ALIVE)
            )
        return self._by_address

    async def keep(self, sockets: set[str]) -> None:
        """Drop the sessions of all other sockets, with whatever is in flight there."""
        await asyncio.gather(*(self.forget(socket) for socket in self._by_socket.keys() - sockets))

    async def forget(self, socket: str) -> None:
        """Drop the session of a socket; the next request opens it anew."""
        pinned, session = self._by_socket.pop(socket, (None, None))
        if pinned is not None and session is not None:
            await session.close()
            pinned.close()

    async def close(self) -> None:
        """Drop all; safe to call twice."""
        await self.keep(set())
        if self._by_address is not None:
            await self._by_address.close()
            self._by_address = None

    def _session(self, connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # cookies of one client must never reach another
            auto_decompress=False,  # bytes are passed on as they come
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._settings.connect_timeout, sock_read=self._settings.idle_timeout
            ),
            max_line_size=64 * 1024,
            max_field_size=64 * 1024,
        )
