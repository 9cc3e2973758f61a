"""Convex losses of a linear model's output z = xᵀw, with the two constants that privacy needs.

For rows of norm at most 1, ``lipschitz`` L bounds the gradient of one record's loss in w and
``smoothness`` c its curvature: |∂ℓ/∂z| <= L and 0 <= ∂²ℓ/∂z² <= c everywhere, where it exists.
``margin`` says whether the loss depends on y z alone, with labels y = ±1. ``value`` is ℓ(z, y),
``slope`` ∂ℓ/∂z, and ``curvature`` ∂²ℓ/∂z², one of its limits where it jumps; all take and return
(n,) arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from labelveil.common.arrays import Floats
from labelveil.common.guarantees.limits import positive, within


@dataclass(frozen=True)
class Logistic:
    """``ln(1 + e^{-yz})`` for y = ±1: L = 1, c = 1/4."""

    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 0.25
    margin: ClassVar[bool] = True

    def value(self, outputs: Floats, labels: Floats) -> Floats:
        return np.asarray(np.logaddexp(0.0, -labels * outputs))

    def slope(self, outputs: Floats, labels: Floats) -> Floats:
        return np.asarray(-labels * scipy.special.expit(-labels * outputs))

    def curvature(self, outputs: Floats, labels: Floats) -> Floats:
        return np.asarray(scipy.special.expit(outputs) * scipy.special.expit(-outputs))


@dataclass(frozen=True)
class HuberHinge:
    """The hinge loss with a quadratic bend of half-width h: L = 1, c = 1/(2h).

    0 from yz = 1 + h on, ``(1 + h - yz)² / (4h)`` around 1, ``1 - yz`` below 1 - h (Chaudhuri,
    Monteleoni, Sarwate 2011, Section 3.4.2).
    """

    bend: float = 0.5
    lipschitz: ClassVar[float] = 1.0
    margin: ClassVar[bool] = True

    def __post_init__(self) -> None:
        within("(0, 1]", bend=self.bend)

    @property
    def smoothness(self) -> float:
        return 1 / (2 * self.bend)

    def value(self, outputs: Floats, labels: Floats) -> Floats:
        above = np.maximum(1 + self.bend - labels * outputs, 0.0)
        bent = above * above / (4 * self.bend)
        return np.asarray(np.where(above > 2 * self.bend, above - self.bend, bent))

    def slope(self, outputs: Floats, labels: Floats) -> Floats:
        above = (1 + self.bend - labels * outputs) / (2 * self.bend)
        return np.asarray(-labels * np.clip(above, 0.0, 1.0))

    def curvature(self, outputs: Floats, labels: Floats) -> Floats:
        inside = np.abs(1 - labels * outputs) <= self.bend
        return np.asarray(inside * self.smoothness)


@dataclass(frozen=True)
class Huber:
    """``r²/2`` for residuals r = z - y up to ``knee``, linear beyond: L = knee, c = 1."""

    knee: float = 1.0
    smoothness: ClassVar[float] = 1.0
    margin: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(knee=self.knee)

    @property
    def lipschitz(self) -> float:
        return self.knee

    def value(self, outputs: Floats, labels: Floats) -> Floats:
        size = np.abs(outputs - labels)
        inner = np.minimum(size, self.knee)
        return np.asarray(inner * (size - inner / 2))

    def slope(self, outputs: Floats, labels: Floats) -> Floats:
        return np.asarray(np.clip(outputs - labels, -self.knee, self.knee))

    def curvature(self, outputs: Floats, labels: Floats) -> Floats:
        return np.asarray((np.abs(outputs - labels) <= self.knee) * 1.0)


Loss = Logistic | HuberHinge | Huber


def ridge_loss(regularization: float) -> Huber:
    """Return a loss whose minimiser is ridge regression's and whose slope is bounded.

    For labels in -1 … 1 and rows of norm at most 1 the ridge solution obeys
    ``‖w‖ <= max_s s/(s² + λ)`` over the singular values 0 <= s <= 1 of X/√n, so that its residuals
    stay below the knee ``1 + max_s s/(s² + λ)``: there the Huber loss *is* the squared loss, and by
    strong convexity both have the same minimiser. (Noise may push a minimiser beyond the knee,
    where the loss is linear; the guarantee does not ask.)
    """
    positive(alpha=regularization)
    strongest = min(1.0, regularization**0.5)  # the s in 0 … 1 with the largest s/(s² + λ)
    return Huber(1 + strongest / (strongest**2 + regularization))
