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
import fcntl
import os
import secrets
import signal
import socket
import struct
import termios
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

from gymbox_sandbox.problems import KINDS, AtCapacity, Conflict, Invalid, NotFound, Problem, TimedOut, Unavailable
from gymbox_sandbox.spawn import Spawn
from gymbox_sandbox.wire import ExecRequest, ExecResult

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

_CHUNK = 1 << 16
_MOST_QUEUED = 4 * _CHUNK
"""Bytes of output read but not yet taken; beyond it the command has to wait."""
_TERMINAL_GRACE = 0.25
"""Seconds that a terminal has to hand over its last output after the command has ended."""
KILL_TIMEOUT = 30
"""Seconds; only a process stuck in the kernel takes longer to die."""
_MOST_ARGUMENT = 128_000
"""Bytes of a shell command; the kernel takes no longer argument, so the shell reads it from a file instead."""
_END_OF_INPUT = b"\x04"
"""What ends input on a terminal."""


class Started(NamedTuple):
    """The command runs."""

    exec_id: str
    pid: int


class Output(NamedTuple):
    """It printed something."""

    stream: str
    """`stdout` or `stderr`."""
    data: bytes


class Ended(NamedTuple):
    """It is over."""

    code: int
    """Negative for a signal."""
    timed_out: bool
    duration: float


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
        return Command(spawn, stdin, partial(self._send, b"s"), self._read_on)

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

    async def _send(self, order: bytes, fds: Sequence[int] = ()) -> None:
        """Give the supervisor an order (see engine) and descriptors."""
        async with self._sending:  # one at a time, since a loop tells only one when a descriptor can be written
            while True:
                try:
                    socket.send_fds(self._link, [order], fds)
                    return
                except BlockingIOError:  # many at once: the supervisor forks one after the other
                    await _until_writable(self._link)

    def _read_on(self, fd: int) -> None:
        """Read and forget what background processes of an ended command print, so that they neither wait nor fail."""
        loop = asyncio.get_running_loop()
        self._unread[fd] = loop

        def forget() -> None:
            with contextlib.suppress(BlockingIOError):
                if not _read(fd):
                    loop.remove_reader(fd)
                    del self._unread[fd]
                    os.close(fd)

        loop.add_reader(fd, forget)


class Command:
    """One command. It runs from entering the context on; leaving the context kills its tree, unless it has ended."""

    pid: int

    def __init__(
        self,
        spawn: Spawn,
        stdin: bool,
        send: Callable[[list[int]], Awaitable[None]],
        read_on: Callable[[int], None],
    ) -> None:
        self._spawn = spawn
        self._wants_stdin = stdin
        self._send = send
        self._read_on = read_on
        self._stdin: int | None = None
        self._outputs: dict[int, str] = {}
        self._terminal_closed = False
        self._paused = False
        self._queued = 0
        self._events: asyncio.Queue[Started | Output | Ended | Problem] = asyncio.Queue()
        self._ended: Ended | None = None
        self._finished = False
        self._lines = b""
        self._writing = asyncio.Lock()
        self._writable: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            request = self._spawn.to_bytes()
        except ValueError as error:
            raise Invalid(f"the command cannot be run: {error}") from error
        try:
            await self._open(request)
            event = await self._events.get()
            if isinstance(event, Problem):
                raise event
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def next(self) -> Output | Ended:
        """What happens next; after Ended there is nothing more.

        Raises:
            Unavailable: its reaper was killed, by lack of memory for instance.
        """
        event = await self._events.get()
        if isinstance(event, Problem):
            raise event
        assert not isinstance(event, Started)
        if isinstance(event, Output):
            self._queued -= len(event.data)
            if self._paused and self._queued < _MOST_QUEUED:
                self._paused = False
                for fd in self._outputs:
                    self._loop.add_reader(fd, self._on_output, fd)
        return event

    async def write(self, data: bytes) -> None:
        """Write to its input, as fast as it reads.

        Raises:
            Conflict: its input is closed.
        """
        left = memoryview(data)
        async with self._writing:
            while left:
                if self._stdin is None:
                    raise Conflict("the command's input is closed")
                try:
                    left = left[os.write(self._stdin, left) :]
                except BlockingIOError:
                    await self._until_writable(self._stdin)
                except OSError:
                    self._close_stdin()

    async def write_end(self) -> None:
        """End its input; a second time is fine."""
        if self._stdin is not None and self._stdin in self._outputs:
            await self.write(_END_OF_INPUT)
        else:
            self._close_stdin()

    def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size.

        Raises:
            Conflict: it has none.
        """
        if self._spawn.terminal is None or not self._outputs:
            raise Conflict("the command has no terminal")
        fcntl.ioctl(next(iter(self._outputs)), termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal(self, number: int) -> None:
        """Send a signal to what is in its foreground; if it has just ended, nothing happens."""
        with contextlib.suppress(OSError):
            self._control.send(bytes([number]))

    def close(self) -> None:
        """Kill the tree, unless the command has ended; a second time is fine."""
        self._finished = True
        self._close_stdin()
        for fd in list(self._outputs):
            self._close_output(fd)
        if hasattr(self, "_control"):
            self._loop.remove_reader(self._control)
            self._control.close()

    async def _open(self, request: bytes) -> None:
        theirs: list[int] = []
        try:
            self._control, control = socket.socketpair()
            theirs.append(control.detach())
            self._control.setblocking(False)
            if self._spawn.terminal is None:
                theirs.append(self._open_stdin())
                for name in ("stdout", "stderr"):
                    read, write = os.pipe()
                    self._outputs[read] = name
                    theirs.append(write)
                    os.set_blocking(read, False)
            if self._spawn.script:
                theirs.append(_file(self._spawn.script))
            await self._send(theirs)
        except OSError as error:
            raise AtCapacity(f"no command can be started now: {error.strerror}", retry_after=1) from error
        finally:
            for fd in theirs:
                os.close(fd)
        self._loop.add_reader(self._control, self._on_control)
        # refused before it was read: the reason is on its way
        with contextlib.suppress(ConnectionError):
            await self._loop.sock_sendall(self._control, request)

    def _open_stdin(self) -> int:
        if not self._wants_stdin:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        read, self._stdin = os.pipe()
        os.set_blocking(self._stdin, False)
        return read

    def _on_control(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 4096, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self._loop.remove_reader(self._control)
            self._fail(Unavailable("the command's supervisor was killed; the sandbox may be out of memory"))
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            match line.decode(errors="replace").split(" ", 2):
                case ["started", pid]:
                    self._on_started(int(pid), fds)
                case ["refused", kind, text]:
                    self._fail(KINDS[kind](text))
                case ["ended", code, rest]:
                    timed_out, _, duration = rest.partition(" ")
                    self._on_ended(Ended(int(code), timed_out == "1", float(duration)))

    def _on_started(self, pid: int, fds: list[int]) -> None:
        self.pid = pid
        for terminal in fds:
            os.set_blocking(terminal, False)
            self._outputs[terminal] = "stdout"
            self._stdin = terminal
        for fd in self._outputs:
            self._loop.add_reader(fd, self._on_output, fd)
        self._events.put_nowait(Started("", pid))

    def _on_output(self, fd: int) -> None:
        try:
            data = _read(fd)
        except BlockingIOError:
            return
        if data:
            self._put(fd, data)
        elif self._spawn.terminal is not None and self._ended is None:
            # closed, but not yet ended: to close our side now would kill it by SIGHUP, and many close all they have
            # before they exit
            self._loop.remove_reader(fd)
            self._terminal_closed = True
        else:
            self._close_output(fd)
            if not self._outputs and self._ended is not None:
                self._finish()

    def _put(self, fd: int, data: bytes) -> None:
        self._events.put_nowait(Output(self._outputs[fd], data))
        self._queued += len(data)
        if self._queued >= _MOST_QUEUED and not self._paused:
            self._paused = True
            for each in self._outputs:
                self._loop.remove_reader(each)

    def _on_ended(self, ended: Ended) -> None:
        self._ended = ended
        self._loop.remove_reader(self._control)
        if self._spawn.terminal is None or self._terminal_closed:
            self._finish()
        else:
            # the kernel hands over a terminal's output in its own time, and says when that was all
            self._loop.call_later(_TERMINAL_GRACE, self._finish)

    def _finish(self) -> None:
        """The command has ended: take what it had printed by then, and leave the rest to nobody."""
        if self._finished:
            return
        self._finished = True
        assert self._ended is not None
        self._close_stdin()
        for fd, name in self._outputs.items():
            self._loop.remove_reader(fd)
            waiting = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
            while waiting > 0 and (data := _read(fd, waiting)):
                waiting -= len(data)
                self._events.put_nowait(Output(name, data))
            self._read_on(fd)
        self._outputs.clear()
        self._events.put_nowait(self._ended)

    def _fail(self, problem: Problem) -> None:
        if self._ended is None:
            self._events.put_nowait(problem)

    async def _until_writable(self, fd: int) -> None:
        """Wait until input can be written, or is closed."""
        writable = self._writable = self._loop.create_future()
        self._loop.add_writer(fd, _resolve, writable)
        try:
            await writable
        finally:
            if self._writable is writable:  # else it is closed, and its number may belong to another file
                self._writable = None
                self._loop.remove_writer(fd)

    def _close_stdin(self) -> None:
        fd, self._stdin = self._stdin, None
        if fd is not None:
            if self._writable is not None:
                self._loop.remove_writer(fd)
                _resolve(self._writable)
                self._writable = None
            if fd not in self._outputs:
                os.close(fd)

    def _close_output(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        if self._stdin == fd:
            self._close_stdin()
        del self._outputs[fd]
        os.close(fd)


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


def _read(fd: int, most: int = _CHUNK) -> bytes:
    """What can be read now; nothing at the end, which a terminal marks by an error (EIO)."""
    try:
        return os.read(fd, most)
    except BlockingIOError:
        raise
    except OSError:
        return b""


async def _until_writable(link: socket.socket) -> None:
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


def _decoded(text: str | None) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"stdin is not base64: {error}") from error


def _file(text: str) -> int:
    """A descriptor of a file in memory."""
    fd = os.memfd_create("command")
    left = memoryview(os.fsencode(text))
    while left:
        left = left[os.write(fd, left) :]
    return fd


def _shell() -> str:
    return "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
