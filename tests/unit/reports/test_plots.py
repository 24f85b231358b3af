"""Plots: the numbers behind what is drawn."""

from __future__ import annotations

import math
from typing import Any

import pytest
from gymbox.reports.plots import BINS, STEPS, Point, plots_of
from hypothesis import given
from hypothesis import strategies as st


def point(reward: float | None = None, **more: Any) -> Point:
    known = {"cost": None, "tokens": None, "began": None, "seconds": None, "failed": reward is None, **more}
    return Point(reward=reward, **known)


def test_of_nothing_there_is_nothing_to_draw() -> None:
    found = plots_of([point()])
    assert (found.rewards, found.effort, found.timeline) == (None, None, None)


def test_rewards_between_0_and_1_are_drawn_on_an_axis_of_0_to_1() -> None:
    found = plots_of([point(0.0), point(1.0), point(1.0), point(0.52), point()]).rewards
    assert found is not None
    assert (found.edges[0], found.edges[-1], len(found.edges)) == (0.0, 1.0, BINS + 1)
    assert (found.counts[0], found.counts[10], found.counts[-1], sum(found.counts)) == (1, 1, 2, 4)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_every_reward_is_in_one_bin(rewards: list[float]) -> None:
    found = plots_of([point(reward) for reward in rewards]).rewards
    assert found is not None
    assert sum(found.counts) == len(rewards)
    assert all(math.isfinite(edge) for edge in found.edges)


def test_the_effort_is_the_first_measure_that_is_known() -> None:
    points = [point(1.0, tokens=100.0, seconds=2.0), point(0.0, tokens=300.0, seconds=1.0), point(0.5)]
    found = plots_of(points).effort
    assert found is not None
    assert (found.measure, found.largest) == ("tokens", 300.0)
    assert [(spot.effort, spot.reward, spot.count) for spot in found.spots] == [(100.0, 1.0, 1), (300.0, 0.0, 1)]
    priced = plots_of([*points, point(1.0, cost=0.5, tokens=100.0)]).effort
    assert priced is not None
    assert (priced.measure, sum(spot.count for spot in priced.spots)) == ("cost", 1)


def test_rollouts_of_about_the_same_effort_and_reward_are_one_spot() -> None:
    found = plots_of([point(1.0, cost=1.0), point(1.0, cost=1.01), point(1.0, cost=3.0)]).effort
    assert found is not None
    assert [(spot.effort, spot.count) for spot in found.spots] == [(pytest.approx(1.005), 2), (3.0, 1)]


def test_one_that_took_far_more_than_others_does_not_squeeze_them() -> None:
    found = plots_of([*(point(0.0, cost=1 + number / 200) for number in range(200)), point(1.0, cost=900.0)]).effort
    assert found is not None
    assert found.largest < 2
    assert found.spots[-1].effort == found.largest


def test_the_time_line_tells_when_rollouts_ended_and_how_many_ran() -> None:
    points = [
        point(1.0, began=1000.0, seconds=80.0),
        point(None, began=1000.0, seconds=40.0),
        point(1.0, seconds=5.0),
    ]
    found = plots_of(points).timeline
    assert found is not None
    assert (found.began, found.step * STEPS) == (1000.0, pytest.approx(80.0))
    assert (sum(found.scored), sum(found.failed)) == (1, 1)
    assert found.scored[-1] == 1
    assert found.failed[40] == 1
    assert found.running[10] == pytest.approx(2.0)
    assert found.running[-1] == pytest.approx(1.0)
