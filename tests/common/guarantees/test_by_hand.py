"""Limits, and formulas of the cited theorems written out for small numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from labelveil.common.errors import BudgetError, PrivacyError
from labelveil.common.exact.rounding import above
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    Filter,
    Guarantee,
    PureDP,
    RenyiDP,
    Unit,
    ZeroConcentratedDP,
    adaptive_total,
    compose,
    epsilon_at,
    guarantee_from_json,
    largest_rho,
    pld,
)
from labelveil.common.guarantees.accountant import ORDERS, Odometer, total
from labelveil.common.guarantees.bounded_range import BoundedRange
from labelveil.common.guarantees.calibration import calibrate
from labelveil.common.guarantees.composition import advanced_composition, optimal_composition
from labelveil.common.guarantees.conversion import (
    for_replacement,
    to_approximate,
    to_pure,
    to_renyi,
    to_zcdp,
    unconverted,
)
from labelveil.common.guarantees.gaussian import (
    discrete_gaussian_tail,
    gaussian_delta,
    gaussian_sigma,
    gaussian_zcdp,
)
from labelveil.common.guarantees.limits import at_least, positive, within
from labelveil.common.guarantees.subsampling import (
    fixed_size_gaussian,
    fixed_size_subsample,
    poisson_subsample,
    subsampled_gaussian,
)

F = Fraction
ADD = Adjacency.ADD_REMOVE


def renyi(orders: list[Any], values: list[Any], delta: Any = 0, **of: Any) -> RenyiDP:
    given = tuple(map(F, orders)), tuple(map(F, values)), F(delta)
    return RenyiDP(of.get("adjacency", Adjacency.REPLACE_LABEL), Unit.RECORD, *given)


EACH: list[Guarantee] = [
    PureDP.of(F(1, 2)),
    ApproximateDP.of(F(1, 2), F(1, 10)),
    ZeroConcentratedDP.of(F(1, 2), F(1, 10)),
    BoundedRange.of(F(1, 2)),
    renyi([2, 3], [F(1, 4), F(1, 2)]),
]


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1]", [0, 0.5, 1, F(1)], [-1e-300, 1.0000001, math.nan, math.inf, -math.inf]),
        ("(0, 1)", [1e-300, 0.999], [0, 1, math.nan]),
        ("[0, ∞)", [0, 1e300], [-1e-9, math.inf, math.nan]),
        ("(0, 1/2]", [F(1, 2), 0.1], [F(51, 100), 0]),
        ("[1e-100, 1)", [1e-100, 0.5], [1e-101, 1, 0, 10**400]),
    ],
)
def test_ends_of_intervals_are_in_them_or_not(
    interval: str, inside: list[Any], outside: list[Any]
) -> None:
    for number in inside:
        within(interval, x=number)
    for number in outside:
        with pytest.raises(PrivacyError, match=r"x=.* must lie in"):
            within(interval, y=inside[0], x=number)
    for other in ("1", None):
        with pytest.raises(PrivacyError, match="must be a number in"):
            within(interval, x=other)  # type: ignore[arg-type]
    positive(a=None, b=1e-300)
    for number in (0, -1, math.inf, math.nan):
        with pytest.raises(PrivacyError, match=r"b=.* must be > 0 and finite"):
            positive(a=1, b=number)
    at_least(2, a=None, b=2)
    with pytest.raises(PrivacyError, match="b=1 must be at least 2"):
        at_least(2, a=5, b=1)


REFUSED: list[Callable[[], object]] = [
    lambda: PureDP.of(-0.1),
    lambda: PureDP.of(math.nan),
    lambda: PureDP.of(math.inf),
    lambda: PureDP(Adjacency.REPLACE_LABEL, Unit.RECORD, F(-1)),
    lambda: ApproximateDP.of(-1, 0.1),
    lambda: ApproximateDP.of(1, -0.1),
    lambda: ApproximateDP.of(1, F(11, 10)),
    lambda: ZeroConcentratedDP.of(-1),
    lambda: ZeroConcentratedDP.of(1, F(11, 10)),
    lambda: BoundedRange.of(-1),
    lambda: BoundedRange(Adjacency.REPLACE_LABEL, Unit.RECORD, ((F(2), 1), (F(1), 0))),
    lambda: BoundedRange(Adjacency.REPLACE_LABEL, Unit.RECORD, ((F(1), 1), (F(2), 1))),
    lambda: BoundedRange(Adjacency.REPLACE_LABEL, Unit.RECORD, ((F(1), 1), (F(1), 1))),
    lambda: BoundedRange(Adjacency.REPLACE_LABEL, Unit.RECORD, ((F(1), 1), (F(0), 1))),
    lambda: renyi([], []),
    lambda: renyi([2], [1, 2]),
    lambda: renyi([1, 2], [1, 2]),
    lambda: renyi([3, 2], [1, 2]),
    lambda: renyi([2, 2], [1, 2]),
    lambda: renyi([2, 3], [1, -1]),
    lambda: renyi([2], [1], F(11, 10)),
    lambda: renyi([2], [1]).at(1),
    lambda: renyi([2], [1]).at(F(21, 10)),
    lambda: to_renyi(renyi([2, 3], [1, 2]), [F(4)]),
    lambda: to_pure(ApproximateDP.of(1, 0.1)),
    lambda: to_zcdp(renyi([2], [1])),
    lambda: unconverted(ZeroConcentratedDP.of(1)),
    lambda: to_approximate(PureDP.of(1), -0.1),
    lambda: to_approximate(PureDP.of(1), F(11, 10)),
    lambda: to_approximate(ApproximateDP.of(1, F(1, 10)), F(99, 1000)),
    lambda: to_approximate(ZeroConcentratedDP.of(1, F(1, 10)), F(1, 10)),
    lambda: to_approximate(ZeroConcentratedDP.of(1), F(1, 10**301)),
    lambda: to_approximate(ZeroConcentratedDP.of(1), F(1, 10**400)),
    lambda: to_approximate(renyi([2], [1]), F(1, 10**400)),
    lambda: for_replacement(PureDP.of(1)),
    lambda: compose([]),
    lambda: compose([PureDP.of(1), ZeroConcentratedDP.of(1)]),
    lambda: total([], 0.1),
    lambda: total([ZeroConcentratedDP.of(1)], 0),
    lambda: adaptive_total([ZeroConcentratedDP.of(1)], F(0)),
    lambda: adaptive_total([renyi([F(3, 2)], [1])], F(1, 10)),
    lambda: advanced_composition(1, -1, 0.1),
    lambda: advanced_composition(1, 1, -0.1),
    lambda: advanced_composition(1, 1, F(11, 10)),
    lambda: optimal_composition([PureDP.of(1)], F(11, 10)),
    lambda: optimal_composition([ApproximateDP.of(1, F(1, 10))] * 2, F(18, 100)),
    lambda: calibrate(PureDP.of, 0, 0),
    lambda: calibrate(lambda scale: PureDP.of(1), 0.5, 0, limit=8),
    lambda: largest_rho(0, 0.1),
    lambda: gaussian_zcdp(0),
    lambda: gaussian_sigma(-1, 0.1),
    lambda: gaussian_sigma(1, 0),
    lambda: gaussian_sigma(1, 1),
    lambda: gaussian_sigma(0, 1e-14),  # below the float error of any
    lambda: poisson_subsample(PureDP.of(1), 0.1),
    lambda: poisson_subsample(PureDP.of(1, ADD), 1.1),
    lambda: poisson_subsample(PureDP.of(1, ADD), -0.1),
    lambda: poisson_subsample(ZeroConcentratedDP.of(1, adjacency=ADD), 0.1),
    lambda: poisson_subsample(renyi([2], [1], F(1, 10), adjacency=ADD), 0.1),
    lambda: poisson_subsample(renyi([F(3, 2)], [1], adjacency=ADD), 0.1),
    lambda: fixed_size_subsample(PureDP.of(1, ADD), 0.1),
    lambda: fixed_size_subsample(PureDP.of(1), 1.1),
    lambda: subsampled_gaussian(0, 0.1),
    lambda: subsampled_gaussian(1, 1.1),
    lambda: fixed_size_gaussian(0, 0.1),
    lambda: fixed_size_gaussian(1, -0.1),
    lambda: Odometer(0),
    lambda: Odometer(1),
    lambda: Odometer(0.1).reading(),
    lambda: Filter(PureDP.of(1)).admits(ZeroConcentratedDP.of(1)),
    lambda: Filter(BoundedRange.of(1)).admits(PureDP.of(1)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_has_no_meaning_is_refused(number: int) -> None:
    with pytest.raises(PrivacyError):
        REFUSED[number]()


@pytest.mark.parametrize("guarantee", EACH, ids=lambda each: each.kind)
def test_neighbours_counts_and_groups_of_every_kind(guarantee: Guarantee) -> None:
    kind: Any = type(guarantee)
    rest = [getattr(guarantee, name) for name in guarantee._names()]
    for other in (
        kind(Adjacency.REPLACE_RECORD, guarantee.unit, *rest),
        kind(guarantee.adjacency, Unit.USER, *rest),
    ):
        for together in (
            lambda other=other: guarantee.compose(other),
            lambda other=other: guarantee.within(other),
            lambda other=other: compose([guarantee, other]),
            lambda other=other: Filter(guarantee).admits(other),
            lambda other=other: total([guarantee, other], 0.9),
            lambda other=other: adaptive_total([guarantee, other], F(9, 10)),
        ):
            with pytest.raises(PrivacyError, match="do not compose"):
                together()
    with pytest.raises(PrivacyError, match="times=-1 must be at least 0"):
        guarantee.repeat(-1)
    for group in (0, -1):
        with pytest.raises(PrivacyError, match=f"group={group} must be at least 1"):
            guarantee.scale(group)
    assert guarantee.scale(1) == guarantee.repeat(1) == guarantee
    assert guarantee.repeat(3) == compose([guarantee] * 3)
    assert guarantee.within(guarantee)
    assert guarantee.repeat(0).within(guarantee)
    assert not guarantee.repeat(2).within(guarantee)
    assert guarantee_from_json(guarantee.to_json()) == guarantee
    assert guarantee.to_json()["kind"] == guarantee.kind
    for change in ({"kind": "x"}, {"adjacency": "x"}, {"unit": "x"}):
        with pytest.raises(PrivacyError, match="is not a guarantee"):
            guarantee_from_json(guarantee.to_json() | change)


def test_additive_numbers_add_multiply_and_stop_at_one() -> None:
    one = ApproximateDP.of(F(1, 2), F(3, 5))
    assert one.compose(one) == ApproximateDP.of(1, 1)
    assert one.repeat(5).exact_delta == 1
    assert ApproximateDP.of(9, F(1, 2)).within(ApproximateDP.of(1, 1))  # says nothing
    assert not ApproximateDP.of(9, F(1, 2)).within(ApproximateDP.of(1, F(9, 10)))
    assert not ApproximateDP.of(1, F(1, 2)).within(ApproximateDP.of(1, F(2, 5)))
    assert PureDP.of(F(1, 3)).scale(4) == PureDP.of(F(4, 3))
    assert ZeroConcentratedDP.of(F(1, 8)).scale(3) == ZeroConcentratedDP.of(F(9, 8))
    for kind in (ZeroConcentratedDP.of(1, F(1, 10)), renyi([2], [1], F(1, 10))):
        assert kind.scale(1) == kind
        with pytest.raises(PrivacyError, match="no group property"):
            kind.scale(2)
    # δ (1 + e^ε + e^2ε)
    scaled = ApproximateDP.of(1, F(1, 10**6)).scale(3)
    assert scaled.exact_epsilon == 3
    assert float(scaled.exact_delta) == pytest.approx(1e-6 * (1 + math.e + math.e**2), rel=1e-9)
    assert float(scaled.exact_delta) >= 1e-6 * (1 + math.e + math.e**2)
    assert ApproximateDP.of(400, F(1, 10**200)).scale(3).exact_delta == 1
    assert ApproximateDP.of(400, 0).scale(3) == ApproximateDP.of(1200, 0)
    assert str(PureDP.of(F(1, 2))) == "ε = 0.5 (replace-label, per record)"


def test_bounded_ranges_are_kept_apart_and_compared_by_rank() -> None:
    one, half = BoundedRange.of(1), BoundedRange.of(F(1, 2))
    both = one.compose(half).compose(one)
    assert both.parts == ((F(1), 2), (F(1, 2), 1))
    assert both.exact_epsilon == F(5, 2)
    assert BoundedRange.of(0).parts == ()
    assert both.repeat(2).parts == ((F(1), 4), (F(1, 2), 2))
    assert both.repeat(0).parts == ()
    assert both.scale(2).parts == ((F(2), 2), (F(1), 1))
    assert to_zcdp(both).exact_rho == 2 * F(1, 8) + F(1, 32)
    rng = np.random.default_rng(1)
    for _ in range(200):
        lists = [sorted(rng.integers(1, 4, rng.integers(0, 5)).tolist(), reverse=True)
                 for _ in range(2)]  # fmt: skip
        made = [
            compose([BoundedRange.of(0), *(BoundedRange.of(F(value)) for value in values)])
            for values in lists
        ]
        small, large = lists
        kept = len(small) <= len(large) and all(a <= b for a, b in zip(small, large, strict=False))
        assert made[0].within(made[1]) == kept


def test_a_curve_is_a_chord_between_its_orders() -> None:
    curve = renyi([2, 4], [1, 2])
    # λ ε(1 + λ) is 0, 1 and 6 at λ = 0, 1 and 3: a line between
    assert curve.at(F(3, 2)) == 1
    assert curve.at(2) == 1
    assert curve.at(3) == F(7, 2) / 2
    assert curve.at(4) == 2
    other = renyi([3], [5])
    assert curve.compose(other).orders == (2, 3)
    assert curve.compose(other).values == (1 + other.at(2), F(7, 4) + 5)
    assert curve.compose(curve).values == (2, 4)
    assert renyi([2], [1], F(3, 5)).compose(renyi([2], [1], F(3, 5))).exact_delta == 1
    assert renyi([2], [1], F(3, 5)).repeat(2).exact_delta == 1
    assert curve.within(renyi([2], [1]))
    assert not curve.within(renyi([2, 5], [9, 9]))  # beyond its last order nothing is known
    assert not curve.within(renyi([2, 3, 4], [1, F(7, 4) - F(1, 100), 2]))
    assert not renyi([2], [1], F(1, 10)).within(renyi([2], [1], F(1, 20)))
    assert renyi([2], [9], F(1, 10)).within(renyi([3], [1], 1))
    exponents = [F(9, 8), F(5, 4), F(3, 2), F(2), F(3), F(5)]
    line = renyi([F(n, 4) for n in range(5, 40)], [F(n, 4) / 8 for n in range(5, 40)])
    pair = line.scale(2)
    for order, value in zip(pair.orders, pair.values, strict=True):
        bounds = [
            (order - 1 / p) / (order - 1) * line.at(p * order)
            + line.at(p / (p - 1) * (order - 1 / p))
            for p in exponents
            if p * order <= line.orders[-1] and p / (p - 1) * (order - 1 / p) <= line.orders[-1]
        ]
        assert value == min(bounds)
    with pytest.raises(PrivacyError, match="a group of 4 needs RDP orders above"):
        curve.scale(64)
    assert "4, failure probability 0.1 (" in str(renyi([2, 4], [1, 2], F(1, 10)))
    assert RenyiDP.of([1.0, math.inf], orders=[F(2), F(3)]).orders == (2,)
    assert RenyiDP.of(lambda order: order / 4, orders=[F(2), F(3)]).values == (F(1, 2), F(3, 4))


def test_conversions_are_those_of_their_theorems() -> None:
    assert to_zcdp(PureDP.of(F(1, 2))).exact_rho == F(1, 8)
    approximate = to_zcdp(ApproximateDP.of(F(1, 2), F(1, 10)))
    assert (approximate.exact_rho, approximate.exact_delta) == (F(1, 8), F(1, 10))
    orders = [F(3, 2), F(2), F(40)]
    curve = to_renyi(ZeroConcentratedDP.of(F(1, 8), F(1, 10)), orders)
    assert curve.values == (F(3, 16), F(1, 4), F(5))
    assert curve.exact_delta == F(1, 10)
    p = 1 / (1 + math.exp(-1))
    response = to_renyi(PureDP.of(1), orders)
    for order, value in zip(orders, response.values, strict=True):
        a = float(order)
        exact = math.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)
        assert exact <= float(value) <= exact * (1 + 1e-9) + 1e-12
    ranged = to_renyi(compose([BoundedRange.of(1), BoundedRange.of(1)]), orders)
    for order, value, alone in zip(orders, ranged.values, response.values, strict=True):
        assert value == 2 * min(order / 8, alone)
    kept = to_renyi(renyi([2, 4], [1, 2], F(1, 10)), [F(3, 2), F(3), F(9)])
    assert (kept.orders, kept.values) == ((F(3, 2), F(3)), (1, F(7, 4)))
    assert kept.exact_delta == F(1, 10)
    # ln(e^ε - δ (1 + e^ε))
    for epsilon, delta in ((1.0, 0.1), (3.0, 1e-3), (0.5, 0.01)):
        least = math.log(math.exp(epsilon) - delta * (1 + math.exp(epsilon)))
        found = epsilon_at(PureDP.of(epsilon), delta)
        assert least <= found <= least + 1e-9
        own = epsilon_at(ApproximateDP.of(epsilon, F(1, 4)), F(1, 4) + F(delta))
        assert own == pytest.approx(found, abs=1e-9)
    assert epsilon_at(PureDP.of(0.1), 0.06) == 0
    assert epsilon_at(ApproximateDP.of(1, F(1, 10)), F(1, 10)) == 1
    assert epsilon_at(ZeroConcentratedDP.of(0), 0.1) == 0
    assert epsilon_at(renyi([2], [0]), 0.1) == 0
    assert epsilon_at(ZeroConcentratedDP.of(1), 1) == 0
    # ρα + ln(1 - 1/α) - ln(δα)/(α - 1), the least over α
    rho, delta = 0.05, 1e-5
    alphas = np.linspace(1.01, 200, 400_000)
    least = float(
        np.min(rho * alphas + np.log1p(-1 / alphas) - np.log(delta * alphas) / (alphas - 1))
    )
    assert least <= epsilon_at(ZeroConcentratedDP.of(rho), delta) <= least * (1 + 1e-4)
    failing = epsilon_at(ZeroConcentratedDP.of(rho, F(1, 10**5)), F(2, 10**5))
    assert failing == pytest.approx(epsilon_at(ZeroConcentratedDP.of(rho), F(1, 10**5)), rel=1e-9)
    one = renyi([5], [1])
    at_five = 1 + math.log(4 / 5) - math.log(5e-2) / 4
    assert at_five <= epsilon_at(one, 1e-2)
    assert epsilon_at(renyi([2, 5], [9, 1]), 1e-2) == pytest.approx(at_five, rel=1e-9)
    assert for_replacement(ZeroConcentratedDP.of(F(1, 8), adjacency=ADD)) == ZeroConcentratedDP.of(
        F(1, 2), adjacency=Adjacency.REPLACE_RECORD
    )
    assert unconverted(BoundedRange.of(1)) == ApproximateDP.of(1, 0)


def test_advanced_composition_is_its_formula_or_the_sum() -> None:
    bound = math.sqrt(2 * 100 * math.log(1e6)) * 0.01 + 100 * 0.01 * math.expm1(0.01)
    found = float(advanced_composition(F(1, 100), 100, F(1, 10**6)))
    assert bound <= found <= bound * (1 + 1e-9)
    assert advanced_composition(F(1, 100), 2, F(1, 10**6)) == F(1, 50)  # the sum is less
    assert advanced_composition(F(1, 100), 100, 0) == 1
    assert advanced_composition(F(1, 100), 0, F(1, 2)) == 0
    assert advanced_composition(800, 2, F(1, 2)) == 1600


def enumerated(epsilons: list[float], epsilon: float) -> float:
    """δ at ε of randomized responses, by every outcome."""
    delta = 0.0
    for signs in product((1, -1), repeat=len(epsilons)):
        loss = sum(sign * each for sign, each in zip(signs, epsilons, strict=True))
        chance = math.prod(
            1 / (1 + math.exp(-sign * each)) for sign, each in zip(signs, epsilons, strict=True)
        )
        delta += chance * max(0.0, -math.expm1(epsilon - loss))
    return delta


@pytest.mark.parametrize("epsilons", [[0.5] * 6, [0.25, 0.5, 0.75, 0.5], [0.125, 1.0, 0.5]])
@pytest.mark.parametrize("delta", [F(1, 100), F(1, 10**4)])
def test_optimal_composition_is_the_sum_over_all_outcomes(
    epsilons: list[float], delta: Fraction
) -> None:
    parts = [PureDP.of(F(each)) for each in epsilons]
    found = optimal_composition(parts, delta)
    assert found.exact_delta == delta
    assert enumerated(epsilons, found.epsilon) <= float(delta)
    assert enumerated(epsilons, found.epsilon - 1e-6) > float(delta)
    failing = [ApproximateDP.of(F(each), F(1, 100)) for each in epsilons]
    kept = F(99, 100) ** len(epsilons)
    more = 1 - kept + delta * kept
    assert optimal_composition(failing, more).epsilon == pytest.approx(found.epsilon, abs=1e-6)
    assert optimal_composition(failing, 1 - kept).epsilon == pytest.approx(sum(epsilons))
    for nothing in (0, F(1, 10**200)):
        assert optimal_composition(parts, nothing).exact_epsilon == sum(map(F, epsilons))
    assert optimal_composition(parts, F(99, 100)).exact_epsilon == 0


def test_the_least_noise_is_the_first_multiple_that_suffices() -> None:
    def laplace(scale: Fraction) -> PureDP:
        return PureDP.of(1 / scale)

    assert calibrate(laplace, 0.3, 0) == F(math.ceil(F(4096) / F(0.3)), 4096)
    assert calibrate(laplace, 0.5, 0) == 2
    assert calibrate(laplace, 7.0, 0, grain=F(1, 2)) == F(1, 2)
    assert calibrate(laplace, 0.3, 0, grain=F(3)) == 6
    assert calibrate(laplace, 1e-3, 0, limit=2048) == 1000
    for epsilon, delta, failure in ((1.0, 1e-6, 0), (0.1, 1e-3, 1e-4)):
        rho = largest_rho(epsilon, delta, failure)
        assert epsilon_at(ZeroConcentratedDP.of(rho, failure), delta) <= epsilon
        assert (
            epsilon_at(ZeroConcentratedDP.of(rho * F(1_000_001, 10**6), failure), delta) > epsilon
        )


def test_gaussian_noise_is_as_private_as_its_integral_says() -> None:
    for sigma, epsilon, sensitivity in ((1.0, 1.0, 1.0), (3.0, 0.2, 2.0), (0.5, 4.0, 1.0)):
        grid = np.linspace(-40, 40, 800_001)
        here, there = (stats.norm.pdf(grid, at, sigma) for at in (sensitivity, 0.0))
        exact = float(np.trapezoid(np.maximum(here - math.exp(epsilon) * there, 0), grid))
        found = gaussian_delta(sigma, epsilon, sensitivity)
        assert exact * (1 - 1e-6) <= found <= exact * (1 + 1e-6)
        least = gaussian_sigma(epsilon, found * (1 + 1e-6), sensitivity)
        assert least == pytest.approx(sigma, rel=1e-4)
        assert gaussian_delta(least, epsilon, sensitivity) <= found * (1 + 1e-6)
    assert gaussian_sigma(0, 0.5) > 0
    assert gaussian_zcdp(4).exact_rho == F(1, 8)
    assert gaussian_zcdp(4, 9, Adjacency.REPLACE_RECORD, Unit.USER) == ZeroConcentratedDP.of(
        F(9, 8), 0, Adjacency.REPLACE_RECORD, Unit.USER
    )


@pytest.mark.parametrize("variance", [F(1, 4), F(3), F(200)])
def test_a_discrete_gaussians_tail_is_the_sum_beyond(variance: Fraction) -> None:
    reach = 40 * math.isqrt(math.ceil(variance)) + 60
    weights = {z: math.exp(-z * z / (2 * float(variance))) for z in range(-reach, reach + 1)}
    whole = sum(weights.values())
    for threshold in (-1000, -3, 0, 1, 5, 20, 1000):
        tail = sum(weight for z, weight in weights.items() if z > threshold) / whole
        found = discrete_gaussian_tail(variance, threshold)
        assert tail <= found <= min(tail * (1 + 1e-8) + 2e-300, 1)
        assert found > 0


def poisson(q: float, alpha: int, curve: Callable[[int], float]) -> float:
    """Theorem 5 of Zhu and Wang (2019)."""
    value = (1 - q) ** (alpha - 1) * (alpha * q - q + 1)
    value += math.comb(alpha, 2) * q**2 * (1 - q) ** (alpha - 2) * math.exp(curve(2))
    for j in range(3, alpha + 1):
        weight = math.comb(alpha, j) * (1 - q) ** (alpha - j) * q**j
        value += 3 * weight * math.exp((j - 1) * curve(j))
    return math.log(value) / (alpha - 1)


def fixed(q: float, alpha: int, curve: Callable[[int], float]) -> float:
    """Theorem 9 of Wang, Balle and Kasiviswanathan (2019)."""
    second = math.exp(curve(2))
    value = 1 + math.comb(alpha, 2) * q**2 * min(4 * (second - 1), 2 * second)
    for j in range(3, alpha + 1):
        value += 2 * math.comb(alpha, j) * q**j * math.exp((j - 1) * curve(j))
    return math.log(value) / (alpha - 1)


@pytest.mark.parametrize("rho", [F(1, 100), F(1)])
@pytest.mark.parametrize("rate", [F(1, 100), F(1, 4)])
def test_samples_of_a_curve_are_as_private_as_their_theorems_say(
    rho: Fraction, rate: Fraction
) -> None:
    def line(order: int) -> float:
        return float(rho) * order

    orders = [F(n) for n in range(2, 13)]
    curve = to_renyi(ZeroConcentratedDP.of(rho), orders)
    added = to_renyi(ZeroConcentratedDP.of(rho, adjacency=ADD), orders)
    q = float(rate)
    one, other = fixed_size_subsample(curve, rate), poisson_subsample(added, rate)
    assert isinstance(one, RenyiDP)
    assert isinstance(other, RenyiDP)
    for order in range(2, 13):
        for found, formula in ((one, fixed), (other, poisson)):
            exact = min(formula(q, order, line), line(order))
            assert exact <= float(found.at(order)) <= exact * (1 + 1e-9) + 1e-12
    gaussian = subsampled_gaussian(F(2), rate)
    for order in (2, 3, 8):
        moment = sum(
            math.comb(order, j) * (1 - q) ** (order - j) * q**j * math.exp((j * j - j) / 8)
            for j in range(order + 1)
        )
        exact = math.log(moment) / (order - 1)
        assert exact <= float(gaussian.at(order)) <= exact * (1 + 1e-9) + 1e-12
    assert gaussian.adjacency == ADD
    step = fixed_size_gaussian(F(2), rate, Unit.USER)
    assert (step.adjacency, step.unit) == (Adjacency.REPLACE_RECORD, Unit.USER)
    # of order 2: 1 + q² min(4 (e^{4/σ²} - 1), 2 e^{4/σ²}), as the sum moves by 2
    exact = math.log(1 + q * q * min(4 * math.expm1(1.0), 2 * math.e))
    assert exact <= float(step.at(2)) <= exact * (1 + 1e-9)


def test_samples_of_pure_noise_are_amplified() -> None:
    for subsample, adjacency in (
        (poisson_subsample, ADD),
        (fixed_size_subsample, Adjacency.REPLACE_LABEL),
    ):
        exact = math.log1p(0.25 * math.expm1(1.0))
        found = subsample(PureDP.of(1, adjacency), F(1, 4))
        assert isinstance(found, PureDP)
        assert exact <= found.epsilon <= exact * (1 + 1e-9)
        both = subsample(ApproximateDP.of(1, F(1, 10), adjacency), F(1, 4))
        assert isinstance(both, ApproximateDP)
        assert both.exact_delta == F(1, 40)
        assert both.exact_epsilon == found.exact_epsilon
        assert subsample(PureDP.of(1, adjacency), 1) == PureDP.of(1, adjacency)
        assert subsample(PureDP.of(1, adjacency), 0).within(PureDP.of(F(1, 10**9), adjacency))
        curve = renyi([2, 3], [1, 2], adjacency=adjacency)
        assert subsample(curve, 1) == curve
        shortest = subsample(renyi([2], [1], adjacency=adjacency), F(1, 4))
        assert shortest.orders == (2,)  # type: ignore[attr-defined]
        assert subsample(curve, 0) == renyi([2, 3], [0, 0], adjacency=adjacency)
        huge = subsample(PureDP.of(800, adjacency), F(1, 4))
        assert isinstance(huge, PureDP)
        assert huge.exact_epsilon <= 800


def test_totals_take_the_least_route() -> None:
    pure = [PureDP.of(F(1, 10))] * 5
    assert total(pure, 0) == ApproximateDP.of(F(1, 2), 0)
    rho = [ZeroConcentratedDP.of(F(1, 200))] * 5
    together = ZeroConcentratedDP.of(F(1, 40))
    assert total(rho, F(1, 10**6)).epsilon <= epsilon_at(together, F(1, 10**6))
    mixed = [*pure, *rho]
    alone = ZeroConcentratedDP.of(F(1, 40) + 5 * F(1, 200))
    assert total(mixed, F(1, 10**6)).epsilon <= epsilon_at(alone, F(1, 10**6))
    assert adaptive_total(pure, F(1, 10)) == ApproximateDP.of(F(1, 2), 0)
    assert tuple(F(n) for n in (2, 3, 5, 9, 17, 33, 65, 129, 257, 513, 1025)) == ORDERS
    delta = F(1, 10**5)
    found = adaptive_total(rho, delta)
    assert found.exact_delta == delta / 2
    share = float(delta) / 22
    least = min(
        a / 40 + math.log1p(-1 / a) - math.log(share * a) / (a - 1) for a in map(float, ORDERS)
    )
    assert least <= found.epsilon <= least * (1 + 1e-9)
    failing = adaptive_total([ZeroConcentratedDP.of(F(1, 200), F(1, 10**6))] * 2, delta)
    assert failing.exact_delta == delta / 2 + F(2, 10**6)
    most = adaptive_total([ZeroConcentratedDP.of(F(1, 200), F(2, 3))] * 2, delta)
    assert most.exact_delta == 1
    short = adaptive_total([to_renyi(together, [F(2), F(3)])], delta)
    two = min(a / 40 + math.log1p(-1 / a) - math.log(share * a) / (a - 1) for a in (2.0, 3.0))
    assert two <= short.epsilon <= two * (1 + 1e-9)


def test_a_filter_stops_before_its_limit_and_charges_nothing_then() -> None:
    kept = Filter(ZeroConcentratedDP.of(F(1, 2), F(1, 10)))
    assert kept.spent == ZeroConcentratedDP.of(0)
    kept.spend(ZeroConcentratedDP.of(F(1, 4), F(1, 10)))
    with pytest.raises(BudgetError, match="would bring the total to"):
        kept.spend(ZeroConcentratedDP.of(F(1, 4), F(1, 100)))
    assert kept.spent == ZeroConcentratedDP.of(F(1, 4), F(1, 10))
    assert kept.admits(PureDP.of(F(1, 2)))  # ε²/2 is 1/8
    kept.spend(PureDP.of(F(1, 2)))
    assert kept.spent == ZeroConcentratedDP.of(F(3, 8), F(1, 10))
    assert kept.restated([PureDP.of(1)]) == ZeroConcentratedDP.of(F(1, 2))
    assert Filter(PureDP.of(1)).restated([BoundedRange.of(F(1, 3))]) == PureDP.of(F(1, 3))
    approximate = Filter(ApproximateDP.of(1, F(1, 10))).restated([PureDP.of(F(1, 3))])
    assert approximate == ApproximateDP.of(F(1, 3), 0)
    limit = renyi([2, 3], [1, 1])
    assert Filter(limit).restated([ZeroConcentratedDP.of(F(1, 4))]).values == (F(1, 2), F(3, 4))  # type: ignore[attr-defined]
    ranged = Filter(BoundedRange.of(1))
    ranged.spend(BoundedRange.of(F(1, 2)))
    assert ranged.spent == BoundedRange.of(F(1, 2))


def test_an_odometer_reads_the_rung_above_what_was_spent() -> None:
    meter = Odometer(F(1, 1000))
    meter.record(ZeroConcentratedDP.of(F(3, 1000), F(1, 10)))
    # ρ₀ 2^f >= ρ first at f = 2, whose δ is δ / 12
    ceiling = 0.004
    exact = ceiling + 2 * math.sqrt(ceiling * math.log(12_000))
    found = meter.reading()
    assert exact <= found.epsilon <= exact * (1 + 1e-9)
    assert found.exact_delta == F(101, 1000)
    meter.record(PureDP.of(F(1, 100)))
    assert meter.reading() == found  # 3/1000 + 1/20000 is below the same rung
    meter.record(ZeroConcentratedDP.of(0, F(9, 10)))
    assert meter.reading().exact_delta == 1
    small = Odometer(F(1, 1000))
    small.record(ZeroConcentratedDP.of(F(1, 1000)))
    first = 0.001 + 2 * math.sqrt(0.001 * math.log(2000))
    assert first <= small.reading().epsilon <= first * (1 + 1e-9)


@pytest.mark.skipif(not pld.available(), reason="dp-accounting is an extra")
def test_loss_laws_keep_their_pure_epsilon_exactly() -> None:
    law = pld.PrivacyLoss.of_pure(PureDP.of(F(1, 2)))
    assert law.pure == F(1, 2)
    assert law.epsilon(0) == 0.5
    assert (law.delta(0.5), law.delta(0.6)) == (0, 0)
    exact = -math.expm1(0.25 - 0.5) / (1 + math.exp(-0.5))
    assert exact <= law.delta(0.25) <= exact * (1 + 1e-2)
    twice = law.repeat(2)
    assert twice.pure == law.compose(law).pure == 1
    assert law.repeat(1) is law
    assert enumerated([0.5, 0.5], 0.3) <= twice.delta(0.3) <= enumerated([0.5, 0.5], 0.3) * 1.02
    gauss = pld.PrivacyLoss.of_gaussian(2.0)
    assert gauss.pure is None
    assert gauss.epsilon(0) == math.inf
    assert (gauss.adjacency, law.adjacency) == (ADD, Adjacency.REPLACE_LABEL)
    assert gaussian_delta(2.0, 0.5) <= gauss.delta(0.5) <= gaussian_delta(2.0, 0.5) * 1.02
    assert gauss.repeat(2).pure is None
    assert pld.PrivacyLoss.of_discrete_laplace(F(4)).pure == F(1, 4)
    both = gauss.compose(pld.PrivacyLoss.of_discrete_laplace(F(4)))
    assert both.pure is None
    for wrong in (lambda: law.compose(gauss), lambda: law.repeat(0)):
        with pytest.raises(PrivacyError):
            wrong()
    fair = {0: 0.5, 1: 0.5}
    for upper, lower in (({0: 0.5}, fair), (fair, {0: 1.2, 1: -0.2}), ({0: math.nan}, fair)):
        with pytest.raises(PrivacyError, match="they must be >= 0 and sum to 1"):
            pld.PrivacyLoss.of_pair(upper, lower)
    stated = law.guarantee(0.01)
    assert stated.exact_delta == F(0.01)
    assert stated.epsilon == law.epsilon(0.01)
    assert above(1.0) > 1


def test_much_noise_on_a_sample_of_fixed_size_costs_as_its_square_says() -> None:
    """Ten times the noise divides a small ε by a hundred, however many digits cancel."""
    little, less = fixed_size_gaussian(10**5, 0.1), fixed_size_gaussian(10**6, 0.1)
    assert float(less.at(8)) == pytest.approx(float(little.at(8)) / 100, rel=1e-3)


@pytest.mark.parametrize("rho", [1e-4, 0.5, 30.0, 1000.0])
@pytest.mark.parametrize("delta", [F(1, 10**300), 1e-9, 0.1])
def test_a_concentrated_guarantee_converts_at_the_best_of_all_orders(
    rho: float, delta: float | Fraction
) -> None:
    """``ρα + ln(1 - 1/α) - ln(δα)/(α - 1)``, the least of it over a dense grid."""
    alphas = 1 + np.geomspace(1e-4, 1e7, 400_001)
    log_delta = math.log(delta) + np.log(alphas)
    values = rho * alphas + np.log1p(-1 / alphas) - log_delta / (alphas - 1)
    least = max(0.0, float(values.min()))
    found = epsilon_at(ZeroConcentratedDP.of(rho), delta)
    assert least * (1 - 1e-9) <= found <= least * (1 + 1e-5) + 1e-9
