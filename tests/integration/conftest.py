"""A real controller and proxy on real ports, with sandboxes as processes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.controller.settings import ControllerSettings
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.http import HttpClient
from gymbox.providers.process import ProcessProvider

ROOT = Path(__file__).parents[2]


@pytest.fixture
def state_folder() -> Iterator[Path]:
    """A folder for controllers' states: its path is short, and the servers' user gets through it."""
    path = Path(tempfile.mkdtemp(prefix="gbx"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def token() -> str:
    return "gbx_admin_integration-tests-only"


@pytest.fixture
def catalog() -> Catalog:
    return Catalog([ROOT / "environments"])


@pytest.fixture
def counter(catalog: Catalog) -> Environment:
    return catalog["counter"]


@pytest.fixture
def row(counter: Environment) -> dict[str, Any]:
    """The first task of `counter`."""
    with counter.dataset.open() as lines:
        return dict(json.loads(next(lines)))


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


@pytest.fixture
def controller_settings() -> ControllerSettings:
    """Override to start `controller` with others."""
    return ControllerSettings(port=0, lease=60)


@pytest.fixture
async def controller(
    state_folder: Path, token: str, catalog: Catalog, http: HttpClient, controller_settings: ControllerSettings
) -> AsyncIterator[EmbeddedController]:
    """Controller and proxy, in this process and on ports."""
    async with EmbeddedController(
        ProcessProvider(), catalog, state_folder, token, http, settings=controller_settings
    ) as running:
        yield running


@pytest.fixture
def controller_url(controller: EmbeddedController) -> str:
    return controller.url


@pytest.fixture
def proxy_url(controller: EmbeddedController) -> str:
    return controller.proxy_url


@pytest.fixture
def client(controller_url: str, token: str, http: HttpClient) -> ControllerClient:
    return ControllerClient(controller_url, token, http)
