"""A provider whose containers are small servers in this process, and a controller over it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from gymbox.controller.routes import Routes
from gymbox.controller.sandboxes import Sandboxes
from gymbox.controller.settings import ControllerSettings
from gymbox.controller.state import StateDirectory
from gymbox.environment import Environment, Manifest
from gymbox.errors import ConfigError, NotFound
from gymbox.http import HttpClient
from gymbox.providers import Found, OnEnd, OnPhase, Started, StartSpec
from gymbox_sandbox.lifecycle import CreateSandbox, EndCause, Ended, RouteTable
from gymbox_sandbox.wire import SESSION_HEADER


class InProcessContainer:
    """A server on a unix socket that knows sessions, as a sandbox's does."""

    def __init__(self, spec: StartSpec) -> None:
        self.spec = spec
        self.created_at = time.time()
        self.sessions: set[str] = set()
        self.ended_sessions: list[str] = []
        self.refuse_to_end_sessions = False
        self.requests_to_end = 0
        self.may_end_sessions = asyncio.Event()
        self.may_end_sessions.set()
        self.healthz_delay = 0.0
        self.on_healthz: Callable[[], Any] = lambda: None
        self.socket = str(spec.directory / "server.sock")
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_post("/reset", self._reset)
        app.router.add_get("/sessions", self._sessions)
        app.router.add_delete("/sessions", self._end_sessions)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)

    async def start(self) -> None:
        self.spec.directory.mkdir(parents=True, exist_ok=True)
        await self._runner.setup()
        await web.UnixSite(self._runner, self.socket).start()

    async def stop(self) -> None:
        await self._runner.cleanup()
        shutil.rmtree(self.spec.directory, ignore_errors=True)

    async def _healthz(self, _: web.Request) -> web.Response:
        self.on_healthz()
        await asyncio.sleep(self.healthz_delay)
        return web.json_response({"status": "ok"})

    async def _reset(self, request: web.Request) -> web.Response:
        self.sessions.add(request.headers.get(SESSION_HEADER, ""))
        return web.json_response({"tools": []})

    async def _sessions(self, _: web.Request) -> web.Response:
        return web.json_response({"sessions": sorted(self.sessions), "resets": dict.fromkeys(self.sessions, 0.5)})

    async def _end_sessions(self, request: web.Request) -> web.Response:
        self.requests_to_end += 1
        await self.may_end_sessions.wait()
        if self.refuse_to_end_sessions:
            return web.Response(status=500)
        ended = (await request.json())["sessions"]
        self.sessions.difference_update(ended)
        self.ended_sessions += ended
        return web.Response(status=204)


@dataclass
class InProcessProvider:
    """Keeps the contract of a SandboxProvider, and can be told to be slow or to fail."""

    name: str = "in-process"
    containers: dict[str, InProcessContainer] = field(default_factory=dict)
    starts: list[str] = field(default_factory=list)
    reopened: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    may_start: asyncio.Event = field(default_factory=asyncio.Event)
    start_error: Exception | None = None
    list_error: Exception | None = None
    stop_errors: int = 0
    most_starting: int = 0
    _starting: int = 0
    _on_end: OnEnd | None = None

    def __post_init__(self) -> None:
        self.may_start.set()

    async def open(self, controller_id: str, on_end: OnEnd) -> None:
        self._on_end = on_end

    async def close(self) -> None:
        self._on_end = None

    async def prepare(self, environment: Environment) -> str | None:
        return None

    async def start(self, spec: StartSpec, on_phase: OnPhase) -> Started:
        self.starts.append(spec.id)
        self._starting += 1
        self.most_starting = max(self.most_starting, self._starting)
        try:
            on_phase("created")
            await self.may_start.wait()
            if self.start_error is not None:
                raise self.start_error
            on_phase("started")
            container = InProcessContainer(spec)
            await container.start()
            self.containers[spec.id] = container
            return Started(spec.id, container.socket, None, "image:1")
        finally:
            self._starting -= 1

    async def reopen(self, spec: StartSpec) -> None:
        self.reopened.append(spec.id)

    async def stop(self, id: str) -> None:
        self.stops.append(id)
        if self.stop_errors:
            self.stop_errors -= 1
            raise OSError("the engine does not answer")
        container = self.containers.pop(id, None)
        if container is not None:
            await container.stop()

    async def list(self) -> list[Found]:
        if self.list_error is not None:
            raise self.list_error
        return [
            Found(
                id=id,
                environment=container.spec.environment.name,
                socket=container.socket,
                address=None,
                image="image:1",
                labels=container.spec.labels,
                created_at=container.created_at,
            )
            for id, container in self.containers.items()
        ]

    async def logs(self, id: str, tail: int = 100) -> str:
        if id not in self.containers:
            raise NotFound(f"there is no container {id}")
        return f"log of {id}\n"

    async def end(self, id: str, cause: EndCause, logs: str = "") -> None:
        """Let a container end by itself."""
        assert self._on_end is not None
        await self.containers[id].stop()
        self._on_end(id, Ended(cause=cause, detail=f"{id}: {cause}", logs=logs))


@dataclass
class Table:
    """A proxy's routes."""

    tables: list[RouteTable] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    async def replace(self, table: RouteTable) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.tables.append(table)

    def __getitem__(self, sandbox: str) -> Any:
        return next((route for route in self.tables[-1].routes if route.sandbox == sandbox), None)


def environment(folder: Path, name: str, **manifest: Any) -> Environment:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "server.py").write_text("# nothing runs this\n")
    return Environment(folder / name, Manifest(name=name, description="for tests", **manifest))


@pytest.fixture
def folder() -> Iterator[Path]:
    # not tmp_path: a socket's path may have 107 bytes
    path = Path(tempfile.mkdtemp(prefix="gbx"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def provider() -> InProcessProvider:
    return InProcessProvider()


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def environments(folder: Path) -> dict[str, Environment]:
    return {
        "alone": environment(folder / "environments", "alone"),
        "shared": environment(folder / "environments", "shared", sessions=2),
    }


Controller = Callable[..., Any]


@pytest.fixture
async def controller(
    folder: Path, provider: InProcessProvider, table: Table, environments: dict[str, Environment]
) -> AsyncIterator[Controller]:
    """Starts a controller: `async with controller(max_sandboxes=2) as sandboxes`. The state is the same each time.

    Args of what it gives:
        killed: it ends without a chance to put anything in order.
    """
    async with HttpClient() as http:

        def named(name: str) -> Environment:
            if name not in environments:
                raise ConfigError(f"there is no environment {name!r}")
            return environments[name]

        @asynccontextmanager
        async def start(ephemeral: bool = False, killed: bool = False, **settings: Any) -> AsyncIterator[Sandboxes]:
            state = StateDirectory.of_run(folder) if ephemeral else StateDirectory.main(folder)
            made = ControllerSettings(**settings)
            routes = Routes(table)
            opened = Sandboxes(made, provider, named, state, routes, http, proxy_url="http://proxy")
            try:
                if killed:
                    yield await opened.__aenter__()
                    for part in (opened.pools, opened.snapshots, routes):  # whose tasks would outlive the test's loop
                        await part.close()
                else:
                    async with opened as sandboxes:
                        yield sandboxes
            finally:
                state.close()

        yield start
        for id in list(provider.containers):
            await provider.stop(id)


def asked(id: str | None = None, environment: str = "alone", **fields: Any) -> CreateSandbox:
    return CreateSandbox(id=id, environment=environment, **fields)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until the condition holds."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110  of many parts, none of which has an event for it
            await asyncio.sleep(0.005)
