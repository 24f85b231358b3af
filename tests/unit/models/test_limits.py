"""Rates: what may be spent in a minute, and by whom."""

from __future__ import annotations

import asyncio

import pytest
from gymbox.models.limits import BURST, Rate, Rates


async def test_a_burst_is_free_and_then_each_waits_for_its_share() -> None:
    rate = Rate(600)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await rate.spend(BURST * 10)
    assert loop.time() - began < 5
    began = loop.time()
    await rate.spend(1)
    await rate.spend(1)
    assert loop.time() - began >= 0.05


async def test_who_gives_up_waiting_spends_nothing() -> None:
    rate = Rate(600)
    await rate.spend(BURST * 10 + 3)
    async with asyncio.timeout(30):
        for _ in range(50):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await rate.spend(1000)
        await rate.spend(1)


async def test_what_was_guessed_wrong_is_set_right() -> None:
    rates = Rates(None, 600)
    assert rates.counts_tokens and not Rates(5, None).counts_tokens
    await rates.spend(1000)
    rates.correct(-1000)
    async with asyncio.timeout(5):
        await rates.spend(1)
    rates.correct(10_000)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await rates.spend(1)


async def test_without_rates_nobody_waits() -> None:
    rates = Rates(None, None)
    rates.correct(1e9)
    await rates.spend(1e9)
