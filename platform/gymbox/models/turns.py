"""Turns: what a call holds while it is made at a replica, and gives back."""

from __future__ import annotations

from dataclasses import dataclass

from gymbox.models.exchange import Exchange
from gymbox.models.limits import Rates
from gymbox.models.replicas import Place, Pool, Try

BYTES_A_TOKEN = 4
"""Of a request, until its answer tells what it took."""


def tokens_of(sent: bytes) -> float:
    """How many tokens a request is thought to have."""
    return len(sent) / BYTES_A_TOKEN


@dataclass(slots=True)
class Turn:
    """One call's; end it with `over`."""

    pool: Pool
    place: Place
    exchange: Exchange
    sent: bytes
    rates: list[Rates]
    tried: Try

    @property
    def counts_tokens(self) -> bool:
        return any(rate.counts_tokens for rate in self.rates)

    def settle(self, tokens: int | None) -> None:
        """The answer took so many tokens; None where it does not tell."""
        for rate in self.rates if tokens is not None else ():
            rate.correct((tokens or 0) - tokens_of(self.sent))

    def over(self) -> None:
        self.exchange.close()
        self.pool.leave(self.place)
