"""Metered: a model whose calls are counted by what they use, in each dialect as it came."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pydantic import PrivateAttr

from gymbox.models import Call, Model
from gymbox.models.accounts import Entry
from gymbox.models.front import CountingModel
from gymbox.models.prices import Price, Spent, spent_in


class CallMeter(Protocol):
    """What is told of each call that has ended."""

    def count(
        self, model: str, spent: Spent | None, price: Price | None, *, answered: bool, unusable: int = 0
    ) -> None:
        """`spent` is None where nobody told what it used; `unusable` answers came before, of which nobody did."""


class MeteredModel(CountingModel):
    """Stands before a model and has each of its calls counted; it answers exactly as the model does."""

    _meter: CallMeter = PrivateAttr()

    @classmethod
    def of(cls, model: Model, meter: CallMeter) -> MeteredModel:
        """`model`, its calls counted by `meter`."""
        made = cls.before(model)
        made._meter = meter
        return made

    @contextmanager
    def _entered(self, call: Call) -> Iterator[tuple[Call, Entry]]:
        """Count the call when the block ends, however it does."""
        call, entry, left = call.noting_tries(), Entry(), True
        try:
            yield call, entry
            left = False
        finally:
            answered = entry.is_answered and entry.failure is None and not left
            unusable = sum(tried.status == 200 and tried.kind is not None for tried in call.tries or [])
            failed = 0 if answered else 1  # its own last try is the call itself
            spent = spent_in({"usage": entry.usage})
            if spent is not None and not spent.input_tokens + spent.output_tokens:
                spent = None  # every call has some: conversions write 0 where an endpoint told nothing
            self._meter.count(
                self._model.name, spent, self._model.price, answered=answered, unusable=max(0, unusable - failed)
            )
