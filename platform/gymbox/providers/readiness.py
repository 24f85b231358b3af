"""Readiness: where a server says that it answers, or why it never will. Pushed by the server, never polled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Self

from gymbox_sandbox.wire import READY_SOCKET

from gymbox.errors import Problem, Unavailable, from_wire

LINE_LIMIT = 1024 * 1024


class Readiness:
    """READY_SOCKET in a sandbox's directory, listening from the moment it is made; close it when the wait is over."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / READY_SOCKET
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{descriptor}/{READY_SOCKET}")  # however long the directory's path is
            self._path.chmod(0o660)
        finally:
            os.close(descriptor)
        self._listener.listen(4)
        self._listener.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def wait(self) -> None:
        """Return once the server says that it answers.

        Raises:
            Problem: the server said why it never will.
        """
        line = b""
        while not line.endswith(b"\n"):
            await self._called()
            with contextlib.suppress(BlockingIOError), self._listener.accept()[0] as connection:
                line = await _line(connection)
        if line != b"ready\n":
            raise _problem(line)

    async def _called(self) -> None:
        """Return when someone connects. Unlike `loop.sock_accept`, it may be cancelled in the moment that one does."""
        loop, called = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._listener, called.set)
        try:
            await called.wait()
        finally:
            loop.remove_reader(self._listener)

    def close(self) -> None:
        """Stop listening; safe to call twice. Nobody may be waiting any more."""
        self._listener.close()
        self._path.unlink(missing_ok=True)


async def _line(connection: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    line = b""
    while not line.endswith(b"\n") and len(line) < LINE_LIMIT:
        chunk = await loop.sock_recv(connection, 65536)
        if not chunk:
            break
        line += chunk
    return line


def _problem(line: bytes) -> Problem:
    text = line.decode(errors="replace").strip()
    try:
        body = json.loads(text.removeprefix("failed "))
        return from_wire(int(body["status"]), body, where="the sandbox's server")
    except (ValueError, KeyError, TypeError):
        return Unavailable(f"the sandbox's server said {text[:300]!r} where it should have said that it is ready")
