"""Subsampled RDP is what the two theorems say, written down again from the papers, term by term."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest

from labelveil.common.guarantees import (
    Adjacency,
    RenyiDP,
    fixed_size_subsample,
    poisson_subsample,
)

RDP = Callable[[int], float]


def theorem_5(alpha: int, q: float, epsilon: RDP) -> float:
    """Zhu and Wang 2019: Poisson samples, any mechanism."""
    total = (1 - q) ** (alpha - 1) * (alpha * q - q + 1)
    if alpha >= 2:
        total += math.comb(alpha, 2) * q**2 * (1 - q) ** (alpha - 2) * math.exp(epsilon(2))
    for order in range(3, alpha + 1):
        term = math.comb(alpha, order) * (1 - q) ** (alpha - order) * q**order
        total += 3 * term * math.exp((order - 1) * epsilon(order))
    return math.log(total) / (alpha - 1)


def theorem_9(alpha: int, q: float, epsilon: RDP) -> float:
    """Wang, Balle, Kasiviswanathan 2019: samples without replacement, ε(∞) not known."""
    second = min(4 * (math.exp(epsilon(2)) - 1), 2 * math.exp(epsilon(2)))
    total = 1 + math.comb(alpha, 2) * q**2 * second
    for order in range(3, alpha + 1):
        term = math.comb(alpha, order) * q**order
        total += 2 * term * math.exp((order - 1) * epsilon(order))
    return math.log(total) / (alpha - 1)


@pytest.mark.parametrize("rho", [Fraction(1, 100), Fraction(1, 3), Fraction(1)])
@pytest.mark.parametrize(
    ("sample", "theorem", "adjacency"),
    [
        (poisson_subsample, theorem_5, Adjacency.ADD_REMOVE),
        (fixed_size_subsample, theorem_9, Adjacency.REPLACE_RECORD),
    ],
)
def test_each_theorem_is_computed_as_written(
    sample: Callable[[RenyiDP, Fraction], RenyiDP],
    theorem: Callable[[int, float, RDP], float],
    adjacency: Adjacency,
    rho: Fraction,
) -> None:
    orders = tuple(Fraction(order) for order in range(2, 17))
    curve = RenyiDP(adjacency, "record", orders, tuple(rho * a for a in orders), Fraction(0))
    looked_at = 0
    for q in (Fraction(1, 1000), Fraction(1, 10), Fraction(1, 2)):
        sampled = sample(curve, q)
        for alpha in range(2, 17):
            said = theorem(alpha, float(q), lambda order: float(rho * order))
            whole = float(rho * alpha)
            assert float(sampled.at(Fraction(alpha))) == pytest.approx(min(said, whole), rel=1e-9)
            looked_at += said < whole
    assert looked_at > 10
