"""Limits: how often a model may be asked, in requests and in tokens a minute, and how many tokens in all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

BURST = 6.0
"""Seconds whose share may be spent at once; endpoints measure over windows of one second up to a minute."""


class Rate:
    """So many units a minute, spent in the order of asking; made for thousands that wait.

    The next free moment is kept (the generic cell rate algorithm), so waiting is one timer for each who waits.
    """

    def __init__(self, per_minute: float) -> None:
        self._interval = 60 / per_minute
        self._next = 0.0

    async def spend(self, units: float) -> None:
        """Return when `units` may be spent; who gives up waiting spends nothing."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._next = max(self._next, now)
        wait = self._next - now - BURST
        self.correct(units)
        if wait > 0:
            try:
                await asyncio.sleep(wait)
            except asyncio.CancelledError:
                self.correct(-units)
                raise

    def correct(self, units: float) -> None:
        """Count `units` more (or fewer) than were spent; those who come later wait for them."""
        self._next += units * self._interval


class Rates:
    """The rates of one model or replica."""

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        self._requests = Rate(requests_per_minute) if requests_per_minute else None
        self._tokens = Rate(tokens_per_minute) if tokens_per_minute else None

    @property
    def bound(self) -> bool:
        """Whether there is any."""
        return self._requests is not None or self._tokens is not None

    @property
    def counts_tokens(self) -> bool:
        return self._tokens is not None

    async def spend(self, tokens: float) -> None:
        """Return when a request of about so many tokens may be sent."""
        if self._requests is not None:
            await self._requests.spend(1)
        if self._tokens is not None:
            await self._tokens.spend(tokens)

    def correct(self, tokens: float) -> None:
        """The last request took so many tokens more than was thought."""
        if self._tokens is not None:
            self._tokens.correct(tokens)


class Budget:
    """So many tokens in all for calls that are made at once: each holds what it may take, until it is known what it
    took. So together they go beyond it only by what a call takes beyond what it held."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens
        self._held = 0
        self._settled = asyncio.Event()

    async def hold(self, wanted: Callable[[], int]) -> int:
        """Hold so many tokens, or all that are left where nobody else holds any; wait while others hold too many.

        Returns:
            how many are held, 0 where none are left; give them back with `settle`.
        """
        while self._held and self._left - self._held < wanted():
            self._settled.clear()
            await self._settled.wait()
        held = max(0, min(wanted(), self._left - self._held))
        self._held += held
        return held

    def settle(self, held: int, took: int) -> None:
        """A call that held so many tokens took so many."""
        self._held -= held
        self._left -= took
        self._settled.set()
