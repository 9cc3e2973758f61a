"""Thresholds and powers: exact sums where they are short, and the numbers that a verdict states."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from labelveil.audit import power
from labelveil.audit.attacks import rows_apart
from labelveil.audit.attacks.one_run import draw_secrets
from labelveil.audit.power import guess_probability, one_run_bound


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_the_critical_count_is_the_least_that_refutes(epsilon: float) -> None:
    guesses = np.array([0, 5, 60, 500, 20_000])
    found = power.critical(guesses, epsilon, 1e-6)
    share = guess_probability(epsilon)
    for made, least in zip(guesses.tolist(), found.tolist(), strict=True):
        assert binom.sf(least - 1, made, share) <= 1e-6
        if least <= made:
            assert binom.sf(least - 2, made, share) > 1e-6
            assert one_run_bound(least, made, 1e-6) > epsilon - 1e-9
        assert made == 0 or one_run_bound(min(least - 1, made), made, 1e-6) <= epsilon + 1e-9


def test_the_refutation_probability_is_what_runs_show() -> None:
    """Against the exact sum over both worlds' counts."""
    runs, likely, epsilon, excess, alpha = 400, 0.2, 0.5, 1.5, 0.01
    rare = likely * math.exp(-epsilon - excess)
    counts = np.arange(201)
    table = np.outer(binom.pmf(counts, 200, likely), binom.pmf(counts, 200, rare))
    right, wrong = np.indices(table.shape)
    refuted = right >= power.critical((right + wrong).reshape(-1), epsilon, alpha).reshape(
        right.shape
    )
    exact = float(table[refuted].sum())
    found = power.refutation_probability(excess, likely, runs, epsilon, alpha)
    assert found == pytest.approx(exact, abs=0.03)


def test_smallest_and_rarest_are_where_the_power_is_reached() -> None:
    excess = power.smallest_excess(0.3, 1e5, 1.0, 1e-6)
    assert power.refutation_probability(excess, 0.3, 1e5, 1.0, 1e-6) >= 0.95
    assert power.refutation_probability(0.8 * excess, 0.3, 1e5, 1.0, 1e-6) < 0.95
    rare = power.rarest_event(math.inf, 1.5e6, 1.0, 1e-6)
    assert 5e-5 < rare < 1e-4
    assert math.isinf(power.rarest_event(0.1, 1000, 1.0, 1e-6))


def test_the_birthday_count() -> None:
    starts = power.birthday_starts(1 << 22)
    assert starts == 5014
    alike = 1 - math.exp(np.sum(np.log1p(-np.arange(starts) / (1 << 22))))
    assert alike >= 0.95
    before = 1 - math.exp(np.sum(np.log1p(-np.arange(starts - 10) / (1 << 22))))
    assert before < 0.95
    assert power.largest_seed_space(starts) == pytest.approx(1 << 22, rel=1e-3)


def test_bernstein_covers_a_sum_of_coins() -> None:
    for coins, alpha in ((50, 0.01), (400, 1e-6)):
        threshold = power.bernstein_threshold(coins * 0.25, 0.5, alpha)
        assert 0 < binom.sf(coins / 2 + float(threshold) - 1e-9, coins, 0.5) <= alpha


def test_a_repeat_is_found_wherever_it_lies() -> None:
    rows = draw_secrets(8191)
    assert not rows_apart.find_repeat(rows).exists
    rows[5000:5200] = rows[333:533]
    found = rows_apart.find_repeat(rows)
    assert (found.lag, found.exists) == (4667, True)
    assert 333 - found.window < found.first <= 333
    assert not rows_apart.find_repeat(np.zeros(8191)).window  # nothing can be said of a constant


def test_shares_that_are_stated_are_found() -> None:
    """At the least share that an audit says it finds, nearly every audit finds it."""
    rows = draw_secrets(65_537)
    share = rows_apart.agreement(rows_apart.Rows.from_outputs(rows)).least_share
    assert 0.02 < share < 0.1
    seen = 0
    for _ in range(20):
        rows = draw_secrets(65_537)
        coins = draw_secrets(65_537 * 10).reshape(-1, 10) @ (1 << np.arange(10))
        again = np.flatnonzero(coins < 1.1 * share * 1024)
        again = again[again >= 777]
        rows[again] = rows[again - 777]
        seen += rows_apart.agreement(rows_apart.Rows.from_outputs(rows)).exceeds
    assert seen >= 16
