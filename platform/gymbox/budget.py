"""Budget: what a run may use of tokens, money and time, and what it has used so far.

Every call of the agent's model and of the judge counts, whatever became of its rollout, over all starts of the run.
Once a limit is reached no further rollout starts; those under way have the run's `grace` to end. So what is used can
go beyond a limit by what the rollouts then under way still use in that time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gymbox.models.prices import Price, Spent

SAVED_EVERY = 2.0
"""Seconds between two times that what was used is written down; a run that is killed forgets at most that much."""
log = logging.getLogger(__name__)

Tokens = Annotated[int, Field(gt=0)]


class Used(BaseModel):
    """What the model calls of a run have used, in all its starts."""

    model_config = ConfigDict(extra="forbid")

    calls: int = 0
    """Model calls that have ended, the judge's with them."""
    calls_without_usage: int = 0
    """Those of which nobody told what they used, mostly because they failed or broke off: their tokens are not among
    these."""
    unusable_answers: int = 0
    """Answers to tries of a call that was made again, because they could not be used; their tokens neither."""
    input_tokens: int = 0
    cached_tokens: int = 0
    """Of the input, what came from the prompt cache."""
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """Of the output."""
    cost: float | None = None
    """By the models' prices; None as long as no call had one."""
    calls_without_price: int = 0
    seconds: float = 0.0
    """While rollouts were under way, or could have been."""

    @property
    def tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    def add(self, spent: Spent | None, price: Price | None) -> None:
        """Count a call; `spent` is None where nobody told what it used."""
        self.calls += 1
        if spent is None:
            self.calls_without_usage += 1
            return
        self.input_tokens += spent.input_tokens
        self.cached_tokens += spent.cached_tokens
        self.output_tokens += spent.output_tokens
        self.reasoning_tokens += spent.reasoning_tokens
        if price is None:
            self.calls_without_price += 1
        else:
            self.cost = round((self.cost or 0.0) + price.cost(spent), 12)

    def plus(self, other: Used) -> Used:
        """Both together, for a run that is made of several."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in Used.model_fields if name != "cost"}
        known = [each.cost for each in (self, other) if each.cost is not None]
        return Used(cost=sum(known) if known else None, **sums)


class Reached(BaseModel):
    """A limit that a run has come to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: str
    """Which: a field of the budget."""
    allowed: float
    used: float
    """When it was noticed; what was under way may have used more."""

    @property
    def more(self) -> str:
        """A larger limit, with as much left as the first allowed."""
        return f"{self.allowed + self.used:.0f}" if self.limit != "cost" else f"{self.allowed + self.used:.4g}"

    def __str__(self) -> str:
        return f"runner.budget.{self.limit}: {_shown(self.used)} of {_shown(self.allowed)} used"


class Budget(BaseModel):
    """What a run may use, counted over all its starts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: Tokens | None = None
    """Input and output together, the judge's too."""
    input_tokens: Tokens | None = None
    """Cached ones as well."""
    output_tokens: Tokens | None = None
    """Reasoning as well."""
    cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """In the currency of `model.price` and `judge.price`, which this needs."""
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """From the first rollout on, pauses included; without the time between two starts."""

    @property
    def limits(self) -> dict[str, float]:
        """Those that are set."""
        return self.model_dump(exclude_none=True)

    @property
    def counts_calls(self) -> bool:
        """Whether what calls use matters."""
        return bool(self.limits.keys() - {"seconds"})

    def reached(self, used: Used) -> Reached | None:
        """The first limit that has been reached."""
        for name, allowed in self.limits.items():
            if (amount := getattr(used, name) or 0) >= allowed:
                return Reached(limit=name, allowed=allowed, used=amount)
        return None

    def told(self, used: Used) -> list[str]:
        """How much of each limit is used, for display."""
        return [
            f"{_shown(getattr(used, name) or 0)}/{_shown(allowed)} {_WORDS[name]}"
            for name, allowed in self.limits.items()
        ]


_WORDS = {
    "tokens": "tokens of the budget",
    "input_tokens": "input tokens of the budget",
    "output_tokens": "output tokens of the budget",
    "cost": "of the budget spent",
    "seconds": "s of the budget",
}


class Meter:
    """Counts what one start of a run uses, and has it stop when its budget is reached.

    Args:
        used: what was used before; counted on in place.
    """

    def __init__(self, budget: Budget, used: Used) -> None:
        self.budget = budget
        self.used = used
        self.reached: Reached | None = None
        """The limit that stopped the run."""
        self.fault = ""
        """Why the budget cannot be kept, which stops the run as well."""
        self._stop: Callable[[], None] = lambda: None
        self._stopped: Callable[[], bool] = lambda: False
        self._began: float | None = None
        self._before = used.seconds

    def count(
        self, model: str, spent: Spent | None, price: Price | None, *, answered: bool, unusable: int = 0
    ) -> None:
        """A call has ended.

        Args:
            answered: with an answer, as opposed to a failure.
            unusable: answers to earlier tries of it, of which nobody knows what they used.
        """
        known = self.used.calls > self.used.calls_without_usage
        self.used.add(spent, price)
        self.used.unusable_answers += unusable
        if answered and spent is None and not known and self.budget.counts_calls:
            self._end(
                fault=f"runner.budget has a limit for what calls use, and {model!r} does not tell what its answers "
                "used, so it cannot be kept: give a budget of seconds only, or have the endpoint tell its usage"
            )
        self.check()

    def check(self) -> None:
        """Stop the run if a limit is reached; a run that was stopped for another reason has not come to its limit."""
        self._clock()
        if found := self.budget.reached(self.used):
            self._end(reached=found)

    @asynccontextmanager
    async def running(
        self, stop: Callable[[], None], stopped: Callable[[], bool], save: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Within the block time is counted and what was used is saved now and then.

        Args:
            stop: has no further rollout start.
            stopped: whether that was asked for already.
            save: writes down what was used.
        """
        loop = asyncio.get_running_loop()
        self._stop, self._stopped = stop, stopped
        self._began, self._before = loop.time(), self.used.seconds
        saving = asyncio.create_task(self._saving(save))
        left = (self.budget.seconds or 0) - self.used.seconds
        timer = loop.call_later(left, self.check) if self.budget.seconds else None
        try:
            self.check()
            yield
        finally:
            self._clock()
            self._began, self.used.seconds = None, round(self.used.seconds, 3)
            if timer is not None:
                timer.cancel()
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)

    def _end(self, *, reached: Reached | None = None, fault: str = "") -> None:
        if self._began is None or self._stopped():
            return
        self.reached, self.fault = reached, fault
        log.warning("stopping: %s", reached or fault)
        self._stop()

    def _clock(self) -> None:
        if self._began is not None:
            self.used.seconds = self._before + asyncio.get_running_loop().time() - self._began

    async def _saving(self, save: Callable[[], Awaitable[None]]) -> None:
        saved = self.used.calls
        while True:
            await asyncio.sleep(SAVED_EVERY)
            if self.used.calls != saved or self.budget.seconds:
                self._clock()
                saved = self.used.calls
                await save()


def _shown(amount: float) -> str:
    """`950`, `12.3k`, `4.5M`, `0.0042`."""
    for size, unit in ((1_000_000, "M"), (10_000, "k")):
        if amount >= size:
            return f"{amount / (1_000 if unit == 'k' else size):.4g}{unit}"
    return f"{amount:.4g}"
