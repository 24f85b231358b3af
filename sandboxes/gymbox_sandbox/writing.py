"""Writing: to a command or a socket whose other side reads slowly, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import socket

from gymbox_sandbox.problems import Conflict

CLOSED = "the command's input is closed"
_END = b"\x04"
"""What ends input on a terminal."""


class Input:
    """What a command reads.

    Args:
        fd: where it is written to, which does not block.
        terminal: the descriptor is that of the command's output, too, with which it is closed.
    """

    def __init__(self, fd: int, *, terminal: bool = False) -> None:
        self._fd: int | None = fd
        self._terminal = terminal
        self._turn = asyncio.Lock()
        self._writable: asyncio.Future[None] | None = None

    async def write(self, data: bytes) -> None:
        """Write, as fast as the command reads.

        Raises:
            Conflict: it is closed.
        """
        left = memoryview(data)
        async with self._turn:
            while left:
                if self._fd is None:
                    raise Conflict(CLOSED)
                try:
                    left = left[os.write(self._fd, left) :]
                except BlockingIOError:
                    await self._until_writable(self._fd)
                except OSError:
                    self.close()

    async def end(self) -> None:
        """There is no more; a second time is fine."""
        if self._fd is not None and self._terminal:
            await self.write(_END)
        else:
            self.close()

    def close(self) -> None:
        """Nobody writes any more; a second time is fine."""
        fd, self._fd = self._fd, None
        if fd is not None:
            if self._writable is not None:
                asyncio.get_running_loop().remove_writer(fd)
                _resolve(self._writable)
                self._writable = None
            if not self._terminal:
                os.close(fd)

    async def _until_writable(self, fd: int) -> None:
        """Wait until something can be written, or it is closed."""
        loop = asyncio.get_running_loop()
        writable = self._writable = loop.create_future()
        loop.add_writer(fd, _resolve, writable)
        try:
            await writable
        finally:
            if self._writable is writable:  # else it is closed, and its number may belong to another file
                self._writable = None
                loop.remove_writer(fd)


async def until_writable(link: socket.socket) -> None:
    """Return when something can be sent; of several who wait for one socket, only the last is woken."""
    loop = asyncio.get_running_loop()
    writable = loop.create_future()
    loop.add_writer(link, _resolve, writable)
    try:
        await writable
    finally:
        loop.remove_writer(link)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
