"""Stopping before a budget is passed, reading what is spent, and finding the least noise."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelveil.common.errors import BudgetError, PrivacyError
from labelveil.common.guarantees import (
    ApproximateDP,
    BoundedRange,
    Filter,
    Guarantee,
    Odometer,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
    calibrate,
    epsilon_at,
    largest_rho,
    to_renyi,
)
from labelveil.common.guarantees.gaussian import gaussian_zcdp
from tests.common.guarantees import examples

quick = settings(max_examples=25, deadline=None)
LIMITS = {
    "pure": PureDP(*examples.ADD, Fraction(2)),
    "approximate": ApproximateDP(*examples.ADD, Fraction(2), Fraction(1, 10**6)),
    "zcdp": ZeroConcentratedDP(*examples.ADD, Fraction(2), Fraction(1, 10**6)),
    "bounded-range": BoundedRange.of(Fraction(4), *examples.ADD).repeat(3),
}
LIMITS["renyi"] = to_renyi(LIMITS["zcdp"], tuple(map(Fraction, range(2, 13))))


@pytest.mark.parametrize("kind", sorted(LIMITS))
@quick
@given(data=st.data())
def test_a_filter_never_passes_its_limit(kind: str, data: st.DataObject) -> None:
    limit = LIMITS[kind]
    gate = Filter(limit)
    for item in data.draw(st.lists(examples.kinds[kind], max_size=8)):
        before = gate.spent
        if gate.admits(item):
            gate.spend(item)
            known = to_renyi(item, limit.orders) if isinstance(limit, RenyiDP) else item
            assert gate.spent == before.compose(known)
        else:
            with pytest.raises(BudgetError, match="above the budget"):
                gate.spend(item)
            assert gate.spent == before
        assert gate.spent.within(limit)


def test_a_filter_spends_to_the_last_unit_and_no_further() -> None:
    gate = Filter(PureDP.of(1))
    for _ in range(10):
        gate.spend(PureDP.of(Fraction(1, 10)))
    assert gate.spent == gate.limit
    assert not gate.admits(PureDP.of(Fraction(1, 10**30)))


def test_a_filter_restates_other_kinds() -> None:
    gate = Filter(ZeroConcentratedDP.of(1))
    gate.spend(PureDP.of(1))
    gate.spend(BoundedRange.of(1))
    assert gate.spent == ZeroConcentratedDP.of(Fraction(5, 8))
    with pytest.raises(PrivacyError, match="pure form"):
        Filter(PureDP.of(1)).spend(ZeroConcentratedDP.of(Fraction(1, 100)))


@quick
@given(parts=st.lists(examples.epsilons.map(lambda e: e / 20), min_size=1, max_size=12))
def test_odometer_is_monotone_and_above_the_fixed_time_bound(parts: list[Fraction]) -> None:
    meter = Odometer(Fraction(1, 10**6))
    last = 0.0
    spent: Guarantee = ZeroConcentratedDP.of(0)
    for rho in parts:
        item = ZeroConcentratedDP.of(rho)
        meter.record(item)
        spent = spent.compose(item)
        reading = meter.reading()
        assert reading.epsilon >= last
        assert reading.epsilon >= epsilon_at(spent, reading.exact_delta)
        last = reading.epsilon
    ceiling = 2 * float(spent.exact_rho) + 0.002  # type: ignore[attr-defined]
    assert last <= ceiling + 2 * math.sqrt(ceiling * math.log(10**6 * 400)) + 1e-6


def test_the_claims_of_an_odometer_hold_together() -> None:
    """A filter that ends at ρ claims ρ + 2√(ρ ln 1/δ') of its own δ'; of all they are δ at most."""
    delta, shares = 1e-6, []
    for rung in range(40):
        meter, rho = Odometer(delta), Odometer.FIRST_RUNG * 2**rung
        meter.record(ZeroConcentratedDP.of(rho))
        above = meter.reading().epsilon - float(rho)
        shares.append(math.exp(-(above**2) / float(4 * rho)))
    assert 0.9 * delta < sum(shares) <= delta * (1 + 1e-9)


def test_odometer_carries_failures_and_refuses_silence() -> None:
    meter = Odometer(Fraction(1, 10**6))
    with pytest.raises(PrivacyError, match="nothing"):
        meter.reading()
    meter.record(ZeroConcentratedDP.of(Fraction(1, 10), Fraction(1, 10**7)))
    assert meter.reading().exact_delta == Fraction(11, 10**7)


@quick
@given(epsilon=st.floats(0.05, 8), delta=st.sampled_from([1e-4, 1e-8]), times=st.integers(1, 200))
def test_calibrated_noise_is_the_least(epsilon: float, delta: float, times: int) -> None:
    def guarantee(variance: Fraction) -> Guarantee:
        return gaussian_zcdp(variance).repeat(times)

    variance = calibrate(guarantee, epsilon, delta)
    assert epsilon_at(guarantee(variance), delta) <= epsilon
    assert epsilon_at(guarantee(variance - Fraction(1, 4096)), delta) > epsilon


@quick
@given(epsilon=st.floats(0.05, 8), failure=st.sampled_from([0.0, 1e-7]))
def test_largest_rho_fills_the_target(epsilon: float, failure: float) -> None:
    rho = largest_rho(epsilon, 1e-6, failure)
    used = epsilon_at(ZeroConcentratedDP.of(rho, failure), 1e-6)
    assert epsilon * (1 - 1e-6) <= used <= epsilon


def test_impossible_targets_say_what_to_change() -> None:
    with pytest.raises(PrivacyError, match="raise one of them"):
        calibrate(lambda v: gaussian_zcdp(v).repeat(10**9), 1e-3, 1e-9, limit=100)
    with pytest.raises(PrivacyError, match="must be > 0"):
        largest_rho(0, 1e-6)
