"""Intervals: those of many tasks, of which most have the same rewards."""

from __future__ import annotations

from collections.abc import Sequence

from gymbox.evaluation import formulas

DRAWS = 2_000


class Intervals:
    """Of the mean of a task's rewards: a bootstrap over its tries (`formulas.bootstrap_interval`). The same rewards
    have the same one, which is found once."""

    def __init__(self, level: float, seed: int) -> None:
        self._level, self._seed = level, seed
        self._found: dict[tuple[float, ...], tuple[float, float] | None] = {}

    def of(self, rewards: Sequence[float]) -> tuple[float, float] | None:
        """None of fewer than two rewards."""
        key = tuple(sorted(rewards))
        if key not in self._found:
            tries = [(reward, 1) for reward in key]
            self._found[key] = formulas.bootstrap_interval(tries, level=self._level, seed=self._seed, resamples=DRAWS)
        return self._found[key]
