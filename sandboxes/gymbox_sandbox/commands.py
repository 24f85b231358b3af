"""Commands: what the server runs as the agent's user, through its supervisor.

The server forks nothing. It sends descriptors and a request over its link, reads the output itself, and learns from
the command's reaper how it ended (see spawn). What a command prints never waits for the server's memory: the reader of
a stream sets the pace, and a plain exec keeps the first bytes and counts the rest.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property, partial
from typing import TYPE_CHECKING

from gymbox_sandbox.command import Command, Output, Started, read_now
from gymbox_sandbox.output_log import Kept
from gymbox_sandbox.problems import Conflict, Invalid, NotFound
from gymbox_sandbox.reapers import Reapers
from gymbox_sandbox.spawn import Spawn
from gymbox_sandbox.wire import ExecRequest, ExecResult

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from gymbox_sandbox.background import ShellRequest
    from gymbox_sandbox.jobs import Jobs
    from gymbox_sandbox.once import Once
    from gymbox_sandbox.shells import Shells

KILL_TIMEOUT = 30
"""Seconds; only a process stuck in the kernel takes longer to die."""
_LIFE = 86_400
"""Seconds that a shell may live."""
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
        self.workspace = workspace
        self._reapers = Reapers(link)
        self._environment = dict(environment)
        self._kill_timeout = kill_timeout
        self._running: dict[str, Command] = {}
        self._still = asyncio.Lock()
        self.watches = 0
        """How many folders are watched now."""

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run a command to its end.

        Cancelling kills its whole tree; but one that has a request id goes on, for whoever asks again.

        Raises:
            Conflict, Gone, AtCapacity: of a request id, see `Once.run`.
            Invalid: the request cannot be carried out as it is: its directory, environment or input is wrong.
            Unavailable: no process can be started now.
        """
        if request.stream or request.pty or request.stdin_open:
            raise Invalid("stream, pty and stdin_open are for a streamed exec")
        if request.request_id is None:
            return await self._run(request, lambda: None)
        return await self.once.run(request.request_id, request, partial(self._run, request))

    async def _run(self, request: ExecRequest, begun: Callable[[], None]) -> ExecResult:
        """As `run`; calls `begun` when the command has started."""
        kept = {"stdout": Kept(request.output_limit), "stderr": Kept(request.output_limit)}
        async with aclosing(self.stream(request, request.request_id or "")) as events:
            async for event in events:
                if isinstance(event, Started):
                    begun()
                elif isinstance(event, Output):
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

    async def stream(self, request: ExecRequest, id: str = "") -> AsyncGenerator[Started | Output | ExecResult]:
        """Run a command and yield what happens as it does: Started, Outputs, and last an ExecResult without output.

        All output comes; the command waits while nobody takes it. Closing the iterator early kills the whole tree.
        With an `id`, it is known by that as long as it runs.

        Raises:
            Conflict: a command of that id runs.
            Invalid, Unavailable: as `run`; before anything is yielded.
        """
        counts = {"stdout": 0, "stderr": 0}
        given = _decoded(request.stdin)
        exec_id = id or secrets.token_hex(8)
        if exec_id in self._running:
            raise Conflict(f"a command {exec_id!r} is running")
        async with self.start(self._spawn(request), stdin=bool(given) or request.stdin_open) as command:
            self._running[exec_id] = command
            feeding: asyncio.Task[None] | None = None
            if given or (request.pty and not request.stdin_open):  # else there is nothing to write
                feeding = asyncio.create_task(self._feed(command, given, request.stdin_open))
            try:
                yield Started(exec_id, command.pid)
                while isinstance(event := await command.next(), Output):
                    counts[event.stream] += len(event.data)
                    yield event
            finally:
                del self._running[exec_id]
                if feeding is not None:
                    feeding.cancel()
            yield ExecResult(
                exit_code=event.code if event.code >= 0 and not event.timed_out else None,
                signal=-event.code if event.code < 0 else None,
                timed_out=event.timed_out,
                stdout_bytes=counts["stdout"],
                stderr_bytes=counts["stderr"],
                duration=event.duration,
            )

    @cached_property
    def once(self) -> Once:
        """What was asked for under a request id."""
        from gymbox_sandbox.once import Once  # as the next two: many sandboxes need none

        return Once()

    @cached_property
    def jobs(self) -> Jobs:
        """The commands in the background."""
        from gymbox_sandbox.jobs import Jobs

        return Jobs(self)

    @cached_property
    def shells(self) -> Shells:
        """The shells that stay between commands."""
        from gymbox_sandbox.shells import Shells

        return Shells(self, self.once)

    def start_shell(self, argv: Sequence[str], request: ShellRequest, on_status: Callable[[bytes], None]) -> Command:
        """A context in which a shell runs that reads commands from its input; what it writes to descriptor 3 is given
        to `on_status`."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        loop = asyncio.get_running_loop()

        def on_readable() -> None:
            with contextlib.suppress(BlockingIOError):
                if data := read_now(read, 4096):
                    on_status(data)
                else:
                    loop.remove_reader(read)
                    os.close(read)

        loop.add_reader(read, on_readable)
        spawn = self._spawned(argv, request.env, request.cwd, _LIFE)
        return self.start(spawn, stdin=True, also=[write])

    def start(self, spawn: Spawn, *, stdin: bool = False, also: Sequence[int] = ()) -> Command:
        """A context in which a command runs; see Command. Leaving it kills the tree."""
        return Command(spawn, self._reapers, stdin=stdin, also=also, turn=self._still)

    async def archive(self, arguments: Sequence[str], file: int, *, timeout: float) -> bytes:
        """Save what the sandbox's files are into an open file, or load them from it (see state_archive); what it says.

        The agent's processes stand still meanwhile, and no other command starts. It goes on to its end, whoever
        hangs up.

        Raises:
            Problem: it failed, of the kind that it names.
        """
        from gymbox_sandbox.files import outcome

        # not in the workspace, which its owner may have closed to the supervisor
        spawn = Spawn(arguments, {}, "/", timeout, state=True)
        standard = {0 if arguments[0] == "load" else 1: file}
        async with self._still, Command(spawn, self._reapers, stdin=False, standard=standard) as command:
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
        await self._reapers.kill_all(self._kill_timeout)

    def close(self) -> None:
        """Give up the link: the supervisor kills whatever was started over it. A second time is fine."""
        self._reapers.close()

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
        env = {**({"TERM": "xterm-256color"} if request.pty else {}), **request.env}
        terminal = (request.pty.rows, request.pty.columns) if request.pty else None
        return self._spawned(argv, env, request.cwd, request.timeout)._replace(script=script, terminal=terminal)

    def _spawned(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, timeout: float) -> Spawn:
        return Spawn(argv, {**self._environment, **env}, os.path.join(self.workspace, cwd or ""), timeout)

    async def _feed(self, command: Command, data: bytes, stays_open: bool) -> None:
        if data:
            with contextlib.suppress(Conflict):  # it does not read its input; its own matter
                await command.write(data)
        if not stays_open:
            await command.write_end()


def _decoded(text: str | None) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"stdin is not base64: {error}") from error


def _shell() -> str:
    """
    Raises:
        Invalid: there is none.
    """
    for shell in ("/bin/bash", "/bin/sh"):
        if os.access(shell, os.X_OK):
            return shell
    raise Invalid("there is no shell in this image (/bin/bash, /bin/sh): give the command as a list of words")
