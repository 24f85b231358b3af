"""Process: sandboxes as processes of this Linux machine, for where there is no Docker and for quick tests.

Each environment has a zygote (gymbox_sandbox.zygote), in bubblewrap where that works, which forks one server for each
sandbox. They end with the process that holds the provider, whatever becomes of it, so there is nothing to adopt after
a crash: a controller that must find its sandboxes again uses the Docker provider.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import stat
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import IO, Any

from gymbox_sandbox.lifecycle import Ended
from gymbox_sandbox.options import AGENTS, User
from gymbox_sandbox.wire import SERVER_SOCKET
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from gymbox.environment import Environment
from gymbox.errors import NotFound, StartFailed, Unavailable
from gymbox.network import told
from gymbox.providers import BY_COMPOSE, Found, OnEnd, OnPhase, Started, StartSpec
from gymbox.providers.bubblewrap import bubblewrapped, why_not
from gymbox.providers.container import PROXY_GID, SERVER_UID
from gymbox.providers.directories import make_directory, remove_directory
from gymbox.providers.ends import last_lines, never_ready
from gymbox.providers.readiness import Readiness
from gymbox.providers.turns import Turns
from gymbox.providers.zygote import GRACE, Server, Zygote, end_of

log = logging.getLogger(__name__)
FIRST_AGENT_UID = 20_000
"""Under root each sandbox's commands have a user of their own, one of the AGENTS from here on."""
LAST_WORDS = 0.1
"""Seconds."""
LOG_TAIL = 64 * 1024
"""Bytes of a log that `logs` looks at for the last lines."""


class ProcessProvider(BaseModel):
    """Starts sandboxes as processes.

    With bubblewrap they have no network, see no processes but those of their own environment and nothing of the
    user's files; started by root, servers have an unprivileged user, and the commands of each sandbox another of their
    own. There are no limits on cpu, memory or disk, no system calls are filtered, and tasks of one environment share
    /tmp. Without bubblewrap they are plain processes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field("process", frozen=True)
    bubblewrap: bool | None = None
    """Whether to isolate with bubblewrap; None: where it works."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the servers, which otherwise get none of this process's."""

    _isolation: str | None = PrivateAttr(None)
    _users: tuple[User, User] | None = PrivateAttr(None)
    _agents: count[int] = PrivateAttr(default_factory=lambda: count(secrets.randbelow(AGENTS)))
    _on_end: OnEnd | None = PrivateAttr(None)
    _zygotes: dict[tuple[str, Path], Zygote] = PrivateAttr(default_factory=dict)
    _lock: asyncio.Lock = PrivateAttr(default_factory=asyncio.Lock)
    _turns: Turns = PrivateAttr(default_factory=Turns)
    _processes: dict[str, _Process] = PrivateAttr(default_factory=dict)

    @property
    def containers_stay(self) -> bool:
        """No: they end with this process."""
        return False

    @property
    def isolation_note(self) -> str:
        """One line for the user: which isolation these sandboxes lack. Known from `open` on."""
        users = "" if self._users or os.getuid() else ", and as root"
        if self._isolation is None:
            shared = "/tmp and see each other's processes" if self._users else "users, /tmp and processes"
            return (
                f"process provider (bubblewrap): tasks of one environment share {shared}; "
                f"no limits on cpu, memory or disk{users}"
            )
        return (
            "process provider WITHOUT ISOLATION: what the model runs can reach this machine's files and network"
            f"{users} ({self._isolation})"
        )

    async def open(self, controller_id: str, on_end: OnEnd, *, because: str = "") -> None:
        """See SandboxProvider. Says in the log, once in this process, which isolation its sandboxes lack.

        Args:
            controller_id: of no use here, since nothing outlives this process.
            because: stands before that line: why this provider was chosen.

        Raises:
            Unavailable: bubblewrap is asked for and does not work, or this is no Linux.
        """
        if not sys.platform.startswith("linux"):
            raise Unavailable(f"the process provider needs Linux; here, {BY_COMPOSE}")
        missing = "bubblewrap is switched off" if self.bubblewrap is False else await why_not()
        if missing and self.bubblewrap:
            raise Unavailable(f"{missing}; install it, or use provider.bubblewrap=false or provider=docker")
        self._isolation = missing
        if os.getuid() == 0 and (missing is None or _open_to_all(Path(sys.executable), Path(sys.base_prefix))):
            self._users = User(SERVER_UID, PROXY_GID), User(FIRST_AGENT_UID, FIRST_AGENT_UID)
        self._lock, self._turns = asyncio.Lock(), Turns()  # of this event loop
        self._on_end = on_end
        warned(because + self.isolation_note)

    async def close(self) -> None:
        """End every zygote and so every sandbox, and remove what they had; safe to call twice."""
        self._on_end = None
        await self._close_zygotes()
        await asyncio.gather(*(self.stop(id) for id in list(self._processes)))
        await self._close_zygotes()  # which starts under way have made meanwhile

    async def _close_zygotes(self) -> None:
        zygotes = list(self._zygotes.values())
        self._zygotes.clear()
        await asyncio.gather(*(zygote.close() for zygote in zygotes))

    async def prepare(self, environment: Environment) -> str | None:
        """None: a process has no image, and what the manifest's `image` asks for must be on this machine.

        Raises:
            Unavailable: the environment asks for a network or an image, which only containers have.
        """
        if (missing := self.lacks(environment)) is not None:
            raise Unavailable(missing)
        return None

    def lacks(self, environment: Environment) -> str | None:
        """What an environment asks for that only containers have, and the way on; None: it can run here."""
        manifest = environment.manifest
        if manifest.network != "none":
            return f"{environment.name} asks for a network ({told(manifest.network)}), which needs provider=docker"
        if manifest.services:
            return f"{environment.name} asks for services ({', '.join(manifest.services)}), which need provider=docker"
        if manifest.image.base is not None:
            return f"{environment.name} runs in {manifest.image.base}: use provider=docker"
        return None

    async def start(self, spec: StartSpec, on_phase: OnPhase) -> Started:
        """See SandboxProvider."""
        return await self._turns.start(spec.id, self._start(spec, on_phase))

    async def _start(self, spec: StartSpec, on_phase: OnPhase) -> Started:
        found = self._processes.get(spec.id)
        if found is not None:
            if found.is_up:
                return found.as_started()
            await self._stop(found)
        process = self._processes[spec.id] = _Process(spec, self._next_agent())
        try:
            await self._until_ready(process, on_phase)
        except BaseException:
            try:
                await self._stop(process)
            except Unavailable as problem:  # a later `stop` finds it
                log.warning("sandbox %s could not be removed: %s", spec.id, problem.detail)
            raise
        process.ready = True
        return process.as_started()

    async def _until_ready(self, process: _Process, on_phase: OnPhase) -> None:
        spec = process.spec
        await self.prepare(spec.environment)
        zygote = await self._zygote(spec)
        if spec.directory.exists() or process.workspace.exists():  # of an earlier start
            await asyncio.to_thread(process.remove)
        self._make_room(process)
        on_phase("created")
        timeouts, limits = spec.environment.manifest.timeouts, spec.environment.manifest.limits
        with Readiness(spec.directory) as readiness:
            assert process.log is not None
            server = zygote.fork(spec.id, process.log, self._options(process), limits.open_files, process.agent)
            process.server = server
            server.ended.add_done_callback(partial(self._ended, process))
            on_phase("started")
            ready = asyncio.create_task(readiness.wait())
            try:
                events: set[asyncio.Future[Any]] = {ready, server.ended}
                await asyncio.wait(events, timeout=timeouts.start, return_when=asyncio.FIRST_COMPLETED)
                if server.ended.done():  # what it said before is on its way already
                    await asyncio.wait({ready}, timeout=LAST_WORDS)
            finally:
                ready.cancel()
                await asyncio.wait({ready})  # before what it listens on is closed
        if not ready.cancelled() and (problem := ready.exception()) is not None:
            await asyncio.wait({server.ended}, timeout=GRACE)  # so that its log is whole
            detail = f"the server of {spec.id} cannot start: {problem}"
            raise StartFailed(Ended(cause="failed_to_start", detail=detail, logs=server.last_lines())) from problem
        if server.ended.done():
            raise never_ready(server.ended.result())
        if ready.cancelled():
            detail = f"the server of {spec.id} did not answer in {timeouts.start:g} s"
            raise StartFailed(Ended(cause="failed_to_start", detail=detail, logs=server.last_lines()))

    async def reopen(self, spec: StartSpec) -> None:
        """Nothing: processes have no way out of their own."""

    async def stop(self, id: str) -> None:
        """See SandboxProvider.

        Raises:
            Unavailable: it does not end; it is kept, to be stopped later.
        """
        async with self._turns.stop(id):
            if id in self._processes:
                await self._stop(self._processes[id])

    async def _stop(self, process: _Process) -> None:
        process.stopping = True
        if process.server is not None:
            await process.server.end()
        await asyncio.to_thread(process.remove)
        del self._processes[process.spec.id]

    async def list(self) -> list[Found]:
        """See SandboxProvider."""
        return [process.as_found() for process in self._processes.values() if process.is_up]

    async def logs(self, id: str, tail: int = 100) -> str:
        """See SandboxProvider.

        Raises:
            NotFound: there is no such process.
        """
        if id not in self._processes:
            raise NotFound(f"there is no process {id}")
        output = self._processes[id].log
        return last_lines(end_of(output, LOG_TAIL), tail, LOG_TAIL) if output is not None else ""

    async def _zygote(self, spec: StartSpec) -> Zygote:
        """The zygote of an environment as it is now, started if there is none or it has died."""
        room = spec.directory.parent
        key = (spec.environment.digest, room)
        async with self._lock:
            found = self._zygotes.get(key)
            if found is not None and not found.usable:
                await found.close()
                found = None
            if found is None:
                room.mkdir(mode=0o711, parents=True, exist_ok=True)
                arguments = ["--name", spec.environment.name, "--server", _server_file(spec.environment)]
                for option, user in zip(("--server-user", "--agent-user"), self._users or (), strict=False):
                    arguments += [option, str(user)]
                command = [sys.executable, "-IBu", "-m", "gymbox_sandbox", "zygote", *arguments]
                if self._isolation is None:
                    # only what an image would hold: the data beside it has the answers
                    command = bubblewrapped(command, spec.environment.files(), room)
                found = self._zygotes[key] = await Zygote.open(command, self.variables)
            return found

    def _ended(self, process: _Process, ended: asyncio.Future[Ended]) -> None:
        if process.ready and not process.stopping and self._on_end is not None:
            self._on_end(process.spec.id, ended.result())

    def _next_agent(self) -> int:
        """Which of the agents' users is free, the one free for longest, since what it left in /tmp is still there."""
        taken = {process.agent for process in self._processes.values()}
        return next(number for number in (n % AGENTS for n in self._agents) if number not in taken)

    def _make_room(self, process: _Process) -> None:
        """Its directory, its workspace, which its agent and the servers may look into, and its log."""
        server, agent = self._users or (None, None)
        make_directory(process.spec.directory, server)
        process.workspace.mkdir(mode=0o750)
        if server is not None and agent is not None:
            os.chown(process.workspace, agent.uid + process.agent, server.gid)
        process.log = tempfile.TemporaryFile(dir=process.spec.directory)  # noqa: SIM115  closed by remove

    def _options(self, process: _Process) -> dict[str, Any]:
        manifest = process.spec.environment.manifest
        return {
            "name": manifest.name,
            "server": _server_file(process.spec.environment),
            "directory": str(process.spec.directory),
            "workspace": str(process.workspace),
            "max_sessions": manifest.sessions,
            "tool_timeout": manifest.timeouts.tool,
            "reset_timeout": manifest.timeouts.reset,
            "verify_timeout": manifest.timeouts.verify,
        }


@dataclass(eq=False, slots=True)
class _Process:
    """One sandbox, from the wish for it to its removal."""

    spec: StartSpec
    agent: int
    """Which of the agents' users runs its commands."""
    server: Server | None = None
    log: IO[bytes] | None = None
    ready: bool = False
    stopping: bool = False
    created_at: float = field(default_factory=time.time)

    @property
    def workspace(self) -> Path:
        """Beside its directory, which the agent cannot enter."""
        return self.spec.directory.with_name(f"{self.spec.directory.name}.workspace")

    @property
    def is_up(self) -> bool:
        return self.ready and not self.stopping and self.server is not None and not self.server.ended.done()

    def as_started(self) -> Started:
        socket = str(self.spec.directory / SERVER_SOCKET)
        return Started(id=self.spec.id, socket=socket, address=None, image=None)

    def as_found(self) -> Found:
        return Found(
            id=self.spec.id,
            environment=self.spec.environment.name,
            socket=str(self.spec.directory / SERVER_SOCKET),
            address=None,
            image=None,
            labels=dict(self.spec.labels),
            created_at=self.created_at,
        )

    def remove(self) -> None:
        """Remove what it has on disk; safe to call twice."""
        if self.log is not None:
            self.log.close()
            self.log = None
        for folder in (self.spec.directory, self.workspace):
            remove_directory(folder)


@cache
def warned(of_isolation: str) -> None:
    """Said once in a process, though sweeps and each controller of a program open a provider."""
    log.warning("%s", of_isolation)


def _server_file(environment: Environment) -> str:
    return str(environment.folder / environment.manifest.server)


def _open_to_all(*paths: Path) -> bool:
    """Whether any user may reach all of these."""
    chains = ([path, *path.parents] for path in (path.resolve() for path in paths))
    return all(part.stat().st_mode & stat.S_IXOTH for chain in chains for part in chain)
