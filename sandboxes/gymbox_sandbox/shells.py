"""Shells: shells that stay between commands, so that folder, variables and functions do too.

A shell reads commands from a pipe and tells how each ended on another one, which no command has: nothing that a
command prints, reads or leaves open, no quote and no here-document, can be taken for either. Each command comes as one
quoted word for `eval`, so what is incomplete in it is an error of its own. The shell is an interactive one, for then
an interrupt ends the whole command and not the shell.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import signal
from typing import TYPE_CHECKING, NamedTuple

from gymbox_sandbox.background import ShellRequest, ShellResult, ShellRun, ShellView
from gymbox_sandbox.command import Command, Ended, Output
from gymbox_sandbox.once import Once
from gymbox_sandbox.output_log import Kept
from gymbox_sandbox.problems import AtCapacity, Conflict, Gone, Invalid, NotFound, Problem, Unavailable

if TYPE_CHECKING:
    from gymbox_sandbox.commands import Commands

MOST_SHELLS = 8
_START = 30.0
"""Seconds that a shell may take to answer for the first time."""
_GRACE = 2.0
"""Seconds that an interrupted command has to end, before the shell is killed with it."""
_AGAIN = 0.1
_BETWEEN = 65_536
"""Bytes kept of what background children print while no command runs."""
_BASH = ["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"]
_SH = ["/bin/sh", "-i"]
_FIRST = "PS1= PS2=; set +m; unset HISTFILE MAILCHECK; set +o history +H"
"""The last is for bash alone."""
_LONGEST_STATUS = 64


class _Status(NamedTuple):
    code: int


class Shell:
    """One shell, from `open` to its end."""

    def __init__(self, id: str, number: int, request: ShellRequest, commands: Commands) -> None:
        self.id = id
        self.number = number
        self.request = request
        self.ended: str | None = None
        self.opened: asyncio.Task[None] = asyncio.create_task(self._open(commands))
        self._command: Command | None = None
        self._life: asyncio.Task[None] | None = None
        self._busy = False
        self._code = 0
        self._number = ""
        self._status: asyncio.Future[_Status | Ended] | None = None
        self._status_line = b""
        self._kept = {"stdout": Kept(_BETWEEN), "stderr": Kept(_BETWEEN)}

    def view(self) -> ShellView:
        """What is known about it now, once it is open."""
        assert self._command is not None
        return ShellView(id=self.id, pid=self._command.pid, busy=self._busy, ended=self.ended)

    async def run(self, request: ShellRun) -> ShellResult:
        """Run a command and wait for its end. Cancelling interrupts it.

        Raises:
            Invalid: the command cannot be written to a shell.
            Gone: the shell has ended, and its state with it.
            Conflict: it runs another command.
        """
        try:
            text = request.command.encode()
        except UnicodeEncodeError as error:
            raise Invalid(f"the command cannot be run: {error}") from error
        if b"\0" in text:
            raise Invalid("a nul byte cannot be part of a command")
        if self.ended is not None:
            raise Gone(f"the shell {self.id!r} is no more, and its state is lost: {self.ended}", cause="shell_ended")
        if self._busy:
            raise Conflict(f"the shell {self.id!r} runs another command")
        kept = {stream: Kept(request.output_limit) for stream in ("stdout", "stderr")}
        for stream, before in self._kept.items():
            kept[stream].add(before.data)
        begun = asyncio.get_running_loop().time()
        status, timed_out = await self._finish(text, kept, request.timeout)
        out, err = kept["stdout"], kept["stderr"]
        code = status.code
        return ShellResult(
            exit_code=None if timed_out or code < 0 else code,
            signal=-code if code < 0 and not timed_out else None,
            timed_out=timed_out,
            state_lost=isinstance(status, Ended),
            stdout=out.read(request.encoding),
            stderr=err.read(request.encoding),
            stdout_bytes=out.size,
            stderr_bytes=err.size,
            truncated=out.truncated or err.truncated,
            duration=asyncio.get_running_loop().time() - begun,
        )

    def close(self) -> None:
        """Kill it with all that runs in it; a second time is fine."""
        self.opened.cancel()
        if self._life is not None:
            self._life.cancel()

    async def _open(self, commands: Commands) -> None:
        command = commands.start_shell(_BASH if os.access(_BASH[0], os.X_OK) else _SH, self.request, self._on_status)
        self._command = await command.__aenter__()
        self._life = asyncio.create_task(self._live(self._command))
        status, _ = await self._finish(_FIRST.encode(), self._kept, _START)
        self._kept = {
            "stdout": Kept(_BETWEEN),
            "stderr": Kept(_BETWEEN),
        }  # it may have complained of having no terminal
        if isinstance(status, Ended):
            raise Unavailable(f"no shell can be had here: {self.ended}")

    async def _live(self, command: Command) -> None:
        """Take what it prints until it ends."""
        why = "it was closed"
        end = Ended(-signal.SIGKILL, False, 0)
        try:
            async with contextlib.aclosing(command):
                while isinstance(event := await command.next(), Output):
                    if event.stream in self._kept:
                        self._kept[event.stream].add(event.data)
                    elif self._status is not None and not self._status.done():
                        self._status.set_result(_Status(int(event.data)))
                end = event
                why = f"exited {end.code}" if end.code >= 0 else f"killed by signal {-end.code}"
        except Problem as problem:
            why = problem.detail
        finally:
            self.ended = self.ended or why
            if self._status is not None and not self._status.done():
                self._status.set_result(end)

    async def _finish(self, text: bytes, kept: dict[str, Kept], timeout: float) -> tuple[_Status | Ended, bool]:
        """Have the shell evaluate `text`, with what is printed in `kept`: how it ended, and whether it was cut off."""
        assert self._command is not None
        self._busy = True
        self._number = secrets.token_hex(4)
        self._status = asyncio.get_running_loop().create_future()
        self._kept = kept
        try:
            before = f"(exit {self._code}) || " if self._code else ""
            # the empty line ends what the parser of bash may be in after a quote that a command left open
            line = b"\n{ %s\\command eval '%s'\n} </dev/null 3>&-; " % (before.encode(), text.replace(b"'", b"'\\''"))
            writing = asyncio.create_task(self._write(line + self._ask()))
            done, _ = await asyncio.wait({self._status}, timeout=timeout)
            if not done:
                await self._interrupt()
            writing.cancel()
            return await self._status, not done
        except asyncio.CancelledError:
            if not self._status.done():  # else it has ended in this very turn, and an interrupt would hit what follows
                interrupting = asyncio.create_task(self._interrupt())
                interrupting.add_done_callback(lambda _: self._rest())
            raise
        finally:
            if self._status.done():
                self._rest()

    def _rest(self) -> None:
        """Nothing runs in it any more."""
        status = self._status.result() if self._status is not None else None
        self._code = status.code if isinstance(status, _Status) else 0
        self._kept = {"stdout": Kept(_BETWEEN), "stderr": Kept(_BETWEEN)}
        self._busy = False

    async def _interrupt(self) -> None:
        """End what it runs, if need be by killing it; the shell says when it waits for a command again."""
        assert self._command is not None and self._status is not None
        self._command.signal(signal.SIGINT)
        for _ in range(round(_GRACE / _AGAIN)):
            # anew each time: some shells throw away what they had read before the interrupt
            writing = asyncio.create_task(self._write(b"\n" + self._ask()))
            done, _ = await asyncio.wait({self._status}, timeout=_AGAIN)
            writing.cancel()
            if done:
                return
        self.ended = "it was killed, since what ran in it could not be interrupted"
        if self._life is not None:
            self._life.cancel()
        await asyncio.wait({self._status})

    async def _write(self, line: bytes) -> None:
        assert self._command is not None
        with contextlib.suppress(Conflict):  # it has closed its input; then it has ended, or will be killed
            await self._command.write(line)

    def _ask(self) -> bytes:
        """What makes it tell the exit code; aside from any trace of what it does."""
        return b"{ \\command \\printf '%%s %s\\n' \"$?\" >&3; } 2>/dev/null\n" % self._number.encode()

    def _on_status(self, data: bytes) -> None:
        """Take what was written where only the shell writes; the agent may have written there on purpose."""
        *lines, rest = (self._status_line + data).split(b"\n")
        self._status_line = rest[:_LONGEST_STATUS]
        for line in lines:
            code, _, number = line.decode(errors="replace").partition(" ")
            if number == self._number and code.isascii() and code.isdecimal() and len(code) < 4:
                self._number = ""  # one answer for each command
                assert self._command is not None
                self._command.mark(code.encode())


class Shells:
    """The shells of a sandbox, by the names that callers gave them."""

    def __init__(self, commands: Commands, once: Once) -> None:
        self._commands = commands
        self._once = once
        self._shells: dict[str, Shell] = {}
        self._numbers = itertools.count(1)

    def views(self) -> list[ShellView]:
        """All that are open, or were."""
        return [shell.view() for shell in self._shells.values() if _is_open(shell)]

    async def open(self, id: str, request: ShellRequest) -> Shell:
        """Open a shell, or find the one of that id that the same request has opened before, alive or not.

        Raises:
            Conflict: another request has that id.
            AtCapacity: there are as many as may be.
            Invalid, Unavailable: it cannot be opened.
        """
        shell = self._shells.get(id)
        if shell is None:
            if len(self._shells) >= MOST_SHELLS:
                raise AtCapacity(f"there are {MOST_SHELLS} shells, and no more may be: delete one", retry_after=1)
            shell = self._shells[id] = Shell(id, next(self._numbers), request, self._commands)
        elif shell.request != request:
            raise Conflict(f"there is a shell {id!r}, of another request")
        try:
            await asyncio.shield(shell.opened)
        except (Problem, asyncio.CancelledError) as error:
            if shell.opened.done():
                shell.close()
                if self._shells.get(id) is shell:
                    del self._shells[id]
            if shell.opened.cancelled():
                raise Conflict(f"the shell {id!r} was deleted before it was open") from error
            raise
        return shell

    async def run(self, id: str, request: ShellRun) -> ShellResult:
        """Run a command in a shell; see `Shell.run`.

        Raises:
            NotFound: there is no such shell.
        """
        shell = self[id]
        if request.request_id is None:
            return await shell.run(request)

        async def work(begun: object) -> ShellResult:
            # before it has an effect, `run` raises at once; after that it always answers
            return await shell.run(request)

        # by its number, too: once it is deleted, another shell may have its id
        return await self._once.run(f"{id}.{shell.number}/{request.request_id}", request, work)

    def __getitem__(self, id: str) -> Shell:
        """
        Raises:
            NotFound: there is no such shell.
        """
        shell = self._shells.get(id)
        if shell is None or not _is_open(shell):
            raise NotFound(f"there is no shell {id!r}")
        return shell

    def close(self, id: str) -> None:
        """Kill a shell and forget it.

        Raises:
            NotFound: there is no such shell.
        """
        if id not in self._shells:
            raise NotFound(f"there is no shell {id!r}")
        self._shells.pop(id).close()


def _is_open(shell: Shell) -> bool:
    return shell.opened.done() and not shell.opened.cancelled() and shell.opened.exception() is None
