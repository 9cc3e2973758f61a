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
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from labelveil.common.arrays import Integers
from labelveil.common.entropy import WordSource
from labelveil.common.errors import PrivacyError, not_none
from labelveil.common.exact.noise import discrete_gaussian, discrete_laplace
from labelveil.common.exact.rounding import float_below
from labelveil.common.exact.search import least_integer
from labelveil.common.guarantees import ApproximateDP, ZeroConcentratedDP
from labelveil.common.guarantees.gaussian import discrete_gaussian_tail
from labelveil.common.guarantees.limits import positive, within
from labelveil.common.mechanisms.selection.base import UNIT, neighbours

_ERROR = 1e-10


class _Test(ABC):
    """Pass if ``max{s, gap} + noise > s + T``, s the step, T the noise's (1 − δ_t)-quantile."""

    delta: Fraction
    step: int

    def _check(self, name: str, size: Fraction) -> None:
        if self.step not in (1, 2):
            raise PrivacyError(
                f"step={self.step} must be 1 (a user comes or goes) or 2 (votes replaced)"
            )
        positive(**{name: size})
        within("[1e-200, 1)", delta=self.delta)

    @cached_property
    def threshold(self) -> int:
        """The least integer T >= 0 with ``P[noise > T] <= δ_t``."""
        return self._quantile(float_below(self.delta))

    def _quantile(self, allowed: float) -> int:
        """The least integer t >= 0 with ``P[noise > t] <= allowed``."""
        return not_none(least_integer(lambda t: self._tail(t) <= allowed, 0))

    @abstractmethod
    def _tail(self, threshold: int) -> float:
        """``P[noise > T]`` for T >= 0, rounded up."""

    @abstractmethod
    def _noise(self, source: WordSource) -> Integers: ...

    @property
    def failure(self) -> Fraction:
        """P[an unstable set passes], rounded up: at most δ_t, and what is charged."""
        return Fraction(self._tail(self.threshold))

    def gap_needed(self, miss: float) -> int:
        """The least gap that passes but for probability ``miss``, in (0, 1/2): for planning.

        Twice the noise's quantile, and the step, where both probabilities are δ: exact, where
        Theorem 20 of Zhu and Wang adds two tail bounds, ``1 + 2σ√(2 ln(1/δ))`` or
        ``1 + 2 ln(1/δ)/ε``.
        """
        within("(0, 1/2)", miss=miss)
        # a gap g fails if noise <= s + T − g; by symmetry if noise > g − s − T − 1
        return self.step + self.threshold + 1 + self._quantile(float_below(Fraction(miss)))

    def draw(self, gap: int, source: WordSource) -> bool:
        """Whether the set above this gap may be released."""
        return max(self.step, gap) + int(self._noise(source)[0]) > self.step + self.threshold


@dataclass(frozen=True)
class GaussianTest(_Test):
    """The test with noise N_Z(σ²): with the set that it lets through δ_t-approximate s²/(2σ²)-zCDP.

    Lemma 18.
    """

    variance: Fraction
    """σ² > 0, denominator at most 4096."""
    delta: Fraction
    """δ_t: bound of the probability of letting an unstable set through."""
    step: int = 1
    """s, how far a gap can move: 1 or 2."""

    def __post_init__(self) -> None:
        self._check("variance", self.variance)

    @property
    def guarantee(self) -> ZeroConcentratedDP:
        """The guarantee of the answer and the set, given k."""
        rho = self.step**2 / (2 * self.variance)
        return ZeroConcentratedDP(neighbours(self.step), UNIT, rho, self.failure)

    def _tail(self, threshold: int) -> float:
        return discrete_gaussian_tail(self.variance, threshold)

    def _noise(self, source: WordSource) -> Integers:
        return discrete_gaussian(self.variance, 1, source)


@dataclass(frozen=True)
class LaplaceTest(_Test):
    """The test with noise Lap_Z(s/ε): (ε, δ_t)-DP with the set that it lets through (Cor. 19)."""

    epsilon: Fraction
    """ε > 0."""
    delta: Fraction
    """δ_t: bound of the probability of letting an unstable set through."""
    step: int = 1
    """s, how far a gap can move: 1 or 2."""

    def __post_init__(self) -> None:
        self._check("epsilon", self.epsilon)

    @property
    def guarantee(self) -> ApproximateDP:
        """The guarantee of the answer and the set, given k."""
        return ApproximateDP(neighbours(self.step), UNIT, self.epsilon, self.failure)

    def _tail(self, threshold: int) -> float:
        # e^{−r(T+1)}/(1 + e^{−r}) for the rate r = ε/s
        rate = float(self.epsilon / self.step)
        return math.exp(-rate * (threshold + 1) - math.log1p(math.exp(-rate))) * (1 + _ERROR)

    def _noise(self, source: WordSource) -> Integers:
        return discrete_laplace(self.step / self.epsilon, 1, source)
