"""Rounding to integer rows: exact ε, and everything stays where it was."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.channel import TOTAL, FiniteChannel
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers.exact_rows import check_size, exact_rows
from labelveil.common.randomizers.knots import choose_knots, interpolation


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(2, 6),
    columns=st.integers(2, 12),
    epsilon=st.floats(0.01, 12),
    seed=st.integers(0, 10_000),
)
def test_rows_are_exact_and_close(size: int, columns: int, epsilon: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # mixtures of e^ε-bounded columns: widely different sizes, entries at the very bound
    base = rng.exponential(size=columns) ** 6
    height = np.where(rng.random((size, columns)) < 0.5, 1.0, np.exp(epsilon / 2))
    matrix = base * height
    matrix /= matrix.sum(axis=1, keepdims=True)
    rows = exact_rows(matrix, epsilon)
    channel = FiniteChannel(np.arange(size), np.arange(columns), rows)
    assert channel.ratio <= exp_lower_bound(epsilon)
    assert np.abs(channel.probabilities - matrix).max() < 1e-14


def test_a_column_too_small_for_the_word_gets_a_unit() -> None:
    rows = exact_rows(np.array([[1e-30, 1 - 1e-30], [2e-30, 1 - 2e-30]]), 1.0)
    assert rows.tolist() == [[1, TOTAL - 1], [1, TOTAL - 1]]


@settings(deadline=None)
@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 8)),
    epsilon=st.sampled_from([1e-6, 0.05, 1.0, 8.0, 25.0, 40.0]),
    seed=st.integers(0, 10**6),
)
def test_float_matrices_become_certified_ones(
    shape: tuple[int, int], epsilon: float, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    # entries in {u, e^ε u} after normalising: every ratio is at its limit or beyond, by rounding
    base = draw.random(shape[1]) ** draw.integers(1, 20)
    high = draw.random(shape) < 0.5
    lean = base * np.where(high, math.exp(epsilon / 2), 1.0)
    matrix = lean / lean.sum(axis=1, keepdims=True)
    rows = exact_rows(matrix, epsilon)
    channel = FiniteChannel(np.arange(shape[0]), np.arange(shape[1]), rows)
    assert channel.ratio <= exp_lower_bound(epsilon)
    assert np.abs(channel.probabilities - matrix).max() < 1e-9


def test_a_matrix_that_is_not_private_is_refused() -> None:
    for matrix in ([[0.8, 0.2], [0.2, 0.8]], [[1.0, 0.0], [0.5, 0.5]]):
        with pytest.raises(PrivacyError, match="not 1-DP"):
            exact_rows(np.array(matrix), 1.0)
    with pytest.raises(PrivacyError, match="must sum to 1"):
        exact_rows(np.array([[0.5, 0.4]]), 1.0)
    with pytest.raises(PrivacyError, match="no row of integers within"):  # thirds of 2⁶⁴ are none
        exact_rows(np.full((2, 3), 1 / 3), 1e-15)
    for bad in (math.nan, -0.5):
        with pytest.raises(PrivacyError, match="finite"):
            exact_rows(np.array([[bad, 1.0]]), 1.0)
    with pytest.raises(ConfigError, match="coarser"):
        check_size(3000, 3000)


def test_knots_keep_both_ends_and_follow_the_mass() -> None:
    labels = np.arange(1000.0)
    prior = np.exp(-labels / 30)
    knots = choose_knots(labels, prior / prior.sum(), 40)
    assert knots.size == 40
    assert knots[0] == 0
    assert knots[-1] == 999
    assert np.count_nonzero(labels[knots] < 200) > 15
    rounding = interpolation(labels, labels[knots])
    np.testing.assert_allclose(rounding @ labels[knots], labels)
    np.testing.assert_allclose(rounding.sum(axis=1), 1)
    assert choose_knots(labels[:5], prior[:5], 9).tolist() == [0, 1, 2, 3, 4]
    spike = np.zeros(1000)
    spike[3] = 1.0
    assert choose_knots(labels, spike, 100).size == 100
    assert choose_knots(np.arange(101.0), np.ones(101), 11).tolist() == list(range(0, 101, 10))
    # as dense as the cube root of the law is, however dense the points are: of two stretches of one
    # length the first has 8/9 of the mass, and of a tenth of it, which is spread evenly, the half
    uneven = np.r_[np.arange(0, 1, 1 / 4000), np.arange(1, 2, 1 / 1000)]
    mass = np.where(uneven < 1, 8 / 4000, 1 / 1000)
    first = np.count_nonzero(choose_knots(uneven, mass / mass.sum(), 200) < 4000)
    roots = np.cbrt([0.9 * 8 / 9 + 0.05, 0.9 / 9 + 0.05])
    assert first == pytest.approx(200 * roots[0] / roots.sum(), abs=2)
