"""Containers: the servers that sandboxes live on; they are started in line, shared where an environment allows it,
and stopped whatever it takes."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gymbox_sandbox.lifecycle import ID_PATTERN, CreateSandbox, Ended
from gymbox_sandbox.wire import SESSION_HEADER
from pydantic import ValidationError

from gymbox.controller.line import Claim, FairLine
from gymbox.controller.state import StateDirectory
from gymbox.environment import Environment
from gymbox.errors import ImageBuildFailed, Problem, StartFailed, Unavailable
from gymbox.http import HttpClient
from gymbox.network import way_out
from gymbox.providers import Found, ModelsAt, SandboxProvider, Started, StartSpec

log = logging.getLogger(__name__)

SETTLES = 2.0
"""Seconds in which an engine mostly finishes what a killed process had asked of it."""

REQUEST_LABEL = "gymbox.request"
"""JSON of the CreateSandbox that a container of its own was made for; absent where it is shared."""
DIGEST_LABEL = "gymbox.environment-digest"
LONGEST_PAUSE = 30.0
"""Seconds between tries to stop what does not want to stop."""
LONGEST_GOODBYE = 10.0
"""Seconds for which a controller that ends waits for removals under way; the next one goes on with them."""


@dataclass(eq=False, slots=True)
class Container:
    """One server, and the sandboxes on it (`sessions` of its environment may be)."""

    id: str
    environment: Environment
    capacity: int
    labels: dict[str, str]
    claim: Claim = Claim()
    """Of the run whose sandbox had it made."""
    sandboxes: set[str] = field(default_factory=set)
    """Ids; one that has ended stays until its instance inside is gone too."""
    times: dict[str, float] = field(default_factory=dict)
    """When it got to "queued" (out of the line), "created", "started" and "ready", on the monotonic clock."""
    started: Started | None = None
    error: Problem | None = None
    """Why it did not start."""
    early_end: Ended | None = None
    """It ended before its start was through."""
    closing: bool = False
    """It takes no more sandboxes."""
    starting: asyncio.Task[None] | None = None
    idle: asyncio.TimerHandle | None = None

    @property
    def has_room(self) -> bool:
        return not self.closing and len(self.sandboxes) < self.capacity

    def mark(self, phase: str) -> None:
        """It has got to this phase now."""
        self.times.setdefault(phase, time.monotonic())

    def server(self) -> tuple[str, str | None]:
        """Base address and socket of its server, once it is started."""
        assert self.started is not None
        return f"http://{self.started.address or 'sandbox'}", self.started.socket


class _Removal(NamedTuple):
    """A container on its way out."""

    tried: asyncio.Event
    """The first try has been made."""
    task: asyncio.Task[None]
    """Ends once it is gone."""


class Watcher(Protocol):
    """Who is told what becomes of containers."""

    def started(self, container: Container) -> None:
        """Its server answers."""

    def ended(self, container: Container, ended: Ended) -> None:
        """It did not start, or is no more; `container.error` says which."""


class Containers:
    """All containers of a controller."""

    def __init__(
        self,
        provider: SandboxProvider,
        state: StateDirectory,
        http: HttpClient,
        watcher: Watcher,
        *,
        max_starting: int,
        idle: float,
        models: Callable[[str], ModelsAt | None] = lambda container: None,
    ) -> None:
        """`models`: where the model calls of a container go."""
        self._provider = provider
        self._models = models
        self._state = state
        self._http = http
        self._watcher = watcher
        self._line = FairLine(max_starting)
        self._idle = idle
        self._live: dict[str, Container] = {}
        self._shared: dict[str, list[Container]] = {}
        self._removals: dict[str, _Removal] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def waiting(self) -> int:
        """Containers that stand in line to be started."""
        return sum(1 for container in self._live.values() if "queued" not in container.times)

    async def open(self) -> None:
        """Watch what this controller has running from now on.

        Raises:
            Unavailable: the provider's technology does not answer.
        """
        await self._provider.open(self._state.id, self._on_end)

    # --- placing sandboxes

    def place(self, request: CreateSandbox, sandbox: str, environment: Environment) -> Container:
        """The container on which a sandbox lives from now on: one with room, or a new one that begins to start."""
        if environment.manifest.sessions > 1:
            for container in self._shared.get(environment.digest, ()):
                if container.has_room:
                    self._enter(container, sandbox)
                    return container
            labels, id = {}, f"{environment.name}-{secrets.token_hex(4)}"
        else:
            labels, id = {REQUEST_LABEL: request.model_copy(update={"id": sandbox}).model_dump_json()}, sandbox
        container = Container(
            id=f"gymbox-{self._state.id}-{id}",  # names are unique on an engine, which several controllers may share
            environment=environment,
            capacity=environment.manifest.sessions,
            labels={**labels, DIGEST_LABEL: environment.digest},
            claim=Claim.of(request),
        )
        self._keep(container)
        self._enter(container, sandbox)
        container.starting = asyncio.create_task(self._start(container), name=f"start {container.id}")
        return container

    async def leave(self, container: Container, sandbox: str) -> None:
        """The sandbox is over: free its place, and stop the container if it is for nobody any more.

        Never raises for what fails inside: it is tried again until it is done.
        """
        shared = container.capacity > 1 and container.started is not None and container.id in self._live
        if shared and not await self._end_session(container, sandbox):
            container.closing = True  # whatever is left in there must not meet another task
        container.sandboxes.discard(sandbox)
        if container.sandboxes or container.id not in self._live:
            return
        if container.capacity > 1 and not container.closing and container.error is None:
            loop = asyncio.get_running_loop()
            container.idle = loop.call_later(self._idle, self._stop_if_idle, container)
        else:
            await self.stop(container)

    async def _end_session(self, container: Container, sandbox: str) -> bool:
        base, socket = container.server()
        headers = {SESSION_HEADER: sandbox}
        try:
            answer = await self._http.request("DELETE", f"{base}/session", headers=headers, timeout=30, socket=socket)
        except Problem as error:
            log.warning("session %s did not end on %s: %s", sandbox, container.id, error)
            return False
        return answer.status < 500

    def _enter(self, container: Container, sandbox: str) -> None:
        container.sandboxes.add(sandbox)
        if container.idle is not None:
            container.idle.cancel()
            container.idle = None

    def _stop_if_idle(self, container: Container) -> None:
        if not container.sandboxes:
            self._spawn(self.stop(container))

    # --- starting and ending

    async def _start(self, container: Container) -> None:
        try:
            await self._provider.prepare(container.environment)
            await self._until_gone(container)
            async with self._line.place(container.claim):
                container.mark("queued")
                started = await self._provider.start(self._spec(container), container.mark)
            if container.early_end is not None:
                await self._remove(container.id).wait()
                raise StartFailed(container.early_end)
            container.started = started
        except Problem as error:
            self._failed(container, error)
        except Exception as error:
            log.exception("starting %s failed", container.id)
            ended = Ended(cause="failed_to_start", detail=f"{container.id}: {type(error).__name__}: {error}")
            self._failed(container, StartFailed(ended))
        else:
            container.mark("ready")
            log.info("container %s is ready", container.id)
            self._watcher.started(container)

    def _spec(self, container: Container) -> StartSpec:
        return StartSpec(
            id=container.id,
            environment=container.environment,
            directory=self._state.directory_of(container.id),
            labels=container.labels,
            models=self._models(container.id),
        )

    def _failed(self, container: Container, error: Problem) -> None:
        log.warning("container %s did not start: %s", container.id, error)
        container.error = error
        self._forget(container)
        if "queued" in container.times:  # its start had begun, and may have left something
            self._remove(container.id)
        if isinstance(error, StartFailed):
            ended = error.ended
        else:
            logs = error.log if isinstance(error, ImageBuildFailed) else ""
            ended = Ended(cause="failed_to_start", detail=error.detail, logs=logs)
        self._watcher.ended(container, ended)

    def _on_end(self, id: str, ended: Ended) -> None:
        container = self._live.get(id)
        if container is None:
            return  # it is being stopped, or `adopt` will look at it
        if container.started is None:
            container.early_end = ended
            return
        log.warning("container %s ended: %s (%s)", id, ended.cause, ended.detail)
        self._forget(container)
        self._watcher.ended(container, ended)
        self._remove(container.id, container.started)

    async def stop(self, container: Container) -> None:
        """Remove it. Returns after the first try; what fails is tried again in the background, after a crash too."""
        self._state.intend_delete(container.id)
        self._forget(container)
        if container.starting is not None and not container.starting.done():
            container.starting.cancel()
            await asyncio.wait({container.starting})
        await self._remove(container.id, container.started).wait()

    async def _until_gone(self, container: Container) -> None:
        """
        Raises:
            Unavailable: what an earlier start of its id left behind cannot be removed.
        """
        removal, timeout = self._removals.get(container.id), container.environment.manifest.timeouts.start
        if removal is not None and (await asyncio.wait({removal.task}, timeout=timeout))[1]:
            raise Unavailable(f"what an earlier start of {container.id} left behind cannot be removed yet")

    def _remove(self, id: str, started: Started | None = None) -> asyncio.Event:
        """Remove it, however many tries it takes, after a crash too; nothing of its id is started before.

        Returns: what is set once the first try has been made.
        """
        self._state.intend_delete(id)
        if id not in self._removals:
            tried = asyncio.Event()
            task = asyncio.create_task(self._remove_at_last(id, started, tried), name=f"remove {id}")
            self._removals[id] = _Removal(tried, task)
        return self._removals[id].tried

    async def _remove_at_last(self, id: str, started: Started | None, tried: asyncio.Event) -> None:
        pause = 0.5
        try:
            if started is not None and started.socket is not None:
                await self._http.forget(started.socket)
            while not await self._removed(id):
                tried.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            del self._removals[id]
            tried.set()

    async def _removed(self, id: str) -> bool:
        try:
            await self._provider.stop(id)
        except Exception as error:
            log.warning("container %s cannot be removed yet: %s", id, error)
            return False
        self._state.deleted(id)
        return True

    # --- after a crash

    async def adopt(self, environment_of: Callable[[str], Environment]) -> dict[str, tuple[Container, CreateSandbox]]:
        """Take over what runs: the sandboxes found, by id. What is unknown, or does not answer, is removed."""
        adopted: dict[str, tuple[Container, CreateSandbox]] = {}
        doomed = self._state.intended_deletes()

        async def adopt_one(found: Found) -> None:
            started = Started(found.id, found.socket, found.address, found.image)
            try:
                if found.id in doomed:
                    raise LookupError("it was to be deleted")
                container = Container(
                    id=found.id,
                    environment=(environment := environment_of(found.environment)),
                    capacity=environment.manifest.sessions,
                    labels=found.labels,
                    started=started,
                )
                if way_out(environment.manifest.network) is not None:
                    # its way out ended with the last controller; to start what runs is to adopt it
                    await self._provider.start(self._spec(container), container.mark)
                requests = await self._requests_on(container)
            except Exception as error:
                log.warning("removing %s, which cannot be adopted: %s", found.id, error)
                await self._remove(found.id, started).wait()
                return
            container.closing = found.labels.get(DIGEST_LABEL) != environment.digest
            for phase in ("queued", "created", "started", "ready"):
                container.mark(phase)
            self._keep(container)
            for request in requests:
                assert request.id is not None
                container.sandboxes.add(request.id)
                adopted[request.id] = container, request
            if not requests:
                self._stop_if_idle(container)

        found = await self._provider.list()
        await asyncio.gather(*(adopt_one(one) for one in found))
        await asyncio.gather(*(self._remove(id).wait() for id in doomed - {one.id for one in found}))
        # what has ended since then is not handed out
        return {id: (container, request) for id, (container, request) in adopted.items() if container.id in self._live}

    async def _requests_on(self, container: Container) -> list[CreateSandbox]:
        """What asked for the sandboxes on a container that was found; known exactly only where it is not shared."""
        base, socket = container.server()
        if REQUEST_LABEL in container.labels:
            await self._http.json("GET", f"{base}/healthz", timeout=10, socket=socket)
            try:
                return [CreateSandbox.model_validate_json(container.labels[REQUEST_LABEL])]
            except ValidationError as error:
                raise LookupError("its labels are not ours") from error
        answer = await self._http.json("GET", f"{base}/sessions", timeout=10, socket=socket)
        ids = [id for id in answer["sessions"] if re.fullmatch(ID_PATTERN, id)]
        return [CreateSandbox(id=id, environment=container.environment.name) for id in ids]

    # --- stopping

    async def started_or_failed(self, within: float) -> None:
        """Give the starts in flight `within` seconds to finish."""
        starts = {container.starting for container in self._live.values() if container.starting is not None}
        if starts:
            await asyncio.wait(starts, timeout=within)

    async def close(self, *, stop_all: bool) -> None:
        """Let go of the provider. What runs lives on, unless `stop_all`; what is still starting is stopped."""
        ending = [container for container in self._live.values() if stop_all or container.started is None]
        await asyncio.gather(*(self.stop(container) for container in ending))
        for container in self._live.values():
            if container.idle is not None:
                container.idle.cancel()
        first_tries = [asyncio.create_task(removal.tried.wait()) for removal in self._removals.values()]
        if ends := {*self._tasks, *first_tries}:
            await asyncio.wait(ends, timeout=LONGEST_GOODBYE)
        for task in [*first_tries, *(removal.task for removal in self._removals.values())]:
            task.cancel()
            await asyncio.wait({task})
        await self._provider.close()

    async def logs(self, container: Container, tail: int) -> str:
        """The last lines that it printed.

        Raises:
            NotFound: it is gone, or not there yet.
        """
        return await self._provider.logs(container.id, tail)

    # --- bookkeeping

    def _keep(self, container: Container) -> None:
        self._live[container.id] = container
        if container.capacity > 1:
            self._shared.setdefault(container.environment.digest, []).append(container)

    def _forget(self, container: Container) -> None:
        self._live.pop(container.id, None)
        container.closing = True
        if container.idle is not None:
            container.idle.cancel()
        same = self._shared.get(container.environment.digest, [])
        if container in same:
            same.remove(container)
            if not same:
                del self._shared[container.environment.digest]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def sweep_abandoned(parent: Path, provider: SandboxProvider) -> None:
    """Remove what controllers of runs left behind when they were killed. What cannot be removed is left to the sweeps
    that follow, and so is what a busy engine makes only later, though it was asked for it before the end; what
    another provider made is left to its own sweeps. To be called while the provider is not open.

    Raises:
        Unavailable: the provider's technology does not answer.
    """
    for state in StateDirectory.abandoned(parent):
        state.ephemeral = False  # it stays unless this sweep is seen through
        try:
            state.ephemeral = await _sweep(state, provider)
            if state.ephemeral and not state.swept():
                await asyncio.sleep(SETTLES)  # an engine with little else to do is done by then
                await _sweep(state, provider)
        finally:
            state.close()


async def _sweep(state: StateDirectory, provider: SandboxProvider) -> bool:
    """Whether it was this provider's to sweep."""
    try:
        await provider.open(state.id, lambda id, ended: None)
        if state.provider not in (None, provider.name):
            return False
        for id in {found.id for found in await provider.list()} | state.intended_deletes():
            log.warning("removing %s, left behind by a run that is no more", id)
            state.intend_delete(id)
            try:
                await provider.stop(id)
            except Exception as error:
                log.warning("container %s is left to the next sweep: %s", id, error)
            else:
                state.deleted(id)
        if not state.intended_deletes():
            state.clear_sockets()
        return True
    finally:
        await provider.close()
