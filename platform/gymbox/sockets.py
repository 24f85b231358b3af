"""Sockets: connect to a unix socket that sits in a directory which untrusted code may write to."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from gymbox.errors import Unavailable

if TYPE_CHECKING:
    from aiohttp import ClientSession


class PinnedSocket:
    """A unix socket held by its inode, so that nothing put in its place afterwards can lead elsewhere.

    Whoever can write to the directory of a socket can replace it by a symlink to another one (the engine's, say). So
    the last path component is opened without following links, checked to be a socket, and connected to through the
    open descriptor. The folders above it must not be writable for the untrusted side. The address is also always
    shorter than the 107 bytes that a unix socket's path may have.

    Close it only after everything that connects through `address` is closed: the number in it is reused.

    Raises:
        Unavailable: there is nothing at `path`, or it is no socket.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._descriptor = -1
        self._opened: os.stat_result | None = None
        try:
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise Unavailable(f"{self.path} is not a socket")
            if hasattr(os, "O_PATH"):  # Linux; elsewhere no container shares a folder of sockets with us
                self._descriptor = os.open(self.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"cannot open the socket {self.path}: {error.strerror}") from error
        if self._descriptor >= 0:
            self._opened = os.fstat(self._descriptor)
            if not stat.S_ISSOCK(self._opened.st_mode):
                self.close()
                raise Unavailable(f"{self.path} was replaced by something that is not a socket")

    @property
    def address(self) -> str:
        """What to connect to, as a path; valid in this process until `close`."""
        return self.path if self._descriptor < 0 else f"/proc/self/fd/{self._descriptor}"

    def is_replaced(self) -> bool:
        """Whether something else is at its path now; nothing at all does not count."""
        if self._descriptor < 0 or self._opened is None:
            return False
        try:
            # while we hold the inode, no other can get its number
            return not os.path.samestat(os.lstat(self.path), self._opened)
        except OSError:
            return False

    def close(self) -> None:
        """Let go of it; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SocketSessions:
    """HTTP sessions of which each connects to one unix socket only, kept by the socket's path.

    Args:
        open: makes a session that connects to this address.
    """

    def __init__(self, open: Callable[[str], ClientSession]) -> None:
        self._open = open
        self._held: dict[str, tuple[PinnedSocket, ClientSession]] = {}

    async def of(self, path: str) -> ClientSession:
        """The session for the socket that is at this path now; where another one was, its connections are dropped.

        Raises:
            Unavailable: there is no socket at that path.
        """
        held = self._held.get(path)
        if held is not None and not held[0].is_replaced():
            return held[1]
        pinned = PinnedSocket(path)
        session = self._open(pinned.address)
        self._held[path] = pinned, session
        if held is not None:
            await _close(*held)
        return session

    async def keep(self, paths: set[str]) -> None:
        """Drop the sessions of all other sockets, with whatever is in flight there."""
        await asyncio.gather(*(self.forget(path) for path in self._held.keys() - paths))

    async def forget(self, path: str) -> None:
        """Drop the session of a socket; the next request opens it anew."""
        held = self._held.pop(path, None)
        if held is not None:
            await _close(*held)

    async def close(self) -> None:
        """Drop all; safe to call twice."""
        await self.keep(set())


async def _close(pinned: PinnedSocket, session: ClientSession) -> None:
    await session.close()
    pinned.close()  # only now: the number in its address is reused
