"""What every randomizer on the shelf must hold: exact ε, exact sampling, and where due, no bias."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.arrays import Floats
from common.entropy import seeded_entropy
from common.exact.channel import TOTAL, exp_lower_bound
from common.randomizers import Randomizer, build_randomizer, randomizer_names
from tests.statistics import counts_fit, mean_fits

SHELF: dict[str, tuple[str, dict[str, Any]]] = {
    "two-point": ("two-point", {}),
    "thresholds": ("randomized-thresholds", {}),
    "thresholds-prior": ("randomized-thresholds", {"weights": "prior"}),
    "thresholds-sqrt": ("randomized-thresholds", {"weights": "sqrt"}),
    "thresholds-prior-label": ("randomized-thresholds", {"weights": "prior-label"}),
    "thresholds-4-bins": ("randomized-thresholds", {"bins": 4}),
    "unbiased": ("unbiased", {}),
    "unbiased-thinned": ("unbiased", {"points": 5}),
    "laplace": ("laplace", {}),
    "laplace-clipped": ("laplace", {"clip": True}),
    "staircase": ("staircase", {}),
    "staircase-clipped": ("staircase", {"clip": True}),
    "discrete-laplace": ("discrete-laplace", {}),
    "discrete-laplace-clipped": ("discrete-laplace", {"clip": True}),
    "discrete-staircase": ("discrete-staircase", {}),
    "discrete-staircase-clipped": ("discrete-staircase", {"clip": True}),
    "exponential": ("exponential", {}),
    "randomized-response": ("randomized-response", {}),
    "rr-with-prior": ("rr-with-prior", {}),
    "rp-with-prior": ("rp-with-prior", {}),
    "rp-with-prior-wide": ("rp-with-prior", {"radius": 1.0}),
}
UNBIASED = (
    "two-point",
    "thresholds",
    "thresholds-4-bins",
    "unbiased",
    "unbiased-thinned",
    "laplace",
    "discrete-laplace",
)
GRID = np.linspace(-1.0, 3.0, 12)
UNEVEN = np.array([0.0, 0.1, 0.7, 1.0, 2.5, 7.0, 7.2, 30.0])
GRIDS = {
    "even": GRID,
    "uneven": UNEVEN,
    "two": np.array([2.0, 5.0]),
    "large": GRID * 1e6 + 5e8,
}
EPSILONS = (0.05, 0.5, 2.0, 8.0)


def priors(size: int) -> dict[str, Floats]:
    """Priors by kind: flat, lopsided, and one with most of its cells empty."""
    empty = np.zeros(size)
    empty[[0, size // 2]] = [1, 3]
    return {"flat": np.ones(size), "tail": np.exp(-np.arange(size) * 2.0), "empty": empty}


PRIORS = tuple(priors(2))


def build(key: str, labels: Floats, prior: Floats, epsilon: float, **more: Any) -> Randomizer:
    name, options = SHELF[key]
    return build_randomizer(
        name, labels=labels, prior=prior, epsilon=epsilon, **{**options, **more}
    )


@cache
def of(key: str, grid: str, prior: str, epsilon: float) -> Randomizer:
    """A design, made once for all that is asked of it."""
    labels = GRIDS[grid]
    return build(key, labels, priors(labels.size)[prior], epsilon)


def bias(randomizer: Randomizer) -> float:
    """The largest |E[output | label] - label| over the grid, in units of its range."""
    channel = randomizer.channel
    error = np.abs(channel.probabilities @ channel.outputs - channel.inputs).max()
    return float(error / (channel.inputs[-1] - channel.inputs[0]))


def test_the_shelf_is_registered() -> None:
    assert {name for name, _ in SHELF.values()} <= set(randomizer_names())


@pytest.mark.parametrize("key", SHELF)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_rows_are_whole_and_epsilon_is_never_passed(key: str, epsilon: float) -> None:
    limit = exp_lower_bound(epsilon)
    for grid in ("even", "uneven", "two"):
        for prior in PRIORS:
            channel = of(key, grid, prior, epsilon).channel
            assert all(sum(row) == TOTAL for row in channel.weights)
            assert channel.ratio <= limit
            assert channel.epsilon <= np.nextafter(epsilon, np.inf)
            assert np.array_equal(channel.inputs, GRIDS[grid])


@pytest.mark.parametrize("key", [*UNBIASED, "thresholds-sqrt"])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_unbiased_on_the_grid(key: str, epsilon: float) -> None:
    for grid, prior in [*product(("even", "uneven"), PRIORS), ("large", "tail")]:
        if key != "thresholds-sqrt" or prior != "empty":  # thresholds without mass are not drawn
            assert bias(of(key, grid, prior, epsilon)) < 1e-9


@pytest.mark.parametrize("key", ["two-point", "thresholds", "unbiased"])
def test_unbiased_between_grid_points(key: str) -> None:
    randomizer = build(key, UNEVEN, np.ones(UNEVEN.size), 1.0)
    means = randomizer.channel.probabilities @ randomizer.channel.outputs
    for value in (0.05, 3.14, 29.0):
        right = int(np.searchsorted(UNEVEN, value))
        share = (value - UNEVEN[right - 1]) / (UNEVEN[right] - UNEVEN[right - 1])
        expected = (1 - share) * means[right - 1] + share * means[right]
        assert abs(expected - value) < 1e-9 * 30
        # and the rounding that `randomize` does has that share
        codes = randomizer.randomize(np.full(1 << 18, value), seeded_entropy(3))
        sample = randomizer.channel.outputs[codes]
        assert mean_fits(sample, value)
        assert not mean_fits(sample, value + 0.6)  # a fiftieth of the range


@pytest.mark.statistical
@pytest.mark.parametrize("key", SHELF)
def test_samples_follow_the_matrix_and_not_a_twin_two_percent_off(key: str) -> None:
    randomizer = build(key, GRID, np.ones(GRID.size), 1.0)
    channel = randomizer.channel
    row = 4
    codes = randomizer.randomize(np.full(1 << 20, GRID[row]), seeded_entropy(11))
    counts = np.bincount(codes, minlength=channel.outputs.size)
    truth = channel.probabilities[row]
    twin = truth * np.where(np.arange(truth.size) % 2 == 0, 1.02, 0.98)
    assert counts_fit(counts, truth)
    assert not counts_fit(counts, twin / twin.sum())


@pytest.mark.parametrize("key", SHELF)
def test_poisson_and_absolute_losses_build_too(key: str) -> None:
    for loss in ("poisson", "absolute"):
        randomizer = build(key, UNEVEN, np.ones(UNEVEN.size), 1.0, loss=loss)
        assert randomizer.channel.satisfies(1.0)
    assert np.isfinite(randomizer.expected_loss)


@settings(max_examples=25, deadline=None)
@given(
    key=st.sampled_from(sorted(SHELF)),
    gaps=st.lists(st.floats(0.01, 10), min_size=1, max_size=8),
    weights=st.lists(st.integers(0, 1000), min_size=9, max_size=9),
    epsilon=st.floats(0.05, 8),
)
def test_any_small_grid_and_prior(
    key: str, gaps: list[float], weights: list[int], epsilon: float
) -> None:
    labels = np.concatenate([[0.0], np.cumsum(gaps)])
    prior = np.array(weights[: labels.size], dtype=np.float64)
    if prior.sum() == 0:
        prior[0] = 1.0
    randomizer = build(key, labels, prior, epsilon)
    assert randomizer.channel.satisfies(epsilon)
    if key in UNBIASED:
        assert bias(randomizer) < 1e-9
