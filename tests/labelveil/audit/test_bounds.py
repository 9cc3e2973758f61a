"""The bounds: their published formulas, their reach, and that they are never above the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta, binom

from benchmarks.audit import expected_histogram_event_bound
from labelveil.audit import power
from labelveil.audit.attacks.one_run import bound_guesses, draw_secrets
from tests.effort import one_in

REACH = {  # (ε, m): 95%, one in a million
    (0.5, 1e3): (0.393, 0.193),
    (0.5, 1e6): (0.497, 0.490),
    (1.0, 1e3): (0.881, 0.666),
    (1.0, 1e4): (0.963, 0.894),
    (1.0, 1e5): (0.988, 0.966),
    (1.0, 1e6): (0.996, 0.989),
    (2.0, 1e5): (1.984, 1.954),
    (4.0, 1e3): (3.601, 3.018),
    (4.0, 1e6): (3.988, 3.964),
}


@pytest.mark.parametrize(("key", "reach"), REACH.items())
def test_one_run_reaches_what_it_can(key: tuple[float, float], reach: tuple[float, float]) -> None:
    for alpha, expected in zip((0.05, 1e-6), reach, strict=True):
        assert power.expected_one_run_bound(*key, alpha) == pytest.approx(expected, abs=0.003)


@pytest.mark.parametrize(
    ("epsilon", "reach"), [(1.0, (0.649, 0.892, 0.966, 0.989)), (4.0, (3.073, 3.704, 3.907, 3.971))]
)
def test_the_histogram_event_reaches_what_it_can(epsilon: float, reach: tuple[float, ...]) -> None:
    for digits, expected in zip((3, 4, 5, 6), reach, strict=True):
        found = expected_histogram_event_bound(epsilon, 2 * 10**digits, 0.05, continuous=True)
        assert found == pytest.approx(expected, abs=0.003)
        discrete = expected_histogram_event_bound(epsilon, 2 * 10**digits, 0.05)
        assert discrete >= expected  # whole counts hit the closed half-lines more often


def test_clopper_pearson_is_the_beta_quantile() -> None:
    for hits, runs in ((1, 10), (7, 10), (10, 10), (500, 1000)):
        assert power.clopper_pearson_lower(hits, runs, 0.05) == pytest.approx(
            beta.ppf(0.05, hits, runs - hits + 1)
        )
        if hits < runs:
            assert power.clopper_pearson_upper(hits, runs, 1e-6) == pytest.approx(
                beta.isf(1e-6, hits + 1, runs - hits)
            )
    assert power.clopper_pearson_lower(0, 10, 0.05) == 0
    assert power.clopper_pearson_upper(10, 10, 0.05) == 1
    # so many right guesses that no share below 1 is left
    assert math.isinf(power.one_run_bound(1e18, 1e18, 0.05))
    assert power.one_run_bound(0, 0, 0.05) == 0


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_one_run_bound_covers_exactly(epsilon: float) -> None:
    """The chance of a bound above the truth, summed over every count, is at most α."""
    runs, alpha = 200, 0.05
    share = power.guess_probability(epsilon)
    wrong = sum(
        binom.pmf(hits, runs, share)
        for hits in range(runs + 1)
        if power.one_run_bound(hits, runs, alpha) > epsilon
    )
    assert 0.001 < wrong <= alpha


def published(epsilon: float, correct: int, guesses: int, delta: float) -> float:
    """The p-value of an (ε, δ) claim by as many guesses as records, from the theorem alone.

    Source: Steinke, Nasr, Jagielski, NeurIPS 2023, Theorem 5.2 and Appendix D: with W the number of
    right ones and B binomial of probability e^ε / (1 + e^ε), P(W >= v) <= β + 2mδ α, where β =
    P(B >= v) and α = max over i of (P(B >= v - i) - β) / i.
    """
    share = 1 / (1 + math.exp(-epsilon))
    logs = [
        math.lgamma(guesses + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(guesses - hits + 1)
        + hits * math.log(share)
        + (guesses - hits) * math.log1p(-share)
        for hits in range(guesses + 1)
    ]
    tails = np.cumsum(np.exp(logs)[::-1])[::-1]
    beta_ = float(tails[correct])
    alpha = max((float(tails[correct - i]) - beta_) / i for i in range(1, correct + 1))
    return min(1.0, beta_ + 2 * guesses * delta * alpha)


def published_bound(correct: int, guesses: int, level: float, delta: float) -> float:
    low, high = 0.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        refuted = published(middle, correct, guesses, delta) <= level
        low, high = (middle, high) if refuted else (low, middle)
    return low


JAX_PRIVACY = [
    (1000, 800, 0.05, 1e-5, 1.25398409),
    (1000, 950, 0.05, 1e-3, 2.49483137),
    (1000, 800, 1e-6, 1e-5, 0.0),
]
"""Guesses, right ones, level, δ and the bound of jax-privacy 2.0.0 (``auditing``), run by hand."""


@pytest.mark.parametrize(("guesses", "correct", "level", "delta", "theirs"), JAX_PRIVACY)
def test_the_published_bound_and_ours(
    guesses: int, correct: int, level: float, delta: float, theirs: float
) -> None:
    """Theirs is of (ε, δ), so a little below; without δ there is no difference."""
    assert published_bound(correct, guesses, level, delta) == pytest.approx(theirs, abs=1e-5)
    ours = power.one_run_bound(correct, guesses, level)
    assert ours == pytest.approx(published_bound(correct, guesses, level, 0.0), abs=1e-6)
    assert ours >= theirs


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", one_in(3, [0.5, 1.0, 4.0]))
def test_on_the_same_scores_all_bounds_are_below_the_truth(epsilon: float) -> None:
    """Randomized response of 20,000 secrets: ours, theirs, and two Clopper-Pearson intervals.

    Source of the last: Nasr et al., *Adversary Instantiation*, S&P 2021: ln of the least share of
    right "in"s over the largest of wrong ones, at half of the level each.
    """
    bits = draw_secrets(20_000)
    kept = draw_secrets(20_000, 1 << 40) < power.guess_probability(epsilon) * 2**40
    sent = np.where(kept, bits, 1 - bits)
    ours = bound_guesses(sent, bits)
    right, wrong = (int(((sent == 1) & (bits == bit)).sum()) for bit in (1, 0))
    ones = int(bits.sum())
    apart = math.log(
        power.clopper_pearson_lower(right, ones, 5e-7)
        / power.clopper_pearson_upper(wrong, bits.size - ones, 5e-7)
    )
    theirs = published_bound(ours.correct, ours.guesses, 1e-6, 1e-9)
    assert ours.bound <= epsilon
    assert apart <= epsilon
    assert theirs <= ours.bound + 1e-6
    assert ours.bound - theirs < 0.02
    assert abs(ours.bound - apart) < 0.5


@pytest.mark.parametrize(("hits", "runs", "alpha"), [
    (-1, 10, 0.1), (11, 10, 0.1), *((1, 10, alpha) for alpha in (0.0, 1.0, -0.1, 1.5)),
])  # fmt: skip
def test_impossible_counts_are_refused(hits: float, runs: float, alpha: float) -> None:
    with pytest.raises(ValueError, match="must lie"):
        power.clopper_pearson_lower(hits, runs, alpha)
