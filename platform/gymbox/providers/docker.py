"""Docker: a hardened container for each sandbox, on the engine of this machine.

A sandbox is reached over a unix socket in its directory, which is mounted into the container; it has no network, or
one that leads nowhere. Where the engine runs in a virtual machine of its own (Docker Desktop), unix sockets do not
pass the mount: there, run controller and proxy by compose beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import requests
import urllib3
from docker import APIClient
from docker.errors import APIError, DockerException, ImageNotFound
from docker.errors import NotFound as NoSuchContainer
from gymbox_sandbox.lifecycle import Ended
from gymbox_sandbox.options import User
from gymbox_sandbox.wire import SERVER_SOCKET
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from gymbox.environment import Environment
from gymbox.errors import Conflict, NotFound, Problem, StartFailed, Unavailable, by_this_python
from gymbox.providers import BY_COMPOSE, Found, OnEnd, OnPhase, Started, StartSpec
from gymbox.providers.container import (
    CONTROLLER_LABEL,
    ENVIRONMENT_LABEL,
    MEGABYTE,
    NETWORK_LABEL,
    container_config,
    directory_of,
    network_config,
    network_of,
    server_command,
    server_user,
)
from gymbox.providers.directories import make_directory, remove_directory
from gymbox.providers.ends import LOG_LINES, last_lines, never_ready, why_it_ended
from gymbox.providers.events import ContainerEvent, Events
from gymbox.providers.images import Images
from gymbox.providers.readiness import Readiness
from gymbox.providers.turns import Turns
from gymbox.setup_base_image import BASE_IMAGE
from gymbox.sockets import PinnedSocket

logger = logging.getLogger(__name__)

DEFAULT_HOST = "unix:///var/run/docker.sock"
WITHOUT = "go without containers: provider=process"
CALL_TIMEOUT = 120
"""Seconds that one call to the engine may take: a busy engine takes tens."""
REMOVE_PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts to remove something that the engine holds on to."""
LAST_WORDS = 0.05
"""Seconds in which the reason may still arrive from a server whose container has ended."""
UNSEEN = 255
"""Exit code that the engine gives to a container whose end it did not see."""
OOM_EXPLAINS = 10.0
"""Seconds for which an out-of-memory event explains the end of its container."""

Body = dict[str, Any]
Running = list[Found]


class DockerProvider(BaseModel):
    """Sandboxes as containers on this machine's Docker engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "docker"
    host: str | None = None
    """Address of the engine (what DOCKER_HOST holds), which must be on this machine: sandboxes are reached over unix
    sockets. None: the usual socket."""
    base_image: str = BASE_IMAGE
    """What the sandbox runtime is built on: any Debian or Ubuntu with Python 3.12 or newer among its packages."""
    build_args: dict[str, str] = Field(default_factory=dict)
    """Arguments for the build of the runtime image, such as HTTP_PROXY."""
    build_timeout: float = Field(1800, gt=0)
    """Seconds that one image may take to build."""
    build_folder: Path = Path("~/.cache/gymbox/images")
    """Where the logs of image builds are kept."""
    threads: int = Field(16, ge=1, le=256)
    """Calls to the engine at once."""

    _engine: _Engine | None = PrivateAttr(None)

    async def open(self, controller_id: str, on_end: OnEnd) -> None:
        """See SandboxProvider. Also removes this controller's containers that do not run."""
        engine = _Engine(self, controller_id, on_end)
        try:
            await engine.open()
        except BaseException:
            await engine.close()
            raise
        self._engine = engine

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def prepare(self, environment: Environment) -> str:
        return await self._opened.prepare(environment)

    async def start(self, spec: StartSpec, on_phase: OnPhase) -> Started:
        return await self._opened.start(spec, on_phase)

    async def stop(self, id: str) -> None:
        await self._opened.stop(id)

    async def list(self) -> Running:
        return await self._opened.list()

    async def logs(self, id: str, tail: int = 100) -> str:
        return await self._opened.logs(id, tail)

    def container(self, spec: StartSpec, image: str, controller_id: str, server: User) -> Body:
        """What the engine is asked to create; tests override it to see what happens when that goes wrong."""
        return container_config(spec, image, controller_id, server_command(spec.environment, server))

    @property
    def _opened(self) -> _Engine:
        if self._engine is None:
            raise Unavailable("the Docker provider is not open")
        return self._engine


class _Refused(Unavailable):
    """The engine answered, and the answer was no."""


@dataclass(slots=True)
class _Container:
    """A container of ours, and what must go when it goes."""

    directory: Path | None
    network: bool
    key: str = ""
    """The engine's id, once it is created."""
    ended: asyncio.Future[int | None] | None = None
    """While it starts: resolved with its exit code if it ends before it is ready."""
    reported: bool = False
    """Whether its end has been told."""
    stopping: bool = False
    """Whether `stop` is at it, or was: then its end is no news."""

    @classmethod
    def labelled(cls, labels: dict[str, str], key: str) -> _Container:
        return cls(directory_of(labels), labels.get(NETWORK_LABEL) == "internal", key)


class _Engine:
    """One connection to the engine: what a DockerProvider does while it is open."""

    def __init__(self, provider: DockerProvider, controller_id: str, on_end: OnEnd) -> None:
        self._provider = provider
        self._controller_id = controller_id
        self._label = f"{CONTROLLER_LABEL}={controller_id}"
        self._on_end = on_end
        self._host = provider.host or DEFAULT_HOST
        self._server_user = server_user(User(os.getuid(), os.getgid()))
        self._threads = ThreadPoolExecutor(provider.threads, thread_name_prefix="docker")
        self._containers: dict[str, _Container] = {}
        self._turns = Turns()
        self._out_of_memory: dict[str, float] = {}
        self._images_built: dict[str, asyncio.Task[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._api: Any = None
        self._images: Images | None = None
        self._events: Events | None = None

    async def open(self) -> None:
        if sys.platform != "linux":
            raise Unavailable(
                "sandboxes are reached over unix sockets, which do not pass into Docker Desktop's virtual machine; "
                f"{BY_COMPOSE}"
            )
        if self._host.startswith("ssh://"):
            raise self._elsewhere("over ssh")
        provider = self._provider
        self._api = await self._call("connect", self._connect)
        folder = provider.build_folder.expanduser()
        self._images = Images(self._api, provider.base_image, provider.build_args, folder, provider.build_timeout)
        self._events = Events(self._api, self._label, self._heard, self._reconnected)
        await self._call("report events", self._events.start)
        await self._call("list containers", self._sweep)

    async def close(self) -> None:
        pending = [*self._images_built.values(), *self._tasks]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if self._events is not None:
            await asyncio.to_thread(self._events.close)
        self._threads.shutdown(wait=False)
        if self._api is not None:
            self._api.close()

    def _connect(self) -> APIClient:
        # the stream of events holds one connection of the pool
        api = APIClient(self._host, version="auto", timeout=CALL_TIMEOUT, max_pool_size=self._provider.threads + 1)
        api.trust_env = False  # or every call would look for proxies and a .netrc
        info = api.info()
        if not _is_here(info, self._host):
            api.close()
            raise self._elsewhere(info["OperatingSystem"])
        return api

    def _elsewhere(self, what: str) -> Unavailable:
        return Unavailable(
            f"the Docker engine at {self._host} ({what}) is not on this machine, and sandboxes are reached over unix "
            "sockets, which do not leave a machine, virtual ones included: unset DOCKER_HOST (provider.host) to use "
            f"this machine's own engine, {BY_COMPOSE}, or {WITHOUT}"
        )

    def _sweep(self) -> None:
        """Remove this controller's containers that run no more, or never did, and networks that nobody is in."""
        for row in self._api.containers(all=True, filters={"label": self._label}):
            if row["State"] not in ("running", "paused"):
                with contextlib.suppress(NoSuchContainer):
                    self._api.remove_container(row["Id"], v=True, force=True)
                _remove_directory(directory_of(row["Labels"]))
        self._api.prune_networks(filters={"label": [self._label]})

    # start

    async def prepare(self, environment: Environment) -> str:
        build = self._images_built.get(environment.digest)
        if build is None or (build.done() and (build.cancelled() or build.exception() is not None)):
            build = asyncio.create_task(self._build(environment))
            self._images_built[environment.digest] = build
        return await asyncio.shield(build)  # who leaves early does not stop it for the others

    async def _build(self, environment: Environment) -> str:
        assert self._images is not None
        with self._translated("build an image"):
            return await _in_daemon_thread(partial(self._images.ensure, environment))

    async def start(self, spec: StartSpec, on_phase: OnPhase) -> Started:
        return await self._turns.start(spec.id, self._start(spec, on_phase))

    async def _start(self, spec: StartSpec, on_phase: OnPhase) -> Started:
        try:
            image = await self.prepare(spec.environment)
            await self._make(spec, image, on_phase)
        except ImageNotFound:  # removed by someone since it was built
            self._images_built.pop(spec.environment.digest, None)
            image = await self.prepare(spec.environment)
            await self._make(spec, image, on_phase)
        return Started(spec.id, socket=str(spec.directory / SERVER_SOCKET), address=None, image=image)

    async def _make(self, spec: StartSpec, image: str, on_phase: OnPhase) -> None:
        if await self._is_up(spec):
            return
        timeout = spec.environment.manifest.timeouts.start
        container = _Container(spec.directory, spec.environment.manifest.network == "internal")
        self._containers[spec.id] = container
        try:
            async with asyncio.timeout(timeout):
                await self._until_ready(spec, container, image, on_phase)
        except TimeoutError as error:
            detail = f"the server of {spec.id} did not answer in {timeout:g} s"
            failure = Ended(cause="failed_to_start", detail=detail, logs=await self._last_lines(spec.id))
            await self._give_up(spec.id)
            raise StartFailed(failure) from error
        except _Refused as error:
            await self._give_up(spec.id)
            raise StartFailed(Ended(cause="failed_to_start", detail=error.detail)) from error
        except BaseException:
            await self._give_up(spec.id)
            raise

    async def _is_up(self, spec: StartSpec) -> bool:
        """Whether it is one of ours that answers: then whoever starts it anew has no part in its fate."""
        known = self._containers.get(spec.id)
        if known is None or not known.key or known.reported or known.stopping or known.directory != spec.directory:
            return False
        return await _answers(spec.directory / SERVER_SOCKET)

    async def _until_ready(self, spec: StartSpec, container: _Container, image: str, on_phase: OnPhase) -> None:
        make_directory(spec.directory, self._server_user if os.getuid() == 0 else None)
        with Readiness(spec.directory) as readiness:
            if not await self._created(spec, container, image):
                return
            ended = container.ended = asyncio.get_running_loop().create_future()
            on_phase("created")
            await self._call(f"start {spec.id}", self._api.start, spec.id)
            on_phase("started")
            ready: asyncio.Future[Any] = asyncio.ensure_future(readiness.wait())
            try:
                await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    await asyncio.wait((ready,), timeout=LAST_WORDS)
                if ready.done():
                    ready.result()
                if ended.done():
                    raise never_ready(await self._why(spec.id, ended.result()))
            except StartFailed:
                raise
            except Problem as problem:
                told = str(problem.extra.get("log") or "")
                logs = last_lines(told.encode()) or await self._last_lines(spec.id)
                detail = f"the server of {spec.id} cannot start: {problem.detail}"
                raise StartFailed(Ended(cause="failed_to_start", detail=detail, logs=logs)) from problem
            finally:
                ready.cancel()
                await asyncio.wait((ready,))  # before what it listens on is closed
                container.ended = None

    async def _created(self, spec: StartSpec, container: _Container, image: str) -> bool:
        """True once it is created; False if it runs and answers already.

        Raises:
            Conflict: the name is taken by a container that is none of ours.
        """
        config = self._provider.container(spec, image, self._controller_id, self._server_user)
        for _ in range(3):
            try:
                if spec.environment.manifest.network == "internal":
                    await self._create_network(spec)
                create = partial(self._api.create_container_from_config, config, spec.id)
                container.key = (await self._call(f"create {spec.id}", create))["Id"]
                return True
            except APIError as error:
                if error.status_code != 409:
                    raise
                if await self._answers_already(spec, container):
                    return False
                await self._remove(spec.id)  # left half-made by a crash
        raise Conflict(f"another process keeps making a container {spec.id}")

    async def _create_network(self, spec: StartSpec) -> None:
        try:
            create = partial(self._api.create_network, **network_config(spec, self._controller_id))
            await self._call(f"create a network for {spec.id}", create)
        except APIError as error:
            if error.status_code != 409:  # left by a crash: it will do
                raise

    async def _answers_already(self, spec: StartSpec, container: _Container) -> bool:
        try:
            found = await self._call(f"inspect {spec.id}", self._api.inspect_container, spec.id)
        except NoSuchContainer:
            return False
        labels = found["Config"]["Labels"]
        if labels.get(CONTROLLER_LABEL) != self._controller_id or directory_of(labels) != spec.directory:
            del self._containers[spec.id]
            if directory_of(labels) != spec.directory:
                _remove_directory(spec.directory)
            raise Conflict(f"there is a container {spec.id} already, which is not of this controller")
        if not found["State"]["Running"] or not await _answers(spec.directory / SERVER_SOCKET):
            return False
        container.key = found["Id"]
        return True

    async def _give_up(self, id: str) -> None:
        """Remove what a failed start made; what cannot be removed now is left to a later `stop`."""
        if id in self._containers:
            try:
                await self._stop(id)
            except Problem as problem:
                logger.warning("sandbox %s could not be removed: %s", id, problem.detail)

    # stop, list, logs

    async def stop(self, id: str) -> None:
        async with self._turns.stop(id):
            await self._stop(id)

    async def _stop(self, id: str) -> None:
        container = self._containers.get(id) or await self._found(id)
        if container is None:
            return
        container.stopping = True
        self._containers[id] = container  # until all is gone, so that whoever tries again finds it
        await self._remove(id)
        if container.network:
            await self._until_gone(id, partial(self._api.remove_network, network_of(id)))
        self._out_of_memory.pop(id, None)
        await self._call("remove a directory", _remove_directory, container.directory)
        del self._containers[id]

    async def _found(self, id: str) -> _Container | None:
        """What a container of ours consists of that this process has not seen yet."""
        try:
            found = await self._call(f"inspect {id}", self._api.inspect_container, id)
        except NoSuchContainer:
            return None
        labels = found["Config"]["Labels"]
        return (
            _Container.labelled(labels, found["Id"]) if labels.get(CONTROLLER_LABEL) == self._controller_id else None
        )

    async def _remove(self, id: str) -> None:
        await self._until_gone(id, partial(self._api.remove_container, id, v=True, force=True))

    async def _until_gone(self, id: str, remove: Callable[[], None]) -> None:
        """Remove something, also where the engine holds on to it for a moment or someone else is at it."""
        for pause in (*REMOVE_PAUSES, None):
            try:
                return await self._call(f"remove what belongs to {id}", remove)
            except NoSuchContainer:
                return
            except (APIError, _Refused) as error:
                if pause is None:
                    raise Unavailable(f"what belongs to {id} cannot be removed: {error}") from error
                await asyncio.sleep(pause)

    async def list(self) -> Running:
        rows = await self._call("list containers", partial(self._api.containers, filters={"label": self._label}))
        rows = [row for row in rows if row["State"] in ("running", "paused")]
        for row in rows:
            self._containers.setdefault(_name(row), _Container.labelled(row["Labels"], row["Id"]))
        return [_found(row) for row in rows]

    async def logs(self, id: str, tail: int) -> str:
        return (await self._log(id, tail)).decode(errors="replace")

    async def _last_lines(self, id: str) -> str:
        try:
            return last_lines(await self._log(id, LOG_LINES))
        except Problem:
            return ""

    async def _log(self, id: str, tail: int) -> bytes:
        try:
            return bytes(await self._call(f"read the log of {id}", partial(self._api.logs, id, tail=tail)))
        except APIError as error:  # gone, or about to be
            raise NotFound(f"there is no container {id}") from error

    # ends

    def _heard(self, event: ContainerEvent) -> None:
        container = self._containers.get(event.name)
        if container is None or container.key != event.key:
            return
        if event.action == "oom":
            self._out_of_memory[event.name] = time.monotonic()
        else:
            self._ended(event.name, container, event.exit_code)

    def _ended(self, id: str, container: _Container, exit_code: int | None) -> None:
        if container.ended is not None:
            if not container.ended.done():
                container.ended.set_result(exit_code)
        elif not container.reported and not container.stopping:
            container.reported = True
            self._in_background(self._report(id, container, exit_code))

    def _reconnected(self) -> None:
        self._in_background(self._compare())

    async def _compare(self) -> None:
        """Find what ended while nobody listened."""
        watched = [(id, container) for id, container in self._containers.items() if container.key]
        list_all = partial(self._api.containers, all=True, filters={"label": self._label})
        states = {row["Id"]: row["State"] for row in await self._call("list containers", list_all)}
        for id, container in watched:
            if states.get(container.key, "gone") in ("gone", "exited", "dead"):  # one of "created" is being started
                self._ended(id, container, None)

    async def _report(self, id: str, container: _Container, exit_code: int | None) -> None:
        ended = await self._why(id, exit_code)
        if self._containers.get(id) is container and not container.stopping:  # it may have come to that meanwhile
            logger.warning("sandbox %s ended (%s): %s", id, ended.cause, ended.detail)
            self._on_end(id, ended)

    async def _why(self, id: str, exit_code: int | None) -> Ended:
        heard = self._out_of_memory.pop(id, None)
        try:
            found = await self._call(f"inspect {id}", self._api.inspect_container, id)
        except NoSuchContainer:
            return Ended(cause="killed", detail=f"{id} was removed by someone else", exit_code=exit_code)
        except Unavailable as error:
            return Ended(cause="lost", detail=f"{id} ended, and {error.detail}", exit_code=exit_code)
        if exit_code is None and found["State"]["ExitCode"] == UNSEEN:
            return Ended(cause="lost", detail=f"{id} ended while the engine was away", logs=await self._last_lines(id))
        # the engine sets OOMKilled for any process in the container, also for one whose end it survived
        oom = time.monotonic() - heard < OOM_EXPLAINS if heard is not None else bool(found["State"]["OOMKilled"])
        allowed = found["HostConfig"]["Memory"] // MEGABYTE if oom else None
        return why_it_ended(id, found["State"]["ExitCode"], await self._last_lines(id), out_of_memory_at=allowed)

    # calls

    async def _call[T](self, doing: str, function: Callable[..., T], *arguments: object) -> T:
        """Run a call in the pool. What a thread has begun cannot be stopped, so cancelling waits for its end.

        Raises:
            APIError: with status 404 or 409, which the caller may know what to do with.
            Unavailable: the engine does not answer, or refused for another reason.
        """
        with self._translated(doing):
            call = asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *arguments))
            try:
                return await asyncio.shield(call)
            except asyncio.CancelledError:
                await asyncio.wait([call])
                raise

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Any:
        try:
            yield
        except APIError as error:
            if error.status_code in (404, 409):
                raise
            raise _Refused(f"the Docker engine refused to {doing}: {error.explanation or error}") from error
        except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise Unavailable(
                f"no Docker engine answers at {self._host} ({_cause(error)}): {self._ways_on()}"
            ) from error

    def _ways_on(self) -> str:
        start = f"`{by_this_python('setup_docker')}`"
        if self._provider.host is None:
            return f"start one by {start}, or {WITHOUT}"
        return f"start it, or unset DOCKER_HOST (provider.host) to use this machine's own ({start}), or {WITHOUT}"

    def _in_background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a container's end could not be told", exc_info=task.exception())


def _is_here(info: Body, host: str) -> bool:
    """Whether the engine runs on this machine's kernel: sockets pass its mounts, and no others."""
    here = os.uname()
    if host.startswith("unix://"):
        return info["KernelVersion"] in (here.release, "<unknown>")
    return (info["KernelVersion"], info["Name"]) == (here.release, here.nodename)


def _remove_directory(directory: Path | None) -> None:
    if directory is not None:
        with contextlib.suppress(OSError):
            remove_directory(directory)


async def _answers(path: Path) -> bool:
    try:
        with PinnedSocket(path) as pinned:
            _, writer = await asyncio.open_unix_connection(pinned.address)
            writer.close()
    except (Unavailable, OSError):
        return False
    return True


def _found(row: dict[str, Any]) -> Found:
    labels = row["Labels"]
    directory = directory_of(labels)
    return Found(
        id=_name(row),
        environment=labels[ENVIRONMENT_LABEL],
        socket=str(directory / SERVER_SOCKET) if directory else None,
        address=None,
        image=row["Image"],
        labels=labels,
        created_at=float(row["Created"]),
    )


def _name(row: dict[str, Any]) -> str:
    return str(row["Names"][0]).removeprefix("/")


def _cause(error: BaseException) -> str:
    """The innermost reason: the SDK wraps a refused connection four times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error)


async def _in_daemon_thread[T](function: Callable[[], T]) -> T:
    """Run something long, which does not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():  # cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="docker-build", daemon=True).start()
    return await future
