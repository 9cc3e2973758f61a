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
    for runs, least, most in ((1e5, 0.05, 0.5), (400, 3.5, 20.0)):  # few runs see the grossest
        excess = power.smallest_excess(0.3, runs, 1.0, 1e-6)
        assert least < excess < most
        assert power.refutation_probability(excess, 0.3, runs, 1.0, 1e-6) >= 0.95
        assert power.refutation_probability(0.8 * excess, 0.3, runs, 1.0, 1e-6) < 0.95
    assert math.isinf(power.smallest_excess(0.3, 250, 1.0, 1e-6))
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


def test_a_rare_event_is_seen_with_the_stated_probability() -> None:
    for runs, times in ((100, 1), (5000, 3), (10, 10)):
        chance = power.rarest_seen(runs, times)
        assert binom.sf(times - 1, runs, chance) == pytest.approx(0.95)
    assert math.isinf(power.rarest_seen(9, 10))
    assert power.rarest_seen(100, power=0.5) == pytest.approx(1 - 0.5**0.01)


def test_a_share_is_where_its_mean_passes_the_threshold_nearly_always() -> None:
    """1.645 deviations above it; what is certain may not be enough."""
    assert power.least_share(10.0, 4.0, 20.0) == pytest.approx((10 + 1.6448536 * 2) / 20)
    assert power.least_share(10.0, 0.0, 10.0) == 1.0
    assert math.isinf(power.least_share(10.0, 0.01, 10.0))


def test_a_condition_begins_to_hold_between_two_ends() -> None:
    for at in (0.002, 0.37, 29.0):
        found = power.least(lambda value, at=at: value >= at, 1e-3, 30.0)  # type: ignore[misc]
        assert found == pytest.approx(at, rel=1e-4)
        assert found >= at
    assert math.isinf(power.least(lambda value: value > 30, 1e-3, 30.0))


def test_the_least_epsilon_that_refutes_a_claim() -> None:
    """So many guesses are right with 95 % at it, and as many refute the claim."""
    for claimed, guesses in ((1.0, 5000), (0.5, 300)):
        true = power.detectable_epsilon(claimed, guesses, 1e-6)
        least = int(power.critical(np.array([guesses]), claimed, 1e-6)[0])
        assert binom.sf(least - 1, guesses, guess_probability(true)) == pytest.approx(0.95)
    assert math.isinf(power.detectable_epsilon(5.0, 10, 1e-6))
    assert guess_probability(math.log(3), 4) == pytest.approx(0.5)


def test_bernstein_solves_its_equation() -> None:
    """t² = 2 ln(1/α) (v + b t / 3)."""
    for variance, largest, alpha in ((9.0, 1.0, 1e-6), (0.5, 0.25, 0.01)):
        t = float(power.bernstein_threshold(variance, largest, alpha))
        assert t**2 == pytest.approx(2 * math.log(1 / alpha) * (variance + largest * t / 3))
    assert power.bernstein_threshold(np.array([1.0, 4.0]), 1.0, 0.1).shape == (2,)
