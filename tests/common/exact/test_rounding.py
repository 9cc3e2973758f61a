"""Outward rounding: never inside, and by no more than is said."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from labelveil.common.exact.rounding import (
    above,
    below,
    float_above,
    float_below,
    multiple_above,
    root_below,
)

FRACTIONS = st.fractions(-(10**6), 10**6, max_denominator=10**9)


@given(FRACTIONS, st.integers(1, 1 << 20))
def test_a_multiple_is_the_next_one_up(value: Fraction, grain: int) -> None:
    rounded = multiple_above(value, grain)
    assert value <= rounded < value + Fraction(1, grain)
    assert grain % rounded.denominator == 0


@given(FRACTIONS.map(abs), st.integers(1, 1 << 24))
def test_a_root_is_the_next_one_down(value: Fraction, grain: int) -> None:
    root = root_below(value, grain)
    assert (root * grain).denominator == 1
    assert root**2 <= value < (root + Fraction(1, grain)) ** 2


def test_the_samplers_take_4096ths() -> None:
    assert multiple_above(Fraction(1, 3)) == Fraction(1366, 4096)


@given(FRACTIONS)
def test_floats_enclose_a_fraction_tightly(value: Fraction) -> None:
    high, low = float_above(value), float_below(value)
    assert Fraction(math.nextafter(high, -math.inf)) < value <= Fraction(high)
    assert Fraction(low) <= value < Fraction(math.nextafter(low, math.inf))


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_computed_bounds_move_outwards_by_the_stated_error(value: float) -> None:
    """A formula's relative error is below 1e-12, and near 0 its absolute one below 1e-15."""
    exact, error = Fraction(value), abs(Fraction(value)) * Fraction(99, 10**14)
    assert Fraction(above(value)) >= exact + error
    assert Fraction(below(value)) <= exact - error
    assert above(value) > value > below(value)
    for bound in (above(value), below(value)):
        assert abs(Fraction(bound) - exact) <= abs(exact) / 10**11 + Fraction(1, 10**14)


def test_infinity_stays() -> None:
    assert above(math.inf) == below(math.inf) == math.inf
    assert above(0.0) >= 9e-16
    assert below(0.0) <= -9e-16
