"""BLR against the exponential mechanism written out over every database."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from labelveil.common.arrays import Integers
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.guarantees import Adjacency
from labelveil.common.mechanisms.synthesis import BLR, LinearQueries
from tests.common.mechanisms.synthesis.tables import neighbours, tables
from tests.statistics import binomial_range, counts_fit


def thresholds(cells: int) -> LinearQueries:
    """Counting queries: the share of records in cells 0 … j, for each j but the last."""
    return LinearQueries(np.tril(np.ones((cells, cells), dtype=np.int64))[:-1])


def brute_force(
    x: Integers, queries: LinearQueries, epsilon: Fraction, rows: int
) -> dict[tuple[int, ...], Counter[Fraction]]:
    """Exponents of all |X|^m databases in rational arithmetic, grouped by their counts."""
    n = int(x.sum())
    found: dict[tuple[int, ...], Counter[Fraction]] = {}
    for database in product(range(queries.cells), repeat=rows):
        worst = Fraction(0)
        for weights in queries.weights.tolist():
            true = sum(Fraction(w, queries.scale) * int(c) for w, c in zip(weights, x, strict=True))
            own = sum(Fraction(weights[cell], queries.scale) for cell in database)
            worst = max(worst, abs(Fraction(true) / n - Fraction(own) / rows))
        counts = tuple(np.bincount(database, minlength=queries.cells).tolist())
        found.setdefault(counts, Counter())[-epsilon * n / 2 * worst] += 1
    return found


@pytest.mark.parametrize(
    ("queries", "x", "alpha"),
    [
        (thresholds(2), [3, 4], 0.4),
        (thresholds(3), [1, 0, 5], 0.45),
        (thresholds(4), [2, 2, 0, 1], 0.5),
        (
            LinearQueries(np.array([[0, 1, 3, 2, 0], [3, 0, 1, 1, 2]]), scale=3),
            [1, 2, 0, 4, 4],
            0.5,
        ),
        pytest.param(thresholds(8), [5, 1, 0, 2, 3, 0, 0, 9], 0.7, marks=pytest.mark.slow),
    ],
)
def test_the_law_is_the_brute_force_exponential_mechanism_exactly(
    queries: LinearQueries, x: list[int], alpha: float
) -> None:
    table, epsilon = np.array(x), Fraction(7, 5)
    blr = BLR(queries, epsilon, alpha)
    expected = brute_force(table, queries, epsilon, blr.rows)
    scores, rate = blr.law(table)
    got = {
        tuple(counts): Counter({rate * score: weight})
        for counts, score, weight in zip(
            blr.databases.tolist(), scores.tolist(), blr.multiplicities, strict=True
        )
    }
    assert got == expected
    assert sum(blr.multiplicities) == queries.cells**blr.rows
    assert blr.candidates == len(expected)


def test_draws_follow_the_law_and_a_wrong_epsilon_is_seen() -> None:
    x = np.array([6, 1, 2])
    blr = BLR(thresholds(3), Fraction(2), 0.6)
    index = {tuple(counts): i for i, counts in enumerate(blr.databases.tolist())}
    draws = 2000
    seen = np.zeros(blr.candidates)
    for seed in range(draws):
        seen[index[tuple(blr.draw(x, seeded_entropy(seed)).tolist())]] += 1

    assert counts_fit(seen, blr.probabilities(x))
    assert not counts_fit(seen, BLR(thresholds(3), Fraction(4), 0.6).probabilities(x))


def test_no_neighbour_changes_the_law_by_more_than_epsilon() -> None:
    epsilon = Fraction(3, 2)
    blr = BLR(thresholds(3), epsilon, 0.6)
    worst, sensitivity = 0.0, Fraction(0)
    for table in tables(3, 5):
        scores, rate = blr.law(table)
        law = np.log(blr.probabilities(table))
        for other in neighbours(table):
            moved, _ = blr.law(other)
            sensitivity = max(sensitivity, rate * int(np.abs(scores - moved).max()))
            worst = max(worst, float(np.abs(law - np.log(blr.probabilities(other))).max()))
    assert sensitivity == epsilon / 2  # attained: half of ε by the score, half by the normaliser
    assert 0.5 * float(epsilon) < worst <= float(epsilon) + 1e-12
    guarantee = blr.guarantee
    assert guarantee.exact_epsilon == epsilon
    assert guarantee.adjacency == Adjacency.REPLACE_RECORD


def test_the_accuracy_bound_holds_and_a_mechanism_without_data_breaks_it() -> None:
    x = np.array([700, 50, 0, 250])
    blr, beta = BLR(thresholds(4), Fraction(1), 0.35), 0.1
    bound = blr.bound(int(x.sum()), beta)
    assert bound < 0.5
    errors = blr.errors(x)
    assert blr.probabilities(x)[errors > bound].sum() <= beta
    assert errors.min() <= blr.alpha  # some small database is close, as the lemma says
    draws = 200
    index = {tuple(counts): i for i, counts in enumerate(blr.databases.tolist())}
    over = sum(
        errors[index[tuple(blr.draw(x, seeded_entropy(seed)).tolist())]] > bound
        for seed in range(draws)
    )
    assert over <= binomial_range(draws, beta)[1]
    blind = np.array([math.exp(math.log(w) - blr.rows * math.log(4)) for w in blr.multiplicities])
    assert blind[errors > bound].sum() > beta


def test_the_small_size_follows_the_theorem() -> None:
    def small_size(queries: int, alpha: float) -> int:
        return BLR(LinearQueries(np.tile([0, 1], (queries, 1))), Fraction(1), alpha).rows

    assert small_size(100, 0.1) == math.ceil(math.log(100) / 0.01)
    for queries in (1, 2, 3, 50):
        for alpha in (0.05, 0.3, 0.9):
            m = small_size(queries, alpha)
            assert 2 * queries * math.exp(-2 * m * alpha**2) < 1


def test_the_bound_is_its_formula() -> None:
    """α + 2 (m ln|X| + ln(1/β))/(ε n), with ε = 2 and m = 4, of 3 cells."""
    blr = BLR(thresholds(3), Fraction(2), 0.6)
    bound = 0.6 + (blr.rows * math.log(3) + math.log(20)) / 500
    assert blr.bound(500, 0.05) == pytest.approx(bound)
    scaled = BLR(LinearQueries(np.array([[0, 5, 2]]), scale=5), Fraction(2), 0.6)
    shares = np.array(scaled.databases) @ [0, 1, 0.4] / scaled.rows
    assert scaled.errors([1, 1, 2]) == pytest.approx(np.abs(shares - 1.8 / 4))


def test_refusals_name_the_remedy() -> None:
    huge = BLR(LinearQueries(np.array([[0, 1 << 20]]), scale=1 << 20), Fraction(1), 0.6)
    assert huge.rows == 4
    assert huge.law([0, (1 << 40) - 1])[1] == Fraction(1, 8 << 20)
    with pytest.raises(ConfigError, match="overflow"):
        huge.law([0, 1 << 40])
    with pytest.raises(ConfigError, match="raise alpha"):
        BLR(thresholds(8), Fraction(1), 0.1)
    with pytest.raises(PrivacyError, match="epsilon=0"):
        BLR(thresholds(3), Fraction(0), 0.5)
    with pytest.raises(PrivacyError, match="alpha=2"):
        BLR(thresholds(3), Fraction(1), 2.0)
