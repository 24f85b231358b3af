"""Pool: places and those who wait for one."""

from __future__ import annotations

import asyncio

import pytest
from gymbox.errors import ErrorKind
from gymbox.models import replicas
from gymbox.models.replicas import Pool, Replica


def pool(*names: str, max_concurrency: int = 8) -> Pool:
    return Pool([Replica(url=f"http://{name}") for name in names], max_concurrency=max_concurrency, pause=30)


async def test_a_place_that_came_as_its_caller_gave_up_goes_to_the_next() -> None:
    one = pool("a", max_concurrency=1)
    held = await one.take()
    first, second = asyncio.create_task(one.take()), asyncio.create_task(one.take())
    await asyncio.sleep(0)
    one.leave(held)
    first.cancel()
    async with asyncio.timeout(10):
        assert await second is held
    assert first.cancelled() and held.in_flight == 1


async def test_a_pool_that_is_closed_while_its_only_replica_rests_sets_no_timer() -> None:
    one = pool("a")
    place = await one.take()
    one.went_wrong(place, ErrorKind.MODEL_RATE_LIMITED, rest=1000)
    one.leave(place)
    waiting = asyncio.create_task(one.take())
    await asyncio.sleep(0)
    one.close()
    waiting.cancel()
    assert not one.others_are_well({place})


async def test_a_place_that_only_failed_calls_know_is_taken_where_there_is_no_other() -> None:
    one = pool("a")
    place = await one.take()
    one.leave(place)
    assert await one.take(avoid={place}) is place


async def test_the_rollout_heard_of_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "REMEMBERED", 2)
    two = pool("a", "b")
    homes = [await two.take(f"r{number}") for number in range(3)]
    for home in homes:
        two.leave(home)
    assert await two.take("r2") is homes[2]


async def test_an_ejected_replica_is_tried_by_one_call_only() -> None:
    two = Pool([Replica(url="http://a"), Replica(url="http://b")], max_concurrency=8, pause=0)
    bad = await two.take()
    two.went_wrong(bad, ErrorKind.MODEL_UNAUTHORIZED)
    two.leave(bad)
    taken = [await two.take() for _ in range(6)]
    assert taken.count(bad) == 1
    two.went_well(bad)
    assert (await two.take()) is bad
