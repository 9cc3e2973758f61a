"""A vector that is hidden by Laplace noise on a grid: rounding to it moves neighbours apart."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.entropy import Entropy
from labelveil.common.mechanisms.central import perturbation


@pytest.mark.parametrize("size", [1, 2, 3, 8, 15, 24])
def test_no_neighbours_are_further_apart_than_the_noise_hides(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the noise, what comes out is the grid: L1 distance over its scale is ε at most."""
    scales: list[Fraction] = []

    def no_noise(scale: Fraction, count: int, source: object) -> np.ndarray:
        scales.append(scale)
        return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr(perturbation, "discrete_laplace", no_noise)
    epsilon, source = Fraction(1), Entropy(bytes(32)).source("x")

    def shown(vector: Floats, apart: Fraction) -> Floats:
        return perturbation._hidden(vector, apart, epsilon, source)

    chance = np.random.default_rng(size)
    worst = 0.0
    for apart in (Fraction(k, 61) for k in range(61, 122, 3)):
        fine = shown(np.full(size, 0.1), apart)[0]
        pitch = 2.0 ** -min(n for n in range(40) if float(fine * 2**n).is_integer())
        move = float(apart) / np.sqrt(size)
        for _ in range(20):
            # each coordinate starts just below the middle between two steps, and is moved beyond
            start = pitch * (chance.integers(-5, 5, size) + 0.499)
            moved = shown(start + move, apart) - shown(start, apart)
            distance = Fraction(float(np.abs(moved).sum())) / Fraction(pitch)
            worst = max(worst, float(distance / scales[-1]))
    assert worst <= float(epsilon)
    assert worst > 0.4 * float(epsilon)
