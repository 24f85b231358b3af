"""Several runs on one controller: who gets the places."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.controller.settings import ControllerSettings
from gymbox.embedded import EmbeddedController
from gymbox.environment import Environment

PLACES = 8


@pytest.fixture
def controller_settings() -> ControllerSettings:
    return ControllerSettings(port=0, lease=60, max_sandboxes=PLACES, max_starting=4)


class Crew:
    """A run's workers: each has one sandbox after the other, through the REST API."""

    def __init__(self, client: ControllerClient, environment: Environment, workers: int, rollouts: int) -> None:
        self.done = 0
        self._client = client
        self._environment = environment
        self._left = rollouts
        self._tasks = [asyncio.create_task(self._work()) for _ in range(workers)]

    async def _work(self) -> None:
        while self._left:
            self._left -= 1
            async with self._client.sandbox(self._environment):
                await asyncio.sleep(0.3)
            self.done += 1

    async def ended(self) -> None:
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def until_done(crew: Crew, number: int) -> None:
    async with asyncio.timeout(120):
        while crew.done < number:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_two_runs_have_places_by_their_shares(
    client: ControllerClient, controller: EmbeddedController, counter: Environment
) -> None:
    big = Crew(client.of_run("big", "normal", 3), counter, 24, 1000)
    small = Crew(client.of_run("small", "normal", 1), counter, 24, 1000)
    held: Counter[str] = Counter()
    try:
        await until_done(big, 12)
        before = big.done, small.done
        async with asyncio.timeout(120):
            while big.done + small.done < sum(before) + 48:
                held.update({each.run: each.places for each in controller.sandboxes.arrivals.view() if each.waiting})
                await asyncio.sleep(0.05)
        rollouts = (big.done - before[0]) / max(1, small.done - before[1])
    finally:
        await asyncio.gather(big.stop(), small.stop())

    assert 2 < held["big"] / held["small"] < 4.5
    assert 1.8 < rollouts < 5


async def test_a_late_small_run_is_not_starved_by_a_big_early_one(
    client: ControllerClient, counter: Environment
) -> None:
    big = Crew(client.of_run("big", "normal", 1), counter, 40, 1000)
    try:
        await until_done(big, 4)
        before = big.done
        small = Crew(client.of_run("small", "normal", 1), counter, 4, 4)
        async with asyncio.timeout(120):
            await small.ended()
        assert big.done - before < 40  # as many stood in line before it
    finally:
        await big.stop()


async def test_low_priority_waits_behind_high_but_goes_on(
    client: ControllerClient, controller: EmbeddedController, counter: Environment
) -> None:
    low = Crew(client.of_run("low", "low", 1), counter, 16, 1000)
    high = Crew(client.of_run("high", "high", 1), counter, 16, 1000)
    try:
        await until_done(high, 16)
        [places] = [each.places for each in controller.sandboxes.arrivals.view() if each.run == "low"]
        before = low.done
        assert places <= 2
        await until_done(low, before + 2)
    finally:
        await asyncio.gather(low.stop(), high.stop())


async def test_who_hangs_up_leaves_the_line(
    client: ControllerClient, controller: EmbeddedController, counter: Environment
) -> None:
    async def one(number: int) -> None:
        async with client.sandbox(counter, id=f"s{number}"):
            await asyncio.sleep(60)

    tasks = [asyncio.create_task(one(number)) for number in range(PLACES + 3)]

    def waiting() -> Any:
        return sum(each.waiting for each in controller.sandboxes.arrivals.view())

    async with asyncio.timeout(60):
        while waiting() < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for task in tasks[PLACES:]:
            task.cancel()
        while waiting():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await client.sandboxes(status="ready") == []
