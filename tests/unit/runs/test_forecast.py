"""Forecasts: a run tells what it will still ask for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from gymbox.errors import NotFound, Stage
from gymbox.runs import forecast
from gymbox.runs.forecast import Forecasts


class Controller:
    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.error: Exception | None = None
        self.pause = 0.0

    async def forecast(self, environment: str, sandboxes: int) -> None:
        await asyncio.sleep(self.pause)
        self.told.append((environment, sandboxes))
        if self.error is not None:
            raise self.error


def slot(name: str) -> Any:
    return SimpleNamespace(environment=SimpleNamespace(name=name))


async def test_what_has_begun_is_no_longer_told_and_at_the_end_nothing_is_left(monkeypatch) -> None:
    monkeypatch.setattr(forecast, "AGAIN", 0.05)
    controller = Controller()
    forecasts = Forecasts({"a": 2, "b": 1}, controller)
    async with forecasts.told():
        async with asyncio.timeout(10):
            while len(controller.told) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        for name in ("a", "b", "b"):
            forecasts.started(slot(name))
            forecasts.entered(slot(name), Stage.RESET)
            forecasts.ended(slot(name), None)
        async with asyncio.timeout(10):
            while len(controller.told) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    assert controller.told[:4] == [("a", 2), ("b", 1), ("a", 1), ("b", 0)]
    assert controller.told[-2:] == [("a", 0), ("b", 0)]


async def test_a_controller_that_takes_no_forecasts_is_no_reason_to_stop(monkeypatch, caplog) -> None:
    async with Forecasts({"a": 2}, object()).told():
        await asyncio.sleep(0.01)
    controller = Controller()
    controller.error = NotFound("Not Found")
    async with Forecasts({"a": 2}, controller).told():
        await asyncio.sleep(0.01)
    monkeypatch.setattr(forecast, "GOODBYE", 0.05)
    controller.pause = 60
    async with Forecasts({"a": 2}, controller).told():
        await asyncio.sleep(0.01)
    assert "its forecast will end" in caplog.text


@pytest.mark.parametrize("sizes", [{}, {"a": 0}])
async def test_a_run_with_nothing_to_do_asks_for_nothing(sizes) -> None:
    controller = Controller()
    async with Forecasts(sizes, controller).told():
        await asyncio.sleep(0.01)
    assert {left for _, left in controller.told} <= {0}
