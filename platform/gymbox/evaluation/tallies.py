"""Tallies: what is kept of a run's tasks while its lines go by."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gymbox.evaluation.formulas import quantile
from gymbox.evaluation.rollouts import Rollout

Missing = Literal["excluded", "as_failure"]
"""What becomes of rollouts without a reward: they are left out, and counted; or each counts as a reward of 0,
and so does what was planned and never done."""


class Spread(BaseModel):
    """A number that some rollouts have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mean: float | None
    total: float
    count: int
    """Rollouts that have it; of the others it is unknown."""


class Latency(BaseModel):
    """How long rollouts took, in seconds, waits included; of those of which it is known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    p50: float
    p90: float
    p99: float
    slowest: float


@dataclass(slots=True)
class Tally:
    """What is kept of one task while its run is read."""

    subset: str | None = None
    rewards: list[float] = field(default_factory=list)
    votes: list[tuple[Hashable | None, float]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    padding: int = 0
    """Rollouts that were planned and have no line."""

    @property
    def missing(self) -> int:
        return self.lines - len(self.rewards) + self.padding

    def counted(self, policy: Missing) -> list[float]:
        """The rewards, and with `as_failure` a 0 for each that is missing."""
        return self.rewards if policy == "excluded" else [*self.rewards, *[0.0] * self.missing]


@dataclass(slots=True)
class Sums:
    """What is added up over rollouts, whichever task they are of."""

    values: dict[str, list[float]] = field(default_factory=dict)
    seconds: array[float] = field(default_factory=lambda: array("d"))
    """Of each rollout, for what a sum does not tell."""
    stops: Counter[str] = field(default_factory=Counter)

    def add(self, rollout: Rollout) -> None:
        for name in ("input_tokens", "output_tokens", "cost", "seconds", "turns", "tool_calls", "tool_errors"):
            self._put(name, getattr(rollout, name))
        if rollout.seconds is not None:
            self.seconds.append(rollout.seconds)
        for kind in ("components", "metrics"):
            for name, value in getattr(rollout, kind).items():
                self._put(f"{kind}/{name}", value)
        if rollout.stop_reason:
            self.stops[rollout.stop_reason] += 1

    def _put(self, name: str, value: float | None) -> None:
        if value is not None:
            found = self.values.setdefault(name, [0.0, 0])
            found[0] += value
            found[1] += 1

    def spread(self, name: str) -> Spread:
        total, count = self.values.get(name, (0.0, 0))
        return Spread(mean=total / count if count else None, total=total, count=int(count))

    def latency(self) -> Latency | None:
        """None where nobody knows how long they took."""
        ordered = sorted(self.seconds)
        if not ordered:
            return None
        p50, p90, p99 = (quantile(ordered, part) for part in (0.5, 0.9, 0.99))
        return Latency(p50=p50, p90=p90, p99=p99, slowest=ordered[-1])

    def spreads(self, kind: str) -> dict[str, Spread]:
        names = sorted(name for name in self.values if name.startswith(f"{kind}/"))
        return {name.partition("/")[2]: self.spread(name) for name in names}


def together(sums: Sequence[Sums]) -> Sums:
    """What they add up to."""
    whole = Sums()
    for each in sums:
        whole.stops += each.stops
        whole.seconds.extend(each.seconds)
        for name, (total, count) in each.values.items():
            found = whole.values.setdefault(name, [0.0, 0])
            found[0] += total
            found[1] += count
    return whole
