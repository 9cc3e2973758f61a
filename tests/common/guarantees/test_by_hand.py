"""Guarantees of every kind: sums, curves and conversions beside formulas written out."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    Filter,
    Guarantee,
    Odometer,
    PureDP,
    RenyiDP,
    Unit,
    ZeroConcentratedDP,
    adaptive_total,
    compose,
    epsilon_at,
    guarantee_from_json,
    largest_rho,
)
from labelveil.common.guarantees.accountant import total
from labelveil.common.guarantees.bounded_range import BoundedRange
from labelveil.common.guarantees.calibration import calibrate
from labelveil.common.guarantees.conversion import (
    for_replacement,
    to_approximate,
    to_pure,
    to_renyi,
    to_zcdp,
    unconverted,
)
from labelveil.common.guarantees.gaussian import gaussian_delta
from labelveil.common.guarantees.subsampling import fixed_size_subsample, poisson_subsample
from tests.common.guarantees.curves import ADD, F, renyi

EACH: list[Guarantee] = [
    PureDP.of(F(1, 2)),
    ApproximateDP.of(F(1, 2), F(1, 10)),
    ZeroConcentratedDP.of(F(1, 2), F(1, 10)),
    BoundedRange.of(F(1, 2)),
    renyi([2, 3], [F(1, 4), F(1, 2)]),
]


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


def charged(guarantee: Guarantee) -> Guarantee:
    limit = Filter(guarantee)
    limit.spend(guarantee)
    return limit.spent


def read(guarantee: Guarantee) -> Guarantee:
    odometer = Odometer(F(1, 2))
    odometer.record(guarantee)
    return odometer.reading()


@pytest.mark.parametrize(
    "made",
    [
        lambda one: one.scale(2),
        lambda one: one.repeat(2),
        lambda one: one.compose(one),
        lambda one: compose([one, one]),
        lambda one: guarantee_from_json(one.to_json()),
        lambda one: to_approximate(one, F(1, 5)),
        lambda one: total([one, one], F(1, 2)),
        lambda one: adaptive_total([one, one], F(1, 2)),
        lambda one: poisson_subsample(one, F(1, 2)),
        lambda one: fixed_size_subsample(one, F(1, 2)),
        *(to_pure, to_zcdp, to_renyi, unconverted, charged, read),
    ],
)
def test_what_a_guarantee_is_about_stays(made: Any) -> None:
    known = 0
    for guarantee in EACH:
        for about in ((Adjacency.ADD_REMOVE, Unit.USER), (Adjacency.REPLACE_RECORD, Unit.USER)):
            mine = replace(guarantee, adjacency=about[0], unit=about[1])
            with contextlib.suppress(PrivacyError):  # not every kind has each of them
                assert made(mine).neighbours == about
                known += 1
    assert known


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
    alike = ApproximateDP.of(0, F(1, 10)).scale(3)  # three times δ, rounded up
    assert alike.exact_epsilon == 0
    assert F(3, 10) <= alike.exact_delta <= F(3, 10) * (1 + F(1, 10**9))
    assert str(PureDP.of(F(1, 2))) == "ε = 0.5 (replace-label, per record)"


def test_bounded_ranges_are_kept_apart_and_compared_by_rank() -> None:
    one, half = BoundedRange.of(1), BoundedRange.of(F(1, 2))
    both = one.compose(half).compose(one)
    assert both.ranges == ((F(1), 2), (F(1, 2), 1))
    assert both.exact_epsilon == F(5, 2)
    assert BoundedRange.of(0).ranges == ()
    assert both.repeat(2).ranges == ((F(1), 4), (F(1, 2), 2))
    assert both.repeat(0).ranges == ()
    assert both.scale(2).ranges == ((F(2), 2), (F(1), 1))
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


def test_the_least_noise_is_the_first_multiple_that_suffices() -> None:
    def laplace(scale: Fraction) -> PureDP:
        return PureDP.of(1 / scale)

    assert calibrate(laplace, 0.3, 0) == F(math.ceil(F(4096) / F(0.3)), 4096)
    assert calibrate(laplace, 0.5, 0) == 2
    assert calibrate(laplace, 7.0, 0, grain=F(1, 2)) == F(1, 2)
    assert calibrate(laplace, 0.3, 0, grain=F(3)) == 6
    assert calibrate(laplace, 1e-3, 0, limit=2048) == 1000
    for epsilon, delta, failure in ((1.0, 1e-6, 0), (0.1, 1e-3, 1e-4), (0.1, 0.5, 0)):
        rho = largest_rho(epsilon, delta, failure)
        assert epsilon_at(ZeroConcentratedDP.of(rho, failure), delta) <= epsilon
        assert (
            epsilon_at(ZeroConcentratedDP.of(rho * F(1_000_001, 10**6), failure), delta) > epsilon
        )


def test_the_curve_of_a_gaussian_is_rounded_up() -> None:
    """Against ``Φ(1/2σ - εσ) - e^ε Φ(-1/2σ - εσ)`` in sixty digits, by the series of Φ."""

    def below(x: Decimal) -> Decimal:
        term = total = x
        for odd in range(3, 1500, 2):
            term = term * x * x / odd
            total += term
        return Decimal(1) / 2 + total * (-x * x / 2).exp() / root

    with localcontext(prec=60):
        root = (
            2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
        ).sqrt()
        for sigma in (0.25, 0.5, 1.0, 2.0, 4.0):
            for epsilon in (0.0, 0.125, 0.5, 1.0, 2.0, 3.0):
                s, e = Decimal(sigma), Decimal(epsilon)
                exact = below(1 / (2 * s) - e * s) - e.exp() * below(-1 / (2 * s) - e * s)
                found = Decimal(gaussian_delta(sigma, epsilon))
                assert exact <= found <= exact + Decimal("1e-12")
    assert gaussian_delta(0.01, 0.0) == 1  # never more than all


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
