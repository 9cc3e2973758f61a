"""No bound is below the truth, which enumerating small discrete mechanisms gives exactly."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelveil.common.guarantees import (
    ApproximateDP,
    BoundedRange,
    PureDP,
    ZeroConcentratedDP,
    composition,
    epsilon_at,
    optimal_composition,
    poisson_subsample,
    to_approximate,
    to_renyi,
    to_zcdp,
    total,
)
from labelveil.common.guarantees.gaussian import (
    discrete_gaussian_tail,
    gaussian_delta,
    gaussian_sigma,
    gaussian_zcdp,
)
from tests.common.guarantees import examples
from tests.common.guarantees.examples import hockey_stick, log_ratio_up, power, renyi, response
from tests.effort import one_in

RATIOS = (Fraction(11, 10), Fraction(3, 2), Fraction(3), Fraction(20))
quick = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize(
    ("times", "delta"),
    one_in(2, product((1, 2, 5), (Fraction(1, 10), Fraction(1, 1000), Fraction(1, 10**6)))),
)
def test_composed_randomized_response(ratio: Fraction, times: int, delta: Fraction) -> None:
    law = response(ratio)
    p, q = power(law[0], times), power(law[1], times)
    one = PureDP.of(log_ratio_up(ratio))
    routes = {
        "optimal": optimal_composition([one] * times, delta),
        "total": total([one] * times, delta),
        "renyi": to_approximate(to_renyi(one).repeat(times), delta),
        "zcdp": to_approximate(to_zcdp(one).repeat(times), delta),
    }
    for route, bound in routes.items():
        assert hockey_stick(p, q, bound.exact_epsilon) <= delta, route
    best = routes["optimal"].exact_epsilon
    if best > 0:  # and the optimum is one: a slightly smaller ε would be a lie
        assert hockey_stick(p, q, best * Fraction(999, 1000)) > delta


@quick
@given(
    ratios=st.lists(st.sampled_from(RATIOS), min_size=1, max_size=4),
    delta=st.sampled_from([Fraction(1, 50), Fraction(1, 10**4)]),
)
def test_mixed_randomized_responses(ratios: list[Fraction], delta: Fraction) -> None:
    laws = [response(ratio) for ratio in ratios]
    p, q = ({}, {})
    for path in product((0, 1), repeat=len(ratios)):
        p[path] = math.prod(
            (law[0][z] for law, z in zip(laws, path, strict=True)), start=Fraction(1)
        )
        q[path] = math.prod(
            (law[1][z] for law, z in zip(laws, path, strict=True)), start=Fraction(1)
        )
    items = [PureDP.of(log_ratio_up(ratio)) for ratio in ratios]
    bound = optimal_composition(items, delta).exact_epsilon
    assert hockey_stick(p, q, bound) <= delta
    assert bound == 0 or hockey_stick(p, q, bound * Fraction(99, 100)) > delta


def test_a_law_of_mixed_responses_has_at_most_its_cells() -> None:
    """The common step would need over 400,000."""
    epsilons = [Fraction(1), 1 + Fraction(1, 10**5)]
    losses, masses = composition._loss_law(epsilons)
    assert losses.size == masses.size <= 2**18 + 1 + 2 * len(epsilons)  # ε are rounded up
    assert float(losses[-1]) >= sum(epsilons)


@quick
@given(epsilon=examples.epsilons, failure=st.sampled_from([Fraction(1, 100), Fraction(1, 1000)]))
def test_approximate_parts_pay_for_their_failures(epsilon: Fraction, failure: Fraction) -> None:
    item = ApproximateDP.of(epsilon, failure)
    delta = 3 * failure
    merged = optimal_composition([item, item], delta)
    pure = optimal_composition([PureDP.of(epsilon)] * 2, delta)
    assert pure.exact_epsilon <= merged.exact_epsilon <= 2 * epsilon


@pytest.mark.parametrize("ratio", RATIOS)
def test_renyi_curve_of_pure_dp_is_randomized_responses(ratio: Fraction) -> None:
    law = response(ratio)
    curve = to_renyi(PureDP.of(log_ratio_up(ratio)))
    for order in curve.orders[:: len(curve.orders) // 12]:
        truth = renyi(law[0], law[1], order)
        assert truth <= float(curve.at(order)) <= truth * (1 + 1e-9) + 1e-10


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("order", [Fraction(3, 2), Fraction(4), Fraction(33)])
def test_bounded_range_curve(ratio: Fraction, order: Fraction) -> None:
    """The exponential mechanism on two candidates with every offset of its range."""
    curve = to_renyi(BoundedRange.of(log_ratio_up(ratio)))
    for share in range(9):
        odds = Fraction(1, 16) * (4 * ratio) ** share if share < 2 else Fraction(share, 4)
        p = {0: odds / (1 + odds), 1: 1 / (1 + odds)}
        q = {0: odds * ratio / (1 + odds * ratio), 1: 1 / (1 + odds * ratio)}
        assert max(renyi(p, q, order), renyi(q, p, order)) <= float(curve.at(order))


@pytest.mark.parametrize("rate", [Fraction(1, 50), Fraction(1, 3), Fraction(1)])
@pytest.mark.parametrize("ratio", RATIOS)
def test_poisson_subsampled_response(rate: Fraction, ratio: Fraction) -> None:
    """Without the unit the mechanism answers 0; with it, response of 1, if the coin takes it."""
    law = response(ratio)
    without = law[0]
    present = {z: (1 - rate) * law[0][z] + rate * law[1][z] for z in (0, 1)}
    one = PureDP(*examples.ADD, log_ratio_up(ratio))
    sampled = poisson_subsample(one, rate)
    assert isinstance(sampled, PureDP)
    worst = max(max(present[z] / without[z], without[z] / present[z]) for z in (0, 1))
    assert float(log_ratio_up(worst)) <= sampled.epsilon
    curve = poisson_subsample(to_renyi(one), rate)
    for order in (Fraction(2), Fraction(3), Fraction(17)):
        truth = max(renyi(present, without, order), renyi(without, present, order))
        assert truth <= float(curve.at(order)) <= float(to_renyi(one).at(order))


def test_subsampling_other_neighbours_is_refused() -> None:
    with pytest.raises(Exception, match="add-remove"):
        poisson_subsample(PureDP.of(1), Fraction(1, 2))
    with pytest.raises(Exception, match="rate"):
        poisson_subsample(PureDP(*examples.ADD, Fraction(1)), 2)


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(3), Fraction(40)])
@pytest.mark.parametrize("sensitivity", [1, 3])
def test_discrete_gaussian(variance: Fraction, sensitivity: int) -> None:
    reach = 60 + 12 * math.ceil(math.sqrt(variance))
    points = np.arange(-reach, reach + 1)
    law = np.exp(-(points.astype(float) ** 2) / (2 * float(variance)))
    law /= law.sum()
    for t in (-3, 0, 1, 2, 5, 11):
        truth = float(law[points > t].sum())
        assert truth * (1 - 1e-12) <= discrete_gaussian_tail(variance, t)
        assert discrete_gaussian_tail(variance, t) <= truth * (1 + 1e-9) + 1e-300
    moved = np.exp(-((points - sensitivity).astype(float) ** 2) / (2 * float(variance)))
    moved /= moved.sum()
    guarantee = gaussian_zcdp(variance, sensitivity**2)
    for epsilon in (0.1, 0.7, 2.0):
        truth = float(np.maximum(moved - math.exp(epsilon) * law, 0).sum())
        if truth > 1e-12:  # the conversion from zCDP is looser, never tighter
            assert epsilon <= epsilon_at(guarantee, truth) * (1 + 1e-9)


@quick
@given(
    sigma=st.floats(0.3, 20), delta=st.sampled_from([1e-3, 1e-6, 1e-10]), shift=st.floats(0.5, 3)
)
def test_zcdp_conversion_is_above_the_gaussian_and_close(
    sigma: float, delta: float, shift: float
) -> None:
    guarantee = gaussian_zcdp(Fraction(sigma) ** 2, Fraction(shift) ** 2)
    epsilon = epsilon_at(guarantee, delta)
    assert gaussian_delta(sigma, epsilon, shift) <= delta
    classical = guarantee.rho + 2 * math.sqrt(guarantee.rho * -math.log(delta))
    assert epsilon <= classical * (1 + 1e-9)
    assert gaussian_sigma(epsilon, delta, shift) <= sigma * (1 + 1e-9)


@quick
@given(rho=examples.epsilons, delta=examples.deltas)
def test_a_grid_of_orders_costs_little(rho: Fraction, delta: Fraction) -> None:
    item = ZeroConcentratedDP.of(rho)
    exact, gridded = epsilon_at(item, delta), epsilon_at(to_renyi(item), delta)
    assert exact * (1 - 1e-6) <= gridded <= exact * 1.01 + 1e-6
