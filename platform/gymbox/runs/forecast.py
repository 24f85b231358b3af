"""Forecast: a run tells its controller how many sandboxes it will still ask for, so that a pool is ready for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gymbox.errors import Problem, Stage
from gymbox.plan import Slot
from gymbox.rollout import RolloutResult

log = logging.getLogger(__name__)

AGAIN = 200.0
"""Seconds after which it is told again: a forecast ends, lest a killed run keep a pool full."""
GOODBYE = 5.0
"""Seconds for which the end of a run waits for the last time that it is told."""


class Forecasts:
    """A watcher that counts which rollouts have begun; see `gymbox.runner.Watcher`.

    Args:
        sizes: rollouts of each environment that are left to be done.
        controller: is told, where it takes forecasts.
    """

    def __init__(self, sizes: Mapping[str, int], controller: Any) -> None:
        self._left = dict(sizes)
        self._tell = getattr(controller, "forecast", None)

    def started(self, slot: Slot) -> None:
        self._left[slot.environment.name] -= 1

    def entered(self, slot: Slot, stage: Stage) -> None: ...

    def ended(self, slot: Slot, result: RolloutResult | None) -> None: ...

    @asynccontextmanager
    async def told(self) -> AsyncIterator[None]:
        """Tell it for as long as the block lasts, and then that nothing is left."""
        telling = asyncio.create_task(self._tell_again_and_again())
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.wait({telling})
            self._left = dict.fromkeys(self._left, 0)
            try:
                async with asyncio.timeout(GOODBYE):
                    await self._tell_all()
            except TimeoutError:
                log.warning("the controller was not told that the run needs no more sandboxes; its forecast will end")

    async def _tell_again_and_again(self) -> None:
        while True:
            await self._tell_all()
            await asyncio.sleep(AGAIN)

    async def _tell_all(self) -> None:
        if self._tell is None:
            return
        for name, left in self._left.items():
            try:
                await self._tell(name, max(0, left))
            except Problem as error:  # of an older controller, too: pools are no condition for a run
                log.debug("the controller takes no forecast for %s: %s", name, error)
