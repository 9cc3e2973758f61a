"""What selectors state is what the theorems say, written down again from the papers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.entropy import Entropy, WordSource
from labelveil.common.exact.exponential_choice import exponential_choice, permute_and_flip
from labelveil.common.exact.noise import discrete_gaussian, discrete_laplace
from labelveil.common.guarantees import BoundedRange, RenyiDP, to_renyi
from labelveil.common.mechanisms.selection import Law, LimitedDomain, NoisyMax, StableTopK
from labelveil.common.mechanisms.selection.base import ADJACENCY, UNIT


@pytest.mark.parametrize(
    ("step", "monotone", "apart"), [(1, True, 1), (1, False, 2), (2, False, 4)]
)
def test_gaussian_noisy_max(step: int, monotone: bool, apart: int) -> None:
    """Zhu and Wang 2022, Theorem 8: α·apart²/(2σ²) + ln(m)/(α − 1)."""
    noise = NoisyMax(Law.GAUSSIAN, variance=Fraction(5), monotone=monotone, step=step)
    stated = noise.guarantee(7)
    assert isinstance(stated, RenyiDP)
    for order in (Fraction(3, 2), Fraction(2), Fraction(10), Fraction(64)):
        wanted = float(order) * apart**2 / 10 + math.log(7) / (float(order) - 1)
        assert wanted <= float(stated.at(order)) <= wanted * (1 + 1e-9)


@pytest.mark.parametrize(
    ("step", "monotone", "apart", "parts"), [(1, True, 1, 1), (1, False, 2, 3), (2, False, 4, 1)]
)
@pytest.mark.parametrize("law", Law)
def test_noisy_max_draws_with_the_noise_of_its_reach(
    law: Law, step: int, monotone: bool, apart: int, parts: int
) -> None:
    """Utilities that move by ``step`` each are apart by twice that, unless all move one way."""
    variance, rate = Fraction(5), Fraction(3, 7) / apart
    paid = {"variance": variance} if law == Law.GAUSSIAN else {"epsilon": Fraction(3, 7)}
    noise = NoisyMax(law, **paid, monotone=monotone, step=step)
    utilities = np.arange(12) % 5

    def drawn(source: WordSource) -> int:
        if law == Law.GUMBEL:
            return exponential_choice(utilities, rate / parts, source)
        if law == Law.EXPONENTIAL:
            return permute_and_flip(utilities, rate / parts, source)
        if law == Law.LAPLACE:
            return int(np.argmax(utilities + parts * discrete_laplace(1 / rate, 12, source)))
        return int(np.argmax(utilities + parts * discrete_gaussian(variance, 12, source)))

    first, again = (Entropy(bytes(32)).source("draws") for _ in range(2))
    found = [noise.draw(utilities, first, parts) for _ in range(6)]
    assert found == [drawn(again) for _ in range(6)]
    assert len(set(found)) > 1


@pytest.mark.parametrize("test_law", [Law.GAUSSIAN, Law.LAPLACE])
@pytest.mark.parametrize("choice_law", list(Law))
def test_choice_and_test_cost_what_is_paid(choice_law: Law, test_law: Law) -> None:
    """ρ α of both halves at every order; Gaussian noise of the choice ln(3)/(α − 1) more."""
    rho = Fraction(1, 2)
    stable = StableTopK(rho, Fraction(1, 10**9), 3, choice_law=choice_law, test_law=test_law)
    more = math.log(3) if choice_law == Law.GAUSSIAN else 0.0
    ratios = [
        (float(to_renyi(stable.guarantee).at(Fraction(order))) - more / (order - 1)) / order
        for order in (2, 8, 32)
    ]
    assert 0.8 * rho < ratios[0] <= rho * (1 + 1e-6)
    assert max(ratios) <= rho * (1 + 1e-6)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_limited_domain(k: int) -> None:
    """Its failure may happen at each of k + 1 draws, ⊥ included."""
    epsilon, delta = Fraction(1, 2), Fraction(1, 100)
    stated = LimitedDomain(k, 10, epsilon, delta).guarantee
    draws = to_renyi(BoundedRange.of(epsilon, ADJACENCY, UNIT).repeat(k))
    for order in (Fraction(2), Fraction(10)):
        near = float(order) / (float(order) - 1) * -math.log(1 - 0.01)
        more = float(stated.at(order)) - float(draws.at(order)) - near
        assert more == pytest.approx(-math.log(1 - (k + 1) * 0.01), rel=1e-9)
    assert stated.exact_delta == delta
