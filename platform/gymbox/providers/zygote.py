"""Zygote: the process from which one environment's servers are forked. Its own side is gymbox_sandbox.zygote."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import tempfile
from contextlib import suppress
from itertools import count
from typing import IO, Any

from gymbox_sandbox.lifecycle import Ended

from gymbox.errors import Unavailable
from gymbox.providers.ends import LOG_LIMIT, last_lines, why_it_ended
from gymbox.providers.own_session import in_own_session

GRACE = 2.0
"""Seconds from SIGTERM to SIGKILL."""
KILLED_WITHIN = 10.0
"""Seconds from SIGKILL until it must be gone."""


class Server:
    """One server, from the order to fork it to its end."""

    numbers = count()

    def __init__(self, zygote: Zygote, id: str, output: IO[bytes]) -> None:
        self.id = id
        self.number = next(self.numbers)
        """Its name to the zygote; an id may be started anew while the last one still ends."""
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._zygote = zygote
        self._output = output

    def last_lines(self) -> str:
        """What it printed last."""
        return last_lines(end_of(self._output))

    async def end(self) -> None:
        """Return when it has ended, and all that it had started.

        Raises:
            Unavailable: it has not, though it was killed; try again.
        """
        if self._zygote.withdraw(self):
            return
        for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, KILLED_WITHIN)):
            if not self.ended.done():
                self._zygote.signal(self, number)
                await asyncio.wait({self.ended}, timeout=seconds)
        if not self.ended.done():
            raise Unavailable(f"{self.id} has not ended within {KILLED_WITHIN:g} s of being killed")


class Zygote:
    """A zygote that was started, and the servers that it forked."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket, errors: IO[bytes]) -> None:
        self.usable = True
        """Whether more can be forked from it."""
        self._process = process
        self._control = control
        self._errors = errors
        self._loaded = False
        self._servers: dict[int, Server] = {}
        self._watch = asyncio.create_task(self._hear())

    @classmethod
    async def open(cls, command: list[str], variables: dict[str, str]) -> Zygote:
        """
        Raises:
            Unavailable: the machine cannot start another process.
        """
        control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)  # an order goes out whole or not at all
        control.setblocking(False)
        errors = tempfile.TemporaryFile()  # noqa: SIM115  closed when it has ended
        try:
            with theirs:
                # a terminal's Ctrl-C is for us; and all of it can be killed at once
                process = await in_own_session(
                    *command,
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    env=variables,
                )
        except OSError as error:
            control.close()
            errors.close()
            raise Unavailable(f"cannot start a process: {error}") from error
        return cls(process, control, errors)

    def fork(self, id: str, output: IO[bytes], options: dict[str, Any], open_files: int, agent: int) -> Server:
        """Order a server.

        Args:
            output: what it prints goes there; to be closed by the caller, after it has ended.
            options: see gymbox_sandbox.options.
            agent: which of the agents' users runs its commands, counted from 0.

        Raises:
            Unavailable: the zygote cannot take the order now.
        """
        server = Server(self, id, output)
        order = {"start": server.number, "agent": agent, "options": options, "open_files": open_files}
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], [output.fileno()])
        except OSError as error:
            raise Unavailable(f"cannot fork {id}: {error}") from error
        self._servers[server.number] = server
        return server

    def signal(self, server: Server, number: int) -> None:
        """Send a signal to a server; what has ended is fine.

        Raises:
            Unavailable: the zygote cannot take the order now.
        """
        if self._control.fileno() < 0:  # it has ended, and all its servers with it
            return
        try:
            self._control.send(json.dumps({"signal": number, "to": server.number}).encode())
        except ConnectionError:
            pass  # it is ending, and `ended` will say so
        except OSError as error:
            raise Unavailable(f"cannot end {server.id}: {error}") from error

    def withdraw(self, server: Server) -> bool:
        """Take back an order that the zygote has not come to, since it still loads; whether that could be done.

        It may load for ever, so it is ended if nobody else waits for it.
        """
        if self._loaded or server.number not in self._servers:
            return False
        self.signal(server, signal.SIGKILL)  # for when it comes to it
        del self._servers[server.number]
        server.ended.set_result(Ended(cause="deleted", detail=f"{server.id} was stopped before it was started"))
        if not self._servers:
            self._kill()
        return True

    async def close(self) -> None:
        """End it and all its servers; safe to call twice."""
        self._control.close()
        if not self._loaded:
            self._kill()
        try:
            async with asyncio.timeout(KILLED_WITHIN):
                await asyncio.shield(self._watch)
        except TimeoutError:
            self._kill()
            await self._watch

    def _kill(self) -> None:
        self.usable = False
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _hear(self) -> None:
        """Pass on what it reports, until it ends; then all it had have ended."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            report = json.loads(line)
            self._loaded = True
            server = self._servers.pop(report.get("ended"), None)
            if server is not None:
                server.ended.set_result(why_it_ended(server.id, _code(report["status"]), server.last_lines()))
        status = await self._process.wait()
        self.usable = False
        self._control.close()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
        for server in self._servers.values():
            logs = server.last_lines() or last_lines(end_of(self._errors))
            detail = f"the process that {server.id} was forked from ended ({how})"
            server.ended.set_result(Ended(cause="killed", detail=detail, exit_code=_code(status), logs=logs))
        self._servers.clear()
        self._errors.close()


def end_of(file: IO[bytes], limit: int = LOG_LIMIT) -> bytes:
    """The last bytes of a file."""
    size = os.fstat(file.fileno()).st_size
    # read at a place, so that the position, which the server shares with us, stays where it is
    return os.pread(file.fileno(), limit, max(0, size - limit))


def _code(status: int) -> int:
    return status if status >= 0 else 128 - status
