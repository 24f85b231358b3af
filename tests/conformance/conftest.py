"""Every provider, and a controller over it, for the suites that all of them must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.errors import Unavailable
from gymbox.http import HttpClient
from gymbox.judge import Judge
from gymbox.models.scripted import ScriptedModel
from gymbox.providers.docker import DockerProvider
from gymbox.providers.process import ProcessProvider

ROOT = Path(__file__).resolve().parents[2]
PROVIDERS = ["process", pytest.param("docker", marks=pytest.mark.docker)]
TOKEN = "gbx_admin_conformance"
PROBE = '''
import os

from gymbox_sandbox import ResourcesServer, Response, Task, ToolError, Verdict, tool


class Probe(ResourcesServer):
    """Does what the conformance suite asks."""

    async def reset(self, task: Task) -> None:
        print("the probe was reset", flush=True)
        self.count = 0
        self.seen = task.model_dump_json()

    @tool
    async def add(self, by: int) -> int:
        """Add to a number."""
        self.count += by
        return self.count

    @tool
    async def refuse(self) -> None:
        """Never works."""
        raise ToolError("not today")

    @tool
    async def stumble(self) -> None:
        """Has a bug."""
        raise KeyError("a bug")

    @tool
    async def crash(self) -> None:
        """End the server."""
        print("the probe crashes", flush=True)
        os._exit(3)

    @tool
    async def server_is(self) -> dict[str, int]:
        """Tell whose process the server is."""
        return {"uid": os.getuid(), "pid": os.getpid()}

    @tool
    async def saw(self) -> str:
        """Tell all that reset was given."""
        return self.seen

    async def verify(self, task: Task, response: Response) -> Verdict:
        found = await self.exec("grep -l '[l]eft-behind' /proc/[0-9]*/cmdline 2>/dev/null")
        left = len(found.stdout.split())
        return Verdict(reward=self.count, metrics={"left_behind": left, "pid": os.getpid()})
'''


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One provider, not yet open."""
    if request.param == "process":
        return ProcessProvider()
    return DockerProvider(build_folder=tmp_path_factory.getbasetemp() / "builds")


@pytest.fixture(scope="session")
def write_environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    """Makes an environment's folder; the same name is the same folder."""
    parent = tmp_path_factory.mktemp("environments")

    def write(name: str, server: str, **manifest: Any) -> Environment:
        folder = parent / name
        folder.mkdir(exist_ok=True)
        (folder / "server.py").write_text(server)
        (folder / "environment.yaml").write_text(yaml.safe_dump({"description": "For a test.", **manifest}))
        return Environment.load(folder)

    return write


@pytest.fixture
def probe(write_environment: Callable[..., Environment]) -> Environment:
    """An environment whose server does what a test wants."""
    return write_environment("conformance-probe", PROBE)


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as http:
        yield http


@asynccontextmanager
async def controller_of(
    provider: Any, http: HttpClient, folder: Path, judge: Judge | None, environments: Sequence[Path] = ()
) -> AsyncIterator[EmbeddedController]:
    """A controller over the provider; the test is skipped where its technology does not answer."""
    controller = EmbeddedController(provider, Catalog(environments), folder / "state", TOKEN, http, judge=judge)
    try:
        await controller.__aenter__()
    except Unavailable as error:
        pytest.skip(error.detail)
    try:
        yield controller
    finally:
        await controller.__aexit__(None, None, None)


@pytest.fixture
async def controller(provider: Any, http: HttpClient, tmp_path: Path) -> AsyncIterator[EmbeddedController]:
    judge = Judge(ScriptedModel(), http)
    async with controller_of(provider, http, tmp_path, judge, [ROOT / "environments"]) as embedded:
        yield embedded
