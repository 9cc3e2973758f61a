"""What every registered randomizer must hold: exact ε, exact sampling, and where promised, no bias.

Registering one is enough for it to be enumerated here, without options; ``VARIANTS`` adds some.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.channel import TOTAL, FiniteChannel, randomized_response_rows
from labelveil.common.exact.rational import exp_lower_bound, log_upper_bound
from labelveil.common.guarantees import PureDP
from labelveil.common.randomizers import (
    Randomizer,
    base,
    build_randomized_response,
    build_randomizer,
    randomizer_names,
)
from tests.effort import one_in
from tests.statistics import counts_fit, mean_fits

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(("randomized-thresholds", {"weights": name}) for name in ("prior", "sqrt", "prior-label")),
    ("randomized-thresholds", {"bins": 4}),
    ("unbiased", {"points": 5}),
    ("rr-on-bins", {"bins": 3}),
    *(
        (name, {"clip": True})
        for name in ("laplace", "staircase", "discrete-laplace", "discrete-staircase")
    ),
    ("rp-with-prior", {"radius": 1.0}),
]


def shelf() -> dict[str, tuple[str, dict[str, Any]]]:
    """All that is registered, and variants, by name and options."""
    designs: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in randomizer_names()]
    return {" ".join([name, *map(str, o.values())]): (name, o) for name, o in designs + VARIANTS}


SHELF = shelf()
UNBIASED = (
    "discrete-laplace",
    "laplace",
    "randomized-thresholds",
    "randomized-thresholds 4",
    "two-point",
    "unbiased",
    "unbiased 5",
)
UNORDERED = {"rr-with-prior": "sends unlikely labels as any of the likely ones"}
"""Whose outputs need not be larger, on average, for a larger label; and why."""
GRID = np.linspace(-1.0, 3.0, 12)
UNEVEN = np.array([0.0, 0.1, 0.7, 1.0, 2.5, 7.0, 7.2, 30.0])
GRIDS = {"even": GRID, "uneven": UNEVEN, "two": np.array([2.0, 5.0]), "large": GRID * 1e6 + 5e8}
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


def faults(randomizer: Randomizer, labels: Floats, epsilon: float) -> list[str]:
    """What is wrong with a randomizer for ε over these labels, in integers where ε is concerned."""
    channel = randomizer.channel
    means = channel.probabilities @ channel.outputs
    allowed = 1e-9 * (labels[-1] - labels[0])
    columns = zip(*set(channel.weights), strict=True)
    worst = max(Fraction(max(column), min(column)) for column in columns)
    checks = {
        "rows sum to 2**64": all(sum(row) == TOTAL for row in channel.weights),
        "ε is not passed": worst <= exp_lower_bound(epsilon),
        "ε is stated": channel.ratio == worst and channel.epsilon == log_upper_bound(worst),
        "the guarantee is the channel's": randomizer.guarantee == PureDP.of(channel.epsilon),
        "inputs are the labels": np.array_equal(channel.inputs, labels),
        "outputs ascend": bool(np.all(np.diff(channel.outputs) >= 0)),
        "larger labels have larger outputs": randomizer.name in UNORDERED
        or bool(np.all(np.diff(means) >= -allowed)),
    }
    return [check for check, passed in checks.items() if not passed]


@pytest.mark.slow
@pytest.mark.parametrize("key", SHELF)
@pytest.mark.parametrize("epsilon", one_in(4, EPSILONS, first=2))
def test_rows_are_whole_and_epsilon_is_never_passed(key: str, epsilon: float) -> None:
    for grid, prior in product(GRIDS, PRIORS):
        assert not faults(of(key, grid, prior, epsilon), GRIDS[grid], epsilon), (grid, prior)


def test_what_is_registered_is_on_the_shelf_and_a_broken_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "_BUILDERS", dict(base._BUILDERS))

    @base.register("twin")
    def build_twin(problem: base.Problem) -> Randomizer:
        return build_randomized_response(replace(problem, epsilon=1.0001 * problem.epsilon))

    assert "twin" in shelf()
    twin = build_randomizer("twin", labels=GRID, prior=np.ones(GRID.size), epsilon=1.0)
    assert faults(twin, GRID, 1.0) == ["ε is not passed"]
    turned = FiniteChannel(GRID[:2], [0.0, 1.0], randomized_response_rows(2, 1.0)[::-1])
    backwards = replace(twin, channel=turned)
    assert faults(backwards, GRID[:2], 1.0) == ["larger labels have larger outputs"]


@pytest.mark.parametrize("key", [*UNBIASED, "randomized-thresholds sqrt"])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_unbiased_on_the_grid(key: str, epsilon: float) -> None:
    for grid, prior in [*product(("even", "uneven"), PRIORS), ("large", "tail")]:
        if key in UNBIASED or prior != "empty":  # thresholds without mass are not drawn
            assert bias(of(key, grid, prior, epsilon)) < 1e-9


@pytest.mark.parametrize("key", ["two-point", "randomized-thresholds", "unbiased"])
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
        assert randomizer.channel.ratio <= exp_lower_bound(1.0)
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
    assert randomizer.channel.ratio <= exp_lower_bound(epsilon)
    if key in UNBIASED:
        assert bias(randomizer) < 1e-9
