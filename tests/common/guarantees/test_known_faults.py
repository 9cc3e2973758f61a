"""Inputs at which other accountants are known to err: ours gives a bound there, or refuses.

Each is a public report, named where it is used; what others answered is written out.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from labelveil.common.guarantees import (
    ApproximateDP,
    BoundedRange,
    PureDP,
    epsilon_at,
    poisson_subsample,
    subsampled_gaussian,
)
from labelveil.common.guarantees.gaussian import gaussian_delta, gaussian_sigma
from labelveil.common.guarantees.pld import PrivacyLoss, available
from labelveil.common.mechanisms.selection.noisy_max import Law, NoisyMax
from tests.common.guarantees import examples
from tests.effort import one_in

needs_pld = pytest.mark.skipif(
    not available(), reason="dp-accounting is not installed (labelveil[pld])"
)


@pytest.mark.parametrize("rate", [Fraction(33, 100_000), Fraction(38, 100_000)])
def test_tiny_deltas_are_no_cliff(rate: Fraction) -> None:
    """github.com/microsoft/prv_accountant, report 17: σ = 4, 10,000 steps.

    Rate 0.00033: ε <= 0.156 at δ = 1.1e-18 and 3.9 at 1.13e-18; from few Rényi orders, 0.669.
    """
    curve = subsampled_gaussian(4, rate).repeat(10_000)
    deltas = (1e-30, 1e-20, 1.1e-18, 1.13e-18, 1e-16)
    bounds = [epsilon_at(curve, delta) for delta in deltas]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[2] - bounds[3] < 1e-3
    assert 0 < bounds[2] < 0.669


def test_large_epsilons_have_a_bound() -> None:
    """The same place, reports 36 and 42: rate 0.2, σ = 1, "discrete mean differs"."""
    few, many = (
        epsilon_at(subsampled_gaussian(1, Fraction(1, 5)).repeat(steps), 1e-5)
        for steps in (10, 500)
    )
    assert 4.98 < few < 6.1
    assert 38.1 < many < 44


@needs_pld
@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta", "least", "most"),
    one_in(
        2,
        [
            (0.01, 1.0, 1000, 1e-5, 1.8181, 1.8384),
            (0.001, 0.8, 1000, 1e-6, 0.3684, 0.5686),
        ],
    ),
)
def test_where_it_answers_we_agree(
    rate: float, sigma: float, steps: int, delta: float, least: float, most: float
) -> None:
    """prv-accountant 0.2.0, run by hand: from its lower to its upper bound."""
    assert least <= PrivacyLoss.of_gaussian(sigma, rate).repeat(steps).epsilon(delta) <= most
    curve = subsampled_gaussian(Fraction(sigma), Fraction(rate)).repeat(steps)
    assert epsilon_at(curve, delta) >= least


@pytest.mark.parametrize("epsilon", [0.01, 1, 10, 100, 1000])
def test_calibrated_noise_is_enough_and_no_more(epsilon: float) -> None:
    """github.com/yuxiangw/autodp, report 39: for large ε calibration and δ disagreed."""
    delta = gaussian_delta(gaussian_sigma(epsilon, 1e-6), epsilon)
    assert 1e-6 * (1 - 1e-9) < delta <= 1e-6 * (1 + 1e-9)


def test_amplification_turned_round() -> None:
    """The same place, report 2: at rate 0.01 (ε, δ) = (1, 1e-6) needs (5.15, 1e-4) of a sample."""
    base = ApproximateDP.of(math.log1p((math.e - 1) / 0.01), 1e-4, *examples.ADD)
    sampled = poisson_subsample(base, Fraction(1, 100))
    assert isinstance(sampled, ApproximateDP)
    assert float(sampled.epsilon) == pytest.approx(1)
    assert float(sampled.delta) == pytest.approx(1e-6)
    assert gaussian_sigma(float(base.epsilon), 1e-4) == pytest.approx(0.77644, abs=1e-5)


@pytest.mark.parametrize("delta", [0.5, 0.999])
def test_no_epsilon_is_negative(delta: float) -> None:
    """github.com/opendp/opendp 621 and meta-pytorch/opacus 585: at δ near 1, below 0."""
    assert epsilon_at(subsampled_gaussian(1, Fraction(1, 5)), delta) >= 0
    assert epsilon_at(PureDP.of(1), delta) >= 0


def test_the_textbooks_formula_is_not_used_above_one() -> None:
    """github.com/uvm-plaid/programming-dp 45: σ² = 2 ln(1.25/δ)/ε² is too little for ε = 10."""
    textbook = math.sqrt(2 * math.log(1.25e5)) / 10
    assert gaussian_delta(textbook, 10) > 1e-5
    assert gaussian_sigma(10, 1e-5) > textbook


def test_permute_and_flip_is_of_no_bounded_range() -> None:
    """github.com/opendp/opendp 2911: its ρ was stated as ε²/8, as of the exponential mechanism.

    Of two utilities the lower one is named after a fair coin and one that falls with e^-d.
    """
    draw = NoisyMax(Law.EXPONENTIAL, Fraction(2))  # Exp(1) on utilities that move by 1
    guarantee = draw.guarantee(2)
    assert isinstance(guarantee, PureDP)
    assert not isinstance(guarantee, BoundedRange)
    equal, apart = (0.5, 0.5), (1 - math.exp(-2) / 2, math.exp(-2) / 2)
    divergence = math.log(sum(p * p / q for p, q in zip(equal, apart, strict=True)))
    assert divergence > 2 * 2**2 / 8  # order 2, ρ = ε²/8
    assert math.log(max(p / q for p, q in zip(equal, apart, strict=True))) <= guarantee.epsilon
