"""Formulas: against SciPy, statsmodels and NumPy, the definitions in papers, and every outcome where there are few."""

from __future__ import annotations

import math
import random
from itertools import combinations, product

import numpy as np
import pytest
from gymbox.evaluation import formulas
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

numbers = st.floats(-1000, 1000, allow_nan=False)


@given(st.lists(numbers, min_size=2, max_size=50))
def test_mean_deviation_and_error_are_those_of_numpy_and_scipy(values: list[float]) -> None:
    assert formulas.mean(values) == pytest.approx(np.mean(values), abs=1e-9)
    assert formulas.median(values) == pytest.approx(np.median(values))
    assert formulas.deviation(values) == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    assert formulas.standard_error(values) == pytest.approx(stats.sem(values), abs=1e-9)


def test_what_cannot_be_known_is_none() -> None:
    assert formulas.mean([]) is None
    assert formulas.median([]) is None
    assert formulas.deviation([1.0]) is None
    assert formulas.standard_error([1.0]) is None
    assert formulas.pooled_mean([(0.0, 0)]) is None
    assert formulas.clustered_error([(1.0, 2), (0.0, 0)]) is None
    assert formulas.bootstrap_interval([(1.0, 2)]) is None
    assert formulas.best_of(3, [1.0, 0.0]) is None
    assert formulas.majority_at(3, [("a", 1.0)]) is None


def test_the_clustered_error_is_that_of_a_regression_on_nothing_with_clustered_covariance() -> None:
    chance = random.Random(3)
    tasks = [[float(chance.random() < level) for _ in range(chance.randint(1, 6))] for level in [0.1, 0.5, 0.9] * 20]
    values = [value for task in tasks for value in task]
    groups = [number for number, task in enumerate(tasks) for _ in task]
    covariance = {"groups": np.array(groups), "use_correction": False}
    fit = OLS(np.array(values), np.ones(len(values))).fit(cov_type="cluster", cov_kwds=covariance)
    assert formulas.clustered_error([(sum(task), len(task)) for task in tasks]) == pytest.approx(fit.bse[0], rel=1e-9)


def test_repeats_that_always_agree_add_no_certainty() -> None:
    once = [(1.0, 1), (0.0, 1), (1.0, 1), (1.0, 1)]
    assert formulas.clustered_error([(8 * total, 8 * n) for total, n in once]) == pytest.approx(
        formulas.clustered_error(once)
    )


@pytest.mark.parametrize("kinds", [2, 60], ids=["few kinds of tasks", "every task another"])
def test_the_bootstrap_interval_is_near_that_of_scipy(kinds: int) -> None:
    values = [float(number % kinds) / kinds for number in range(120)]
    found = formulas.bootstrap_interval([(value, 1) for value in values], seed=1)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=10_000, rng=1).confidence_interval
    assert found == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_the_bootstrap_draws_whole_tasks() -> None:
    clusters = [(4.0 * (number % 2), 4) for number in range(40)]
    low, high = formulas.bootstrap_interval(clusters) or (0, 0)
    alone_low, alone_high = formulas.bootstrap_interval([(total / 4, 1) for total, _ in clusters]) or (0, 0)
    assert (low, high) == pytest.approx((alone_low, alone_high))
    assert formulas.bootstrap_interval(clusters, seed=5) == formulas.bootstrap_interval(clusters, seed=5)
    assert formulas.bootstrap_interval(clusters, level=0.5) != (low, high)


def test_of_very_many_kinds_the_interval_is_the_normal_one() -> None:
    chance = random.Random(0)
    values = [chance.random() for _ in range(formulas.MANY + 500)]
    low, high = formulas.bootstrap_interval([(value, 1) for value in values]) or (0, 0)
    error = float(np.std(values)) / math.sqrt(len(values))
    assert (low, high) == pytest.approx(stats.norm.interval(0.95, np.mean(values), error), rel=1e-9)


@pytest.mark.parametrize("n", [1, 3, 6])
def test_pass_at_k_is_the_part_of_all_choices_with_a_success(n: int) -> None:
    for c, k in product(range(n + 1), range(1, n + 1)):
        choices = list(combinations([True] * c + [False] * (n - c), k))
        assert formulas.pass_at(k, n, c) == pytest.approx(sum(map(any, choices)) / len(choices))
        assert formulas.pass_all(k, n, c) == pytest.approx(sum(map(all, choices)) / len(choices))
        rewards = [1.0] * c + [0.0] * (n - c)
        assert formulas.best_of(k, rewards) == pytest.approx(formulas.pass_at(k, n, c))


@given(st.integers(1, 3000), st.data())
def test_pass_at_k_is_equation_one_of_its_paper(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert formulas.pass_at(k, n, c) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-9)
    assert formulas.pass_all(k, n, c) == pytest.approx(math.comb(c, k) / math.comb(n, k), abs=1e-9)


def test_too_few_tries_tell_nothing_even_where_nothing_was_solved() -> None:
    assert formulas.pass_at(5, 4, 0) is None
    assert formulas.pass_at(5, 4, 4) is None
    assert formulas.pass_all(5, 4, 4) is None


@pytest.mark.parametrize(("k", "n", "c"), [(0, 1, 1), (1, 1, 2), (1, 1, -1)])
def test_counts_that_cannot_be_are_refused(k: int, n: int, c: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        formulas.pass_at(k, n, c)


def test_best_of_is_the_mean_best_of_all_choices() -> None:
    rewards = [0.2, 0.9, 0.5, 0.5, 0.0]
    for k in range(1, 6):
        choices = list(combinations(rewards, k))
        assert formulas.best_of(k, rewards) == pytest.approx(sum(map(max, choices)) / len(choices))


def test_most_votes_win_whatever_their_rewards() -> None:
    votes = [("a", 0.0), ("a", 0.0), ("b", 1.0)]
    assert formulas.majority_at(3, votes) == 0.0
    assert formulas.majority_at(1, votes) == pytest.approx(1 / 3)
    # a tie of a and b is won by each as often
    assert formulas.majority_at(2, votes) == pytest.approx((0 + 0.5 + 0.5) / 3)


def test_an_answer_scored_two_ways_is_still_one_answer() -> None:
    assert formulas.majority_at(3, [("a", 0.0), ("a", 1.0), ("b", 1.0)]) == 0.5


def test_who_gives_no_answer_has_no_vote() -> None:
    assert formulas.majority_at(3, [(None, 0.0), (None, 0.0), ("b", 1.0)]) == 1.0
    assert formulas.majority_at(2, [(None, 0.0), (None, 0.0)]) == 0.0


def test_votes_of_many_are_held_in_drawn_choices() -> None:
    votes = [("a", 1.0)] * 20 + [("b", 0.0)] * 10
    found = formulas.majority_at(9, votes)
    exact = sum(stats.hypergeom.pmf(a, 30, 20, 9) for a in range(5, 10))
    assert found == pytest.approx(exact, abs=0.03)
    assert found == formulas.majority_at(9, votes)


@pytest.mark.parametrize(("one", "other"), [(0, 0), (1, 0), (3, 9), (40, 22), (500, 700)])
def test_mcnemar_is_that_of_statsmodels(one: int, other: int) -> None:
    assert formulas.mcnemar(one, other) == pytest.approx(mcnemar([[5, one], [other, 7]], exact=True).pvalue)


def test_few_pairs_are_tested_exactly() -> None:
    values = [0.5, -0.25, 0.75, 0.25, 1.0, 0.0, 0.5, -0.5]
    theirs = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert formulas.sign_flip(values) == pytest.approx(theirs.pvalue)


def test_many_pairs_are_tested_by_draws() -> None:
    chance = random.Random(2)
    values = [chance.choice([-0.5, -0.25, 0.25, 0.5, 0.5]) for _ in range(60)]
    theirs = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=20_000, rng=1)
    assert formulas.sign_flip(values) == pytest.approx(theirs.pvalue, abs=0.02)
    assert formulas.sign_flip([1.0] * 100) > 0


def test_very_many_pairs_are_tested_by_the_normal_distribution() -> None:
    chance = random.Random(4)
    values = [chance.uniform(-0.5, 0.53) for _ in range(formulas.MANY + 500)]
    z = np.sum(values) / np.sqrt(np.sum(np.square(values)))
    assert formulas.sign_flip(values) == pytest.approx(2 * stats.norm.sf(abs(z)))


def test_no_differences_show_nothing() -> None:
    assert formulas.sign_flip([]) == 1.0
    assert formulas.sign_flip([0.0, 0.0]) == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_that_of_statsmodels(values: list[float]) -> None:
    assert formulas.holm(values) == pytest.approx(list(multipletests(values, method="holm")[1]))


def test_holm_of_nothing_is_nothing() -> None:
    assert formulas.holm([]) == []
