"""RPWithPrior: the interval, its exact ε, and that a finite channel tells what the density told."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError
from labelveil.common.exact.channel import TOTAL
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers.base import Problem, Randomizer, build_randomizer
from labelveil.common.randomizers.losses import SQUARED
from labelveil.common.randomizers.rp_with_prior import best_interval
from tests.statistics import counts_fit

LABELS = np.array([0.0, 1.0, 1.5, 4.0, 4.25, 9.0])
PRIOR = np.array([1.0, 4.0, 3.0, 2.0, 1.0, 0.2]) / 11.2


def build(epsilon: float, radius: float | None = None, labels: Floats = LABELS) -> Randomizer:
    prior = PRIOR if labels is LABELS else np.ones(labels.size)
    return build_randomizer(
        "rp-with-prior", labels=labels, prior=prior, epsilon=epsilon, radius=radius
    )


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.integers(0, 50), min_size=6, max_size=6).filter(any),
    epsilon=st.floats(0.05, 8),
    radius=st.floats(0.05, 20),
)
def test_no_other_interval_is_likelier(weights: list[int], epsilon: float, radius: float) -> None:
    prior = np.array(weights, dtype=np.float64) / sum(weights)
    first, last, radius = best_interval(Problem(LABELS, prior, epsilon, SQUARED), radius)
    assert 2 * radius <= last - first

    def near(lower: float, upper: float) -> float:
        """P(output within the radius of a label that is not moved), by the density."""
        inside = float(prior[(lower <= LABELS) & (upper >= LABELS)].sum())
        window = 2 * radius * math.exp(epsilon)
        return inside * window / (window + upper - lower)

    best = near(first, last)
    assert all(best >= near(a, b) - 1e-12 for a, b in combinations(LABELS.tolist(), 2))
    # ends between grid points move no fewer labels, and are further apart than they need be
    middles = ((LABELS[1:] + LABELS[:-1]) / 2).tolist()
    assert all(best >= near(a, b) - 1e-12 for a, b in combinations(middles, 2))


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("radius", [None, 0.1, 0.7, 3.0])
def test_the_channel_is_the_density_over_cells(epsilon: float, radius: float | None) -> None:
    made = build(epsilon, radius)
    channel, (lower, upper) = made.channel, made.details["interval"]
    delta = made.details["radius"]
    assert channel.ratio <= exp_lower_bound(epsilon)  # integers and rationals, no float
    assert Fraction(math.exp(epsilon)) * Fraction(999_999, 1_000_000) < channel.ratio
    moved = np.clip(LABELS, lower, upper)
    total = 2 * delta * math.exp(epsilon) + upper - lower
    for y, row in zip(moved, channel.probabilities, strict=True):
        near = np.abs(channel.outputs - y) < delta
        assert row[near].sum() == pytest.approx(2 * delta * math.exp(epsilon) / total)
        assert row[~near].sum() == pytest.approx((upper - lower) / total)
        # uniform within both: probabilities are those of uniform densities, mean included
        assert row[near] @ channel.outputs[near] == pytest.approx(row[near].sum() * y)
    assert lower - delta < channel.outputs[0] < channel.outputs[-1] < upper + delta


@pytest.mark.statistical
def test_the_published_sampler_falls_into_the_cells_as_the_channel_says() -> None:
    epsilon, radius, count = 1.0, 0.8, 400_000
    labels = np.arange(10.0)
    made = build(epsilon, radius, labels)
    lower, upper = made.details["interval"]
    delta, y = made.details["radius"], 4.0
    assert lower < y < upper
    rng = np.random.default_rng(5)
    rate = 1 / (math.exp(epsilon) * 2 * delta + upper - lower)
    branch = rng.random(count)
    below, above = branch < (y - lower) * rate, branch > 1 - (upper - y) * rate
    drawn = y + delta * rng.uniform(-1, 1, count)
    drawn[below] = lower - delta + rng.random(below.sum()) * (y - lower)
    drawn[above] = upper + delta - rng.random(above.sum()) * (upper - y)
    moved = np.clip(labels, lower, upper)
    ends = np.unique(np.concatenate([moved - delta, moved + delta]).round(9))
    counts = np.histogram(drawn, ends)[0]
    row = int(y)
    assert counts_fit(counts, made.channel.probabilities[row])
    assert not counts_fit(counts, made.channel.probabilities[row - 1])


def test_the_radius_chosen_is_the_best_of_those_tried() -> None:
    chosen = build(1.0)
    for share in (0.5, 0.25, 0.1, 0.05):
        assert chosen.expected_loss <= build(1.0, 9.0 * share).expected_loss * 1.05
    assert all(sum(row) == TOTAL for row in chosen.channel.rows)


def test_even_grids_have_few_cells() -> None:
    made = build(1.0, 0.5, np.arange(101.0))
    lower, upper = made.details["interval"]
    assert made.channel.outputs.size == upper - lower + 1


def test_an_impossible_radius_is_one_line() -> None:
    with pytest.raises(ConfigError, match="radius=-1 must be above 0"):
        build(1.0, -1.0)


def test_points_too_close_for_an_interval_of_theirs_leave_it_others() -> None:
    """Nearly all of the prior lies on two of them, and the third is far away."""
    problem: dict[str, Any] = {"labels": [0, 1e-100, 60], "prior": [1, 1e12, 1e12], "epsilon": 1e-6}
    built = build_randomizer("rp-with-prior", **problem)
    assert built.channel.epsilon <= 1e-6
    with pytest.raises(ConfigError, match="lie too close together"):
        build_randomizer("rp-with-prior", radius=1e-120, **problem)
