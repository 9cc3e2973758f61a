"""Guarantees at their ends: what costs nothing adds nothing, and no δ buys nothing."""

from __future__ import annotations

import math
from fractions import Fraction as F

import numpy as np
import pytest
from scipy import stats

from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    Guarantee,
    PureDP,
    RenyiDP,
    Unit,
    ZeroConcentratedDP,
    adaptive_total,
    epsilon_at,
)
from labelveil.common.guarantees.accountant import total
from labelveil.common.guarantees.bounded_range import BoundedRange
from labelveil.common.guarantees.composition import advanced_composition, optimal_composition
from labelveil.common.guarantees.conversion import to_approximate, to_renyi, to_zcdp
from labelveil.common.guarantees.pld import PrivacyLoss, available
from labelveil.common.guarantees.subsampling import fixed_size_subsample, poisson_subsample
from tests.effort import one_in

ORDERS = (F(2), F(3), F(8))
NOTHING: list[Guarantee] = [
    PureDP.of(0),
    ApproximateDP.of(0, 0),
    ZeroConcentratedDP.of(0),
    BoundedRange.of(0),
    RenyiDP.of(lambda order: F(0), orders=ORDERS),
]


@pytest.mark.parametrize("nothing", NOTHING, ids=lambda each: each.kind)
def test_what_costs_nothing_adds_nothing(nothing: Guarantee) -> None:
    assert nothing.repeat(7) == nothing
    for delta in (F(1, 10**6), F(1, 2), 1):
        assert epsilon_at(nothing, delta) == 0
        assert total([nothing, nothing], delta).epsilon == 0
        assert adaptive_total([nothing] * 2, delta).epsilon == 0
    assert set(to_renyi(nothing, ORDERS).values) == {0}
    if not isinstance(nothing, RenyiDP):
        assert nothing.scale(2) == nothing
        assert to_zcdp(nothing).exact_rho == 0
        some = to_zcdp(nothing).compose(ZeroConcentratedDP.of(F(1, 8)))
        assert some == ZeroConcentratedDP.of(F(1, 8))


@pytest.mark.parametrize("parts", [[0], [0, 0], [F(1, 2), 0], [0, F(1, 2), F(1, 4)]])
def test_composition_takes_no_note_of_what_costs_nothing(parts: list[F]) -> None:
    left = [PureDP.of(part) for part in parts if part] or [PureDP.of(0)]
    for delta in (F(0), F(1, 100)):
        mine = optimal_composition(map(PureDP.of, parts), delta)
        assert mine == optimal_composition(left, delta)
        assert mine.exact_epsilon <= sum(parts)
    assert advanced_composition(0, 5, F(1, 10)) == 0


def test_failures_that_leave_nothing_of_delta_cost_the_sum() -> None:
    sure = [ApproximateDP.of(F(1, 2), 1), PureDP.of(F(1, 4))]
    assert optimal_composition([to_approximate(each, 1) for each in sure], 1).exact_delta == 1
    assert optimal_composition([ApproximateDP.of(1, 1)], 1) == ApproximateDP.of(1, 1)
    assert epsilon_at(BoundedRange.of(F(3, 4)), 0) == F(3, 4)


@pytest.mark.parametrize("rate", [0, F(1, 10), 1])
def test_samples_of_what_costs_nothing_cost_nothing(rate: F) -> None:
    added, replaced = Adjacency.ADD_REMOVE, Adjacency.REPLACE_RECORD
    assert poisson_subsample(PureDP.of(0, added), rate) == PureDP.of(0, added)
    half = ApproximateDP(added, Unit.RECORD, F(0), F(1, 10))
    assert poisson_subsample(half, rate).exact_delta == F(rate) / 10
    assert poisson_subsample(half, rate).exact_epsilon == 0
    curve = RenyiDP.of(lambda order: F(0), adjacency=replaced, orders=ORDERS)
    assert max(fixed_size_subsample(curve, rate).values) < F(1, 10**12)


def divergence(upper: np.ndarray, lower: np.ndarray, epsilon: float) -> float:
    """δ at ε of two laws over the same outcomes, whichever of them is the first."""
    pairs = (upper, lower), (lower, upper)
    return float(max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in pairs))


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="dp-accounting is not installed")
@pytest.mark.parametrize("epsilon", one_in(3, [0.3, 0.8, 1.5]))
def test_laws_that_are_composed_are_about_the_same_of_two_neighbours(epsilon: float) -> None:
    """Upper is with the record, as in the back end's Gaussian; the twin has them exchanged."""
    outcomes = {"with": [0.85, 0.1, 0.05], "without": [0.98, 0.015, 0.005]}
    pmfs = {name: dict(enumerate(masses)) for name, masses in outcomes.items()}
    rate, sigma = 0.2, 0.8
    edges = np.linspace(-9, 10, 60_001)
    normal = [np.diff(stats.norm.cdf(edges, mean, sigma)) for mean in (0, 1)]
    gaussian = {"with": (1 - rate) * normal[0] + rate * normal[1], "without": normal[0]}
    both = {name: np.outer(outcomes[name], gaussian[name]) for name in outcomes}
    twisted = (
        np.outer(outcomes["with"], gaussian["without"]),
        np.outer(outcomes["without"], gaussian["with"]),
    )
    law = PrivacyLoss.of_pair(pmfs["with"], pmfs["without"], None, Adjacency.ADD_REMOVE)
    found = law.compose(PrivacyLoss.of_gaussian(sigma, rate)).delta(epsilon)
    true = divergence(both["with"], both["without"], epsilon)
    assert true * (1 - 1e-6) <= found <= true * 1.001 + 1e-6
    assert abs(divergence(*twisted, epsilon) - true) > 0.01 * true + 1e-5


@pytest.mark.skipif(not available(), reason="dp-accounting is not installed")
def test_laws_are_pure_where_both_are() -> None:
    pure = PrivacyLoss.of_discrete_laplace(F(2))
    gaussian = PrivacyLoss.of_gaussian(1.0)
    assert pure.compose(pure).pure == 1
    assert pure.repeat(3).pure == F(3, 2)
    assert pure.compose(gaussian).pure is gaussian.compose(pure).pure is None
    assert gaussian.repeat(2).pure is None
