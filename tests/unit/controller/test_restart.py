"""A controller that is restarted while its proxy lives, with callers who notice as little as possible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.controller.app import controller_app
from gymbox.controller.routes import RemoteRoutes, Routes
from gymbox.controller.sandboxes import Sandboxes
from gymbox.controller.server import guard_of
from gymbox.controller.settings import ControllerSettings
from gymbox.controller.state import StateDirectory
from gymbox.environment import Catalog
from gymbox.errors import ErrorKind, RolloutError, SandboxEnded, Stage
from gymbox.http import HttpClient
from gymbox.proxy import Proxy, ProxySettings
from gymbox.sandbox_client import SandboxClient
from gymbox.serving import Listener
from gymbox_sandbox.lifecycle import CreateSandbox, Ended, fingerprint

TOKEN = "gbx_admin_for-these-tests-only"
Start = Callable[[], Any]


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


@pytest.fixture
async def proxy(folder) -> AsyncIterator[Proxy]:
    async with Proxy(ProxySettings(port=0, admin_socket=folder / "admin.sock")) as running:
        yield running


@pytest.fixture
async def start(folder, provider, environments, proxy, http) -> AsyncIterator[Start]:
    """Starts a controller with a REST API, on the same state and the same port each time."""
    port = 0

    @asynccontextmanager
    async def start() -> AsyncIterator[ControllerClient]:
        nonlocal port
        state = StateDirectory.main(folder)
        settings = ControllerSettings(port=port)
        sink = RemoteRoutes(http, socket=str(folder / "admin.sock"))
        routes = Routes(sink, fingerprint(TOKEN), refresh=0.1)
        try:
            async with (
                Sandboxes(
                    settings, provider, environments.__getitem__, state, routes, http, proxy_url=proxy.url
                ) as sandboxes,
                Listener(
                    controller_app(sandboxes, Catalog([])), guard_of(settings, TOKEN), host=settings.host, port=port
                ) as listener,
            ):
                port = int(listener.url.rsplit(":", 1)[1])
                yield ControllerClient(listener.url, TOKEN, http)
        finally:
            state.close()

    yield start
    for id in list(provider.containers):
        await provider.stop(id)


async def created(client: ControllerClient, environments: Any) -> SandboxClient:
    view = await client.create(CreateSandbox(id="s1", environment="alone"))
    return client.open(view, environments["alone"].manifest)


async def test_a_sandbox_answers_before_during_and_after_a_restart(start, environments, proxy):
    async with start() as client:
        sandbox = await created(client, environments)
        await sandbox.reset({})
        version = proxy.routes.version
    await sandbox.reset({})
    async with start() as client:
        await sandbox.reset({})
        await client.create(CreateSandbox(id="s2", environment="alone"))  # answers once the proxy took its route
        await sandbox.reset({})

        assert proxy.routes.version > version
        assert {route.sandbox for route in proxy.routes.table.routes} == {"s1", "s2"}


async def test_a_container_that_died_while_no_controller_ran_is_a_lost_sandbox(start, environments, provider):
    async with start() as client:
        sandbox = await created(client, environments)
        id = provider.starts[0]
    await provider.containers.pop(id).stop()
    async with start() as client:
        with pytest.raises(SandboxEnded) as lost:
            await sandbox.call_tool("add", {})
        await client.create(CreateSandbox(id="s2", environment="alone"))
        with pytest.raises(SandboxEnded):  # the proxy, too, does not know it now
            await sandbox.reset({})

    error = RolloutError.at(Stage.AGENT, lost.value)
    assert (error.kind, error.retryable) == (ErrorKind.SANDBOX_LOST, True)


async def test_the_last_lines_of_a_sandbox_come_from_the_controller_and_not_by_the_proxy(
    start, environments, provider, proxy, http
):
    async with start() as client:
        sandbox = await created(client, environments)
        await provider.end(provider.starts[0], "oom_killed", logs="Killed\n")
        async with asyncio.timeout(10):
            while proxy.routes.table.routes[0].ended is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        told = await http.request("POST", f"{proxy.url}/sandboxes/s1/reset", headers=headers, data=b"{}")
        with pytest.raises(SandboxEnded) as ended:
            await sandbox.reset({})

    assert (told.status, told.json()["ended"]["logs"]) == (410, "")
    assert ended.value.ended == Ended(cause="oom_killed", detail=f"{provider.starts[0]}: oom_killed", logs="Killed\n")
