"""Processes: the commands of one sandbox that its users have started and can come back to.

Each is a streamed exec that is read here, for as long as it runs and whoever listens: who hangs up leaves it alone,
as in E2B. A command waits for its slowest listener, so nothing of its output is dropped and little of it held; without
one its output is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from gymbox_sandbox.wire import ExecRequest, ExecResult, Pty

from gymbox.e2b.messages import Input, Selector, StartRequest
from gymbox.e2b.refusals import Away, Code, Refused, as_away, refused
from gymbox.errors import Problem
from gymbox.execution import Execution
from gymbox.requests import request_of
from gymbox.sandbox_client import SandboxClient

log = logging.getLogger(__name__)

LONGEST = 86_400.0
"""Seconds that a command may run."""
BACKLOG = 1 << 18
"""Bytes that a listener may be behind before the command waits for it."""
DYING = 5.0
"""Seconds that a killed command gets to end before its stream is hung up."""

Stream = Literal["stdout", "stderr", "pty"]


@dataclass(frozen=True, slots=True)
class Output:
    """Something that a command printed."""

    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """How a command ended."""

    exit_code: int
    """-1: by a signal."""
    status: str

    @property
    def exited(self) -> bool:
        return self.exit_code >= 0


KILLED = End(-1, "signal: killed")


def end_of(result: ExecResult) -> End:
    """
    Raises:
        Refused: it ran out of time.
    """
    if result.timed_out:
        raise Refused(Code.DEADLINE_EXCEEDED, f"the command was killed after {result.duration:.3g} s")
    if result.exit_code is None:
        return KILLED if result.signal == 9 else End(-1, f"signal: {result.signal}")
    return End(result.exit_code, f"exit status {result.exit_code}")


class Listener:
    """What comes of a command for one who listens, in order, up to its end."""

    def __init__(self) -> None:
        self._waiting: deque[Output | End | Refused] = deque()
        self._bytes = 0
        self._something = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def tell(self, output: Output) -> None:
        """Wait while it is too far behind, then let it have this."""
        await self._room.wait()
        self._waiting.append(output)
        self._bytes += len(output.data)
        if self._bytes > BACKLOG:
            self._room.clear()
        self._something.set()

    def end(self, end: End | Refused) -> None:
        """Let it have this after all else."""
        self._waiting.append(end)
        self._something.set()

    def leave(self) -> None:
        """Nobody listens any more, and nobody waits for it."""
        self._room.set()

    async def next(self) -> Output | End | Refused:
        while not self._waiting:
            self._something.clear()
            await self._something.wait()
        event = self._waiting.popleft()
        if isinstance(event, Output):
            self._bytes -= len(event.data)
            if self._bytes <= BACKLOG:
                self._room.set()
        return event


class Process:
    """One command, from its start to its end."""

    def __init__(self, client: SandboxClient, request: StartRequest, exec_request: ExecRequest) -> None:
        self.request = request
        self.started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Its process id, once it runs."""
        self._client = client
        self._exec = exec_request
        self._execution: Execution | None = None
        self._listeners: list[Listener] = []
        self._end: End | Refused = KILLED
        """Where it is hung up."""
        self.task = asyncio.create_task(self._run())

    @contextlib.contextmanager
    def listener(self) -> Iterator[Listener]:
        """Listens to what it prints from now on."""
        listener = Listener()
        self._listeners.append(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)
            listener.leave()

    async def write(self, input: Input) -> None:
        """Give it input, as fast as it reads.

        Raises:
            Refused: it has a terminal and this is not for one, or the other way round.
            Problem: see `Execution.write`.
        """
        kind, data = ("pty", input.pty) if input.pty is not None else ("stdin", input.stdin)
        if (kind == "pty") != (self.request.pty is not None):
            has = "a terminal" if self.request.pty is not None else "no terminal"
            raise Refused(Code.FAILED_PRECONDITION, f"the process has {has}: this input is for {kind}")
        if not (self.request.stdin or self.request.pty):
            raise Refused(Code.FAILED_PRECONDITION, "the process was started without stdin")
        if data:
            await self._running.write(data)

    async def close_stdin(self) -> None:
        """Nothing more is written to it. Raises as `write`."""
        if self.request.pty is not None:
            raise Refused(Code.FAILED_PRECONDITION, "a terminal is not closed: write Ctrl-D (0x04) to it")
        if not self.request.stdin:
            raise Refused(Code.FAILED_PRECONDITION, "the process was started without stdin")
        await self._running.close_stdin()

    async def resize(self, rows: int, columns: int) -> None:
        """
        Raises:
            Refused: it has no terminal.
        """
        if self.request.pty is None:
            raise Refused(Code.FAILED_PRECONDITION, "the process has no terminal")
        await self._running.resize(rows, columns)

    async def terminate(self) -> None:
        """Ask it to end."""
        await self._running.signal("SIGTERM")

    async def kill(self) -> None:
        """Kill it, with all that it started; when this returns it has ended."""
        with contextlib.suppress(Problem):  # it ended by itself meanwhile
            await self._running.signal("SIGKILL")
        await asyncio.wait({self.task}, timeout=DYING)
        self.hang_up()
        await asyncio.wait({self.task})

    def hang_up(self, end: End | Refused = KILLED) -> None:
        """End it without a wait, and tell those who listen so; a second time is fine."""
        self._end = end
        self.task.cancel()

    @property
    def _running(self) -> Execution:
        if self._execution is None:
            raise Refused(Code.NOT_FOUND, "the process does not run yet")
        return self._execution

    async def _run(self) -> None:
        end: End | Refused = KILLED
        try:
            async with self._client.exec_stream(self._exec) as execution:
                self._execution = execution
                async for event in execution.events():
                    if event.name == "started":
                        self.started.set_result(int(event.data["pid"]))
                    elif event.name in ("stdout", "stderr"):
                        await self._tell(event.name, event.output)
            assert execution.result is not None
            end = end_of(execution.result)
        except (Problem, Refused) as error:
            end = refused(as_away(error, self._client.id))
            if not self.started.done():
                self.started.set_exception(end)
        except asyncio.CancelledError:
            end = self._end
            if not self.started.done():
                self.started.set_exception(Refused(Code.UNAVAILABLE, "the process was killed before it ran"))
        finally:
            for listener in self._listeners:
                listener.end(end)

    async def _tell(self, name: str, data: bytes) -> None:
        stream: Stream = "pty" if self.request.pty is not None else "stderr" if name == "stderr" else "stdout"
        for listener in list(self._listeners):
            await listener.tell(Output(stream, data))


class Processes:
    """The processes of one sandbox.

    Args:
        home: what is the home of its commands.
        envs: variables that every command gets.
    """

    def __init__(self, client: SandboxClient, home: str, envs: dict[str, str]) -> None:
        self._client = client
        self._envs = {"HOME": home, **envs}
        self._running: dict[int, Process] = {}
        self._starting: set[Process] = set()

    def running(self) -> list[tuple[int, Process]]:
        """Those that run, with their process ids, the oldest first."""
        return list(self._running.items())

    @contextlib.asynccontextmanager
    async def start(
        self, request: StartRequest, cwd: str, seconds: float | None
    ) -> AsyncGenerator[tuple[int, Process, Listener]]:
        """A new process, with one who listens from its beginning; leaving the block leaves it alone.

        Args:
            seconds: after which it is killed; None: a day.

        Raises:
            Refused: it cannot be started.
        """
        config, pty = request.process, request.pty
        options: dict[str, Any] = {
            "command": [config.cmd, *config.args],
            "cwd": cwd,
            "env": {**self._envs, **config.envs},
            "timeout": min(seconds or LONGEST, LONGEST),
            "stdin_open": request.stdin or pty is not None,
            "pty": Pty(rows=pty.size.rows, columns=pty.size.cols) if pty is not None else None,
        }
        process = Process(self._client, request, request_of(ExecRequest, **options))
        self._starting.add(process)
        # known by its id though whoever started it may have hung up meanwhile
        process.started.add_done_callback(lambda _: self._keep(process))
        with process.listener() as listener:
            yield await asyncio.shield(process.started), process, listener

    def __getitem__(self, selector: Selector) -> tuple[int, Process]:
        """
        Raises:
            Refused: none runs of that process id, or of that tag.
        """
        for pid, process in self._running.items():
            if pid == selector.pid or (selector.pid is None and selector.tag and selector.tag == process.request.tag):
                return pid, process
        which = f"pid {selector.pid}" if selector.pid is not None else f"tag {selector.tag!r:.100}"
        raise Refused(Code.NOT_FOUND, f"no process with {which} is running")

    def close(self) -> None:
        """The sandbox is no more: end them all, without a wait; a second time is fine."""
        gone = refused(Away(self._client.id))
        for process in [*self._running.values(), *self._starting]:
            process.hang_up(gone)

    def _keep(self, process: Process) -> None:
        self._starting.discard(process)
        if process.started.exception() is not None:
            return
        pid = process.started.result()
        self._running[pid] = process
        process.task.add_done_callback(lambda _: self._forget(pid, process))

    def _forget(self, pid: int, process: Process) -> None:
        if self._running.get(pid) is process:
            del self._running[pid]
