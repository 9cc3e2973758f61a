"""The minimiser of a regularised risk, with a certified bound of how far it is from the exact one.

    F(w) = (1/n) Σ ℓ(x_iᵀw, y_i) + vᵀw + (λ/2)‖w‖²

F is λ-strongly convex, so that any w lies within ``‖∇F(w)‖ / λ`` of the minimiser. The norm of the
gradient is computed in floats, and a bound of their rounding errors is added to it. That makes
"solved to tolerance" a statement about the exact minimiser, which is what the proofs of output and
objective perturbation speak of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.errors import PrivacyError
from labelveil.common.mechanisms.central.losses import Loss

_UNIT = 2.0**-53
_STEPS = 200
_HALVINGS = 40
_BLUR = 1e-12


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
