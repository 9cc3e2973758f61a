"""Totals of mixed guarantees: exact where pure, above every fixed way of adding up, monotone."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees import (
    ApproximateDP,
    BoundedRange,
    Guarantee,
    PureDP,
    RenyiDP,
    Unit,
    ZeroConcentratedDP,
    adaptive_total,
    total,
)
from labelveil.common.guarantees.accountant import ORDERS
from tests.common.guarantees.examples import anything

DELTA = Fraction(1, 10**6)


def pure(epsilon: str) -> PureDP:
    return PureDP.of(Fraction(epsilon))


def test_pure_guarantees_add_exactly_and_need_no_delta() -> None:
    parts: list[Guarantee] = [pure("0.1")] * 10
    assert adaptive_total(parts, DELTA) == ApproximateDP.of(Fraction(1), Fraction(0))
    assert adaptive_total(parts, Fraction(0)) == ApproximateDP.of(Fraction(1), Fraction(0))


def test_a_bounded_range_counts_as_its_pure_form() -> None:
    parts = [pure("0.5"), BoundedRange.of(Fraction(1, 4))]
    assert adaptive_total(parts, DELTA).exact_epsilon == Fraction(3, 4)


def test_own_deltas_have_one_half_and_adding_up_the_other() -> None:
    one = ApproximateDP.of(Fraction(1), DELTA / 2)
    assert adaptive_total([one], DELTA) == ApproximateDP.of(Fraction(1), DELTA)
    assert adaptive_total([one, one], DELTA).exact_delta > DELTA


def test_concentrated_guarantees_add_up_better_than_one_by_one() -> None:
    one = ZeroConcentratedDP.of(Fraction(1, 100))
    together = adaptive_total([one] * 20, DELTA).epsilon
    assert together < 0.5 * 20 * adaptive_total([one], DELTA).epsilon
    # the price of choosing among 11 orders afterwards, and of their spacing
    optimum = total([one] * 20, DELTA / 2).epsilon
    assert optimum < together < 1.2 * optimum


def test_a_small_gaussian_beside_pure_charges_costs_little() -> None:
    parts = [pure("1"), pure("1"), ZeroConcentratedDP.of(Fraction(1, 10_000))]
    assert 2 < adaptive_total(parts, DELTA).epsilon < 2.2


def test_the_total_is_the_sum_at_some_order_with_its_share_of_delta() -> None:
    """Restates the formula without the library's conversions."""
    rho, epsilon, share = 0.02, 0.3, float(DELTA) / 2 / len(ORDERS)
    parts = [ZeroConcentratedDP.of(Fraction("0.02")), pure("0.3")]
    q = 1 / (1 + np.exp(epsilon))
    p = 1 - q
    bounds = []
    for order in map(float, ORDERS):
        logs = np.logaddexp(
            order * np.log(p) + (1 - order) * np.log(q), order * np.log(q) + (1 - order) * np.log(p)
        )
        curve = min(logs / (order - 1), epsilon, order * epsilon**2 / 2)
        gain = np.log1p(-1 / order) - np.log(share * order) / (order - 1)
        bounds.append(curve + order * rho + gain)
    assert adaptive_total(parts, DELTA).epsilon == pytest.approx(min(bounds), rel=1e-6)


@given(st.lists(anything, min_size=1, max_size=5), anything)
def test_the_total_never_falls_and_is_never_below_a_fixed_way(
    parts: list[Guarantee], more: Guarantee
) -> None:
    before = adaptive_total(parts, DELTA)
    after = adaptive_total([*parts, more], DELTA)
    assert after.exact_epsilon >= before.exact_epsilon
    assert after.exact_delta >= before.exact_delta
    assert adaptive_total(parts[::-1], DELTA) == before
    if before.exact_delta <= DELTA and not any(isinstance(p, RenyiDP) for p in parts):
        # fixed in advance, the same δ buys at least as small an ε
        assert total(parts, before.exact_delta).epsilon <= before.epsilon * (1 + 1e-9)


def test_what_does_not_add_up_is_refused() -> None:
    gaussian = ZeroConcentratedDP.of(Fraction(1, 100))
    with pytest.raises(PrivacyError, match="delta=0"):
        adaptive_total([gaussian], Fraction(0))
    with pytest.raises(PrivacyError, match="privacy unit"):
        adaptive_total([gaussian, replace(gaussian, unit=Unit.USER)], DELTA)
    with pytest.raises(PrivacyError, match="nothing"):
        adaptive_total([], DELTA)
    short = RenyiDP.of([0.1], orders=(Fraction(3, 2),))
    with pytest.raises(PrivacyError, match="extend it"):
        adaptive_total([short], DELTA)
    assert adaptive_total([RenyiDP.of([0.1], orders=(Fraction(8),))], DELTA).epsilon < 10
