"""Command: one process of the agent and its tree, from the request to its end, as the server sees it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from gymbox_sandbox.problems import KINDS, AtCapacity, Conflict, Invalid, Problem, Unavailable
from gymbox_sandbox.spawn import SIGNAL, Spawn
from gymbox_sandbox.writing import CLOSED, Input

if TYPE_CHECKING:
    from gymbox_sandbox.reapers import Reapers

_CHUNK = 1 << 16
_LARGE_CHUNK = 1 << 18
"""Bytes of a file that are read at once. For a command's output so much would have to be allocated for a few bytes."""
_LARGE_PIPE = 1 << 20
"""Bytes of a pipe through which files go: the fewer turns of the loop they take, the faster they are."""
_MOST_QUEUED = 1 << 18
"""Bytes of output read but not yet taken; beyond it the command has to wait."""
_TERMINAL_GRACE = 0.25
"""Seconds that a terminal has to hand over its last output after the command has ended."""


class Started(NamedTuple):
    """The command runs."""

    exec_id: str
    pid: int
    """0 where it was killed before it ran."""


class Output(NamedTuple):
    """It printed something."""

    stream: str
    """`stdout` or `stderr`; or `mark`, see `Command.mark`."""
    data: bytes


class Dropped(NamedTuple):
    """What it printed was dropped before whoever follows it came to that."""

    bytes: int


class Ended(NamedTuple):
    """It is over."""

    code: int
    """Negative for a signal."""
    timed_out: bool
    duration: float


class Command:
    """One command. It runs from entering the context on; leaving the context kills its tree, unless it has ended."""

    pid = 0
    """0 where it was killed before it ran."""

    def __init__(
        self,
        spawn: Spawn,
        reapers: Reapers,
        *,
        stdin: bool,
        also: Sequence[int] = (),
        standard: Mapping[int, int] | None = None,
        turn: asyncio.Lock | None = None,
    ) -> None:
        """
        Args:
            stdin: input will be written.
            also: descriptors that the command gets from 3 on; they are closed here once it has them.
            standard: what it gets in place of one of its first three.
            turn: it starts only when it has this, for as long as it starts.
        """
        self._standard = standard or {}
        self._turn = turn
        self._spawn = spawn
        self._wants_stdin = stdin
        self._also = also
        self._reapers = reapers
        self._control: socket.socket | None = None
        self._is_free = False
        self._input: Input | None = None
        self._outputs: dict[int, str] = {}
        self._terminal_closed = False
        self._paused = False
        self._queued = 0
        self._first: Output | Ended | None = None
        self._events: asyncio.Queue[Started | Output | Ended | Problem] = asyncio.Queue()
        self._ended: Ended | None = None
        self._finished = False
        self._lines = b""

    async def __aenter__(self) -> Self:
        """
        Raises:
            Invalid: what was asked for cannot be run.
            Problem: no reaper took it, or it could not be started.
        """
        self._loop = asyncio.get_running_loop()
        try:
            request = self._spawn.to_bytes()
        except ValueError as error:
            for fd in self._also:
                os.close(fd)
            raise Invalid(f"the command cannot be run: {error}") from error
        try:
            await self._open(request)
            event = await self._events.get()
            if isinstance(event, Problem):
                raise event
            if not isinstance(event, Started):  # its time was over before it ran
                self._first = event
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def aclose(self) -> None:
        """As `close`, where it was entered elsewhere."""
        self.close()

    async def next(self) -> Output | Ended:
        """What happens next; after Ended there is nothing more.

        Raises:
            Unavailable: its reaper was killed, by lack of memory for instance.
        """
        event, self._first = self._first or await self._events.get(), None
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
        if self._input is not None:
            await self._input.write(data)
        elif data:
            raise Conflict(CLOSED)

    async def write_end(self) -> None:
        """End its input; a second time is fine."""
        if self._input is not None:
            await self._input.end()

    def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size.

        Raises:
            Conflict: it has none.
        """
        if self._spawn.terminal is None or not self._outputs:
            raise Conflict("the command has no terminal")
        fcntl.ioctl(next(iter(self._outputs)), termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def mark(self, data: bytes) -> None:
        """Have `next` give an Output of the stream `mark` after all that is printed by now."""
        if not self._finished:
            self._take_all()
            self._queued += len(data)
            self._events.put_nowait(Output("mark", data))

    def signal(self, number: int) -> None:
        """Send a signal to what is in its foreground; if it has just ended, nothing happens."""
        if self._control is not None and self._ended is None:
            with contextlib.suppress(OSError):
                self._control.send(SIGNAL + bytes([number]))

    def close(self) -> None:
        """Kill the tree, unless the command has ended; a second time is fine."""
        self._finished = True
        self._close_input()
        for fd in list(self._outputs):
            self._close_output(fd)
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            if self._is_free:
                self._reapers.take_back(self._control)
            else:
                self._control.close()
            self._control = None

    async def _open(self, request: bytes) -> None:
        theirs: list[int] = []
        try:
            if self._spawn.terminal is None:
                theirs.append(self._open_stdin())
                for name in ("stdout", "stderr"):
                    read, write = self._pipe()
                    self._outputs[read] = name
                    theirs.append(write)
                    os.set_blocking(read, False)
            if self._spawn.script:
                theirs.append(_file(self._spawn.script))
            for number, fd in self._standard.items():
                os.dup2(fd, theirs[number], inheritable=False)
            async with self._turn or contextlib.nullcontext():
                await self._ask([*theirs, *self._also], request)
        except OSError as error:
            raise AtCapacity(f"no command can be started now: {error.strerror}", retry_after=1) from error
        finally:
            for fd in (*theirs, *self._also):
                os.close(fd)
        assert self._control is not None
        self._loop.add_reader(self._control.fileno(), self._on_control)

    async def _ask(self, fds: Sequence[int], request: bytes) -> None:
        """Hand a reaper the request, and what the command gets."""
        self._control = await self._reapers.lend()
        # refused before it was read: the reason is on its way
        with contextlib.suppress(ConnectionError):
            sent = socket.send_fds(self._control, [request], fds)
            if sent < len(request):
                await self._loop.sock_sendall(self._control, request[sent:])

    def _open_stdin(self) -> int:
        if not self._wants_stdin:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        read, write = self._pipe()
        os.set_blocking(write, False)
        self._input = Input(write)
        return read

    def _pipe(self) -> tuple[int, int]:
        pipe = os.pipe()
        if self._spawn.transfer:
            with contextlib.suppress(OSError):  # one user's pipes may be large only up to a sum
                fcntl.fcntl(pipe[0], fcntl.F_SETPIPE_SZ, _LARGE_PIPE)
        return pipe

    def _on_control(self) -> None:
        assert self._control is not None
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 4096, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self._loop.remove_reader(self._control.fileno())
            self._fail(Unavailable("the command's supervisor was killed; the sandbox may be out of memory"))
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            match line.decode(errors="replace").split(" ", 2):
                case ["started", pid]:
                    self._on_started(int(pid), fds)
                case ["refused", kind, text]:
                    self._fail(KINDS[kind](text))
                case ["ended", code, rest]:
                    timed_out, free, duration = rest.split(" ")
                    self._is_free = free == "1"
                    self._loop.remove_reader(self._control.fileno())
                    self._on_ended(Ended(int(code), timed_out == "1", float(duration)))

    def _on_started(self, pid: int, fds: list[int]) -> None:
        self.pid = pid
        for terminal in fds:
            os.set_blocking(terminal, False)
            self._outputs[terminal] = "stdout"
            self._input = Input(terminal, terminal=True)
        for fd in self._outputs:
            self._loop.add_reader(fd, self._on_output, fd)
        self._events.put_nowait(Started("", pid))

    def _on_output(self, fd: int) -> None:
        try:
            data = read_now(fd, _LARGE_CHUNK if self._spawn.transfer else _CHUNK)
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
        self._close_input()
        self._take_all()
        for fd in self._outputs:
            self._loop.remove_reader(fd)
            self._reapers.read_on(fd)
        self._outputs.clear()
        self._events.put_nowait(self._ended)

    def _take_all(self) -> None:
        """Read what is printed by now; what comes while this reads is left."""
        for fd, name in self._outputs.items():
            waiting = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
            while waiting > 0 and (data := read_now(fd, waiting)):
                waiting -= len(data)
                self._queued += len(data)
                self._events.put_nowait(Output(name, data))

    def _fail(self, problem: Problem) -> None:
        if self._ended is None:
            self._events.put_nowait(problem)

    def _close_input(self) -> None:
        if self._input is not None:
            self._input.close()

    def _close_output(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        if self._spawn.terminal is not None:
            self._close_input()
        del self._outputs[fd]
        os.close(fd)


def read_now(fd: int, most: int = _CHUNK) -> bytes:
    """What can be read now; nothing at the end, which a terminal marks by an error (EIO)."""
    try:
        return os.read(fd, most)
    except BlockingIOError:
        raise
    except OSError:
        return b""


def _file(text: str) -> int:
    """A descriptor of a file in memory."""
    fd = os.memfd_create("command")
    left = memoryview(os.fsencode(text))
    while left:
        left = left[os.write(fd, left) :]
    return fd
