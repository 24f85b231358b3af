"""A controller with sandboxes as processes, and E2B's face of it, on ports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from gymbox.client import ControllerClient
from gymbox.e2b.server import E2bServer
from gymbox.environment import Catalog
from gymbox.guard import Guard
from gymbox.serving import Listener

from tests.own_venv import interpreter_with, ran

KEY = "e2b_key-of-integration-tests-only"
SERVER = """
from gymbox_sandbox import ResourcesServer


class Base(ResourcesServer):
    pass
"""


@dataclass(frozen=True)
class Facade:
    """What E2B's SDK is pointed at."""

    url: str
    key: str
    client: ControllerClient
    server: E2bServer

    @property
    def variables(self) -> dict[str, str]:
        return {"E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url, "E2B_API_KEY": self.key}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """Two environments with nothing but a workspace."""
    for name in ("base", "other"):
        folder = tmp_path / "environments" / name
        folder.mkdir(parents=True)
        (folder / "server.py").write_text(SERVER)
        (folder / "environment.yaml").write_text("description: A workspace.\nlimits: {cpus: 1.5, memory_mb: 512}\n")
    return Catalog([tmp_path / "environments"])


@pytest.fixture
async def facade(client: ControllerClient) -> AsyncIterator[Facade]:
    server = E2bServer(client, KEY)
    async with Listener(server.app(), Guard(body_limit=0), own_tokens=True, drain=2) as listener:
        yield Facade(listener.url, KEY, client, server)
        await server.close()
    assert await client.sandboxes(status="ready") == []


@pytest.fixture
def sdk(facade: Facade) -> Callable[..., Awaitable[str]]:
    """Runs a file of checks with E2B's SDK, in an interpreter that has it and no gymbox."""

    async def run(file: str, **variables: str) -> str:
        options = ("-q", "--noconftest", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-o", "addopts=")
        checks = Path(__file__).with_name(file)
        given = {**facade.variables, **variables}
        return await ran(interpreter_with("e2b"), "-m", "pytest", *options, str(checks), measured=False, **given)

    return run
