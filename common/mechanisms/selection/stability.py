"""Propose-test-release for a top-k set: a noisy gap decides whether it may be shown as it is.

If the k-th and the (k+1)-st count differ by more than a gap can move, no neighbour has another
(unordered) top-k. Otherwise the set may depend on one user, and is let through with probability at
most δ_t. A gap moves by at most 1 when a user comes or goes (``step`` = 1), and by at most 2 when
one user's votes are replaced by others (``step`` = 2).

Source: Zhu and Wang 2022, Algorithms 4 and 5 with Lemma 18 and Corollary 19. Their threshold is a
tail bound of the continuous law; here noise is discrete and the threshold is its exact quantile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from common.entropy import WordSource
from common.errors import PrivacyError
from common.exact.noise import discrete_gaussian, discrete_laplace
from common.exact.rounding import above
from common.guarantees import ApproximateDP, ZeroConcentratedDP
from common.guarantees.gaussian import discrete_gaussian_tail
from common.mechanisms.selection.base import UNIT, neighbours

_ERROR = 1e-10


@dataclass(frozen=True)
class GaussianTest:
    """Pass if ``max{s, gap} + N_Z(σ²) > s + T``, T the (1 − δ_t)-quantile of the noise, s the step.

    δ_t-approximate s²/(2σ²)-zCDP together with the set that it lets through (Lemma 18).
    """

    variance: Fraction  # σ² > 0, denominator at most 4096
    delta: Fraction  # probability bound of letting an unstable set through
    step: int = 1  # how far a gap can move: 1 or 2

    def __post_init__(self) -> None:
        _check(self.variance, self.delta, self.step, "variance")

    @cached_property
    def threshold(self) -> int:
        """The least integer T with ``P[noise > T] <= δ_t``."""
        reach = np.arange(0.0, 40 * math.sqrt(float(self.variance)) + 3)
        return _first_below(discrete_gaussian_tail(self.variance, reach).tolist(), self.delta)

    @property
    def failure(self) -> Fraction:
        """P[an unstable set passes], rounded up: at most δ_t, and what is charged."""
        tail = discrete_gaussian_tail(self.variance, np.array([float(self.threshold)]))
        return min(self.delta, Fraction(float(tail[0])))

    @property
    def guarantee(self) -> ZeroConcentratedDP:
        """The guarantee of the answer and the set, given k."""
        rho = self.step**2 / (2 * self.variance)
        return ZeroConcentratedDP(neighbours(self.step), UNIT, rho, self.failure)

    def draw(self, gap: int, source: WordSource) -> bool:
        """Whether the set above this gap may be released."""
        noise = int(discrete_gaussian(self.variance, 1, source)[0])
        return max(self.step, gap) + noise > self.step + self.threshold


@dataclass(frozen=True)
class LaplaceTest:
    """Pass if ``max{s, gap} + Lap_Z(s/ε) > s + T``, T the (1 − δ_t)-quantile of the noise.

    (ε, δ_t)-DP together with the set that it lets through (Corollary 19).
    """

    epsilon: Fraction  # ε > 0
    delta: Fraction  # probability bound of letting an unstable set through
    step: int = 1  # how far a gap can move: 1 or 2

    def __post_init__(self) -> None:
        _check(self.epsilon, self.delta, self.step, "epsilon")

    @cached_property
    def threshold(self) -> int:
        """The least integer T with ``P[noise > T] <= δ_t``."""
        e = float(self.epsilon / self.step)
        guess = (-math.log(float(self.delta)) - math.log1p(math.exp(-e))) / e - 1
        least = max(0, math.floor(guess) - 2)
        tails = [_laplace_tail(e, t) for t in range(least, least + 8)]
        return least + _first_below(tails, self.delta)

    @property
    def failure(self) -> Fraction:
        """P[an unstable set passes], rounded up."""
        return min(
            self.delta, Fraction(_laplace_tail(float(self.epsilon / self.step), self.threshold))
        )

    @property
    def guarantee(self) -> ApproximateDP:
        """The guarantee of the answer and the set, given k."""
        return ApproximateDP(neighbours(self.step), UNIT, self.epsilon, self.failure)

    def draw(self, gap: int, source: WordSource) -> bool:
        """Whether the set above this gap may be released."""
        noise = int(discrete_laplace(self.step / self.epsilon, 1, source)[0])
        return max(self.step, gap) + noise > self.step + self.threshold


StabilityTest = GaussianTest | LaplaceTest


def _laplace_tail(epsilon: float, threshold: int) -> float:
    """``P[Lap_Z(1/ε) > T] = e^{−ε(T+1)}/(1 + e^{−ε})``, T >= 0, rounded up."""
    log_tail = -epsilon * (threshold + 1) - math.log1p(math.exp(-epsilon))
    return above(math.exp(log_tail)) * (1 + _ERROR)


def _first_below(tails: list[float], delta: Fraction) -> int:
    for t, tail in enumerate(tails):
        if Fraction(tail) <= delta:
            return t
    raise PrivacyError(f"delta={float(delta)} is too small to test for; raise it")


def _check(noise: Fraction, delta: Fraction, step: int, name: str) -> None:
    if step not in (1, 2):
        raise PrivacyError(f"step={step} must be 1 (a user comes or goes) or 2 (votes replaced)")
    if noise <= 0:
        raise PrivacyError(f"{name}={float(noise)} must be > 0")
    if not Fraction(1, 10**200) <= delta < 1:
        raise PrivacyError(f"delta={float(delta)} must lie in 1e-200 … 1")
