"""Reapers: a server's link to its supervisor, and the reapers that it has from there, each on a socket of its own.

A reaper whose command has left nothing behind is kept for the next command, so that most cost one fork and not two.
Few are kept, and not for long: an idle sandbox has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Sequence

from gymbox_sandbox.command import read_now
from gymbox_sandbox.problems import TimedOut, Unavailable
from gymbox_sandbox.writing import until_writable

_MOST_IDLE = 2
_IDLE_SECONDS = 20.0


class Reapers:
    """Works on one event loop, the first that uses it."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self._link = link
        self._idle: dict[socket.socket, asyncio.TimerHandle] = {}
        self._unread: dict[int, asyncio.AbstractEventLoop] = {}
        self._sending = asyncio.Lock()
        self._killing = asyncio.Lock()

    async def lend(self) -> socket.socket:
        """The control socket of a reaper (see spawn) that waits for a command.

        Raises:
            OSError: there is no descriptor left.
        """
        while self._idle:
            control, handle = self._idle.popitem()
            handle.cancel()
            try:
                control.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return control
            except OSError:
                pass
            control.close()  # it was killed meanwhile, by lack of memory for instance
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            with theirs:
                await self._send(b"s", [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return ours

    def take_back(self, control: socket.socket) -> None:
        """Keep a reaper whose command has ended and left nothing, or let it go."""
        if len(self._idle) >= _MOST_IDLE or self._link.fileno() < 0:
            control.close()
        else:
            self._idle[control] = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._let_go, control)

    def read_on(self, fd: int) -> None:
        """Read and forget what background processes of an ended command print, so that they neither wait nor fail."""
        loop = asyncio.get_running_loop()
        self._unread[fd] = loop

        def forget() -> None:
            with contextlib.suppress(BlockingIOError):
                if not read_now(fd):
                    loop.remove_reader(fd)
                    del self._unread[fd]
                    os.close(fd)

        loop.add_reader(fd, forget)

    async def kill_all(self, timeout: float) -> None:
        """Kill all commands with their trees; when this returns, none is left.

        Raises:
            TimedOut: some are still there after `timeout` seconds.
            Unavailable: the supervisor is gone.
        """
        loop = asyncio.get_running_loop()
        async with self._killing:
            self._let_all_go()
            token = b"k" + secrets.token_bytes(8)
            try:
                async with asyncio.timeout(timeout):
                    await self._send(token)
                    while (answer := await loop.sock_recv(self._link, 64)) != token:
                        if not answer:
                            raise Unavailable("the supervisor is gone")
            except TimeoutError as error:
                raise TimedOut(f"processes of the agent are still there after {timeout:g} s") from error

    def close(self) -> None:
        """Give up the link: the supervisor kills whatever was started over it. A second time is fine."""
        for fd, loop in self._unread.items():
            if not loop.is_closed():
                loop.remove_reader(fd)
            os.close(fd)
        self._unread.clear()
        self._let_all_go()
        self._link.close()

    def _let_all_go(self) -> None:
        for control in list(self._idle):
            self._let_go(control)

    def _let_go(self, control: socket.socket) -> None:
        self._idle.pop(control).cancel()
        control.close()

    async def _send(self, order: bytes, fds: Sequence[int] = ()) -> None:
        """Give the supervisor an order (see engine) and descriptors."""
        async with self._sending:  # one at a time, since a loop tells only one when a descriptor can be written
            while True:
                try:
                    socket.send_fds(self._link, [order], fds)
                    return
                except BlockingIOError:  # many at once: the supervisor forks one after the other
                    await until_writable(self._link)
