"""Plots: the numbers behind what a report draws, small however many rollouts there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

BINS = 20
STEPS = 80
"""Of the time line."""
SPREAD = 0.99
"""Part of the efforts that the axis reaches to; what lies beyond is drawn at its end."""


FARTHEST = 1e300
"""Where an axis ends at the latest, so that what lies between its ends is a number, too."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Point(NamedTuple):
    """What is drawn of a rollout."""

    reward: float | None
    failed: bool
    cost: float | None
    tokens: float | None
    began: float | None
    seconds: float | None


class Histogram(_Frozen):
    """How many rewards lie between one edge and the next; the last bin has its upper edge, too."""

    edges: list[float]
    counts: list[int]


class Spot(_Frozen):
    """Rollouts of about the same effort and reward: the mean of both, and how many they are."""

    effort: float
    reward: float
    count: int


class Effort(_Frozen):
    """Rewards against what they took."""

    measure: Literal["cost", "tokens", "seconds"]
    """The first of them that rollouts have."""
    largest: float
    """End of the axis; what took more is drawn there."""
    spots: list[Spot]


class Timeline(_Frozen):
    """What happened in each step of a run's time; rollouts of which nothing tells when they began are left out."""

    began: float
    """Seconds since 1970."""
    step: float
    """Seconds."""
    scored: list[int]
    """Rollouts that ended with a reward."""
    failed: list[int]
    running: list[float]
    """Under way at once, the mean over the step."""


class Plots(_Frozen):
    """Of a run, or of one of its environments; None of what cannot be drawn."""

    rewards: Histogram | None
    effort: Effort | None
    timeline: Timeline | None


def plots_of(points: Sequence[Point]) -> Plots:
    """What there is to draw of these rollouts."""
    return Plots(rewards=_histogram(points), effort=_effort(points), timeline=_timeline(points))


def _histogram(points: Sequence[Point]) -> Histogram | None:
    rewards = [point.reward for point in points if point.reward is not None]
    if not rewards:
        return None
    low, high = _range(rewards)
    edges = [low + (high - low) * number / BINS for number in range(BINS + 1)]
    counts = [0] * BINS
    for reward in rewards:
        counts[_bin(reward, low, high)] += 1
    return Histogram(edges=edges, counts=counts)


def _effort(points: Sequence[Point]) -> Effort | None:
    measures: tuple[Literal["cost", "tokens", "seconds"], ...] = ("cost", "tokens", "seconds")
    for measure in measures:
        pairs = [
            (effort, point.reward)
            for point in points
            if point.reward is not None and (effort := getattr(point, measure)) is not None and effort >= 0
        ]
        efforts = sorted(effort for effort, _ in pairs)
        if efforts and efforts[-1] > 0:
            largest = efforts[math.ceil(SPREAD * len(efforts)) - 1] or efforts[-1]
            return Effort(measure=measure, largest=largest, spots=_spots(pairs, largest))
    return None


def _spots(pairs: Sequence[tuple[float, float]], largest: float) -> list[Spot]:
    low, high = _range([reward for _, reward in pairs])
    cells: dict[tuple[int, int], list[float]] = {}
    for effort, reward in pairs:
        drawn = min(effort, largest)
        cell = cells.setdefault((_bin(drawn, 0, largest), _bin(reward, low, high)), [0.0, 0.0, 0])
        cell[0] += drawn
        cell[1] += reward
        cell[2] += 1
    return [
        Spot(effort=effort / n, reward=reward / n, count=int(n)) for _, (effort, reward, n) in sorted(cells.items())
    ]


def _timeline(points: Sequence[Point]) -> Timeline | None:
    spans = [
        (point.began, point.began + point.seconds, point.failed)
        for point in points
        if point.began is not None and point.seconds is not None and point.seconds >= 0
    ]
    if not spans:
        return None
    began, ended = min(start for start, _, _ in spans), max(end for _, end, _ in spans)
    step = max(ended - began, 0.001) / STEPS
    scored, failed, running = [0] * STEPS, [0] * STEPS, [0.0] * STEPS
    for start, end, in_error in spans:
        first, last = (min(int((moment - began) / step), STEPS - 1) for moment in (start, end))
        (failed if in_error else scored)[last] += 1
        for number in range(first, last + 1):
            within = min(end, began + (number + 1) * step) - max(start, began + number * step)
            running[number] += max(within, 0.0) / step
    return Timeline(began=began, step=step, scored=scored, failed=failed, running=[round(each, 3) for each in running])


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Where an axis of rewards begins and ends: 0 to 1 for what lies between."""
    low, high = (min(max(end, -FARTHEST), FARTHEST) for end in (min(values), max(values)))
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    beside = max(0.5, abs(low) / 100)
    return (low, high) if high > low else (low - beside, low + beside)


def _bin(value: float, low: float, high: float) -> int:
    part = (min(max(value, low), high) - low) / (high - low)
    return min(int(part * BINS), BINS - 1)
