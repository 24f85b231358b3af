"""Sandboxes: the life of a sandbox, from the request for it to the memory of why it ended.

    queued ──> starting ──> ready <──> paused ──> ended
       └──────────┴──────────┴───────────────────^

An id is used once. Asking for it again with the same body is the same request and gives the same sandbox; with another
body it is a Conflict; once the sandbox has ended it is Gone, with the cause. Only where the start failed may the same
id be asked for again, and is then started anew.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

from gymbox_sandbox.lifecycle import CreateSandbox, Ended, Route, fingerprint

from gymbox import logs
from gymbox.controller.adoption import Adoption
from gymbox.controller.arrivals import FULL_RETRY, Arrivals, essence
from gymbox.controller.container import Container
from gymbox.controller.containers import Containers
from gymbox.controller.copies import Copies
from gymbox.controller.groups import Groups
from gymbox.controller.leases import Leases
from gymbox.controller.line import Ticket
from gymbox.controller.metrics import Metrics
from gymbox.controller.pools import Pools
from gymbox.controller.routes import Routes
from gymbox.controller.sandbox import Sandbox, by_snapshot, no_own_labels
from gymbox.controller.settings import ControllerSettings
from gymbox.controller.snapshots import Snapshots
from gymbox.controller.state import StateDirectory
from gymbox.controller.tokens import Tokens
from gymbox.controller.tombstones import Tombstones
from gymbox.controller.views import Views
from gymbox.controller.ways_out import WaysOut
from gymbox.environment import Environment
from gymbox.errors import ConfigError, Conflict, Gone, NotFound, SandboxEnded, Unavailable
from gymbox.http import HttpClient
from gymbox.providers import SandboxProvider

log = logging.getLogger(__name__)


class Sandboxes:
    """Decides everything about sandboxes; the REST API and the embedded controller translate for it.

    Used as `async with`: entering takes over what an earlier controller left running; leaving keeps sandboxes running
    for the next one, without spare containers, or removes all where the controller is ephemeral.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        provider: SandboxProvider,
        environments: Callable[[str], Environment],
        state: StateDirectory,
        routes: Routes,
        http: HttpClient,
        *,
        proxy_url: str | None = None,
    ) -> None:
        self.settings = settings
        self.tokens = Tokens(state.key)
        self.metrics = Metrics(self)
        self.environments = environments
        self.draining = False
        self.provider = provider
        self.proxy_url = proxy_url
        self._state = state
        self._routes = routes
        self._http = http
        self.snapshots = Snapshots(
            state.path / "snapshots",
            http,
            state.directory_of,
            lambda: by_snapshot(self._live.values()),
            megabytes=settings.snapshot_mb,
            age=settings.snapshot_age,
        )
        self.copies = Copies(self)
        self.ways_out = WaysOut(provider, self.tokens, settings.models_url or proxy_url)
        self._containers = Containers(
            provider,
            state,
            http,
            self,
            max_starting=settings.most_starting,
            idle=settings.idle,
            load=self.snapshots.load,
            models=self.ways_out.models_at,
        )
        self.views = Views(self._containers, provider, routes, self.tokens, proxy_url)
        self.arrivals = Arrivals(
            settings.max_sandboxes,
            settings.max_waiting,
            lambda: self._containers.seconds_a_start,
            self.metrics.refused.inc,
        )
        self.groups = Groups(self, state.groups)
        self.pools = Pools(
            self._containers,
            lambda name: self.environments(name),
            self.arrivals,
            settings.max_sandboxes,
            state.pools,
            settings.pools,
            self.metrics.claimed,
        )
        self._live: dict[str, Sandbox] = {}
        self._leases = Leases(self.end)
        self.tombstones = Tombstones(routes, settings.tombstones)
        self._leaving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Sandboxes:
        try:
            await self._containers.open()
            adoption = Adoption(self._containers, self.provider, self._state, self._http)
            await adoption.run(self.environments)
        except BaseException:
            await self._containers.close(stop_all=False)
            raise
        for id, (container, request, exact) in adoption.occupants.items():
            sandbox = self._new(id, request, container.environment, container, self.arrivals.take(request))
            sandbox.exact = exact
            self._ready(sandbox)
            log.info("adopted sandbox %s on %s", id, container.id)
        self.snapshots.open()
        self.groups.adopt(list(self._live.values()))
        self.pools.open(adoption.spares)
        self.pools.give_way()
        self._routes.open()  # not before: until then the proxy goes by what the last controller told it
        return self

    async def __aexit__(self, *_: object) -> None:
        self.draining = True
        await self.pools.close()
        self.arrivals.send_all_away(Unavailable("this controller has shut down", retry_after=FULL_RETRY))
        if self._state.ephemeral:
            self._containers.end_no_sessions()
        for sandbox in list(self._live.values()):
            if self._state.ephemeral or sandbox.container.started is None:
                sandbox.error = Unavailable("this controller has shut down", retry_after=FULL_RETRY)
                self.end(sandbox, Ended(cause="deleted", detail=f"sandbox {sandbox.id}: its controller has ended"))
            else:
                self._leases.stop(sandbox)
        while self._leaving:
            await asyncio.wait(self._leaving)
        await self._containers.close(stop_all=self._state.ephemeral)
        await self.snapshots.close()
        await self._routes.close()

    # --- what callers ask for

    async def create(
        self, request: CreateSandbox, environment: Environment | None = None, *, own_labels: bool = False
    ) -> Sandbox:
        """The sandbox that the request asks for: ready, or as it is now where the request does not wait.

        Args:
            environment: use this, whatever is known by its name (only for callers in this process, who stand in line
                however many do).
            own_labels: the request may have labels that only the controller sets.

        Raises:
            NotFound: there is no such environment.
            Conflict: the id is another request's.
            Gone: the id has been used and its sandbox has ended.
            AtCapacity: there are `max_sandboxes`, and none became free within the request's `patience`.
            StartFailed, ImageBuildFailed, Unavailable: it did not become ready.
        """
        id = request.id or f"{request.environment}-{secrets.token_hex(8)}"
        request, asked = request.model_copy(update={"id": id}), time.monotonic()
        if not own_labels:
            no_own_labels(request)

        def usable() -> Environment:
            if id in self._live:  # made by a group, which was admitted while this one stood in line
                raise Conflict(f"sandbox {id} exists and was asked for with another request")
            self.tombstones.refuse(id)
            return self.admissible(request.environment, environment, snapshot=request.snapshot)

        sandbox = await self.arrivals.admitted(
            id,
            request,
            found=lambda: self._live.get(id),
            check=usable,
            make=lambda known, place: self.admit(id, request, known, place, asked),
            bounded=environment is None,
        )
        if not sandbox.is_same(request):
            raise Conflict(f"sandbox {id} exists and was asked for with another request")
        if request.wait:
            await self.until_ready(sandbox)
            if sandbox.claimed and sandbox.created == asked:
                self.metrics.answered(sandbox)
        return sandbox

    async def until_ready(self, sandbox: Sandbox) -> None:
        """Return once its calls get through.

        Raises:
            StartFailed, ImageBuildFailed, Unavailable, SandboxEnded: they never will.
        """
        await sandbox.settled.wait()
        if sandbox.ended is not None:
            raise sandbox.error or SandboxEnded(sandbox.ended)
        assert sandbox.routed is not None
        await self._routes.taken(sandbox.routed)

    def get(self, id: str) -> Sandbox:
        """A sandbox, also one that has ended while it is remembered.

        Raises:
            NotFound: there is none of that id.
        """
        sandbox = self._live.get(id) or self.tombstones.get(id)
        if sandbox is None:
            raise NotFound(f"there is no sandbox {id!r}")
        return sandbox

    def __contains__(self, id: str) -> bool:
        return id in self._live

    def all(self) -> list[Sandbox]:
        """Those that live, oldest first, and then those that have ended."""
        return [*self._live.values(), *self.tombstones]

    def renew(self, id: str, lease: float | None = None) -> Sandbox:
        """Let it live for another `lease` seconds (default: what it was created with).

        Raises:
            NotFound: there is none of that id.
            Gone: it has ended.
        """
        sandbox = self.get(id)
        if sandbox.ended is not None:
            raise SandboxEnded(sandbox.ended)
        self._leases.renew(sandbox, lease or sandbox.lease)
        return sandbox

    async def delete(self, id: str) -> None:
        """End it. Returns when it is removed, or when that has failed once and is being tried again; to delete what
        has ended already is fine.

        Raises:
            NotFound: there is none of that id.
        """
        if id in self.arrivals:
            self.arrivals.send_away(id, Gone(f"sandbox {id} was deleted while it waited"))
            return
        sandbox = self.get(id)
        if sandbox.ended is not None:
            return
        await asyncio.shield(self.end(sandbox, Ended(cause="deleted", detail=f"sandbox {id} was deleted")))

    @property
    def waiting(self) -> int:
        """Containers in line to be started."""
        return self._containers.waiting

    @property
    def containers(self) -> int:
        """Containers that run or start."""
        return len(self._containers)

    async def drain(self) -> None:
        """Take no new sandboxes, and give the starts in flight `settings.drain` seconds."""
        self.draining = True
        await self.pools.close()
        self.arrivals.send_all_away(Unavailable("this controller is shutting down", retry_after=FULL_RETRY))
        await self._containers.started_or_failed(self.settings.drain)

    # --- what becomes of containers (the containers' Watcher)

    def started(self, container: Container) -> None:
        """Everything that waited for it is ready."""
        for sandbox in self._on(container):
            self._ready(sandbox)
        self.pools.started(container)

    def ended(self, container: Container, ended: Ended) -> None:
        """Everything on it has ended with it, for the same cause."""
        for sandbox in self._on(container):
            sandbox.error = container.error
            self.end(sandbox, ended)
        self.pools.ended(container, ended)

    # --- decisions

    def admissible(self, name: str, given: Environment | None = None, *, snapshot: str | None = None) -> Environment:
        """The environment of that name, unless it is given, of which sandboxes may be made now, with what they begin
        with.

        Raises:
            NotFound: there is none, or no such snapshot.
            Invalid, Conflict: the snapshot is not one of this environment as it is.
            Unavailable: this controller takes none any more.
        """
        if self.draining:
            raise Unavailable("this controller is shutting down", retry_after=FULL_RETRY)
        try:
            environment = given or self.environments(name)
        except ConfigError as error:
            raise NotFound(str(error)) from error
        self.snapshots.check(snapshot, environment)
        return environment

    def admit(self, id: str, request: CreateSandbox, environment: Environment, place: Ticket, asked: float) -> Sandbox:
        """Make the sandbox, which was asked for then, on the monotonic clock; the place is its own from now on."""
        self.tombstones.drop(id)
        self.pools.foresee(request)
        container, claimed = self._containers.shared(request, id, environment), False
        if container is None and request.snapshot is None:  # of a pool's, none has begun with one
            container = self.pools.claim(request, id, environment)
            claimed = container is not None
        if container is None:
            container = self._containers.begin(request, id, environment)
        sandbox = self._new(id, request, environment, container, place)
        sandbox.created, sandbox.claimed = asked, time.monotonic() if claimed else None
        with logs.about(sandbox=id):
            log.info("sandbox %s of %s on %s", id, environment.name, container.id)
        if container.started is not None:
            self._ready(sandbox)
        self.pools.give_way()
        return sandbox

    def _new(
        self, id: str, request: CreateSandbox, environment: Environment, container: Container, place: Ticket
    ) -> Sandbox:
        tokens = self.tokens.of(id)
        route = Route(
            sandbox=id,
            session=id if container.capacity > 1 else "",
            tools_token=fingerprint(tokens.tools),
            control_token=fingerprint(tokens.control),
            models_token=self.ways_out.models_token(container),
        )
        sandbox = Sandbox(id, essence(request, id), environment, container, route, place)
        self._live[id] = sandbox
        self._leases.renew(sandbox, request.lease or self.settings.lease)
        self.metrics.created.labels(environment.name).inc()
        return sandbox

    def _ready(self, sandbox: Sandbox) -> None:
        started = sandbox.container.started
        assert started is not None
        sandbox.route = sandbox.route.model_copy(
            update={"socket": started.socket, "address": started.address, "paused": sandbox.container.paused}
        )
        sandbox.routed = self._routes.put(sandbox.route)
        self._leases.begin(sandbox)
        sandbox.settled.set()
        self.metrics.ready(sandbox)

    async def reroute(self, sandbox: Sandbox, *, paused: bool) -> None:
        """Note whether it is paused; returns when the proxy knows.

        Raises:
            SandboxEnded: it has ended; its route tells so, and must not be put back.
            Unavailable: the proxy does not take routes.
        """
        if sandbox.ended is not None:
            raise SandboxEnded(sandbox.ended)
        sandbox.container.paused = paused
        sandbox.route = sandbox.route.model_copy(update={"paused": paused})
        await self._routes.taken(self._routes.put(sandbox.route))

    def end(self, sandbox: Sandbox, ended: Ended) -> asyncio.Task[None]:
        """It is no more, for this cause. Returns: its removal, under way."""
        with logs.about(sandbox=sandbox.id):
            log.info("sandbox %s ended: %s (%s)", sandbox.id, ended.cause, ended.detail)
        sandbox.ended = ended
        del self._live[sandbox.id]
        self.arrivals.leave(sandbox.place)
        self.pools.poke()
        self._leases.stop(sandbox)
        self.tombstones.put(sandbox)
        sandbox.settled.set()
        sandbox.over.set()
        self.groups.ended(sandbox)
        self.metrics.ended.labels(sandbox.environment.name, ended.cause).inc()
        task = asyncio.create_task(self._containers.leave(sandbox.container, sandbox.id))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    def _on(self, container: Container) -> list[Sandbox]:
        return [one for id in container.sandboxes if (one := self._live.get(id)) and one.container is container]
