"""Upstreams: the pooled connections to sandboxes and to model and agent servers."""

from __future__ import annotations

import aiohttp
from gymbox_sandbox.lifecycle import Route

from gymbox.proxy.settings import ProxySettings
from gymbox.sockets import SocketSessions

KEEP_ALIVE = 3
"""Seconds; shorter than any server's own (uvicorn: 5), so that no request is sent into a connection being closed."""


class Upstreams:
    """One session a sandbox socket, pinned to its inode, and one for everything reached by address."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._by_address: aiohttp.ClientSession | None = None
        self._by_socket = SocketSessions(self._to_socket)

    async def of(self, route: Route) -> aiohttp.ClientSession:
        """The session for a sandbox; a socket that another one has replaced is pinned anew.

        Raises:
            Unavailable: its socket cannot be opened.
        """
        if route.socket is None:
            return self.by_address()
        return await self._by_socket.of(route.socket)

    def by_address(self) -> aiohttp.ClientSession:
        """The session for everything that is reached over TCP."""
        if self._by_address is None:
            self._by_address = self._session(
                aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=KEEP_ALIVE)
            )
        return self._by_address

    async def keep(self, sockets: set[str]) -> None:
        """Drop the sessions of all other sockets, with whatever is in flight there."""
        await self._by_socket.keep(sockets)

    async def forget(self, socket: str) -> None:
        """Drop the session of a socket; the next request opens it anew."""
        await self._by_socket.forget(socket)

    async def close(self) -> None:
        """Drop all; safe to call twice."""
        await self._by_socket.close()
        if self._by_address is not None:
            await self._by_address.close()
            self._by_address = None

    def _to_socket(self, address: str) -> aiohttp.ClientSession:
        limit = self._settings.connections_per_sandbox
        return self._session(aiohttp.UnixConnector(address, limit=limit, keepalive_timeout=KEEP_ALIVE))

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
