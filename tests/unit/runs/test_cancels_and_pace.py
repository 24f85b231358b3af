"""Single rollouts that end before the others, and a run that waits for whoever takes its results."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from gymbox.cancels import Cancelled, Cancels
from gymbox.dataset import Row
from gymbox.plan import Slot
from gymbox.run_control import RunControl
from gymbox.runs.pace import Pace, PacedFeed


async def test_a_rollout_under_way_ends_at_once_and_the_others_go_on() -> None:
    cancels, ended = Cancels(), asyncio.Event()

    async def rollout(id: str) -> str:
        try:
            async with cancels.scope(id):
                await ended.wait()
                return "whole"
        except Cancelled as error:
            return str(error)

    one, two = asyncio.create_task(rollout("a")), asyncio.create_task(rollout("b"))
    await asyncio.sleep(0)
    assert cancels.under_way == ["a", "b"]
    cancels.cancel("a")
    assert await one == "it was cancelled before it ended"
    assert cancels.under_way == ["b"]
    ended.set()
    assert await two == "whole"


async def test_one_that_is_cancelled_beforehand_does_not_begin() -> None:
    cancels, began = Cancels(), False
    cancels.cancel("a")
    with pytest.raises(Cancelled, match="before it began"):
        async with cancels.scope("a"):
            began = True
    assert not began and cancels.under_way == []
    async with cancels.scope("a"):
        began = True
    assert began


async def test_a_rollouts_own_timeout_stays_what_it_is() -> None:
    with pytest.raises(TimeoutError):
        async with Cancels().scope("a"):
            raise TimeoutError("its own")


class Endless:
    """Gives its slots out, as many as it has."""

    ended = False

    def __init__(self, slots: int = 10**6) -> None:
        self.left = slots

    async def next(self) -> Slot | None:
        self.left -= 1
        return Slot(cast(Any, None), Row(0, "a", {}), 0) if self.left >= 0 else None


async def test_no_more_start_than_may_be_untaken() -> None:
    pace = Pace(2)
    feed = PacedFeed(Endless(), pace, RunControl())
    assert await feed.next() and await feed.next()
    third = asyncio.create_task(feed.next())
    await asyncio.sleep(0.01)
    assert not third.done() and not feed.ended
    pace.taken()
    assert await third


async def test_whoever_waits_for_room_hears_of_the_stop() -> None:
    control = RunControl()
    feed = PacedFeed(Endless(), Pace(1), control)
    assert await feed.next()
    waiting = [asyncio.create_task(feed.next()) for _ in range(3)]
    await asyncio.sleep(0)
    control.stop()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*waiting) == [None] * 3
        assert await feed.next() is None


async def test_a_paused_run_waits_though_there_is_room() -> None:
    control = RunControl()
    feed = PacedFeed(Endless(), Pace(5), control)
    control.pause()
    waiting = asyncio.create_task(feed.next())
    await asyncio.sleep(0.01)
    assert not waiting.done() and control.paused
    control.resume()
    assert await waiting


async def test_more_workers_than_room_all_hear_that_there_is_nothing_left() -> None:
    pace = Pace(2)
    feed = PacedFeed(Endless(2), pace, RunControl())
    assert await feed.next() and await feed.next()
    waiting = [asyncio.create_task(feed.next()) for _ in range(5)]
    pace.taken()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*waiting) == [None] * 5
