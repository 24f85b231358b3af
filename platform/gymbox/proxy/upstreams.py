"""Upstreams: the pooled connections to sandboxes and to model and agent servers."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import aiohttp
from gymbox_sandbox.lifecycle import Route

from gymbox.proxy.settings import ProxySettings
from gymbox.sockets import PinnedSocket

KEEP_ALIVE = 3
"""Seconds; shorter than any server's own (uvicorn: 5), so that no request is sent into a connection being closed."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The connections to one unix socket."""

    pinned: PinnedSocket
    inode: tuple[int, int] | None
    session: aiohttp.ClientSession

    async def close(self) -> None:
        await self.session.close()
        self.pinned.close()


class Upstreams:
    """One session a sandbox socket, pinned to its inode, and one for everything reached by address."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._by_address: aiohttp.ClientSession | None = None
        self._by_socket: dict[str, _Held] = {}

    async def of(self, route: Route) -> aiohttp.ClientSession:
        """The session for a sandbox; a socket that another one has replaced is pinned anew.

        Raises:
            Unavailable: its socket cannot be opened.
        """
        if route.socket is None:
            return self.by_address()
        inode, held = _inode(route.socket), self._by_socket.get(route.socket)
        if held is not None and inode in (held.inode, None):
            return held.session
        pinned = PinnedSocket(route.socket)
        connector = aiohttp.UnixConnector(
            pinned.address, limit=self._settings.connections_per_sandbox, keepalive_timeout=KEEP_ALIVE
        )
        fresh = self._by_socket[route.socket] = _Held(pinned, inode, self._session(connector))
        if held is not None:
            await held.close()
        return fresh.session

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
        held = self._by_socket.pop(socket, None)
        if held is not None:
            await held.close()

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


def _inode(path: str) -> tuple[int, int] | None:
    """What is under this path now, links not followed; None for nothing."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
