"""Containers: those of one controller on a Docker engine, each made, watched, held and removed for a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from docker import APIClient
from docker.errors import APIError, ImageNotFound
from docker.errors import NotFound as NoSuchContainer
from gymbox_sandbox.lifecycle import Ended
from gymbox_sandbox.options import User
from gymbox_sandbox.wire import SERVER_SOCKET

from gymbox.environment import Environment
from gymbox.errors import Conflict, NotFound, Problem, StartFailed, Unavailable
from gymbox.providers import BY_COMPOSE, Found, OnEnd, OnPhase, Started, StartSpec
from gymbox.providers.container import (
    AGENT_UID,
    CONTROLLER_LABEL,
    ENVIRONMENT_LABEL,
    SERVICE_LABEL,
    directory_of,
    has_network,
    inodes_of,
    network_config,
    network_of,
    server_user,
)
from gymbox.providers.directories import make_directory, remove_directory
from gymbox.providers.disks import disk
from gymbox.providers.egress import Egress
from gymbox.providers.ends import last_lines, never_ready
from gymbox.providers.engine import Engine, Refused
from gymbox.providers.images import Images
from gymbox.providers.leftovers import remove_leftovers
from gymbox.providers.preparation import Preparation
from gymbox.providers.readiness import Readiness
from gymbox.providers.services import Services
from gymbox.providers.turns import Turns
from gymbox.providers.watch import Container, Watch
from gymbox.sockets import PinnedSocket

logger = logging.getLogger(__name__)

REMOVE_PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts to remove something that the engine holds on to."""
LAST_WORDS = 0.05
"""Seconds in which the reason may still arrive from a server whose container has ended."""

Body = dict[str, Any]
Running = list[Found]


class Settings(Protocol):
    """What is asked of the provider that these containers are made for."""

    @property
    def host(self) -> str | None: ...

    @property
    def threads(self) -> int: ...

    def images(self, api: APIClient) -> Images: ...

    def container(self, spec: StartSpec, image: str, controller_id: str, server: User) -> Body: ...

    def egress(self) -> Egress: ...


class Containers:
    """What a DockerProvider does while it is open: see SandboxProvider."""

    def __init__(self, settings: Settings, controller_id: str, on_end: OnEnd) -> None:
        self._settings = settings
        self._controller_id = controller_id
        self._label = f"{CONTROLLER_LABEL}={controller_id}"
        self._server_user = server_user(User(os.getuid(), os.getgid()))
        self._turns = Turns()
        self._preparation: Preparation | None = None
        self.engine = Engine(settings.host, settings.threads)
        self.watch = Watch(self.engine, self._label, on_end)
        self._known = self.watch.containers
        self.egress = settings.egress()
        self._services = Services(self.engine, self.watch, controller_id, self._until_gone)

    async def open(self) -> None:
        if sys.platform != "linux":
            raise Unavailable(
                "sandboxes are reached over unix sockets, which do not pass into Docker Desktop's virtual machine; "
                f"{BY_COMPOSE}"
            )
        await self.engine.connect()
        self._preparation = Preparation(self.engine, self._settings.images(self.engine.api))
        await self.watch.open()
        await self.engine.must("list what is left", remove_leftovers, self.engine.api, self._label)

    async def close(self) -> None:
        if self._preparation is not None:
            await self._preparation.close()
        await self.watch.close()
        await self.egress.close()
        self.engine.close()

    # start

    async def prepare(self, environment: Environment) -> str:
        return await self._images.image(environment)

    def base_of(self, environment: Environment) -> str | None:
        return self._preparation.base_of(environment) if self._preparation else None

    @property
    def _images(self) -> Preparation:
        assert self._preparation is not None, "open comes first"
        return self._preparation

    async def start(self, spec: StartSpec, on_phase: OnPhase) -> Started:
        return await self._turns.start(spec.id, self._start(spec, on_phase))

    async def _start(self, spec: StartSpec, on_phase: OnPhase) -> Started:
        image = await self._images.image(spec.environment)
        try:
            await self._make(spec, image, on_phase)
        except ImageNotFound:  # removed by someone since it was built
            self._images.forget(spec.environment, image)
            image = await self._images.image(spec.environment)
            await self._make(spec, image, on_phase)
        except StartFailed:
            self._images.doubt(image)
            raise
        return Started(spec.id, socket=str(spec.directory / SERVER_SOCKET), address=None, image=image)

    async def _make(self, spec: StartSpec, image: str, on_phase: OnPhase) -> None:
        if await self._is_up(spec):
            await self.egress.open(spec)
            return
        timeout = spec.environment.manifest.timeouts.start
        container = Container(spec.directory, has_network(spec.environment.manifest))
        self._known[spec.id] = container
        try:
            async with asyncio.timeout(timeout):
                await self._until_ready(spec, container, image, on_phase)
        except TimeoutError as error:
            detail = f"the server of {spec.id} did not answer in {timeout:g} s"
            failure = Ended(cause="failed_to_start", detail=detail, logs=await self.watch.last_lines(spec.id))
            await self._give_up(spec.id)
            raise StartFailed(failure) from error
        except Refused as error:
            await self._give_up(spec.id)
            raise StartFailed(Ended(cause="failed_to_start", detail=error.detail)) from error
        except BaseException:
            await self._give_up(spec.id)
            raise

    async def _is_up(self, spec: StartSpec) -> bool:
        """Whether it is one of ours that answers: then whoever starts it anew has no part in its fate."""
        known = self._known.get(spec.id)
        if known is None or not known.key or known.reported or known.stopping or known.directory != spec.directory:
            return False
        return await _answers(spec.directory / SERVER_SOCKET)

    async def _until_ready(self, spec: StartSpec, container: Container, image: str, on_phase: OnPhase) -> None:
        make_directory(spec.directory, self._server_user if os.getuid() == 0 else None)
        await self.egress.open(spec)
        with Readiness(spec.directory) as readiness, contextlib.ExitStack() as until_mounted:
            if spec.environment.manifest.limits.workspace == "disk":
                device = await self.engine.call("make a disk", until_mounted.enter_context, workspace_disk(spec))
                spec = replace(spec, disk=device)
            if not await self._created(spec, container, image):
                return
            ended = container.ended = asyncio.get_running_loop().create_future()
            on_phase("created")
            await self._services.start(spec, self._images.services(spec.environment))
            await self.engine.call(f"start {spec.id}", self.engine.api.start, spec.id)
            until_mounted.close()
            on_phase("started")
            ready: asyncio.Future[Any] = asyncio.ensure_future(readiness.wait())
            try:
                await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    await asyncio.wait((ready,), timeout=LAST_WORDS)
                if ready.done():
                    ready.result()
                if ended.done():
                    raise never_ready(await self.watch.why(spec.id, ended.result()))
            except StartFailed:
                raise
            except Problem as problem:
                told = str(problem.extra.get("log") or "")
                logs = last_lines(told.encode()) or await self.watch.last_lines(spec.id)
                detail = f"the server of {spec.id} cannot start: {problem.detail}"
                raise StartFailed(Ended(cause="failed_to_start", detail=detail, logs=logs)) from problem
            finally:
                ready.cancel()
                await asyncio.wait((ready,))  # before what it listens on is closed
                container.ended = None

    async def _created(self, spec: StartSpec, container: Container, image: str) -> bool:
        """True once it is created; False if it runs and answers already.

        Raises:
            Conflict: the name is taken by a container that is none of ours.
        """
        config = self._settings.container(spec, image, self._controller_id, self._server_user)
        config = await self._images.fitted(config, image)
        for _ in range(3):
            try:
                if has_network(spec.environment.manifest):
                    await self._create_network(spec)
                create = partial(self.engine.api.create_container_from_config, config, spec.id)
                container.key = (await self.engine.call(f"create {spec.id}", create))["Id"]
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
            create = partial(self.engine.api.create_network, **network_config(spec, self._controller_id))
            await self.engine.call(f"create a network for {spec.id}", create)
        except APIError as error:
            if error.status_code != 409:  # left by a crash: it will do
                raise

    async def _answers_already(self, spec: StartSpec, container: Container) -> bool:
        try:
            found = await self.engine.call(f"inspect {spec.id}", self.engine.api.inspect_container, spec.id)
        except NoSuchContainer:
            return False
        labels = found["Config"]["Labels"]
        if labels.get(CONTROLLER_LABEL) != self._controller_id or directory_of(labels) != spec.directory:
            del self._known[spec.id]
            if directory_of(labels) != spec.directory:
                _remove_directory(spec.directory)
            raise Conflict(f"there is a container {spec.id} already, which is not of this controller")
        if not found["State"]["Running"] or not await _answers(spec.directory / SERVER_SOCKET):
            return False
        container.key = found["Id"]
        return True

    async def _give_up(self, id: str) -> None:
        """Remove what a failed start made; what cannot be removed now is left to a later `stop`."""
        if id in self._known:
            try:
                await self._stop(id)
            except Problem as problem:
                logger.warning("sandbox %s could not be removed: %s", id, problem.detail)

    async def reopen(self, spec: StartSpec) -> None:
        await self.egress.open(spec)

    # stop, list, logs

    async def stop(self, id: str) -> None:
        async with self._turns.stop(id):
            await self._stop(id)

    async def _stop(self, id: str) -> None:
        container = self._known.get(id) or await self._found(id)
        if container is None:
            return
        container.stopping = True
        self.egress.close_way(id)
        self._known[id] = container  # until all is gone, so that whoever tries again finds it
        await self._remove(id)
        if container.network:
            await self._services.stop(id)
            await self._until_gone(id, partial(self.engine.api.remove_network, network_of(id)))
        await self.engine.call("remove a directory", _remove_directory, container.directory)
        self.watch.forget(id)

    async def _found(self, id: str) -> Container | None:
        """What a container of ours consists of that this process has not seen yet."""
        try:
            found = await self.engine.call(f"inspect {id}", self.engine.api.inspect_container, id)
        except NoSuchContainer:
            return None
        labels = found["Config"]["Labels"]
        return Container.labelled(labels, found["Id"]) if labels.get(CONTROLLER_LABEL) == self._controller_id else None

    async def _remove(self, id: str) -> None:
        await self._until_gone(id, partial(self.engine.api.remove_container, id, v=True, force=True))

    async def _until_gone(self, id: str, remove: Callable[[], None]) -> None:
        """Remove something, also where the engine holds on to it for a moment or someone else is at it."""
        for pause in (*REMOVE_PAUSES, None):
            try:
                return await self.engine.call(f"remove what belongs to {id}", remove)
            except NoSuchContainer:
                return
            except (APIError, Refused) as error:
                if pause is None:
                    raise Unavailable(f"what belongs to {id} cannot be removed: {error}") from error
                await asyncio.sleep(pause)

    async def list(self) -> Running:
        rows = await self.engine.must(
            "list containers", partial(self.engine.api.containers, filters={"label": self._label})
        )
        rows = [row for row in rows if row["State"] in ("running", "paused")]
        for row in rows:
            self._known.setdefault(_name(row), Container.labelled(row["Labels"], row["Id"]))
        return [_found(row) for row in rows if SERVICE_LABEL not in row["Labels"]]

    async def logs(self, id: str, tail: int = 100) -> str:
        return await self.watch.logs(id, tail) + await self._services.logs(id, tail)

    async def pause(self, id: str) -> None:
        await self._held(id, self.engine.api.pause, still=True)

    async def unpause(self, id: str) -> None:
        await self._held(id, self.engine.api.unpause, still=False)

    async def _held(self, id: str, hold: Callable[[str], None], *, still: bool) -> None:
        try:
            await self.engine.call(f"pause or unpause {id}", hold, id)
        except (APIError, Refused) as error:  # it may be so already
            with contextlib.suppress(APIError):
                found = await self.engine.call(f"inspect {id}", self.engine.api.inspect_container, id)
                if found["State"]["Running"] and found["State"]["Paused"] == still:
                    return
            raise NotFound(f"{id} does not run: {error}") from error


def workspace_disk(spec: StartSpec) -> AbstractContextManager[str]:
    """The block device for the workspace of a sandbox that has it on disk."""
    limits = spec.environment.manifest.limits
    inodes = inodes_of(limits, limits.workspace_mb)
    return disk(spec.directory.parent, limits.workspace_mb, inodes, User(AGENT_UID, AGENT_UID))


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
        paused=row["State"] == "paused",
    )


def _name(row: dict[str, Any]) -> str:
    return str(row["Names"][0]).removeprefix("/")
