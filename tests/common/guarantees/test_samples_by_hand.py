"""Gaussian noise and samples of it, beside their integrals and theorems."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    PureDP,
    RenyiDP,
    Unit,
    ZeroConcentratedDP,
)
from labelveil.common.guarantees.conversion import (
    to_renyi,
)
from labelveil.common.guarantees.gaussian import (
    discrete_gaussian_tail,
    gaussian_delta,
    gaussian_sigma,
    gaussian_zcdp,
)
from labelveil.common.guarantees.subsampling import (
    fixed_size_gaussian,
    fixed_size_subsample,
    poisson_subsample,
    subsampled_gaussian,
)
from tests.common.guarantees.curves import ADD, F, renyi


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


def test_much_noise_on_a_sample_of_fixed_size_costs_as_its_square_says() -> None:
    """Ten times the noise divides a small ε by a hundred, however many digits cancel."""
    little, less = fixed_size_gaussian(10**5, 0.1), fixed_size_gaussian(10**6, 0.1)
    assert float(less.at(8)) == pytest.approx(float(little.at(8)) / 100, rel=1e-3)
