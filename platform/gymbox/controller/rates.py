"""Rates: how long things take and how often they happen, by the last that were seen."""

from __future__ import annotations

import time
from collections import deque

LAST = 32
"""Events that are looked at."""


class Durations:
    """How long something takes."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=LAST)

    def add(self, seconds: float) -> None:
        self._last.append(seconds)

    @property
    def mean(self) -> float | None:
        """Seconds; None: nothing was seen."""
        return sum(self._last) / len(self._last) if self._last else None


class Rhythm:
    """How often something happens."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=LAST)

    def beat(self) -> None:
        """It happens now."""
        self._last.append(time.monotonic())

    @property
    def interval(self) -> float | None:
        """Seconds from one to the next, the time since the last one included; None: it has not happened twice."""
        if len(self._last) < 2:
            return None
        return (time.monotonic() - self._last[0]) / len(self._last)
