"""Spawn: what the server asks its supervisor to run, as bytes on a command's control socket.

Nul-separated, as execve has it: whoever reads it may be root, and needs no parser. What travels on that socket:

    server → reaper   `s` and a Spawn, with the descriptors that the command gets; then `k` and one byte, the number
                      of a signal, as often as wanted. Hanging up kills the command and its tree.
    reaper → server   lines: `started PID` (with a descriptor of the terminal, if it runs on one), or
                      `refused KIND TEXT` (KIND as in problems); then `ended CODE TIMED_OUT FREE SECONDS`, CODE
                      negative for a signal. If FREE is 1, nothing of the command is left, and the reaper takes another
                      Spawn
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

SPAWN, SIGNAL = b"s", b"k"
"""What a message to a reaper begins with."""
_LENGTH_BYTES = 4
_MOST_FDS = 8


class Spawn(NamedTuple):
    """A command to run."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    timeout: float
    """Seconds; then the whole tree is killed."""
    terminal: tuple[int, int] | None = None
    """Rows and columns, if it is to run on a terminal of its own."""
    script: str = ""
    """If not empty, what can be read from descriptor 3; it travels as a file."""
    transfer: bool = False
    """`argv` are arguments of `transfer.main`, and no program."""
    state: bool = False
    """`argv` are those of `state_archive.main`, which runs as the supervisor's user while the agent stands still."""

    def to_bytes(self) -> bytes:
        """
        Raises:
            ValueError: there is a nul byte, a lone surrogate or an impossible name in it.
        """
        for name in self.env:
            if not name or "=" in name:
                raise ValueError(f"{name!r} cannot be the name of an environment variable")
        rows, columns = self.terminal or (0, 0)
        kind = "state" if self.state else "transfer" if self.transfer else "program"
        head = [self.cwd, str(self.timeout), str(rows), str(columns), kind, str(len(self.argv))]
        fields = [*head, *self.argv, *(f"{name}={value}" for name, value in self.env.items())]
        if any("\0" in field for field in [*fields, self.script]):
            raise ValueError("a nul byte cannot be part of a command, its environment or its directory")
        body = b"\0".join(map(os.fsencode, fields))
        return SPAWN + len(body).to_bytes(_LENGTH_BYTES) + body

    @classmethod
    def receive(cls, control: socket.socket) -> tuple[Spawn, list[int]] | None:
        """The next request on a socket, and the descriptors with it; None if the other side hangs up instead."""
        kind, fds, _, _ = socket.recv_fds(control, 1, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        while kind == SIGNAL:  # it was for a command that has ended
            if not control.recv(1):
                return None
            kind, fds, _, _ = socket.recv_fds(control, 1, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        head = _exactly(control, _LENGTH_BYTES) if kind == SPAWN else b""
        body = _exactly(control, int.from_bytes(head)) if head else b""
        if not body:
            return None
        return cls._of(body), fds

    @classmethod
    def _of(cls, body: bytes) -> Spawn:
        cwd, timeout, rows, columns, kind, count, *rest = map(os.fsdecode, body.split(b"\0"))
        argv, variables = rest[: int(count)], rest[int(count) :]
        return cls(
            argv=argv,
            env=dict((name, value) for name, _, value in (variable.partition("=") for variable in variables)),
            cwd=cwd,
            timeout=float(timeout),
            terminal=(int(rows), int(columns)) if int(rows) else None,
            transfer=kind == "transfer",
            state=kind == "state",
        )


def _exactly(control: socket.socket, size: int) -> bytes:
    """`size` bytes, or none if the other side hangs up before."""
    data = bytearray()
    while len(data) < size:
        chunk = control.recv(min(size - len(data), 1 << 16))
        if not chunk:
            return b""
        data += chunk
    return bytes(data)
