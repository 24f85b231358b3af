"""Pools of sandboxes for Python programs."""

from __future__ import annotations

import pytest
from gymbox import Sandbox, SyncSandbox
from gymbox.client import ControllerClient
from gymbox.errors import ConfigError, TimedOut, Unavailable
from gymbox.http import HttpClient
from gymbox.runs.places import Places
from gymbox_sandbox.lifecycle import SandboxView


async def view_of(box: Sandbox, token: str) -> SandboxView:
    async with HttpClient() as http:
        return await ControllerClient(box.controller_url, token, http).get(box.id)


async def test_what_waits_in_a_pool_is_used_once_and_made_good(places: Places, token: str) -> None:
    async with Sandbox.pool(provider="process", places=places, size=2, env={"WHO": "me"}, pids=50) as pool:
        await pool.filled()
        containers = set()
        for _ in range(3):
            async with pool.sandbox() as box:
                assert (await box.exec("echo $WHO; ls; touch left")).stdout == "me\n"
                view = await view_of(box, token)
            assert view.phases.claimed is not None
            containers.add(view.container)
            await pool.filled()
        assert len(containers) == 3


async def test_a_sandbox_with_other_limits_takes_none_of_a_pool_and_leaves_it_as_it_is(
    places: Places, token: str
) -> None:
    async with Sandbox.pool(provider="process", places=places, size=1, pids=50) as pool:
        await pool.filled()
        async with Sandbox(provider="process", places=places, pids=60) as other:
            assert (await view_of(other, token)).phases.claimed is None
        await pool.filled()
        async with pool.sandbox() as box:
            assert (await view_of(box, token)).phases.claimed is not None


async def test_pools_of_several_kinds_are_beside_one_another_and_end_with_their_block(places: Places) -> None:
    async with Sandbox.host("process", places=places) as host:
        async with (
            Sandbox.pool(provider="process", places=places, size=1, pids=50) as first,
            Sandbox.pool(provider="process", places=places, size=1, pids=60) as second,
        ):
            await first.filled()
            await second.filled()
            same = Sandbox.pool(provider="process", places=places, size=1, pids=60)
            with pytest.raises(ConfigError, match="has a pool already"):
                await same.__aenter__()
            with pytest.raises(RuntimeError, match="open already"):
                await first.__aenter__()
        assert not any(view.most for view in host._pools().views())
        with pytest.raises(RuntimeError, match="not open"):
            await first.filled()
        async with Sandbox.pool(provider="process", places=places, size=1, pids=60) as again:
            await again.filled()


async def test_an_environments_sandboxes_can_wait_too(places: Places) -> None:
    async with Sandbox.pool(environment="counter", provider="process", places=places, size=1) as pool:
        await pool.filled()
        async with pool.sandbox() as box:
            await box.client.reset({"responses_create_params": {"input": "hi"}})
            assert box.client.tools.definitions


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"size": 0}, "size is 0"),
        ({"size": -1}, "size"),
        ({"size": 4, "ceiling": 2}, "ceiling"),
        ({"size": 1, "memory": 5}, "memory_mb"),
        ({"size": 1, "controller": "http://127.0.0.1:1"}, "gymbox pool set"),
    ],
)
def test_a_pool_that_cannot_be_is_refused_before_anything_starts(places: Places, settings, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Sandbox.pool(places=places, **settings)


async def test_more_than_there_may_be_sandboxes_cannot_wait(places: Places) -> None:
    with pytest.raises(ConfigError, match="max_sandboxes"):
        await Sandbox.pool(provider="process", places=places, size=4000).__aenter__()


async def test_a_pool_that_others_leave_no_place_for_is_not_waited_for_for_ever(places: Places, monkeypatch) -> None:
    async with (
        Sandbox.host("process", places=places) as host,
        Sandbox.pool(provider="process", places=places, size=1, pids=50, ceiling=1) as pool,
    ):
        await pool.filled()
        monkeypatch.setattr(host._pools(), "_most", 1)
        async with Sandbox.pool(provider="process", places=places, size=1, pids=60) as second:
            with pytest.raises(TimedOut, match=r"0 of 1 sandboxes of the pool wait after 0.3 s"):
                await second.filled(0.3)


async def test_why_a_pool_cannot_be_filled_is_told(places: Places, tmp_path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "environment.yaml").write_text("description: it does not start\n")
    (tmp_path / "broken" / "server.py").write_text("raise RuntimeError('not today')\n")
    (tmp_path / "broken" / "data").mkdir()
    (tmp_path / "broken" / "data" / "example.jsonl").write_text('{"responses_create_params": {"input": "hi"}}\n')
    async with Sandbox.pool(environment=tmp_path / "broken", provider="process", places=places, size=1) as pool:
        with pytest.raises(Unavailable, match="cannot be filled"):
            await pool.filled()


def test_a_pool_needs_no_event_loop(places: Places) -> None:
    with SyncSandbox.pool(provider="process", places=places, size=1) as pool:
        pool.filled()
        for _ in range(2):
            with pool.sandbox() as box:
                assert box.exec("echo hi").stdout == "hi\n"
