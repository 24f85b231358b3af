"""Containers: the servers that sandboxes live on; they are started in line, shared where an environment allows it,
and stopped whatever it takes."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

from gymbox_sandbox.lifecycle import CreateSandbox, Ended, QueuePlace

from gymbox.controller.container import (
    DIGEST_LABEL,
    MADE_LABEL,
    MANIFEST_LABEL,
    MOST_TOLD,
    POOL_LABEL,
    REQUEST_LABEL,
    Container,
)
from gymbox.controller.line import Claim, FairLine, Ticket
from gymbox.controller.rates import Durations
from gymbox.controller.removals import Removals
from gymbox.controller.session_ends import SessionEnds
from gymbox.controller.state import StateDirectory
from gymbox.environment import Environment
from gymbox.errors import ImageBuildFailed, Problem, StartFailed
from gymbox.http import HttpClient
from gymbox.providers import ModelsAt, SandboxProvider, Started, StartSpec, containers_stay

log = logging.getLogger(__name__)

PROMPTLY = 2.0
"""Seconds in which a server has to tell its sessions to whoever only shows sandboxes."""


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
        load: Callable[[Container, Started], Coroutine[Any, Any, None]],
        models: Callable[[str], ModelsAt | None] = lambda container: None,
    ) -> None:
        """`models`: where the model calls of a container go."""
        self._provider = provider
        self._models = models
        self._state = state
        self._http = http
        self._watcher = watcher
        self.claims = state.claims
        self.removals = Removals(provider, state, http)
        self._line = FairLine(max_starting)
        self._took = Durations()
        self._refilling: set[Container] = set()
        self._idle = idle
        self._load = load
        """Puts in place what a container begins with."""
        self._live: dict[str, Container] = {}
        self._shared: dict[str, list[Container]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._session_ends = SessionEnds(http, self._spawn)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, container: Container) -> bool:
        return container.id in self._live

    @property
    def waiting(self) -> int:
        """Containers that stand in line to be started."""
        return sum(1 for container in self._live.values() if "queued" not in container.times)

    @property
    def has_start_to_spare(self) -> bool:
        """Whether a place to start is free, with nobody waiting for one."""
        return not len(self._line) and self._line.held + len(self._refilling) < self._line.capacity

    @property
    def seconds_a_start(self) -> float | None:
        """How long a start takes at present, once it has its turn; None: none was seen."""
        return self._took.mean

    def queue_place(self, container: Container) -> QueuePlace | None:
        """Where it stands in the line to be started; None: it is not in it."""
        if container.ticket is None or container.ticket.has_place or container.ticket.left:
            return None
        before = self._line.ahead_of(container.ticket)
        rounds = before // self._line.capacity + 1  # of starts, one beside another; the first are under way
        expected = None if self._took.mean is None else round((rounds + 0.5) * self._took.mean, 6)
        return QueuePlace(position=before, expected_seconds=expected)

    async def open(self) -> None:
        """Watch what this controller has running from now on.

        Raises:
            Unavailable: the provider's technology does not answer.
        """
        await self._provider.open(self._state.id, self._on_end)

    # --- placing sandboxes

    def shared(self, request: CreateSandbox, sandbox: str, environment: Environment) -> Container | None:
        """A container with room that others are on already, on which the sandbox lives from now on."""
        if environment.manifest.sessions == 1:
            return None
        for container in self._shared.get(environment.digest, ()):
            if container.has_room:
                self._join(container, request, sandbox)
                return container
        return None

    def begin(self, request: CreateSandbox, sandbox: str, environment: Environment) -> Container:
        """A new container that begins to start, on which the sandbox lives from now on."""
        if environment.manifest.sessions > 1:
            container = self._new(environment, None, {}, Claim.of(request))
            self._join(container, request, sandbox)
        else:
            labels = {REQUEST_LABEL: request.model_dump_json()}
            container = self._new(environment, sandbox, labels, Claim.of(request))
            self._enter(container, sandbox)
        container.snapshot = request.snapshot
        container.starting = asyncio.create_task(self._start(container), name=f"start {container.id}")
        return container

    def begin_spare(self, environment: Environment) -> Container:
        """A new container that begins to start, for nobody yet. Its start takes no place of those that others ask for,
        so they never wait for it: see `has_start_to_spare`."""
        container = self._new(environment, None, {POOL_LABEL: "yes"}, Claim(), spare=True)
        self._refilling.add(container)
        container.starting = asyncio.create_task(self._start(container), name=f"start {container.id}")
        return container

    def enter_spare(self, container: Container, request: CreateSandbox, sandbox: str) -> None:
        """Have a sandbox live on a spare container, which is none from now on.

        Raises:
            OSError: that could not be noted; the container is spare as before.
        """
        self.claims.record(sandbox, container.id, request)
        container.spare, container.claim = False, Claim.of(request)
        self.keep(container)
        self._enter(container, sandbox)

    def _join(self, container: Container, request: CreateSandbox, sandbox: str) -> None:
        """Have a sandbox live on a container that others may share with it."""
        try:
            self.claims.record(sandbox, container.id, request)
        except OSError as error:  # a successor learns of it once it is reset
            log.warning("cannot note that sandbox %s is on %s: %s", sandbox, container.id, error)
        self._enter(container, sandbox)

    def _new(
        self, environment: Environment, name: str | None, labels: dict[str, str], claim: Claim, *, spare: bool = False
    ) -> Container:
        name = name or f"{environment.name}-{secrets.token_hex(4)}"
        container = Container(
            id=f"gymbox-{self._state.id}-{name}",  # names are unique on an engine, which several controllers may share
            environment=environment,
            capacity=environment.manifest.sessions,
            labels={
                **labels,
                DIGEST_LABEL: environment.digest,
                MANIFEST_LABEL: environment.manifest.model_dump_json(),
                MADE_LABEL: secrets.token_hex(8),
            },
            claim=claim,
            spare=spare,
        )
        self.keep(container)
        return container

    async def leave(self, container: Container, sandbox: str) -> None:
        """The sandbox is over: free its place, and stop the container if it is for nobody any more.

        Never raises for what fails inside: it is tried again until it is done.
        """
        shared = container.capacity > 1 and container.started is not None and container.id in self._live
        if shared and not await self._session_ends.end(container, sandbox):
            container.closing = True  # whatever is left in there must not meet another task
        if container.capacity > 1:
            self.claims.drop(sandbox)
        container.sandboxes.discard(sandbox)
        if container.sandboxes or container.id not in self._live:
            return
        if container.capacity > 1 and not container.closing and container.error is None:
            loop = asyncio.get_running_loop()
            container.idle = loop.call_later(self._idle, self.stop_if_idle, container)
        else:
            await self.stop(container)

    def _enter(self, container: Container, sandbox: str) -> None:
        container.sandboxes.add(sandbox)
        if container.idle is not None:
            container.idle.cancel()
            container.idle = None

    def stop_if_idle(self, container: Container) -> None:
        """Stop it in the background, unless it has sandboxes."""
        if not container.sandboxes:
            self.discard(container)

    def discard(self, container: Container) -> None:
        """Stop it in the background."""
        container.closing = True
        self._spawn(self.stop(container))

    # --- starting and ending

    @asynccontextmanager
    async def _turn(self, container: Container) -> AsyncIterator[None]:
        """For as long as it may be starting."""
        if container.spare:
            yield
            return

        def stands(ticket: Ticket) -> None:
            container.ticket = ticket

        async with self._line.place(container.claim, stands):
            yield

    async def _start(self, container: Container) -> None:
        try:
            await self._provider.prepare(container.environment)
            await self.removals.until_gone(container)
            async with self._turn(container):
                container.mark("queued")
                began = time.monotonic()
                started = await self._provider.start(self.spec(container), container.mark)
                self._took.add(time.monotonic() - began)
            if container.snapshot is not None and container.early_end is None:
                await self._load_into(container, started)
            if container.early_end is not None:
                await self.removals.begin(container.id).wait()
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
        finally:
            self._refilling.discard(container)

    def spec(self, container: Container) -> StartSpec:
        """What its start is asked for."""
        return StartSpec(
            id=container.id,
            environment=container.environment,
            directory=self._state.directory_of(container.id),
            labels=container.labels,
            models=self._models(container.id),
        )

    async def _load_into(self, container: Container, started: Started) -> None:
        """
        Raises:
            StartFailed: the snapshot could not be put in place, and why; unless the container has ended meanwhile.
        """
        try:
            await self._load(container, started)
            container.mark("restored")
        except Problem as error:
            if container.early_end is None:
                detail = f"{container.id} cannot begin with snapshot {container.snapshot}: {error.detail}"
                raise StartFailed(Ended(cause="failed_to_start", detail=detail)) from error

    def _failed(self, container: Container, error: Problem) -> None:
        log.warning("container %s did not start: %s", container.id, error.detail)
        container.error = error
        self._forget(container)
        if "queued" in container.times:  # its start had begun, and may have left something
            self.removals.begin(container.id)
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
        self.removals.begin(container.id, container.started)

    async def stop(self, container: Container) -> None:
        """Remove it. Returns after the first try; what fails is tried again in the background, after a crash too."""
        self._state.intend_delete(container.id)
        self._forget(container)
        if container.starting is not None and not container.starting.done():
            container.starting.cancel()
            await asyncio.wait({container.starting})
        await self.removals.begin(container.id, container.started).wait()

    async def started_or_failed(self, within: float) -> None:
        """Give the starts in flight `within` seconds to finish."""
        starts = {one.starting for one in self._live.values() if one.starting is not None and not one.spare}
        if starts:
            await asyncio.wait(starts, timeout=within)

    def end_no_sessions(self) -> None:
        """From now on containers are stopped, and not asked to end one session after another; some may not answer."""
        self._session_ends.close()

    async def close(self, *, stop_all: bool) -> None:
        """Let go of the provider. What somebody has lives on, unless `stop_all`; what is still starting, or for nobody
        (spare, or idle), is stopped."""
        live = self._live.values()
        ending = [one for one in live if stop_all or one.started is None or not one.sandboxes]
        await asyncio.gather(*(self.stop(container) for container in ending))
        for container in self._live.values():
            if container.idle is not None:
                container.idle.cancel()
        await self.removals.close(self._tasks)
        if (staying := sum(len(one.sandboxes) for one in live)) and containers_stay(self._provider):
            few = "sandbox stays; the next start with the same state adopts it"
            many = "sandboxes stay; the next start with the same state adopts them"
            log.info("%d %s", staying, few if staying == 1 else many)
        await self._provider.close()

    async def logs(self, container: Container, tail: int) -> str:
        """The last lines that it printed.

        Raises:
            NotFound: it is gone, or not there yet.
        """
        return await self._provider.logs(container.id, tail)

    async def resets(self, container: Container) -> dict[str, float]:
        """Seconds since the reset of each session on it; empty where it does not tell."""
        base, socket = container.server()
        try:
            answer = await self._http.json(
                "GET", f"{base}/sessions", timeout=PROMPTLY, socket=socket, retry=False, most=MOST_TOLD
            )
            return {str(name): float(ago) for name, ago in answer["resets"].items()}
        except (Problem, AttributeError, KeyError, TypeError, ValueError) as error:
            log.debug("%s does not tell its resets: %s", container.id, error)
            return {}

    # --- bookkeeping

    def keep(self, container: Container) -> None:
        """It is one of ours from now on."""
        self._live[container.id] = container
        if container.capacity > 1 and not container.spare:
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
