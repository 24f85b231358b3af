"""Process: sandboxes as processes of this machine, for laptops without Docker and for quick tests.

Each environment has a zygote (gymbox_sandbox.zygote), in bubblewrap where that works, which forks one server for each
sandbox. They end with the process that holds the provider, whatever becomes of it, so there is nothing to adopt after
a crash: a controller that must find its sandboxes again uses the Docker provider.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any

from gymbox_sandbox.lifecycle import Ended
from gymbox_sandbox.options import User
from gymbox_sandbox.wire import SERVER_SOCKET
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from gymbox.environment import Environment
from gymbox.errors import NotFound, StartFailed, Unavailable
from gymbox.providers import Found, OnEnd, OnPhase, Started, StartSpec
from gymbox.providers.bubblewrap import bubblewrapped, why_not
from gymbox.providers.container import AGENT_UID, PROXY_GID, SERVER_UID
from gymbox.providers.readiness import Readiness

log = logging.getLogger(__name__)
LAST_WORDS = 0.1
"""Seconds."""
GRACE = 2.0
"""Seconds from SIGTERM to SIGKILL."""
KILLED_WITHIN = 10.0
"""Seconds from SIGKILL until it must be gone."""
LOG_TAIL = 64 * 1024
"""Bytes of a log that are looked at for its last lines."""
LAST_LINES = 40


class ProcessProvider(BaseModel):
    """Starts sandboxes as processes.

    With bubblewrap they have no network, see no processes but those of their own environment and nothing of the
    user's files; started by root, server and agent are two unprivileged users. There are no limits on cpu, memory or
    disk, and tasks of one environment share /tmp. Without bubblewrap they are plain processes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field("process", frozen=True)
    bubblewrap: bool | None = None
    """Whether to isolate with bubblewrap; None: where it works."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the servers, which otherwise get none of this process's."""

    _isolation: str | None = PrivateAttr(None)
    _users: tuple[User, User] | None = PrivateAttr(None)
    _on_end: OnEnd | None = PrivateAttr(None)
    _zygotes: dict[tuple[str, Path], _Zygote] = PrivateAttr(default_factory=dict)
    _lock: asyncio.Lock = PrivateAttr()
    _processes: dict[str, _Process] = PrivateAttr(default_factory=dict)

    @property
    def isolation_note(self) -> str:
        """One line for the user: which isolation these sandboxes lack. Known from `open` on."""
        users = "" if self._users or os.getuid() else ", and as root"
        if self._isolation is None:
            return (
                "process provider (bubblewrap): tasks of one environment share users, /tmp and processes; "
                f"no limits on cpu, memory or disk{users}"
            )
        return (
            "process provider WITHOUT ISOLATION: what the model runs can reach this machine's files and network"
            f"{users} ({self._isolation})"
        )

    async def open(self, controller_id: str, on_end: OnEnd) -> None:
        """See SandboxProvider. `controller_id` is of no use here: nothing outlives this process.

        Raises:
            Unavailable: bubblewrap is asked for and does not work, or this is no Linux.
        """
        if not sys.platform.startswith("linux"):
            raise Unavailable("the process provider needs Linux; on this machine use provider=docker")
        missing = "bubblewrap is switched off" if self.bubblewrap is False else await why_not()
        if missing and self.bubblewrap:
            raise Unavailable(f"{missing}; install it, or use provider.bubblewrap=false or provider=docker")
        self._isolation = missing
        if os.getuid() == 0 and (missing is None or _open_to_all(Path(sys.executable), Path(sys.base_prefix))):
            self._users = User(SERVER_UID, PROXY_GID), User(AGENT_UID, AGENT_UID)
        self._lock = asyncio.Lock()
        self._on_end = on_end

    async def close(self) -> None:
        """End every zygote and so every sandbox, and remove what they had; safe to call twice."""
        self._on_end = None
        zygotes = list(self._zygotes.values())
        self._zygotes.clear()
        await asyncio.gather(*(zygote.close() for zygote in zygotes))
        await asyncio.gather(*(self.stop(id) for id in list(self._processes)))

    async def prepare(self, environment: Environment) -> str | None:
        """None: a process has no image, and what the manifest's `image` asks for must be on this machine.

        Raises:
            Unavailable: the environment asks for a network, which only containers have.
        """
        if environment.manifest.network != "none":
            raise Unavailable(f"{environment.name} asks for a network, which needs provider=docker")
        return None

    async def start(self, spec: StartSpec, on_phase: OnPhase) -> Started:
        """See SandboxProvider."""
        process = self._processes.get(spec.id)
        if process is None or process.ended.done():
            process = self._processes[spec.id] = _Process(spec)
            process.starting = asyncio.create_task(self._start(process, on_phase))
        assert process.starting is not None
        try:
            # shielded: whoever else waits for the same id must not lose it because this caller gives up
            return await asyncio.shield(process.starting)
        except BaseException:
            await self.stop(spec.id)
            raise

    async def _start(self, process: _Process, on_phase: OnPhase) -> Started:
        spec = process.spec
        await self.prepare(spec.environment)
        zygote = await self._zygote(spec)
        process.zygote = zygote
        await asyncio.to_thread(self._make_room, process)
        on_phase("created")
        seconds = spec.environment.manifest.timeouts.start
        with Readiness(spec.directory) as readiness:
            zygote.start(process, self._options(process))
            on_phase("started")
            ready = asyncio.create_task(readiness.wait())
            try:
                events: set[asyncio.Future[Any]] = {ready, process.ended}
                await asyncio.wait(events, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if process.ended.done():  # what it said before is on its way already
                    await asyncio.wait({ready}, timeout=LAST_WORDS)
            finally:
                ready.cancel()
            if ready.done():
                problem = ready.exception()
                if problem is None:
                    return process.as_started()
                await asyncio.wait({process.ended}, timeout=GRACE)  # so that its log is whole
                raise StartFailed(_failed_to_start(str(problem), process.last_lines())) from problem
        if process.ended.done():
            ended = process.ended.result()
            raise StartFailed(_failed_to_start(f"it ended before it was ready: {ended.detail}", ended.logs))
        raise StartFailed(_failed_to_start(f"it was not ready within {seconds:g} s", process.last_lines()))

    async def stop(self, id: str) -> None:
        """See SandboxProvider."""
        process = self._processes.get(id)
        if process is None:
            return
        process.stopping = True
        if process.zygote is not None and not process.zygote.withdraw(process):
            for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, KILLED_WITHIN)):
                if not process.ended.done():
                    process.zygote.signal(process, number)
                    await asyncio.wait({process.ended}, timeout=seconds)
        if process.starting is not None and process.starting is not asyncio.current_task():
            process.starting.cancel()
            await asyncio.wait({process.starting})
        await asyncio.to_thread(process.remove)
        if self._processes.get(id) is process:
            del self._processes[id]

    async def list(self) -> list[Found]:
        """See SandboxProvider."""
        return [process.as_found() for process in self._processes.values() if process.is_up]

    async def logs(self, id: str, tail: int = 100) -> str:
        """See SandboxProvider."""
        if id not in self._processes:
            raise NotFound(f"there is no process {id}")
        return self._processes[id].last_lines(tail)

    async def _zygote(self, spec: StartSpec) -> _Zygote:
        """The zygote of an environment as it is now, started if there is none or it has died."""
        room = spec.directory.parent
        key = (spec.environment.digest, room)
        async with self._lock:
            if key not in self._zygotes or self._zygotes[key].ended:
                room.mkdir(mode=0o711, parents=True, exist_ok=True)
                arguments = ["--name", spec.environment.name, "--server", _server_file(spec.environment)]
                for option, user in zip(("--server-user", "--agent-user"), self._users or (), strict=False):
                    arguments += [option, f"{user.uid}:{user.gid}"]
                command = [sys.executable, "-IBu", "-m", "gymbox_sandbox", "zygote", *arguments]
                if self._isolation is None:
                    # only what an image would hold: the data beside it has the answers
                    command = bubblewrapped(command, spec.environment.files(), room)
                self._zygotes[key] = await _Zygote.open(command, self.variables, self._ended)
            return self._zygotes[key]

    def _ended(self, process: _Process, ended: Ended) -> None:
        process.ended.set_result(ended)
        started = process.starting is not None and process.starting.done()
        if started and not process.stopping and self._on_end is not None:
            self._on_end(process.spec.id, ended)

    def _make_room(self, process: _Process) -> None:
        """Its directory, its workspace and its log.

        Raises:
            OSError: the disk is full, or something is there already that cannot be removed.
        """
        process.remove()
        directory, workspace = process.spec.directory, process.workspace
        directory.mkdir(mode=0o700)
        workspace.mkdir(mode=0o755)
        if self._users is not None:
            server, agent = self._users
            os.chown(directory, *server)
            directory.chmod(0o2770)
            os.chown(workspace, *agent)
        process.log = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  closed by remove

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
    ended: asyncio.Future[Ended] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    starting: asyncio.Task[Started] | None = None
    stopping: bool = False
    zygote: _Zygote | None = None
    number: int = field(default_factory=count().__next__)
    """Its name to the zygote; an id may be started anew while the last one still ends."""
    log: IO[bytes] | None = None
    created_at: float = field(default_factory=time.time)

    @property
    def workspace(self) -> Path:
        """Beside its directory, which the agent cannot enter."""
        return self.spec.directory.with_name(f"{self.spec.directory.name}.workspace")

    @property
    def is_up(self) -> bool:
        return self.starting is not None and self.starting.done() and not self.ended.done() and not self.stopping

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

    def last_lines(self, tail: int = LAST_LINES) -> str:
        return _last_lines(self.log, tail) if self.log is not None else ""

    def remove(self) -> None:
        """Remove what it has on disk; safe to call twice."""
        if self.log is not None:
            self.log.close()
            self.log = None
        for folder in (self.spec.directory, self.workspace):
            _remove(folder)


class _Zygote:
    """The process from which one environment's sandboxes are forked."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        control: socket.socket,
        errors: IO[bytes],
        on_end: Callable[[_Process, Ended], None],
    ) -> None:
        self.ended = False
        self._process = process
        self._control = control
        self._errors = errors
        self._on_end = on_end
        self._loaded = False
        self._children: dict[int, _Process] = {}
        self._watch = asyncio.create_task(self._hear())

    @classmethod
    async def open(
        cls, command: list[str], variables: dict[str, str], on_end: Callable[[_Process, Ended], None]
    ) -> _Zygote:
        """
        Raises:
            Unavailable: the machine cannot start another process.
        """
        control, theirs = socket.socketpair()
        control.setblocking(False)
        errors = tempfile.TemporaryFile()  # noqa: SIM115  closed when it has ended
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    env=variables,
                    start_new_session=True,  # a terminal's Ctrl-C is for us; and all of it can be killed at once
                )
        except OSError as error:
            control.close()
            errors.close()
            raise Unavailable(f"cannot start a process: {error}") from error
        return cls(process, control, errors, on_end)

    def start(self, process: _Process, options: dict[str, Any]) -> None:
        """Fork a server; `process.ended` is set when it has ended.

        Raises:
            Unavailable: the zygote cannot take it now.
        """
        assert process.log is not None
        limit = process.spec.environment.manifest.limits.open_files
        order = json.dumps({"start": process.number, "options": options, "open_files": limit}).encode() + b"\n"
        try:
            sent = socket.send_fds(self._control, [order], [process.log.fileno()])
        except OSError as error:
            raise Unavailable(f"cannot fork a sandbox of {process.spec.environment.name}: {error}") from error
        if sent != len(order):
            raise Unavailable("the zygote does not take orders")
        self._children[process.number] = process

    def signal(self, process: _Process, number: int) -> None:
        """Send a signal to a server; what has ended is fine."""
        with suppress(OSError):  # it is ending itself, and `ended` will say so
            self._control.send(json.dumps({"signal": number, "to": process.number}).encode() + b"\n")

    def withdraw(self, process: _Process) -> bool:
        """Take back a start that the zygote has not come to, since it still loads; whether that could be done.

        It may load for ever, so it is ended if nobody else waits for it.
        """
        if self._loaded or self._children.pop(process.number, None) is None:
            return False
        self.signal(process, signal.SIGKILL)  # for when it comes to it
        self._on_end(process, Ended(cause="deleted", detail="it was stopped before it was started"))
        if not self._children:
            self._kill()
        return True

    async def close(self) -> None:
        """End it and all its sandboxes."""
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
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _hear(self) -> None:
        """Pass on what it reports, until it ends; then all it had have ended."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            report = json.loads(line)
            self._loaded = True
            process = self._children.pop(report.get("ended"), None)
            if process is not None:
                self._on_end(process, _ending(report["status"], process.last_lines()))
        code = await self._process.wait()
        self.ended = True
        self._control.close()
        for process in self._children.values():
            logs = process.last_lines() or _last_lines(self._errors, LAST_LINES)
            detail = f"the process that its environment's sandboxes are forked from ended ({_how(code)})"
            self._on_end(process, Ended(cause="killed", detail=detail, logs=logs))
        self._children.clear()
        self._errors.close()


def _server_file(environment: Environment) -> str:
    return str(environment.folder / environment.manifest.server)


def _failed_to_start(detail: str, logs: str) -> Ended:
    return Ended(cause="failed_to_start", detail=detail, logs=logs)


def _ending(status: int, logs: str) -> Ended:
    cause: Any = "killed" if status < 0 else "exited"
    code = status if status >= 0 else 128 - status
    return Ended(cause=cause, detail=f"its server ended ({_how(status)})", exit_code=code, logs=logs)


def _how(status: int) -> str:
    return f"exit code {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"


def _last_lines(file: IO[bytes], tail: int) -> str:
    size = os.fstat(file.fileno()).st_size
    # read at a place, so that the position, which the server shares with us, stays where it is
    text = os.pread(file.fileno(), LOG_TAIL, max(0, size - LOG_TAIL)).decode(errors="replace")
    return "\n".join(text.splitlines()[-tail:])


def _remove(folder: Path) -> None:
    def permit(function: Callable[..., Any], path: str, error: BaseException) -> None:
        if not isinstance(error, PermissionError):
            raise error
        # the agent, who may be the same user as we are, has closed a folder
        for closed in {Path(path), Path(path).parent} - {folder.parent}:
            if closed.is_dir() and not closed.is_symlink():
                closed.chmod(stat.S_IRWXU)
        if function is os.unlink or function is os.rmdir:
            function(path)
        else:
            _remove(Path(path))

    with suppress(FileNotFoundError):
        shutil.rmtree(folder, onexc=permit)


def _open_to_all(*paths: Path) -> bool:
    """Whether any user may reach all of these."""
    chains = ([path, *path.parents] for path in (path.resolve() for path in paths))
    return all(part.stat().st_mode & stat.S_IXOTH for chain in chains for part in chain)
