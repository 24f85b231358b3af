"""Formulas: the figures of an evaluation, as pure functions over numbers; each names its source.

None is what cannot be known from what is given: never 0.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from statistics import NormalDist

RESAMPLES = 10_000
"""Draws of a bootstrap or of a permutation test."""
FEWEST, EFFORT, MANY = 1_000, 2_000_000, 2_000
"""Of both: draws at least; single picks that they may take, beyond which they make do with fewer draws; and kinds of
tasks beyond which the central limit theorem says the same."""
EXACT_PAIRS = 14
"""Up to so many differing pairs, every choice of signs is looked at."""
EXACT_SUBSETS = 2_000
"""Up to so many subsets, a vote is held in each; beyond, in as many drawn ones."""

Cluster = tuple[float, int]
"""Of one task: its rewards added up, and how many they are."""


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def median(values: Sequence[float]) -> float | None:
    """The middle one, or the mean of the two in the middle; None of nothing."""
    if not values:
        return None
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation of the sample (n - 1); None of fewer than two."""
    if len(values) < 2:
        return None
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of independent values, by the central limit theorem; None of fewer than two."""
    spread = deviation(values)
    return None if spread is None else spread / math.sqrt(len(values))


def pooled_mean(clusters: Sequence[Cluster]) -> float | None:
    """Mean over all rewards of all tasks."""
    count = sum(n for _, n in clusters)
    return math.fsum(total for total, _ in clusters) / count if count else None


def clustered_error(clusters: Sequence[Cluster]) -> float | None:
    """Standard error of `pooled_mean` where the rewards of a task hang together: Miller 2024, "Adding Error Bars to
    Evals" (arXiv 2411.00640), section 2.2. With one reward for each task it is the plain one, but for n in place of
    n - 1. None of fewer than two tasks.
    """
    full = [cluster for cluster in clusters if cluster[1]]
    middle = pooled_mean(full)
    if middle is None or len(full) < 2:
        return None
    # the sum over all pairs in a cluster of the products of their deviations is the square of their sum
    within = math.fsum((total - n * middle) ** 2 for total, n in full)
    return math.sqrt(within) / sum(n for _, n in full)


def bootstrap_interval(
    clusters: Sequence[Cluster], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float] | None:
    """Percentile interval of `pooled_mean`, whole tasks drawn with replacement: Efron & Tibshirani 1993, "An
    Introduction to the Bootstrap", chapter 13. The same for the same seed. Of more than `MANY` different kinds of
    tasks, that of the normal distribution, with `clustered_error`. None of fewer than two tasks.
    """
    full = [cluster for cluster in clusters if cluster[1]]
    if len(full) < 2:
        return None
    chance, kinds, tail = random.Random(seed), sorted(Counter(full).items()), (1 - level) / 2
    if len(kinds) > MANY:
        middle, error = pooled_mean(full), clustered_error(full)
        assert middle is not None and error is not None
        far = NormalDist().inv_cdf(1 - tail) * error
        return middle - far, middle + far
    few = len(kinds) * 4 > len(full)
    resamples = min(resamples, max(FEWEST, EFFORT // (len(full) if few else 8 * len(kinds))))
    if few:
        draws = sorted(_pooled(Counter(chance.choices(full, k=len(full))).items()) for _ in range(resamples))
    else:  # the same draw, told by how often each kind of task comes up: its cost does not grow with the tasks
        draws = sorted(_pooled(_multinomial(kinds, len(full), chance)) for _ in range(resamples))
    return quantile(draws, tail), quantile(draws, 1 - tail)


def quantile(ordered: Sequence[float], part: float) -> float:
    """Of sorted values, between two of them by the straight line (Hyndman & Fan 1996, type 7)."""
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _pooled(drawn: Iterable[tuple[Cluster, int]]) -> float:
    total, count = 0.0, 0
    for (reward_sum, n), times in drawn:
        total += reward_sum * times
        count += n * times
    return total / count


def _multinomial(kinds: Sequence[tuple[Cluster, int]], draws: int, chance: random.Random) -> list[tuple[Cluster, int]]:
    left, weight, found = draws, draws, []
    for kind, size in kinds:
        times = chance.binomialvariate(left, size / weight) if size < weight else left
        found.append((kind, times))
        left, weight = left - times, weight - size
    return found


def pass_at(k: int, n: int, c: int) -> float | None:
    """Chance that of k tries at least one succeeds, from c successes in n: the unbiased estimator of Chen et al. 2021
    (arXiv 2107.03374), equation 1, as the product that does not overflow. None where n < k: so few tries cannot tell.
    """
    _check(k, n, c)
    if n < k:
        return None
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_all(k: int, n: int, c: int) -> float | None:
    """Chance that all of k tries succeed, pass^k, from c successes in n: C(c, k) / C(n, k), Yao et al. 2024, tau-bench
    (arXiv 2406.12045), section 4. None where n < k."""
    _check(k, n, c)
    if n < k:
        return None
    return math.prod((c - i) / (n - i) for i in range(k)) if c >= k else 0.0


def _check(k: int, n: int, c: int) -> None:
    if k < 1 or not 0 <= c <= n:
        raise ValueError(f"k is at least 1 and 0 <= c <= n, not k={k}, n={n}, c={c}")


def best_of(k: int, rewards: Sequence[float]) -> float | None:
    """Expected best reward of k tries drawn without replacement: `pass_at` for rewards that are no yes or no (of 0 and
    1 it is the same). The i-th smallest of n is the best in C(i - 1, k - 1) of the C(n, k) draws. None where n < k."""
    n = len(rewards)
    if n < k:
        return None
    ordered, draws = sorted(rewards), math.comb(n, k)
    return math.fsum(ordered[i] * (math.comb(i, k - 1) / draws) for i in range(k - 1, n))


def majority_at(k: int, votes: Sequence[tuple[Hashable | None, float]], *, seed: int = 0) -> float | None:
    """Expected reward of the answer that most of k tries give, over all choices of k of the tries (self-consistency,
    Wang et al. 2022, arXiv 2203.11171); over drawn ones where there are more than `EXACT_SUBSETS`.

    A vote is for an answer, whatever its reward; the reward of an answer is the mean over all tries that gave it. Of
    answers with as many votes, each wins as often. None as the answer gives no vote; where nobody votes, it is 0.

    Returns:
        None where there are fewer than k tries.
    """
    if len(votes) < k:
        return None
    gained: dict[Hashable, list[float]] = {}
    for answer, reward in votes:
        if answer is not None:
            gained.setdefault(answer, []).append(reward)
    worth = {answer: math.fsum(rewards) / len(rewards) for answer, rewards in gained.items()}
    answers = [answer for answer, _ in votes]
    chance = random.Random(seed)
    ballots: Iterable[Sequence[Hashable | None]] = (
        combinations(answers, k)
        if math.comb(len(answers), k) <= EXACT_SUBSETS
        else (chance.sample(answers, k) for _ in range(EXACT_SUBSETS))
    )
    return mean([_elected(ballot, worth) for ballot in ballots])


def _elected(ballot: Sequence[Hashable | None], worth: dict[Hashable, float]) -> float:
    count = Counter(answer for answer in ballot if answer is not None)
    if not count:
        return 0.0
    most = max(count.values())
    winners = [worth[answer] for answer, times in count.items() if times == most]
    return math.fsum(winners) / len(winners)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided p-value that two runs solve as many tasks, from the tasks that only one of them solved: McNemar's test
    in its exact, binomial form."""
    n, few = only_first + only_second, min(only_first, only_second)
    return min(1.0, float(2 * sum(math.comb(n, i) for i in range(few + 1)) / 2**n))


def sign_flip(differences: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Two-sided p-value that paired differences have mean 0: Fisher's permutation test, each difference as likely with
    either sign. Exact up to `EXACT_PAIRS` that are not 0; else by draws, of which the one seen is one (Phipson & Smyth
    2010), so that it is never 0; of more than `MANY` different sizes, by the normal distribution of their sum."""
    sizes = [abs(value) for value in differences if value]
    seen = abs(math.fsum(differences)) * (1 - 1e-9)  # what is equal but for rounding is as far out
    if len(sizes) <= EXACT_PAIRS:
        sums = [0.0]
        for size in sizes:
            sums = [total + sign for total in sums for sign in (size, -size)]
        return sum(abs(total) >= seen for total in sums) / len(sums)
    chance, kinds = random.Random(seed), sorted(Counter(sizes).items())
    if len(kinds) > MANY:
        return 2 * NormalDist().cdf(-seen / math.sqrt(math.fsum(size * size for size in sizes)))
    resamples, far = min(resamples, max(FEWEST, EFFORT // len(kinds))), 0
    for _ in range(resamples):
        total = math.fsum(size * (2 * chance.binomialvariate(times, 0.5) - times) for size, times in kinds)
        far += abs(total) >= seen
    return (far + 1) / (resamples + 1)


def holm(values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number, in their order: Holm 1979, step-down. Where those below 0.05 count, at most
    one in 20 families of tests has a false alarm."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = largest
    return adjusted
