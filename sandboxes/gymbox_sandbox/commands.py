"""Commands: what the server runs as the agent's user, through its supervisor.

The server forks nothing. It sends descriptors and a request over its link, reads the output itself, and learns from
the command's reaper how it ended (see spawn). What a command prints never waits for the server's memory: the reader of
a stream sets the pace, and a plain exec keeps the first bytes and counts the rest.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from gymbox_sandbox.command import Command, Output, Started, read_now, until_writable
from gymbox_sandbox.problems import Conflict, Invalid, NotFound, TimedOut, Unavailable
from gymbox_sandbox.spawn import Spawn
from gymbox_sandbox.wire import ExecRequest, ExecResult

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

KILL_TIMEOUT = 30
"""Seconds; only a process stuck in the kernel takes longer to die."""
_MOST_ARGUMENT = 128_000
"""Bytes of a shell command; the kernel takes no longer argument, so the shell reads it from a file instead."""


class Commands:
    """Runs commands over one link. It works on one event loop, the first that uses it."""

    def __init__(
        self,
        link: socket.socket,
        workspace: str,
        environment: Mapping[str, str],
        *,
        kill_timeout: float = KILL_TIMEOUT,
    ) -> None:
        """`environment` is what every command gets, beside what its request adds."""
        link.setblocking(False)
        self.workspace = workspace
        self._link = link
        self._environment = dict(environment)
        self._kill_timeout = kill_timeout
        self._running: dict[str, Command] = {}
        self._unread: dict[int, asyncio.AbstractEventLoop] = {}
        self._sending = asyncio.Lock()
        self._killing = asyncio.Lock()
        self._still = asyncio.Lock()

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run a command to its end.

        Cancelling kills its whole tree.

        Raises:
            Invalid: the request cannot be carried out as it is: its directory, environment or input is wrong.
            Unavailable: no process can be started now.
        """
        if request.stream or request.pty or request.stdin_open:
            raise Invalid("stream, pty and stdin_open are for a streamed exec")
        kept = {"stdout": _Kept(request.output_limit), "stderr": _Kept(request.output_limit)}
        async with aclosing(self.stream(request)) as events:
            async for event in events:
                if isinstance(event, Output):
                    kept[event.stream].add(event.data)
                elif isinstance(event, ExecResult):
                    result = event
        out, err = kept["stdout"], kept["stderr"]
        return result.model_copy(
            update={
                "stdout": out.read(request.encoding),
                "stderr": err.read(request.encoding),
                "truncated": out.truncated or err.truncated,
            }
        )

    async def stream(self, request: ExecRequest) -> AsyncGenerator[Started | Output | ExecResult]:
        """Run a command and yield what happens as it does: Started, Outputs, and last an ExecResult without output.

        All output comes; the command waits while nobody takes it. Closing the iterator early kills the whole tree.

        Raises:
            Invalid, Unavailable: as `run`; before anything is yielded.
        """
        counts = {"stdout": 0, "stderr": 0}
        given = _decoded(request.stdin)
        exec_id = secrets.token_hex(8)
        async with self.start(self._spawn(request), stdin=bool(given) or request.stdin_open) as command:
            self._running[exec_id] = command
            feeding = asyncio.create_task(self._feed(command, given, request.stdin_open))
            try:
                yield Started(exec_id, command.pid)
                while isinstance(event := await command.next(), Output):
                    counts[event.stream] += len(event.data)
                    yield event
            finally:
                del self._running[exec_id]
                feeding.cancel()
            yield ExecResult(
                exit_code=event.code if event.code >= 0 and not event.timed_out else None,
                signal=-event.code if event.code < 0 else None,
                timed_out=event.timed_out,
                stdout_bytes=counts["stdout"],
                stderr_bytes=counts["stderr"],
                duration=event.duration,
            )

    def start(self, spawn: Spawn, *, stdin: bool = False) -> Command:
        """A context in which a command runs; `stdin` says that input will be written. Leaving it kills the tree."""
        return Command(spawn, stdin, self._send_start, self._read_on)

    async def archive(self, arguments: Sequence[str], file: int, *, timeout: float) -> bytes:
        """Save what the sandbox's files are into an open file, or load them from it (see state_archive); what it says.

        The agent's processes stand still meanwhile, and no other command starts. It goes on to its end, whoever
        hangs up.

        Raises:
            Problem: it failed, of the kind that it names.
        """
        from gymbox_sandbox.files import outcome

        async def send(fds: list[int]) -> None:
            os.dup2(file, fds[1] if arguments[0] == "load" else fds[2], inheritable=False)
            await self._send(b"s", fds)

        # not in the workspace, which its owner may have closed to the supervisor
        spawn = Spawn(arguments, {}, "/", timeout, state=True)
        async with self._still, Command(spawn, False, send, self._read_on) as command:
            return await outcome(command)

    async def write_stdin(self, exec_id: str, data: bytes, *, eof: bool = False) -> None:
        """Write to a streamed command's input, as fast as it reads.

        Raises:
            NotFound: no such command runs.
            Conflict: its input is closed.
        """
        command = self._command(exec_id)
        await command.write(data)
        if eof:
            await command.write_end()

    def resize(self, exec_id: str, rows: int, columns: int) -> None:
        """Give a command's terminal another size.

        Raises:
            NotFound: no such command runs.
            Conflict: it has no terminal.
        """
        self._command(exec_id).resize(rows, columns)

    def signal(self, exec_id: str, name: str) -> None:
        """Send a signal, `SIGINT` or `INT`, to what is in the foreground of a command.

        Raises:
            NotFound: no such command runs.
            Invalid: there is no such signal.
        """
        found = signal.Signals.__members__.get(f"SIG{name.upper().removeprefix('SIG')}")
        if found is None:
            raise Invalid(f"there is no signal {name!r}")
        self._command(exec_id).signal(found)

    async def kill_all(self) -> None:
        """Kill every process of the agent; when this returns, none is left.

        Raises:
            TimedOut: some are still there after `kill_timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        async with self._killing:
            token = b"k" + secrets.token_bytes(8)
            try:
                async with asyncio.timeout(self._kill_timeout):
                    await self._send(token)
                    while (answer := await loop.sock_recv(self._link, 64)) != token:
                        if not answer:
                            raise Unavailable("the supervisor is gone")
            except TimeoutError as error:
                raise TimedOut(f"processes of the agent are still there after {self._kill_timeout:g} s") from error

    def close(self) -> None:
        """Give up the link: the supervisor kills whatever was started over it. A second time is fine."""
        for fd, loop in self._unread.items():
            if not loop.is_closed():
                loop.remove_reader(fd)
            os.close(fd)
        self._unread.clear()
        self._link.close()

    def routes(self) -> list[BaseRoute]:
        """`POST /exec` and its companions, as `wire` lists them."""
        from gymbox_sandbox.exec_routes import exec_routes

        return exec_routes(self)

    def _command(self, exec_id: str) -> Command:
        if exec_id not in self._running:
            raise NotFound(f"no command {exec_id!r} is running")
        return self._running[exec_id]

    def _spawn(self, request: ExecRequest) -> Spawn:
        script = ""
        if isinstance(request.command, list):
            argv = request.command
        elif len(request.command) * 4 < _MOST_ARGUMENT or len(request.command.encode()) < _MOST_ARGUMENT:
            argv = [_shell(), "-c", request.command]
        else:
            argv, script = [_shell(), "/proc/self/fd/3"], request.command
        if not argv or not argv[0]:
            raise Invalid("the command is empty")
        return Spawn(
            argv=argv,
            env={**self._environment, **({"TERM": "xterm-256color"} if request.pty else {}), **request.env},
            cwd=os.path.join(self.workspace, request.cwd or ""),
            timeout=request.timeout,
            script=script,
            terminal=(request.pty.rows, request.pty.columns) if request.pty else None,
        )

    async def _feed(self, command: Command, data: bytes, stays_open: bool) -> None:
        if data:
            with contextlib.suppress(Conflict):  # it does not read its input; its own matter
                await command.write(data)
        if not stays_open:
            await command.write_end()

    async def _send_start(self, fds: Sequence[int]) -> None:
        async with self._still:
            await self._send(b"s", fds)

    async def _send(self, order: bytes, fds: Sequence[int] = ()) -> None:
        """Give the supervisor an order (see engine) and descriptors."""
        async with self._sending:  # one at a time, since a loop tells only one when a descriptor can be written
            while True:
                try:
                    socket.send_fds(self._link, [order], fds)
                    return
                except BlockingIOError:  # many at once: the supervisor forks one after the other
                    await until_writable(self._link)

    def _read_on(self, fd: int) -> None:
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


class _Kept:
    """The first bytes of a stream, and how many there were."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._size += len(data)
        self._data += data[: self._limit - len(self._data)]

    @property
    def truncated(self) -> bool:
        return self._size > len(self._data)

    def read(self, encoding: str) -> str:
        if encoding == "base64":
            return base64.b64encode(self._data).decode()
        # a character that the limit cuts in two is left out whole
        return codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._data), final=not self.truncated)


def _decoded(text: str | None) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"stdin is not base64: {error}") from error


def _shell() -> str:
    return "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
