"""The boundary wrapper: an algorithm that is sure of its answer gives it away almost free.

Around an ε-DP mechanism M with likeliest outcome y*, let π = P[M ≠ y*]. The wrapper shows a
*boundary* symbol with probability ``g = min{1/3, π/(1 + π)}`` and otherwise an outcome of M (Cohen
and Lyu 2023, Algorithm 4). The boundary is the target; outcomes of M are free.

*Exactly, with no probability computed.* Toss a fair coin until it decides: heads, give an outcome
of M; tails, run M and show the boundary if it is not y*, else toss again. The boundary's chance is
``(π/2) / (1/2 + π/2) = π/(1 + π)``. Only whether π <= 1/2 must be known, and where that is decided
wrongly for ``|π − 1/2| <= 1e-9``, g is off by one part in 10⁸ at a place where both formulas meet.
That adds less than 1e-8 to t; and it takes nothing from q, since around π = 1/2 the proof of
:func:`labelveil.common.mechanisms.interactive.targets.boundary` has a margin of about ε/3, for ε >=
1e-4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import WordSource
from labelveil.common.errors import DataError
from labelveil.common.exact.exponential_choice import exponential_choice
from labelveil.common.exact.noise import discrete_laplace, uniform_below
from labelveil.common.guarantees.limits import within
from labelveil.common.mechanisms.interactive.session import Outcome
from labelveil.common.mechanisms.interactive.targets import Target, boundary
from labelveil.common.mechanisms.interactive.thresholds import integers

_SLACK = Fraction(1, 10**8)
_TAIL = 45.0


class Oracle(Protocol):
    """A mechanism that knows its likeliest outcome."""

    @property
    def epsilon(self) -> Fraction:
        """ε of the mechanism."""

    def likeliest(self, data: Any) -> tuple[int, float]:
        """An outcome that none is likelier than, and its probability up to an error of 1e-9."""

    def draw(self, data: Any, source: WordSource) -> int:
        """Draw an outcome from the exact law."""


@dataclass(frozen=True)
class Boundary:
    """The wrapper around a mechanism, as a call: an outcome, or None for the boundary."""

    oracle: Oracle
    """The mechanism, of ε >= 1e-4."""

    def __post_init__(self) -> None:
        within("[1e-4, ∞)", epsilon=self.oracle.epsilon)

    @property
    def target(self) -> Target:
        """The boundary; see :func:`labelveil.common.mechanisms.interactive.targets.boundary`."""
        return boundary(self.oracle.epsilon, _SLACK)

    def draw(self, data: Any, source: WordSource) -> Outcome[int | None]:
        """Draw an outcome or the boundary."""
        likeliest, probability = self.oracle.likeliest(data)
        at_boundary = False
        if probability < 0.5:
            at_boundary = not uniform_below(3, 1, source)[0]
        else:
            while not at_boundary and uniform_below(2, 1, source)[0]:
                at_boundary = self.oracle.draw(data, source) != likeliest
        value = None if at_boundary else self.oracle.draw(data, source)
        return Outcome(value, (at_boundary,))


@dataclass(frozen=True)
class _Scored:
    scores: Callable[[Any], ArrayLike]  # from the data to (n,) integers
    epsilon: Fraction
    # by how much the difference of two scores can change between neighbours: 2Δ, or Δ if all scores
    # move in one direction
    spread: int = 2

    @property
    def _rate(self) -> Fraction:
        return self.epsilon / self.spread

    def _of(self, data: Any) -> Integers:
        scores = integers(self.scores(data))
        if not scores.size:
            raise DataError("there are no scores; name at least one outcome")
        return scores


@dataclass(frozen=True)
class ExponentialMechanism(_Scored):
    """``P(i) ∝ exp(score_i · ε/spread)``."""

    def likeliest(self, data: Any) -> tuple[int, float]:
        """The highest score (the first of equals) and its share."""
        scores = self._of(data)
        weights = np.exp((scores - scores.max()) * float(self._rate))
        return int(scores.argmax()), 1 / float(weights.sum())

    def draw(self, data: Any, source: WordSource) -> int:
        """Draw exactly."""
        return exponential_choice(self._of(data), self._rate, source)


@dataclass(frozen=True)
class NoisyMaxLaplace(_Scored):
    """The first index of the largest score plus discrete Laplace noise of scale ``spread/ε``."""

    def likeliest(self, data: Any) -> tuple[int, float]:
        """The highest score (the first of equals) and its chance, by a sum over its noise."""
        scores = self._of(data)
        best, rate = int(scores.argmax()), float(self._rate)
        behind = np.minimum(scores.max() - scores, 1 << 40).astype(np.float64)
        reach = math.ceil((_TAIL + math.log(scores.size)) / rate)
        noise = np.arange(-reach, reach + 1.0)
        ratio = math.exp(-rate)
        chances = (1 - ratio) / (1 + ratio) * np.exp(-rate * np.abs(noise))
        # another wins a tie if its index is lower, so it must stay below that much
        for distance, count in zip(*np.unique(behind[:best], return_counts=True), strict=True):
            chances *= _laplace_cdf(noise + distance - 1, rate) ** count
        for distance, count in zip(*np.unique(behind[best + 1 :], return_counts=True), strict=True):
            chances *= _laplace_cdf(noise + distance, rate) ** count
        return best, float(chances.sum())

    def draw(self, data: Any, source: WordSource) -> int:
        """Draw exactly."""
        scores = self._of(data)
        noise = discrete_laplace(1 / self._rate, scores.size, source)
        return int(np.argmax(scores + noise))


@dataclass(frozen=True)
class LaplaceTest:
    """1 if a count plus discrete Laplace noise of scale Δ/ε reaches a threshold, else 0."""

    count: Callable[[Any], int]
    """From the data to one integer."""
    threshold: int
    """Public."""
    epsilon: Fraction
    sensitivity: int = 1
    """Δ >= 1."""

    def likeliest(self, data: Any) -> tuple[int, float]:
        """The side on which the count lies: noise is as likely to be negative as positive."""
        distance = self.threshold - int(self.count(data))
        rate = float(self.epsilon / self.sensitivity)
        below = float(_laplace_cdf(np.array([float(min(distance - 1, 1 << 40))]), rate)[0])
        return (1, 1 - below) if distance <= 0 else (0, below)

    def draw(self, data: Any, source: WordSource) -> int:
        """Draw exactly."""
        noise = discrete_laplace(self.sensitivity / self.epsilon, 1, source)[0]
        return int(int(self.count(data)) + int(noise) >= self.threshold)


def _laplace_cdf(points: Floats, rate: float) -> Floats:
    """``P[Z <= x]`` of the discrete Laplace law of scale 1/rate, at integers x."""
    below = np.exp(rate * np.minimum(points, 0)) / (1 + math.exp(-rate))
    above = 1 - np.exp(-rate * (np.maximum(points, 0) + 1)) / (1 + math.exp(-rate))
    return np.where(points < 0, below, above)
