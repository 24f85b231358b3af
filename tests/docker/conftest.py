"""Real containers: one engine, a controller id of its own for each test, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import coverage
import docker.errors
import pytest
import yaml
from gymbox.environment import Environment
from gymbox.providers import Started, StartSpec
from gymbox.providers.container import CONTROLLER_LABEL
from gymbox.providers.docker import DockerProvider
from gymbox.providers.images import Images
from gymbox.sockets import PinnedSocket
from gymbox_sandbox.lifecycle import Ended
from gymbox_sandbox.options import User

SESSION = f"test-{uuid.uuid4().hex[:8]}"
"""Every controller of this test session is named after it."""
SERVER = """
from gymbox_sandbox import ResourcesServer, Response, Task, tool

class Plain(ResourcesServer):
    async def reset(self, task: Task) -> None:
        self.count = 0

    @tool
    async def add(self, by: int) -> int:
        self.count += by
        return self.count

    async def verify(self, task: Task, response: Response) -> float:
        return float(self.count)
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.docker)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(engine: Any) -> Iterator[None]:
    """The leak check: no container or network of this session, and no nameless volume more than before."""
    volumes = nameless_volumes(engine)
    yield
    containers = [each for each in engine.containers.list(all=True, ignore_removed=True) if ours(each.labels)]
    networks = [each for each in engine.networks.list() if ours(each.attrs["Labels"])]
    assert not containers and not networks and nameless_volumes(engine) <= volumes


def nameless_volumes(engine: Any) -> set[str]:
    return {volume.name for volume in engine.volumes.list() if re.fullmatch("[0-9a-f]{64}", volume.name)}


def ours(labels: dict[str, str]) -> bool:
    return labels.get(CONTROLLER_LABEL, "").startswith(SESSION)


class MeasuredProvider(DockerProvider):
    """A provider whose sandboxes measure themselves, where the tests are measured: COVERAGE_FILE says where to."""

    async def stop(self, id: str) -> None:
        worker = self._worker
        container = worker.watch.containers.get(id) if worker else None
        if worker is not None and container is not None:
            # data is written when a process ends, so let it end, unheard
            container.stopping = True
            with contextlib.suppress(docker.errors.APIError):
                await asyncio.to_thread(worker.engine.api.stop, id, timeout=5)
        await super().stop(id)

    def container(self, spec: StartSpec, image: str, controller_id: str, server: User) -> dict[str, Any]:
        body = super().container(spec, image, controller_id, server)
        body["HostConfig"]["Binds"].append(f"{Path(os.environ['COVERAGE_FILE']).parent}:/coverage:rw")
        return body


MEASURED = coverage.Coverage.current() is not None and "COVERAGE_FILE" in os.environ
BUILD_ARGS = {"COVERAGE": coverage.__version__} if MEASURED else {}


def new_provider(folder: Path) -> DockerProvider:
    return (MeasuredProvider if MEASURED else DockerProvider)(build_folder=folder, build_args=BUILD_ARGS)


@pytest.fixture(scope="session")
def measured_image(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sandbox runtime; it has coverage where the tests are measured."""
    folder = tmp_path_factory.mktemp("runtime") / "runtime"
    folder.mkdir()
    (folder / "environment.yaml").write_text("description: Nothing but the runtime.\n")
    return Images(engine.api, "debian:trixie-slim", BUILD_ARGS, folder / "builds", 1800).ensure(
        Environment.load(folder)
    )


class Sandboxes:
    """A provider with the little that a test needs around it. Removes what it started."""

    def __init__(self, provider: DockerProvider, controller_id: str, folder: Path) -> None:
        self.provider = provider
        self.controller_id = controller_id
        self.folder = folder
        self.ends: asyncio.Queue[tuple[str, Ended]] = asyncio.Queue()
        self.phases: list[str] = []
        self._started: list[str] = []
        self._environments: dict[str, Environment] = {}

    def spec_again(self, id: str) -> StartSpec:
        """As the next controller starts it to adopt it."""
        return StartSpec(id, self._environments[id], self.folder / id, {"gymbox.sandbox": id})

    def spec(self, environment: Environment, id: str | None = None) -> StartSpec:
        id = id or f"gymbox-test-{uuid.uuid4().hex[:10]}"
        self._started.append(id)
        self._environments[id] = environment
        return StartSpec(id, environment, self.folder / id, {"gymbox.sandbox": id})

    async def start(self, environment: Environment, id: str | None = None) -> Started:
        return await self.provider.start(self.spec(environment, id), self.phases.append)

    async def ended(self, within: float = 30) -> tuple[str, Ended]:
        async with asyncio.timeout(within):
            return await self.ends.get()

    async def close(self) -> None:
        for id in self._started:
            await self.provider.stop(id)
        await self.provider.close()
        assert not set(self._started) & {path.name for path in self.folder.iterdir()}, "a directory was left"


@pytest.fixture
def make_sandboxes(engine: Any, tmp_path: Path) -> Callable[..., Any]:
    """Opens a provider under a controller id (a new one, unless given)."""

    @contextlib.asynccontextmanager
    async def make(
        provider: DockerProvider | None = None, controller_id: str | None = None
    ) -> AsyncIterator[Sandboxes]:
        controller_id = controller_id or f"{SESSION}-{uuid.uuid4().hex[:6]}"
        folder = tmp_path / controller_id
        folder.mkdir(exist_ok=True)
        made = Sandboxes(provider or new_provider(tmp_path / "builds"), controller_id, folder)
        await made.provider.open(controller_id, lambda id, ended: made.ends.put_nowait((id, ended)))
        try:
            yield made
        finally:
            await made.close()

    return make


@pytest.fixture
async def sandboxes(make_sandboxes: Callable[..., Any]) -> AsyncIterator[Sandboxes]:
    async with make_sandboxes() as made:
        yield made


@pytest.fixture
def state(engine: Any) -> Iterator[Path]:
    """A folder for the states of controllers, whose containers go with it whatever becomes of them."""
    folder = Path(tempfile.mkdtemp(prefix="gbx"))  # not tmp_path, which is too long, and closed to others
    folder.chmod(0o711)
    yield folder
    for id in folder.glob("*/id"):
        for container in engine.containers.list(
            all=True, ignore_removed=True, filters={"label": f"{CONTROLLER_LABEL}={id.read_text()}"}
        ):
            container.remove(v=True, force=True)
    shutil.rmtree(folder)


@pytest.fixture
def environment(tmp_path: Path) -> Callable[..., Environment]:
    """Writes an environment's folder: its server's source, other files, and the manifest's fields."""

    def write(server: str = SERVER, files: dict[str, str] | None = None, **manifest: Any) -> Environment:
        folder = tmp_path / "environments" / uuid.uuid4().hex[:6] / "plain"
        folder.mkdir(parents=True)
        (folder / "server.py").write_text(server)
        (folder / "environment.yaml").write_text(yaml.safe_dump({"description": "For a test.", **manifest}))
        for name, content in (files or {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        return Environment.load(folder)

    return write


@pytest.fixture
def connected() -> Callable[[Started], AbstractAsyncContextManager[aiohttp.ClientSession]]:
    """Opens a session whose every call goes to a sandbox's server."""

    @contextlib.asynccontextmanager
    async def connect(started: Started) -> AsyncIterator[aiohttp.ClientSession]:
        assert started.socket is not None
        with PinnedSocket(started.socket) as pinned:
            connector = aiohttp.UnixConnector(pinned.address)
            async with aiohttp.ClientSession("http://sandbox", connector=connector) as session:
                yield session

    return connect


@pytest.fixture
def run_in(connected: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a shell command in a sandbox, as its agent, and gives the ExecResult."""

    async def run(started: Started, command: str | list[str], **request: Any) -> dict[str, Any]:
        async with connected(started) as session:
            async with session.post("/exec", json={"command": command, **request}) as answer:
                assert answer.status == 200, await answer.text()
                return dict(await answer.json())

    return run
