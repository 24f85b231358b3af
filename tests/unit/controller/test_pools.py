"""Pools: started containers that wait for whoever asks first."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from gymbox.controller import pools as pools_module
from gymbox.controller.sandboxes import Sandboxes
from gymbox.errors import ConfigError, Invalid, NotFound, StartFailed, Unavailable
from gymbox_sandbox.lifecycle import CreateSandbox, Ended, Forecast, PoolSettings, PoolView

from .conftest import environment, until


def asked(id: str | None = None, environment: str = "alone", **fields: Any) -> CreateSandbox:
    return CreateSandbox(id=id, environment=environment, **fields)


def pool_of(target: int = 2, environment: str = "alone", **fields: Any) -> dict[str, PoolSettings]:
    return {environment: PoolSettings(target=target, **fields)}


def view(sandboxes: Sandboxes, name: str = "alone") -> PoolView:
    return next(pool for pool in sandboxes.pools.views() if pool.environment == name)


async def filled(sandboxes: Sandboxes, number: int = 2, name: str = "alone") -> None:
    await until(lambda: view(sandboxes, name).ready == number)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds where users have seconds."""
    for name, seconds in {"QUIET": 0.02, "LONGEST_HOLD": 0.1, "TICK": 0.02, "FIRST_PAUSE": 0.05}.items():
        monkeypatch.setattr(pools_module, name, seconds)


# --- claiming


async def test_a_request_is_given_a_container_that_was_started_before(controller, provider, table):
    async with controller(pools=pool_of()) as sandboxes:
        await filled(sandboxes)
        before = list(provider.starts)
        sandbox = await sandboxes.create(asked("s1"))

        told = sandboxes.views.of(sandbox)
        assert told.container in before
        assert told.status == "ready" and table["s1"].socket == provider.containers[told.container].socket
        assert (told.phases.queued, told.phases.ready) == (0, 0)
        assert told.phases.claimed is not None
        assert view(sandboxes).hits == 1


async def test_no_two_requests_are_given_the_same_container(controller):
    async with controller(pools=pool_of(8)) as sandboxes:
        await filled(sandboxes, 8)
        made = await asyncio.gather(*(sandboxes.create(asked(f"s{n}")) for n in range(12)))

        assert len({one.container.id for one in made}) == 12
        assert (view(sandboxes).hits, view(sandboxes).misses) == (8, 4)


async def test_one_that_is_starting_is_given_too_and_is_waited_for(controller, provider):
    provider.may_start.clear()
    async with controller(pools=pool_of(1)) as sandboxes:
        await until(lambda: provider.starts)
        creating = asyncio.create_task(sandboxes.create(asked("s1")))
        await until(lambda: "s1" in sandboxes)
        provider.may_start.set()

        assert (await creating).container.id == provider.starts[0]


async def test_what_was_claimed_is_replaced(controller):
    async with controller(pools=pool_of()) as sandboxes:
        await filled(sandboxes)
        await sandboxes.create(asked("s1"))
        await filled(sandboxes)


async def test_a_claimed_container_is_removed_with_its_sandbox(controller, provider):
    async with controller(pools=pool_of(1)) as sandboxes:
        await filled(sandboxes, 1)
        sandbox = await sandboxes.create(asked("s1"))
        await sandboxes.delete("s1")

        assert sandbox.container.id in provider.stops


async def test_a_container_of_a_shared_environment_takes_several_sandboxes(controller):
    async with controller(pools=pool_of(1, "shared")) as sandboxes:
        await filled(sandboxes, 1, "shared")
        first, second = [await sandboxes.create(asked(f"s{n}", "shared")) for n in range(2)]

        assert first.container is second.container
        assert view(sandboxes, "shared").hits == 1
        assert sandboxes.views.of(second).phases.claimed is None


async def test_what_cannot_be_noted_is_not_given_and_the_request_is_served_all_the_same(
    controller, provider, folder, monkeypatch
):
    async with controller(pools=pool_of(1)) as sandboxes:
        await filled(sandboxes, 1)
        spare = list(provider.containers)

        def full(*_: Any) -> None:
            raise OSError("no space left on device")

        monkeypatch.setattr("gymbox.controller.records.Records.write", full)
        sandbox = await sandboxes.create(asked("s1"))
        shared = await sandboxes.create(asked("s2", "shared"))

        assert sandbox.container.id not in spare and sandboxes.views.status(shared) == "ready"
        assert (view(sandboxes).hits, view(sandboxes).misses) == (0, 1)
        with pytest.raises(OSError):
            sandboxes.pools.put("alone", PoolSettings(target=3))
        assert view(sandboxes).target == 1


# --- after a crash


async def test_a_claim_survives_a_crash_and_what_is_unclaimed_stays_spare(controller, provider):
    async with controller(pools=pool_of(3), killed=True) as sandboxes:
        await filled(sandboxes, 3)
        claimed = await sandboxes.create(asked("s1", labels={"team": "a"}))
        await filled(sandboxes, 3)
    before = len(provider.starts)
    async with controller(pools=pool_of(3)) as sandboxes:
        assert (await sandboxes.create(asked("s1", labels={"team": "a"}))).container.id == claimed.container.id
        others = [await sandboxes.create(asked(f"o{n}")) for n in range(3)]
        assert len({claimed.container.id, *(other.container.id for other in others)}) == 4
        assert {other.container.id for other in others} <= set(provider.starts[:before])


async def test_a_claim_that_was_never_answered_is_adopted(controller, provider, table):
    async with controller(pools=pool_of(1)) as sandboxes:
        await filled(sandboxes, 1)
        spare = next(iter(provider.containers))
        table.errors = [Unavailable("the proxy is away")] * 1000
        creating = asyncio.create_task(sandboxes.create(asked("s1")))
        await until(lambda: "s1" in sandboxes)
        creating.cancel()
    table.errors = []
    async with controller() as sandboxes:
        assert sandboxes.get("s1").container.id == spare
        assert (await sandboxes.create(asked("s1"))).container.id == spare


async def test_a_used_container_that_nobody_has_claimed_is_removed(controller, provider, folder):
    async with controller(pools=pool_of(1)) as sandboxes:
        await filled(sandboxes, 1)
        sandbox = await sandboxes.create(asked("s1"))
        provider.containers[sandbox.container.id].sessions.add("")
    (folder / "main" / "claims" / "s1").unlink()
    async with controller() as sandboxes:
        assert sandbox.container.id not in provider.containers
        assert "s1" not in sandboxes


async def test_claims_of_containers_that_are_gone_and_garbage_are_forgotten(controller, provider, folder):
    claims = folder / "main" / "claims"
    async with controller(pools=pool_of(1)) as sandboxes:
        await filled(sandboxes, 1)
        sandbox = await sandboxes.create(asked("s1"))
    await provider.containers.pop(sandbox.container.id).stop()
    (claims / "garbage").write_text("{")
    async with controller() as sandboxes:
        assert not (claims / "s1").exists()
        assert "s1" not in sandboxes


async def test_without_its_pool_a_spare_container_is_not_kept(controller, provider):
    async with controller(pools=pool_of(), killed=True) as sandboxes:
        await filled(sandboxes)
    assert provider.containers
    async with controller():
        await until(lambda: not provider.containers)


async def test_what_was_set_over_rest_is_kept_over_a_restart_and_wins(controller, environments):
    async with controller(pools=pool_of(1)) as sandboxes:
        sandboxes.pools.put("alone", PoolSettings(target=3, ceiling=5))
        sandboxes.pools.put("shared", PoolSettings(target=1))
    del environments["shared"]
    async with controller(pools=pool_of(1)) as sandboxes:
        [only] = sandboxes.pools.views()
        assert (only.environment, only.target, only.ceiling) == ("alone", 3, 5)


# --- sizes


async def test_demand_raises_the_size_up_to_the_ceiling_and_goes_when_nobody_asks(controller):
    async with controller(pools=pool_of(1, ceiling=4, decay=600)) as sandboxes:
        await filled(sandboxes, 1)
        for number in range(6):
            await sandboxes.create(asked(f"s{number}"))

        assert view(sandboxes).demand == 6
        await filled(sandboxes, 4)
        sandboxes.pools.put("alone", PoolSettings(target=1, ceiling=4, decay=0.05))
        await until(lambda: (view(sandboxes).demand, view(sandboxes).ready) == (0, 1))


async def test_a_forecast_raises_the_size_and_each_request_of_the_run_takes_one_off(controller):
    async with controller(pools=pool_of(0, ceiling=8)) as sandboxes:
        sandboxes.pools.forecast("alone", "r", Forecast(sandboxes=3))
        await filled(sandboxes, 3)
        await sandboxes.create(asked("s1", run="r"))
        assert view(sandboxes).forecasts == {"r": 2}

        sandboxes.pools.forecast("alone", "r", Forecast(sandboxes=0))
        assert view(sandboxes).forecasts == {}
        sandboxes.pools.forecast("alone", "r", Forecast(sandboxes=5, lease=0.01))
        await asyncio.sleep(0.05)
        await until(lambda: view(sandboxes).forecasts == {})


async def test_a_forecast_of_sandboxes_that_share_containers_asks_for_as_few(controller):
    async with controller(pools=pool_of(0, "shared", ceiling=8)) as sandboxes:
        sandboxes.pools.forecast("shared", "r", Forecast(sandboxes=3))
        assert view(sandboxes, "shared").wanted == 2


async def test_without_a_pool_a_forecast_changes_nothing_and_an_unknown_environment_is_refused(
    controller, provider, environments
):
    async with controller() as sandboxes:
        sandboxes.pools.forecast("alone", "r", Forecast(sandboxes=3))
        assert sandboxes.pools.views() == []

        def none(name: str) -> Any:
            raise ConfigError(f"there is no environment {name!r}")

        sandboxes.environments = none
        with pytest.raises(NotFound, match="typo"):
            sandboxes.pools.forecast("typo", "r", Forecast(sandboxes=3))
        with pytest.raises(NotFound, match="typo"):
            sandboxes.pools.put("typo", PoolSettings(target=1))
    assert provider.starts == []


async def test_a_smaller_target_stops_what_is_too_many(controller, provider):
    async with controller(pools=pool_of(3)) as sandboxes:
        await filled(sandboxes, 3)
        assert sandboxes.pools.put("alone", PoolSettings(target=1)).target == 1
        await until(lambda: len(provider.containers) == 1)


async def test_a_pool_that_is_set_to_nothing_is_forgotten(controller, provider, folder):
    records = folder / "main" / "pools"
    async with controller() as sandboxes:
        sandboxes.pools.put("alone", PoolSettings(target=2))
        await filled(sandboxes, 2)
        ended = sandboxes.pools.put("alone", PoolSettings())
        assert (ended.wanted, ended.ready, ended.starting) == (0, 0, 0)
        assert sandboxes.pools.views() == [] and not list(records.iterdir())
        await until(lambda: not provider.containers)
        await sandboxes.create(asked("s1"))
    (records / "alone").write_text(PoolSettings().model_dump_json())  # as it was left there before
    async with controller() as sandboxes:
        assert sandboxes.pools.views() == [] and not list(records.iterdir())


async def test_a_pool_of_the_settings_that_was_ended_stays_so_after_a_restart(controller, provider):
    async with controller(pools=pool_of(2)) as sandboxes:
        sandboxes.pools.put("alone", PoolSettings())
    async with controller(pools=pool_of(2)) as sandboxes:
        assert sandboxes.pools.views() == []
        sandboxes.pools.put("alone", PoolSettings(target=1))
        await filled(sandboxes, 1)


async def test_a_pool_whose_environment_is_gone_can_be_ended(controller, environments):
    async with controller(pools=pool_of(1)) as sandboxes:
        del environments["alone"]
        with pytest.raises(NotFound):
            sandboxes.pools.put("alone", PoolSettings(target=2))
        sandboxes.pools.put("alone", PoolSettings())
        assert sandboxes.pools.views() == []


def test_a_ceiling_below_the_target_is_refused():
    with pytest.raises(ValueError, match="raise it"):
        PoolSettings(target=3, ceiling=2)
    assert (PoolSettings(target=3).most, PoolSettings(target=3, ceiling=7).most) == (12, 7)


async def test_more_than_there_may_be_sandboxes_is_refused(controller):
    async with controller(max_sandboxes=4) as sandboxes:
        with pytest.raises(Invalid, match="max_sandboxes"):
            sandboxes.pools.put("alone", PoolSettings(target=5))
    with pytest.raises(ConfigError, match="lower its target"):
        async with controller(max_sandboxes=4, pools=pool_of(5)):
            pass


# --- requests come first


async def test_spare_containers_count_as_sandboxes_but_give_way_to_requests_at_once(controller, provider):
    async with controller(max_sandboxes=3, pools=pool_of(3)) as sandboxes:
        await filled(sandboxes, 3)
        await sandboxes.create(asked("s1", "shared"))
        assert len(sandboxes.pools) == 2
        await sandboxes.create(asked("s2"))
        await sandboxes.create(asked("s3"))
        await until(lambda: len(provider.containers) == 3)
        assert len(sandboxes.pools) == 0

        await sandboxes.delete("s1")
        await filled(sandboxes, 1)


async def test_filling_takes_no_place_to_start_that_a_request_wants(controller, provider):
    provider.may_start.clear()
    async with controller(max_starting=1, pools=pool_of(2)) as sandboxes:
        await until(lambda: provider.starts)
        creating = asyncio.create_task(sandboxes.create(asked("s1", "shared")))
        await until(lambda: len(provider.starts) == 2)

        assert "shared" in provider.starts[1]
        await asyncio.sleep(0.1)
        assert len(provider.starts) == 2
        provider.may_start.set()
        await creating
        await filled(sandboxes, 2)


async def test_pools_are_filled_only_when_a_burst_is_over(controller, provider, monkeypatch):
    async with controller(pools=pool_of(2)) as sandboxes:
        await filled(sandboxes, 2)
        monkeypatch.setattr(pools_module, "QUIET", 60)
        monkeypatch.setattr(pools_module, "LONGEST_HOLD", 50)
        await sandboxes.create(asked("s1"))
        assert pools_module.TICK < sandboxes.pools._adjust() <= 50
        assert len(provider.starts) == 2
        monkeypatch.setattr(pools_module, "LONGEST_HOLD", 0.1)
        sandboxes.pools.poke()
        await until(lambda: len(provider.starts) == 3)
        await sandboxes.create(asked("s2"))  # of the same burst, which has waited long enough
        await filled(sandboxes, 2)


# --- what goes wrong


async def test_a_spare_container_that_dies_is_replaced(controller, provider):
    async with controller(pools=pool_of(2)) as sandboxes:
        await filled(sandboxes)
        dead = provider.starts[0]
        await provider.end(dead, "oom_killed")

        assert view(sandboxes).error == f"{dead}: oom_killed"
        await until(lambda: view(sandboxes).ready == 2 and dead not in provider.containers)


async def test_starts_that_fail_are_tried_again_ever_more_slowly_and_say_why(controller, provider, monkeypatch):
    monkeypatch.setattr(pools_module, "STEADY", 0.0)
    provider.start_error = StartFailed(Ended(cause="exited", detail="it exited with 3", exit_code=3))
    async with controller(pools=pool_of(1)) as sandboxes:
        await until(lambda: len(provider.starts) >= 3)
        told = view(sandboxes)
        assert told.error == "it exited with 3"
        assert told.retry_in is None or told.retry_in > 0.05
        assert len(provider.starts) < 10

        provider.start_error = None
        await until(lambda: view(sandboxes).ready == 1 and view(sandboxes).error == "")


async def test_a_changed_environment_empties_its_pool(controller, provider, environments, folder):
    async with controller(pools=pool_of(2)) as sandboxes:
        await filled(sandboxes)
        old = set(provider.containers)
        environments["alone"] = environment(folder / "environments", "alone", sessions=1, domain="changed")
        await until(lambda: view(sandboxes).ready == 2 and not old & set(provider.containers))


async def test_a_request_for_a_changed_environment_gets_nothing_old(controller, provider, environments, folder):
    async with controller(pools=pool_of(2)) as sandboxes:
        await filled(sandboxes)
        old = set(provider.containers)
        environments["alone"] = environment(folder / "environments", "alone", domain="changed")
        sandbox = await sandboxes.create(asked("s1"))

        assert sandbox.container.id not in old
        assert view(sandboxes).misses == 1


async def test_an_environment_that_is_gone_empties_its_pool_and_says_so(controller, provider):
    async with controller(pools=pool_of(1)) as sandboxes:
        await filled(sandboxes, 1)

        def none(name: str) -> Any:
            raise ConfigError(f"there is no environment {name!r}")

        sandboxes.environments = none
        await until(lambda: not provider.containers)
        assert "no environment" in view(sandboxes).error


async def test_a_fault_in_the_keeper_is_told_and_does_not_end_it(controller, caplog):
    async with controller(pools=pool_of(1)) as sandboxes:
        sandboxes.environments = lambda name: 1 / 0
        await until(lambda: "could not be looked after" in caplog.text)


async def test_what_pools_do_is_counted(controller):
    async with controller(pools=pool_of(1)) as sandboxes:
        await filled(sandboxes, 1)
        await sandboxes.create(asked("s1"))
        await sandboxes.create(asked("s1"))
        await sandboxes.create(asked("s2"))
        text = sandboxes.metrics.text().decode()

    assert 'gymbox_pool_claims_total{environment="alone",result="hit"} 1.0' in text
    assert 'gymbox_pool_claim_seconds_count{environment="alone"} 1.0' in text
    assert 'gymbox_pool_target{environment="alone"}' in text
    assert 'gymbox_pool_size{environment="alone",status="ready"}' in text


async def test_an_ephemeral_controller_takes_its_pools_with_it(controller, provider):
    async with controller(ephemeral=True, pools=pool_of(2)) as sandboxes:
        await filled(sandboxes)
    assert not provider.containers


async def test_a_controller_that_stops_in_order_leaves_what_somebody_has_and_says_so(controller, provider, caplog):
    caplog.set_level(logging.INFO)
    async with controller(pools=pool_of(2)) as sandboxes:
        await filled(sandboxes)
        mine = await sandboxes.create(asked("s1"))
        await filled(sandboxes)
        await sandboxes.drain()
    assert list(provider.containers) == [mine.container.id]
    assert "1 sandbox stays; the next start with the same state adopts it" in caplog.messages
    async with controller() as sandboxes:
        assert sandboxes.get("s1").container.id == mine.container.id


async def test_where_nobody_has_a_sandbox_nothing_stays_and_nothing_is_said(controller, provider, caplog):
    caplog.set_level(logging.INFO)
    async with controller(pools=pool_of(2), idle=600) as sandboxes:
        await filled(sandboxes)
        await sandboxes.create(asked("s1", environment="shared"))
        await sandboxes.delete("s1")
        assert provider.containers
    assert not provider.containers
    assert "the next start" not in caplog.text


async def test_a_controller_that_is_asked_to_stop_fills_no_more(controller, provider):
    async with controller(pools=pool_of(1), drain=0.1) as sandboxes:
        await filled(sandboxes, 1)
        await sandboxes.drain()
        starts = len(provider.starts)
        await provider.end(provider.starts[0], "killed")
        await asyncio.sleep(0.2)
        assert len(provider.starts) == starts
