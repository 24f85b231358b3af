"""Pools of real containers: claimed in a moment, by one each, whatever becomes of the controller."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from gymbox.client import ControllerClient
from gymbox.environment import Catalog
from gymbox.providers.container import CONTROLLER_LABEL
from gymbox_sandbox.lifecycle import CreateGroup, CreateSandbox, PoolSettings, PoolView

ROOT = Path(__file__).parents[3]


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(120):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def filled(client: ControllerClient, environment: str, number: int) -> None:
    async def full() -> bool:
        pools: dict[str, PoolView] = {pool.environment: pool for pool in await client.pools()}
        return pools[environment].ready >= number

    await until(full)


def containers(engine: Any, state: Path, *labels: str, **filters: str) -> set[str]:
    """Names of this controller's containers, of those with these labels and whatever else."""
    ours = f"{CONTROLLER_LABEL}={(state / 'main' / 'id').read_text()}"
    found = engine.containers.list(all=True, ignore_removed=True, filters={"label": [ours, *labels], **filters})
    return {each.name for each in found}


async def emptied(client: ControllerClient, environment: str, engine: Any, state: Path) -> None:
    """Nothing of this controller is left."""
    await client.set_pool(environment, PoolSettings())
    for view in await client.sandboxes():
        await client.delete(view.id)

    async def nothing() -> bool:
        return not containers(engine, state)

    await until(nothing)
    assert os.listdir(state / "main" / "s") == []
    assert os.listdir(state / "main" / "claims") == []


async def test_a_claimed_container_does_a_whole_task_and_goes_with_its_sandbox(controller, engine, state):
    counter = Catalog([ROOT / "environments"])["counter"]
    async with controller("pools.counter.target=2") as (_, client):
        await filled(client, "counter", 2)
        view = await client.create(CreateSandbox(id="s1", environment="counter"))
        assert view.phases.claimed is not None and view.phases.ready == 0
        sandbox = client.open(view, counter.manifest)
        await sandbox.reset({"initial_count": 40})
        await sandbox.tools.call("increment_counter", {"count": 2})
        assert (await sandbox.call_tool("get_counter_value", {})).output == '{"count":42}'
        assert (await client.get("s1")).phases.reset is not None

        await client.delete("s1")
        assert view.container not in containers(engine, state)
        group = await client.create_group(CreateGroup(id="g", n=2, environment="counter"))
        assert [one.status for one in group.sandboxes] == ["ready"] * 2

        await filled(client, "counter", 2)
        spare = (
            containers(engine, state, "gymbox.pool", status="running") - {one.container for one in group.sandboxes}
        ).pop()
        engine.containers.get(spare).kill()

        async def replaced() -> bool:
            [pool] = await client.pools()
            return pool.ready >= 2 and spare not in containers(engine, state)

        await until(replaced)
        await emptied(client, "counter", engine, state)


@pytest.mark.parametrize("manifest", [{"network": "internal"}, {"sessions": 4}], ids=["internal", "sessions"])
async def test_a_pool_of_an_environment_with_a_network_or_with_shared_containers(
    controller, engine, state, tmp_path, manifest
):
    folder = tmp_path / "counter"
    folder.mkdir()
    (folder / "server.py").write_text((ROOT / "environments" / "counter" / "server.py").read_text())
    (folder / "environment.yaml").write_text(yaml.safe_dump({"description": "For a test.", **manifest}))
    environment = Catalog([tmp_path])["counter"]
    async with controller("--environments", str(tmp_path), "pools.counter.target=1") as (_, client):
        await filled(client, "counter", 1)
        view = await client.create(CreateSandbox(id="s1", environment="counter"))
        assert view.phases.claimed is not None
        sandbox = client.open(view, environment.manifest)
        await sandbox.reset({"initial_count": 1})
        assert (await sandbox.call_tool("get_counter_value", {})).output == '{"count":1}'
        await emptied(client, "counter", engine, state)


@asynccontextmanager
async def proxy_that_stalls(socket: Path, sandbox: str) -> AsyncIterator[None]:
    """A proxy's admin listener that takes every table but one with this sandbox."""

    async def replace(request: web.Request) -> web.Response:
        if sandbox in {route["sandbox"] for route in (await request.json())["routes"]}:
            await asyncio.sleep(3600)
        return web.Response(status=204)

    app = web.Application(client_max_size=1 << 24)
    app.router.add_put("/routes", replace)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def test_a_controller_killed_between_a_claim_and_its_answer_gives_nothing_twice_and_loses_nothing(
    controller, engine, state
):
    socket = state / "admin.sock"
    elsewhere = ("--proxy-socket", str(socket), "--proxy-url", "http://127.0.0.1:9", "pools.counter.target=3")
    async with proxy_that_stalls(socket, "doomed"), controller(*elsewhere) as (process, client):
        await filled(client, "counter", 3)
        first = await client.create(CreateSandbox(id="s1", environment="counter"))
        creating = asyncio.create_task(client.create(CreateSandbox(id="doomed", environment="counter")))
        claim = state / "main" / "claims" / "doomed"

        async def claimed() -> bool:
            return claim.exists()

        await until(claimed)
        assert not creating.done()
        process.send_signal(signal.SIGKILL)
        await process.wait()
        creating.cancel()
        container = json.loads(claim.read_text())["container"]

    async with controller("pools.counter.target=3") as (_, client):
        adopted = {view.id: view.container for view in await client.sandboxes()}
        assert adopted == {"s1": first.container, "doomed": container}
        assert (await client.create(CreateSandbox(id="doomed", environment="counter"))).container == container
        others = await asyncio.gather(
            *(client.create(CreateSandbox(id=f"o{number}", environment="counter")) for number in range(3))
        )
        assert len({first.container, container, *(view.container for view in others)}) == 5
        await emptied(client, "counter", engine, state)
