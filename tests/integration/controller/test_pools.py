"""Pools, groups and the line over HTTP, with sandboxes as processes; and a controller that is killed in between."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.config import compose
from gymbox.controller.settings import ControllerSettings
from gymbox.embedded import EmbeddedController
from gymbox.environment import Environment
from gymbox.errors import AtCapacity, Gone, Invalid, NotFound, Unavailable
from gymbox.http import HttpClient
from gymbox.runs.job import Job
from gymbox.runs.places import Places
from gymbox_sandbox.lifecycle import CreateGroup, CreateSandbox, PoolSettings, PoolView

ROOT = Path(__file__).parents[3]


@pytest.fixture
def controller_settings() -> ControllerSettings:
    return ControllerSettings(port=0, lease=60, max_sandboxes=8, max_starting=4)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def filled(client: ControllerClient, number: int) -> None:
    async def full() -> bool:
        return [pool.ready for pool in await client.pools()] == [number]

    await until(full)


async def test_a_claimed_sandbox_does_a_whole_task_and_shows_how_long_each_phase_took(
    client: ControllerClient, counter: Environment
) -> None:
    await client.set_pool("counter", PoolSettings(target=2))
    await filled(client, 2)
    view = await client.create(CreateSandbox(id="s1", environment="counter"))
    sandbox = client.open(view, counter.manifest)
    assert view.phases.claimed is not None and view.phases.ready == 0 and view.phases.reset is None

    await sandbox.reset({"initial_count": 40})
    await sandbox.tools.call("increment_counter", {"count": 2})
    assert (await sandbox.call_tool("get_counter_value", {})).output == '{"count":42}'
    shown = await client.get("s1")
    assert shown.phases.reset is not None and shown.phases.reset >= view.phases.claimed
    assert [one.phases.reset for one in await client.sandboxes()] == [shown.phases.reset]
    assert (await client.renew("s1")).phases == shown.phases


async def test_pools_are_set_and_refused_over_rest(client: ControllerClient, controller_url: str, token: str) -> None:
    told = await client.set_pool("counter", PoolSettings(target=1, ceiling=3))
    assert isinstance(told, PoolView) and (told.target, told.ceiling) == (1, 3)
    with pytest.raises(Invalid, match="max_sandboxes"):
        await client.set_pool("counter", PoolSettings(target=9))
    with pytest.raises(NotFound, match="countr"):
        await client.set_pool("countr", PoolSettings(target=1))
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    async with HttpClient() as http:
        for path, body in (("counter", {"target": 2, "ceiling": 1}), ("counter/forecasts/a~b", {"sandboxes": 1})):
            answer = await http.request(
                "PUT", f"{controller_url}/pools/{path}", headers=headers, data=json.dumps(body).encode()
            )
            assert answer.status == 422, answer.body


async def test_a_forecast_fills_a_pool_for_a_run(client: ControllerClient) -> None:
    await client.set_pool("counter", PoolSettings(ceiling=3))
    mine = client.of_run("mine", "normal", 1)
    await mine.forecast("counter", 2)
    await filled(client, 2)
    await client.create(CreateSandbox(environment="counter", run="mine"))
    await mine.forecast("counter", 0)
    [pool] = await client.pools()
    assert (pool.forecasts, pool.hits) == ({}, 1)


async def test_a_group_over_rest_is_all_or_none(client: ControllerClient, counter: Environment) -> None:
    request = CreateGroup(id="g", n=3, environment="counter")
    made = await client.create_group(request)
    assert [one.status for one in made.sandboxes] == ["ready"] * 3
    for number, view in enumerate(made.sandboxes):
        await client.open(view, counter.manifest).reset({"initial_count": number})
    assert (await client.create_group(request)).sandboxes[0].tokens == made.sandboxes[0].tokens
    assert len(await client.sandboxes(labels={"gymbox.group": "g"})) == 3

    with pytest.raises(AtCapacity) as refused:
        await client.create_group(CreateGroup(id="h", n=6, environment="counter"))
    assert refused.value.retry_after and refused.value.extra["queue"]["position"] == 0
    shown = await client._json("GET", "/sandboxes:group/g")
    assert [one["phases"]["reset"] is not None for one in shown["sandboxes"]] == [True] * 3
    await client.delete_group("g")
    assert await client.sandboxes(status="ready") == []
    with pytest.raises(Gone):
        await client.create_group(request)


async def test_a_run_says_what_it_needs_and_is_served_by_the_pool(
    client: ControllerClient, controller: EmbeddedController, state_folder: Path, tmp_path: Path, token: str
) -> None:
    await client.set_pool("counter", PoolSettings(ceiling=4))
    overrides = [
        *("environment=counter", "model=scripted", f"controller={controller.url}", "runner.repeats=2"),
        *(f"runner.output={tmp_path / 'run'}", "runner.concurrency=2"),
    ]
    places = Places((ROOT / "environments",), state_folder, tmp_path / "cache", token)
    summary = await Job(compose(overrides), places).main()

    assert summary.complete
    [pool] = await client.pools()
    assert pool.hits > 0
    assert pool.forecasts == {}


async def test_a_run_has_a_pool_of_its_own_by_its_settings(state_folder: Path, tmp_path: Path, token: str) -> None:
    places = Places((ROOT / "environments",), state_folder, tmp_path / "cache", token)
    overrides = ["environment=counter", "model=scripted", "provider=process", "pools.counter.target=2"]
    summary = await Job(compose([*overrides, f"runner.output={tmp_path / 'run'}"]), places).main()
    assert summary.complete
    recorded = json.loads((tmp_path / "run" / "manifest.json").read_text())["settings"]
    assert recorded["pools"] == {"counter": {"target": 2, "ceiling": None, "decay": 60}}


# --- a controller that is killed between a claim and its answer

KILLED_ONCE_IT_IS_NOTED = """
import os, signal
from gymbox.controller import records
from gymbox_sandbox.lifecycle import PoolSettings

record = records.Claims.record

def record_and_die(self, sandbox, container, request):
    record(self, sandbox, container, request)
    if sandbox == "doomed":
        os.kill(os.getpid(), signal.SIGKILL)

records.Claims.record = record_and_die
"""
POOL = 'pools={"counter": PoolSettings(target=2)}'


async def test_a_controller_killed_between_a_claim_and_its_answer_gives_nothing_twice_and_loses_nothing(
    server: Any, state_folder: Path, token: str, http: HttpClient
) -> None:
    async with server(POOL, KILLED_ONCE_IT_IS_NOTED) as (process, url):
        client = ControllerClient(url, token, http)
        await filled(client, 2)
        first = await client.create(CreateSandbox(id="s1", environment="counter"))
        with pytest.raises(Unavailable):
            await client.create(CreateSandbox(id="doomed", environment="counter"))
        assert await process.wait() == -signal.SIGKILL
        claims = {path.name: json.loads(path.read_text()) for path in (state_folder / "main" / "claims").iterdir()}
        assert claims.keys() == {"s1", "doomed"}
        assert claims["s1"]["container"] == first.container != claims["doomed"]["container"]

    async with server(POOL, KILLED_ONCE_IT_IS_NOTED) as (_, url):
        # processes end with their controller: the ids are free, and nothing is noted of what is no more
        client = ControllerClient(url, token, http)
        assert list((state_folder / "main" / "claims").iterdir()) == []
        await filled(client, 2)
        again = await client.create(CreateSandbox(id="s1", environment="counter"))
        assert again.tokens == first.tokens and again.container != first.container
