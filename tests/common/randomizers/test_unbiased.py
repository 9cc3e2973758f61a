"""The optimal unbiased randomizer against an independent linear program, and its parts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from labelveil.common.arrays import Floats
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.unbiased import Solution, _Newton, solve_unbiased
from tests.ending import ending


def program(labels: Floats, prior: Floats, epsilon: float, outputs: Floats) -> float:
    """Least Σ p K (o - y)² over unbiased ε-DP channels with these outputs, by plain HiGHS.

    Variables K[y, o] and u[o] with u <= K <= e^ε u; nothing of the structure is used.
    """
    k, d = labels.size, outputs.size
    entry = np.arange(k * d)
    column = k * d + np.tile(np.arange(d), k)
    row = np.repeat(np.arange(k), d)
    one = np.ones(k * d)
    below = coo_matrix(
        (
            np.concatenate([-one, one, one, -np.exp(epsilon) * one]),
            (
                np.concatenate([entry, entry, entry + k * d, entry + k * d]),
                np.concatenate([entry, column, entry, column]),
            ),
        ),
        shape=(2 * k * d, k * d + d),
    )
    equal = coo_matrix(
        (
            np.concatenate([one, np.tile(outputs, k)]),
            (np.concatenate([row, row + k]), np.concatenate([entry, entry])),
        ),
        shape=(2 * k, k * d + d),
    )
    cost = np.concatenate(
        [(prior[:, None] * (outputs - labels[:, None]) ** 2).ravel(), np.zeros(d)]
    )
    result = linprog(
        cost,
        A_ub=below.tocsr(),
        b_ub=np.zeros(2 * k * d),
        A_eq=equal.tocsr(),
        b_eq=np.concatenate([np.ones(k), labels]),
        method="highs-ipm",
    )
    assert result.success
    return float(result.fun)


def example(size: int, seed: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    labels = np.sort(rng.uniform(-1, 1, size))
    prior = rng.exponential(size=size)
    prior[size // 3] = 0.0
    return labels, prior / prior.sum()


def reach(labels: Floats, epsilon: float) -> float:
    """How far outputs must reach from the middle."""
    return float((labels[-1] - labels[0]) / 2 / np.tanh(epsilon / 2))


@pytest.mark.parametrize(("size", "epsilon"), [(4, 0.3), (9, 1.0), (12, 4.0), (20, 1.0)])
def test_reaches_the_linear_program(size: int, epsilon: float) -> None:
    labels, prior = example(size, seed=size)
    middle = (labels[0] + labels[-1]) / 2
    count = 4 * size if size < 20 else 2 * size
    grid = middle + reach(labels, epsilon) * np.linspace(-1.5, 1.5, count)
    free = build_randomizer("unbiased", labels=labels, prior=prior, epsilon=epsilon)
    # on the outputs that it chose, and more, no unbiased channel is better
    everything = np.union1d(grid, free.channel.outputs)
    assert free.expected_loss == pytest.approx(
        program(labels, prior, epsilon, everything), rel=1e-6
    )


def least_reduced_cost(labels: Floats, prior: Floats, boost: float, solution: Solution) -> float:
    """Price *every* set of labels and every output exactly, and return the least reduced cost.

    With g_y(o) = p_y o² - α_y - β_y o, a column (o, S) has reduced cost Σ_y g_y + c Σ_{y in S} g_y,
    so the best set is S = {y : g_y(o) < 0}: the minimum over o of Σ_y g_y + c Σ_y min(g_y, 0), a
    piecewise quadratic function whose pieces change where some g_y has a root. As Σ_S u_S <= 1, the
    optimum over all sets lies less than the negative of this number below the solution's E o².

    Returns
    -------
    The least reduced cost; -1e-9 or above means that the solution is optimal over all sets.
    """
    a, b, c = prior, -solution.beta, -solution.alpha
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(np.maximum(b * b - 4 * a * c, 0))
        half = -(b + np.where(b >= 0, root, -root)) / 2
        roots = np.concatenate([half / a, c / half])
    roots = np.unique(roots[np.isfinite(roots)])
    edges = np.concatenate([[-np.inf], roots, [np.inf]])
    bounded = np.concatenate([[roots[0] - 1], roots, [roots[-1] + 1]]) if roots.size else [-1, 1]
    inside = (np.asarray(bounded)[:-1] + np.asarray(bounded)[1:]) / 2
    chosen = (a * inside[:, None] ** 2 + b * inside[:, None] + c) < 0
    quadratic = np.stack([a, b, c])
    pieces = quadratic.sum(axis=1)[:, None] + boost * (quadratic @ chosen.T)
    best = np.clip(-pieces[1] / (2 * pieces[0]), edges[:-1], edges[1:])
    return float((pieces[0] * best**2 + pieces[1] * best + pieces[2]).min())


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 4.0])
def test_no_set_of_labels_would_improve_it(epsilon: float) -> None:
    labels, prior = example(30, seed=1)
    labels = (2 * labels - labels[0] - labels[-1]) / (labels[-1] - labels[0])
    boost = float(np.expm1(epsilon))
    solution = solve_unbiased(labels, prior, boost)
    optimum = float((solution.mass * solution.weight * solution.outputs**2).sum())
    assert least_reduced_cost(labels, prior, boost, solution) > -1e-7 * optimum
    # the same test notices duals that are 2% off
    worse = replace(solution, beta=solution.beta * 1.02)
    assert least_reduced_cost(labels, prior, boost, worse) < -1e-5 * optimum


@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_the_gap_is_relative_to_what_is_lost(epsilon: float) -> None:
    """At a small ε outputs lie far out: an absolute gap would never be as small."""
    labels, prior = np.linspace(-1, 1, 9), np.full(9, 1 / 9)
    solution = solve_unbiased(labels, prior, float(np.expm1(epsilon)))
    lost = float((solution.mass * solution.weight * solution.outputs**2).sum())
    assert lost > 2
    assert 0 < solution.gap < 1e-9
    apart = float((solution.mass * solution.slack).sum())
    assert solution.gap == pytest.approx(apart / lost, rel=1e-3)


def test_hundred_points_and_few_outputs() -> None:
    labels = np.linspace(0, 5, 100)
    prior = np.exp(-(((labels - 2) / 1.1) ** 2)) + 0.01
    randomizer = build_randomizer("unbiased", labels=labels, prior=prior, epsilon=1.0)
    channel = randomizer.channel
    assert channel.outputs.size <= 2 * labels.size
    assert channel.code_bytes == 1
    assert np.abs(channel.probabilities @ channel.outputs - labels).max() < 1e-9 * 5
    two_point = build_randomizer("two-point", labels=labels, prior=prior, epsilon=1.0)
    assert randomizer.expected_loss < two_point.expected_loss


def test_a_long_grid_is_thinned_without_bias() -> None:
    labels = np.arange(257.0)
    prior = np.exp(-labels / 20)
    full = build_randomizer("unbiased", labels=labels, prior=prior, epsilon=1.0)
    few = build_randomizer("unbiased", labels=labels, prior=prior, epsilon=1.0, points=24)
    for randomizer in (full, few):
        channel = randomizer.channel
        assert np.abs(channel.probabilities @ channel.outputs - labels).max() < 1e-9 * 256
    assert len(full.details["points"]) == 128
    assert full.expected_loss < few.expected_loss < 1.1 * full.expected_loss


@pytest.mark.parametrize("epsilon", [8.0, 20.0])
def test_extreme_priors_and_large_epsilon(epsilon: float) -> None:
    labels = np.linspace(0, 1, 40)
    prior = np.exp(-np.arange(40) * 0.75)
    channel = build_randomizer("unbiased", labels=labels, prior=prior, epsilon=epsilon).channel
    assert np.abs(channel.probabilities @ channel.outputs - labels).max() < 1e-9
    assert channel.ratio <= exp_lower_bound(epsilon)


def test_a_step_that_no_ridge_makes_possible_ends_in_one_line() -> None:
    nothing = np.full(4, np.nan)
    program = SimpleNamespace(hessian=lambda *_: -np.eye(4))
    with ending(), pytest.raises(PrivacyError, match="no step to take"):
        _Newton(cast(Any, program), nothing, nothing, nothing)


def test_a_matrix_that_rounding_left_without_a_factor_gets_the_least_ridge_that_helps() -> None:
    nothing = np.full(2, np.nan)
    matrix = np.array([[1.0, 1 + 2e-13], [1 + 2e-13, 1.0]])  # its least eigenvalue is -2e-13
    program = SimpleNamespace(hessian=lambda *_: matrix)
    factor, lower = _Newton(cast(Any, program), nothing, nothing, nothing).factor
    assert not lower
    upper = np.triu(factor)
    assert np.diag(upper.T @ upper) - 1 == pytest.approx(1e-12, rel=1e-2)
