"""A regularised risk: convex losses, and its minimiser with a certified bound of how far it is off.

    F(w) = (1/n) Σ ℓ(x_iᵀw, y_i) + vᵀw + (λ/2)‖w‖²

*Losses* of a linear model's output z = xᵀw, with the two constants that privacy needs. For rows of
norm at most 1, ``lipschitz`` L bounds the gradient of one record's loss in w and ``smoothness`` c
its curvature: |∂ℓ/∂z| <= L and 0 <= ∂²ℓ/∂z² <= c everywhere, where it exists. ``margin`` says
whether the loss depends on y z alone, with labels y = ±1. ``value`` is ℓ(z, y), ``slope`` ∂ℓ/∂z,
and ``curvature`` ∂²ℓ/∂z², one of its limits where it jumps; all take and return (n,) arrays.

*The minimiser:* F is λ-strongly convex, so that any w lies within ``‖∇F(w)‖ / λ`` of it. The norm
of the gradient is computed in floats, and a bound of their rounding errors is added to it. That
makes "solved to tolerance" a statement about the exact minimiser, which is what the proofs of
output and objective perturbation speak of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from labelveil.common.arrays import Floats
from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees.limits import positive, within

_UNIT = 2.0**-53
_STEPS = 200
_HALVINGS = 40
_BLUR = 1e-12
"""Relative differences of F below this are rounding."""


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


def least_tolerance(rows: int, columns: int, lipschitz: float) -> float:
    """Return a gradient norm that float arithmetic can certify for so much data, generously."""
    return 64 * (rows + columns + 16) * _UNIT * max(1.0, lipschitz)


@dataclass(frozen=True, eq=False)
class Risk:
    """F, for n records of d features."""

    loss: Loss  # ℓ
    rows: Floats  # (n, d) x, of norm at most 1 where a certificate is wanted
    labels: Floats  # (n,) y
    ridge: float  # λ > 0
    linear: Floats  # (d,) v

    def value(self, w: Floats) -> float:
        """F(w)."""
        losses = self.loss.value(self.rows @ w, self.labels)
        return float(losses.mean() + self.linear @ w + self.ridge / 2 * (w @ w))

    def gradient(self, w: Floats) -> Floats:
        """∇F(w), (d,)."""
        slopes = self.loss.slope(self.rows @ w, self.labels)
        return np.asarray(self.rows.T @ slopes / len(self.rows) + self.linear + self.ridge * w)

    def newton_step(self, w: Floats, gradient: Floats) -> Floats:
        """``(∇²F(w))⁻¹ ∇F(w)``, (d,)."""
        bends = self.loss.curvature(self.rows @ w, self.labels)
        hessian = (self.rows * bends[:, None]).T @ self.rows / len(self.rows)
        return np.asarray(
            np.linalg.solve(hessian + self.ridge * np.eye(w.size), gradient), dtype=np.float64
        )

    def certain_norm(self, w: Floats, gradient: Floats) -> float:
        """Return a bound of the exact ``‖∇F(w)‖``.

        A float sum of k products errs by at most k u/(1 - ku) times the sum of their magnitudes, in
        whatever order it is made (Higham, *Accuracy and Stability of Numerical Algorithms*, 2002,
        Section 3.1). With rows of norm at most 1 that is (d + 2) u ‖w‖ for an output, c times as
        much plus a few u L for a slope, n u L for their mean; other terms are single products.
        """
        n, d = self.rows.shape
        length = float(np.linalg.norm(w))
        steep = self.loss.lipschitz
        slopes = self.loss.smoothness * (d + 4) * _UNIT * (length + 1) + 16 * _UNIT * steep
        mean = (n + 8) * _UNIT * steep + slopes
        other = 8 * _UNIT * (float(np.linalg.norm(self.linear)) + self.ridge * length)
        norm = float(np.linalg.norm(gradient)) * (1 + (d + 8) * _UNIT)
        return float((norm + 1.01 * (mean + other)) * (1 + 1e-12))


def minimise(risk: Risk, tolerance: float | None = None) -> Floats:
    """(d,) w that minimises F, by Newton's method with line search.

    ``tolerance`` bounds ``‖∇F(w)‖``, rounding errors included; None asks for no certificate. Raises
    ``PrivacyError`` if it is not reached: too strict for float64 and this λ.
    """
    w = np.zeros(risk.rows.shape[1])
    gradient = risk.gradient(w)
    best, least = w, risk.certain_norm(w, gradient)
    goal = 0.0 if tolerance is None else tolerance / 4
    for _ in range(_STEPS):
        if np.linalg.norm(gradient) <= goal:
            break
        there = _search(risk, w, risk.newton_step(w, gradient), gradient)
        if there is None:
            break
        w, gradient = there
        bound = risk.certain_norm(w, gradient)
        if bound < least:
            best, least = w, bound
    if tolerance is not None and not least <= tolerance:
        raise PrivacyError(
            f"the minimiser is known to a gradient norm of {least:.3g} only, above the tolerance"
            f" {tolerance:.3g} that the noise is made for; raise alpha={risk.ridge:g}"
        )
    return best


def _search(risk: Risk, w: Floats, step: Floats, gradient: Floats) -> tuple[Floats, Floats] | None:
    """Halve the step until F falls; where F no longer shows a difference, until ∇F does."""
    value, descent = risk.value(w), float(gradient @ step)
    norm, size = float(np.linalg.norm(gradient)), 1.0
    blur = _BLUR * (1 + abs(value))
    for _ in range(_HALVINGS):
        there = w - size * step
        slope, reached = risk.gradient(there), risk.value(there)
        if size * descent > blur:
            falls = reached <= value - 1e-4 * size * descent
        else:
            falls = bool(np.linalg.norm(slope) < norm / 2)
        if falls:
            return there, slope
        size /= 2
    return None
