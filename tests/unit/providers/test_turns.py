"""Who waits for whom, where several start and stop the same id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gymbox.errors import StartFailed
from gymbox.providers import Started
from gymbox.providers.turns import Turns

STARTED = Started("one", None, None, None)


class Work:
    """A start that ends when it is told to."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cleaned_up = False

    async def start(self) -> Started:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cleaned_up = True
            raise
        return STARTED


@asynccontextmanager
async def under_way(turns: Turns, work: Work) -> AsyncIterator[asyncio.Task[Started]]:
    start = asyncio.create_task(turns.start("one", work.start()))
    await work.begun.wait()
    async with asyncio.timeout(5):
        yield start


async def test_a_second_start_waits_for_the_first() -> None:
    turns, first, second = Turns(), Work(), Work()
    async with under_way(turns, first) as start:
        other = asyncio.create_task(turns.start("one", second.start()))
        elsewhere = Work()
        elsewhere.go_on.set()
        assert await turns.start("two", elsewhere.start()) == STARTED
        assert not second.begun.is_set()
        first.go_on.set()
        assert await start == STARTED
        second.go_on.set()
        assert await other == STARTED


async def test_a_caller_that_gives_up_takes_nothing_from_the_next() -> None:
    turns, first, second = Turns(), Work(), Work()
    second.go_on.set()
    async with under_way(turns, first) as start:
        other = asyncio.create_task(turns.start("one", second.start()))
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert first.cleaned_up
        assert await other == STARTED


async def test_a_stop_ends_the_start_under_way_which_says_so() -> None:
    turns, work = Turns(), Work()
    async with under_way(turns, work) as start:
        async with turns.stop("one"):
            assert work.cleaned_up
        with pytest.raises(StartFailed, match="was stopped while it started") as failed:
            await start
        assert failed.value.ended.cause == "deleted"


async def test_a_start_waits_for_a_stop_under_way() -> None:
    turns, work = Turns(), Work()
    work.go_on.set()
    async with turns.stop("one"):
        start = asyncio.create_task(turns.start("one", work.start()))
        async with turns.stop("another"):
            assert not work.begun.is_set()
    assert await start == STARTED


async def test_a_start_that_is_cancelled_in_line_is_never_begun() -> None:
    turns, first, second = Turns(), Work(), Work()
    async with under_way(turns, first) as start:
        work: Coroutine[Any, Any, Started] = second.start()
        other = asyncio.create_task(turns.start("one", work))
        await asyncio.wait({other}, timeout=0.01)
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other
        first.go_on.set()
        assert await start == STARTED
        assert not second.begun.is_set()
