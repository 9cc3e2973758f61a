"""Noise laws for labels on an interval of length Δ: Laplace, staircase, and discrete versions.

All are symmetric, and adding one to the label is ε-DP for labels at most Δ apart. Each law is given
by its upper tail, from which a channel's probabilities follow as differences: ``survival``,
P(N > x) for x >= 0, on the integers P(N >= x) for whole x >= 1; and ``excess``, E max(N - x, 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError


@dataclass(frozen=True)
class Laplace:
    """Density e^{-|x|/b} / (2b), b = Δ/ε (Dwork, McSherry, Nissim and Smith 2006).

    The variance is 2b², E|N| = b.
    """

    scale: float  # b > 0, in the label's units

    def survival(self, x: Floats) -> Floats:
        return np.asarray(np.exp(-x / self.scale) / 2)

    def excess(self, x: Floats) -> Floats:
        return np.asarray(self.scale * np.exp(-x / self.scale) / 2)


@dataclass(frozen=True)
class Staircase:
    """The staircase density of Geng and Viswanath (*The Optimal Mechanism in DP*, ISIT 2014).

    With b = e^{-ε}: a on [0, γΔ), a·b on [γΔ, Δ), times b on each further Δ, symmetric, and
    a = (1 - b) / (2Δ(γ + b(1 - γ))).
    """

    span: float  # Δ > 0
    epsilon: float  # ε > 0
    gamma: float  # γ in 0 … 1

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise ConfigError(f"gamma={self.gamma:g} must lie in 0 … 1; leave it out for the best")

    @property
    def decay(self) -> float:
        """b = e^{-ε}."""
        return math.exp(-self.epsilon)

    @property
    def height(self) -> float:
        """The density at 0, a(γ)."""
        b = self.decay
        return -math.expm1(-self.epsilon) / (2 * self.span * (self.gamma + b * (1 - self.gamma)))

    def _step(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """The period of x, and how far x lies on the period's high and low stair."""
        period = np.floor(x / self.span)
        rest = np.clip(x - period * self.span, 0.0, self.span)
        edge = self.gamma * self.span
        return period, np.minimum(rest, edge), np.maximum(rest - edge, 0.0)

    def survival(self, x: Floats) -> Floats:
        period, high, low = self._step(x)
        b, a = self.decay, self.height
        return np.asarray(b**period * (0.5 - a * high - a * b * low))

    def excess(self, x: Floats) -> Floats:
        period, high, low = self._step(x)
        whole = self._area(np.array(self.gamma * self.span), np.array((1 - self.gamma) * self.span))
        return np.asarray(self.decay**period * (whole / (1 - self.decay) - self._area(high, low)))

    def _area(self, high: Floats, low: Floats) -> Floats:
        """∫ survival over the first ``high`` of the high stair and ``low`` of the low one."""
        a, b = self.height, self.decay
        edge = 0.5 - a * self.gamma * self.span
        return np.asarray(high / 2 - a * high**2 / 2 + edge * low - a * b * low**2 / 2)


@dataclass(frozen=True)
class DiscreteStaircase:
    """The staircase law on the integers (Geng and Viswanath 2014), Δ whole steps wide.

    With b = e^{-ε}: P(i) = a for 0 <= i < r, a·b for r <= i < Δ, times b on each further Δ,
    symmetric, and a = (1 - b) / (2r + 2b(Δ - r) - (1 - b)).
    """

    steps: int  # Δ >= 1
    epsilon: float  # ε > 0
    stair: int  # r in 1 … Δ

    def __post_init__(self) -> None:
        if not 1 <= self.stair <= self.steps:
            raise ConfigError(f"r={self.stair} must lie in 1 … {self.steps}; leave it out for best")

    @property
    def decay(self) -> float:
        return math.exp(-self.epsilon)

    @property
    def height(self) -> float:
        """P(0), a(r)."""
        b, gone = self.decay, -math.expm1(-self.epsilon)
        return gone / (2 * self.stair + 2 * b * (self.steps - self.stair) - gone)

    def _tails(self) -> tuple[Floats, Floats]:
        """P(N >= i) for i = 0 … Δ - 1, counting N = 0 whole, and E max(N - i, 0)."""
        a, b, size = self.height, self.decay, self.steps
        law = np.where(np.arange(size) < self.stair, a, a * b)
        period = law.sum() / (1 - b)
        tail = np.concatenate([law[::-1].cumsum()[::-1] + b * period, [b * period]])
        beyond = tail[1:]  # E max(N - i, 0) = Σ_{j > i} P(N >= j)
        whole = beyond.sum() / (1 - b)
        excess = whole - np.concatenate([[0.0], beyond[:-1].cumsum()])
        return np.asarray(tail[:-1]), np.asarray(excess)

    def survival(self, n: Floats) -> Floats:
        period, rest = np.divmod(np.asarray(n), self.steps)
        return np.asarray(self.decay**period * self._tails()[0][rest.astype(np.int64)])

    def excess(self, n: Floats) -> Floats:
        period, rest = np.divmod(np.asarray(n), self.steps)
        return np.asarray(self.decay**period * self._tails()[1][rest.astype(np.int64)])

    def moment(self, power: int) -> float:
        """E|N|^power for power 1 or 2, in steps: with e_i = E max(N - i, 0) it is 2 e_0, or
        2 Σ (e_i + e_(i+1)) over all i >= 0."""
        excess = self._tails()[1]
        if power == 1:
            return 2 * float(excess[0])
        return 4 * float(excess.sum()) / -math.expm1(-self.epsilon) - 2 * float(excess[0])


@dataclass(frozen=True)
class DiscreteLaplace:
    """P(i) = (1 - q)/(1 + q) · q^|i| with q = e^{-ε/Δ} (Ghosh, Roughgarden, Sundararajan 2012)."""

    steps: int  # Δ >= 1, in grid steps
    epsilon: float  # ε > 0

    def survival(self, n: Floats) -> Floats:
        rate = self.epsilon / self.steps
        return np.asarray(np.exp(-rate * np.asarray(n)) / (1 + math.exp(-rate)))

    def excess(self, n: Floats) -> Floats:
        rate = self.epsilon / self.steps
        return np.asarray(self.survival(np.asarray(n) + 1) / -math.expm1(-rate))


def best_gamma(epsilon: float, *, squared: bool) -> float:
    """The γ of the staircase of least variance, or of least E|N| (Geng and Viswanath 2014)."""
    if not squared:
        return 1 / (1 + math.exp(epsilon / 2))
    b, gone = math.exp(-epsilon), -math.expm1(-epsilon)
    # b - 2b² + 2b⁴ - b⁵ = b (1 - b)³ (1 + b), without the cancellation
    return -b / gone + math.cbrt(b * (1 + b) / 2) / gone


def best_stair(steps: int, epsilon: float, *, squared: bool) -> int:
    """The r in 1 … Δ of least variance, or of least E|N|, by search."""
    power = 2 if squared else 1
    moments = [DiscreteStaircase(steps, epsilon, r).moment(power) for r in range(1, steps + 1)]
    return 1 + int(np.argmin(moments))
