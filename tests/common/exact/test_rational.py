"""Bounds of e^ε and ln(x) hold and are tight; rational numbers from text are bounded in size."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import exp_lower_bound, log_upper_bound, parse_rational

epsilons = st.one_of(
    st.floats(5e-324, 40.0),
    st.fractions(Fraction(1, 10**9), 40),
    st.sampled_from([5e-324, 2.0**-53, 0.05, math.log(2), 1.0, 8.0, math.nextafter(40, 0), 40.0]),
)


@given(epsilons)
@example(0)
def test_the_lower_bound_of_exp_holds_and_is_tight(epsilon: float | Fraction) -> None:
    bound = exp_lower_bound(epsilon)
    exact = Fraction(epsilon)
    with localcontext(prec=120):
        true = Fraction((Decimal(exact.numerator) / Decimal(exact.denominator)).exp())
    slack = true / 10**100  # the reference's own error
    assert bound <= true + slack
    assert true - bound <= true / 10**50


@given(
    st.one_of(
        st.fractions(min_value=1),
        st.builds(lambda n, d: 1 + Fraction(n, d), st.integers(0, 9), st.integers(1, 10**90)),
        st.integers(1, 10**30).map(Fraction),
    )
)
def test_the_upper_bound_of_ln_is_the_next_float(ratio: Fraction) -> None:
    bound = log_upper_bound(ratio)
    with localcontext(prec=200):
        true = (Decimal(ratio.numerator) / Decimal(ratio.denominator)).ln()
        assert Decimal(bound) >= true
        assert ratio == 1 or Decimal(math.nextafter(bound, -math.inf)) < true


def test_a_ratio_that_is_1_for_a_hundred_digits_has_a_small_logarithm() -> None:
    for digits in (98, 150, 300):  # ln(1 + x) is x (1 - x/2 + …)
        bound = log_upper_bound(1 + Fraction(1, 10**digits))
        assert bound == pytest.approx(10.0**-digits, rel=1e-15, abs=0)


@pytest.mark.parametrize("ratio", [Fraction(0), Fraction(-1), 1 - Fraction(1, 10**40)])
def test_a_ratio_below_one_has_no_bound(ratio: Fraction) -> None:
    with pytest.raises(ValueError, match="must be >= 1"):
        log_upper_bound(ratio)


def test_ln_inverts_exp_from_below() -> None:
    for epsilon in (0.05, 0.5, 1.0, 2.0, 8.0, 39.5):
        assert log_upper_bound(exp_lower_bound(epsilon)) == epsilon


@pytest.mark.parametrize("epsilon", [-1e-300, 40.000001, math.nan, math.inf, -math.inf])
def test_an_impossible_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(PrivacyError, match=r"0 … 40"):
        exp_lower_bound(epsilon)


def test_rationals_survive_text() -> None:
    for value in (Fraction(0), Fraction(3, 7), Fraction(1, 1 << 116), Fraction(10**60)):
        assert parse_rational(str(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1e999999999",
        "1.5",
        "1/0",
        "1/00",
        " 1",
        "1\n",
        "１",
        "1_0",
        "9" * 1001,
        "1" + "0" * 200,
        1,
        1.0,
        None,
    ],
)
def test_anything_else_is_not_a_rational(text: object) -> None:
    with pytest.raises(PrivacyError, match=r"fraction|1e200") as caught:
        parse_rational(text)
    assert len(str(caught.value)) < 200
