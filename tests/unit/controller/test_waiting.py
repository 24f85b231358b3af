"""Standing in line for a place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gymbox.controller.sandboxes import Sandboxes
from gymbox.errors import AtCapacity, Conflict, Gone, NotFound, Unavailable
from gymbox_sandbox.lifecycle import CreateSandbox

from .conftest import until


def asked(id: str, **fields: Any) -> CreateSandbox:
    return CreateSandbox(id=id, environment="alone", **{"patience": 30, **fields})


def waiting(sandboxes: Sandboxes) -> int:
    return sum(each.waiting for each in sandboxes.arrivals.view())


async def test_who_has_patience_gets_the_place_that_becomes_free(controller):
    async with controller(max_sandboxes=1) as sandboxes:
        await sandboxes.create(asked("s1", run="a"))
        second = asyncio.create_task(sandboxes.create(asked("s2", run="b", priority="high", share=2)))
        await until(lambda: waiting(sandboxes))
        [line] = [each for each in sandboxes.arrivals.view() if each.waiting]
        assert (line.run, line.priority, line.share, line.places, line.waiting) == ("b", "high", 2, 0, 1)
        assert b'gymbox_places{run="b",state="waiting"} 1.0' in sandboxes.metrics.text()

        await sandboxes.delete("s1")
        assert sandboxes.views.of(await second).status == "ready"
        assert [(each.run, each.places) for each in sandboxes.arrivals.view()] == [("b", 1)]


async def test_patience_ends_and_who_has_none_is_refused_at_once(controller):
    async with controller(max_sandboxes=1) as sandboxes:
        await sandboxes.create(asked("s1"))
        for request in (asked("s2", patience=0.05), asked("s2", patience=0), asked("s2", wait=False)):
            with pytest.raises(AtCapacity, match="all 1 sandboxes are in use") as refused:
                await sandboxes.create(request)
            assert refused.value.retry_after
        assert waiting(sandboxes) == 0


async def test_the_line_has_an_end(controller):
    async with controller(max_sandboxes=1, max_waiting=1) as sandboxes:
        await sandboxes.create(asked("s1"))
        second = asyncio.create_task(sandboxes.create(asked("s2")))
        await until(lambda: waiting(sandboxes))

        with pytest.raises(AtCapacity):
            await sandboxes.create(asked("s3"))
        second.cancel()
        await asyncio.wait({second})
        assert waiting(sandboxes) == 0


async def test_identical_requests_stand_in_line_once_and_another_one_of_that_id_is_a_conflict(controller):
    async with controller(max_sandboxes=1) as sandboxes:
        await sandboxes.create(asked("s1"))
        # to wait longer or less makes no other request
        same = [asyncio.create_task(sandboxes.create(asked("s2", patience=20 + number))) for number in range(5)]
        await until(lambda: waiting(sandboxes))
        with pytest.raises(Conflict, match="waits for a place"):
            await sandboxes.create(asked("s2", lease=7))
        assert waiting(sandboxes) == 1

        same[0].cancel()  # another one stands in for it
        await asyncio.sleep(0.05)
        await sandboxes.delete("s1")
        assert len({id(sandbox) for sandbox in await asyncio.gather(*same[1:])}) == 1


async def test_what_is_deleted_while_it_waits_is_gone(controller):
    async with controller(max_sandboxes=1) as sandboxes:
        await sandboxes.create(asked("s1"))
        second = asyncio.create_task(sandboxes.create(asked("s2")))
        await until(lambda: waiting(sandboxes))

        await sandboxes.delete("s2")
        await sandboxes.delete("s2")
        with pytest.raises(Gone, match="was deleted while it waited"):
            await second
        assert waiting(sandboxes) == 0
        with pytest.raises(NotFound):
            await sandboxes.delete("s2")
        await sandboxes.delete("s1")
        await sandboxes.create(asked("s2"))


async def test_a_delete_in_the_moment_that_a_place_becomes_free_leaves_no_sandbox(controller, provider):
    async with controller(max_sandboxes=1) as sandboxes:
        await sandboxes.create(asked("s1"))
        same = [asyncio.create_task(sandboxes.create(asked("s2"))) for _ in range(3)]
        third = asyncio.create_task(sandboxes.create(asked("s3")))
        await until(lambda: waiting(sandboxes) == 2)

        # the first gives s2 its place, and the second comes before s2's caller has heard of it
        await asyncio.gather(sandboxes.delete("s1"), sandboxes.delete("s2"))
        for each in same:
            with pytest.raises(Gone, match="was deleted while it waited"):
                await each
        assert (await third).id == "s3" and "s2" not in sandboxes
        assert not any("s2" in id for id in provider.starts)
        assert [each.places for each in sandboxes.line()] == [1]
        with pytest.raises(NotFound):
            sandboxes.get("s2")


async def test_who_asks_for_the_same_is_sent_away_with_it(controller):
    async with controller(max_sandboxes=1) as sandboxes:
        await sandboxes.create(asked("s1"))
        same = [asyncio.create_task(sandboxes.create(asked("s2"))) for _ in range(3)]
        await until(lambda: waiting(sandboxes))

        await sandboxes.delete("s2")
        for each in same:
            with pytest.raises(Gone, match="was deleted while it waited"):
                await each
        assert waiting(sandboxes) == 0


async def test_who_waits_is_sent_away_when_the_controller_drains(controller):
    async with controller(max_sandboxes=1) as sandboxes:
        await sandboxes.create(asked("s1"))
        second = asyncio.create_task(sandboxes.create(asked("s2")))
        await until(lambda: waiting(sandboxes))

        await sandboxes.drain()
        with pytest.raises(Unavailable, match="shutting down"):
            await second
        with pytest.raises(Unavailable, match="shutting down"):
            await sandboxes.create(asked("s3"))


async def test_a_place_that_becomes_free_as_the_controller_drains_goes_to_nobody(controller):
    async with controller(max_sandboxes=1) as sandboxes:
        await sandboxes.create(asked("s1"))
        second = asyncio.create_task(sandboxes.create(asked("s2")))
        await until(lambda: waiting(sandboxes))

        await asyncio.gather(sandboxes.delete("s1"), sandboxes.drain())
        with pytest.raises(Unavailable, match="shutting down"):
            await second
        assert list(sandboxes.arrivals.view()) == []


async def test_starts_are_fair_between_runs_too(controller, provider):
    async with controller(max_sandboxes=100, max_starting=1) as sandboxes:
        provider.may_start.clear()
        tasks = [asyncio.create_task(sandboxes.create(asked(f"big-{number}", run="big"))) for number in range(5)]
        await until(lambda: sandboxes.waiting == 4)
        tasks.append(asyncio.create_task(sandboxes.create(asked("small-1", run="small"))))
        await until(lambda: sandboxes.waiting == 5)
        provider.may_start.set()
        await asyncio.gather(*tasks)

        order = [id.rpartition("-")[0].rpartition("-")[2] for id in provider.starts]
        assert order == ["big", "small", "big", "big", "big", "big"]
