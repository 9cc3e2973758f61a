"""Private tests: is a count above a threshold, or between two; many at once, and misses are free.

Counts are integers that move by at most Δ between neighbours, and noise is the discrete Laplace law
of scale Δ/ε, so a noisy count is ε-DP. A single test compares it with its threshold. "Above" is
then a not-prior target, also if the noisy count is published with it: all counts below are the one
outcome "below". There is no noise on the threshold and none is needed. A test need not add noise to
a count at all: in :class:`DistinctCountTest` the randomness of a sketch takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Booleans, Integers, counted
from labelveil.common.entropy import WordSource
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.noise import discrete_laplace, uniform_below
from labelveil.common.exact.rounding import above, multiple_above
from labelveil.common.guarantees.limits import at_least, within
from labelveil.common.mechanisms.interactive.session import Answers, Outcome
from labelveil.common.mechanisms.interactive.targets import Target, between_thresholds, not_prior

_FINE = 1 << 32


@dataclass(frozen=True, eq=False)
class ThresholdTests:
    """Whether each of n counts reaches its threshold, with its noisy value if wanted."""

    counts: Callable[[Any], ArrayLike]
    """From the data to (n,) integers (or one), each of sensitivity ``sensitivity``."""
    thresholds: ArrayLike
    """Public integers: (n,) or one for all."""
    epsilon: Fraction
    """ε of each test."""
    sensitivity: int = 1
    """Δ >= 1."""
    values: bool = False
    """Publishes counts that pass, with their noise; that costs no more."""

    def __post_init__(self) -> None:
        _scale(self.epsilon, self.sensitivity)

    @property
    def target(self) -> Target:
        """Above: ``q = 1/(e^ε + 1)``."""
        return not_prior(self.epsilon)

    def draw(self, data: Any, source: WordSource) -> Answers:
        """Add noise and compare."""
        counts = integers(self.counts(data))
        scale = _scale(self.epsilon, self.sensitivity)
        noisy = counts + discrete_laplace(scale, counts.size, source)
        above = noisy >= np.asarray(self.thresholds, dtype=np.int64)
        return Answers(above, np.where(above, noisy, 0) if self.values else None)


class Position(IntEnum):
    """Where a noisy count lies."""

    BELOW = -1
    BETWEEN = 0
    ABOVE = 1


@dataclass(frozen=True)
class BetweenThresholds:
    """Below, between or above two thresholds; "between" is the target (Lemma G.1).

    For questions that have an answer almost always, whichever it is. ``q`` is that of a not-prior
    target times ``1 − e^{−ε w/Δ}``, w = high − low, so the interval must be about Δ/ε wide.
    """

    count: Callable[[Any], int]
    """From the data to one integer."""
    low: int
    """"between" is low <= noisy count < high."""
    high: int
    epsilon: Fraction
    sensitivity: int = 1
    """Δ >= 1."""

    def __post_init__(self) -> None:
        _scale(self.epsilon, self.sensitivity)

    @property
    def target(self) -> Target:
        """See :func:`labelveil.common.mechanisms.interactive.targets.between_thresholds`."""
        return between_thresholds(self.epsilon, self.high - self.low, self.sensitivity)

    def draw(self, data: Any, source: WordSource) -> Outcome[Position]:
        """Add noise and compare."""
        count = int(integers(self.count(data))[0])
        noisy = count + int(discrete_laplace(_scale(self.epsilon, self.sensitivity), 1, source)[0])
        position = Position(int(noisy >= self.high) - int(noisy < self.low))
        return Outcome(position, (position == Position.BETWEEN,))


@dataclass(frozen=True)
class DistinctCountTest:
    """Whether many different users occur, by a sketch whose own randomness is all the noise.

    Each user, however often they occur, falls into one of r registers and raises its flag with
    probability p; so do k phantoms in every register. The test asks how many flags are up. Sketches
    of this kind merge by "or" and never hold an identity, only their randomness must be fresh for a
    test: where a plain count is at hand, :class:`ThresholdTests` tells more at the same ε.

    Privacy, for a user who comes or goes. Which register they fall into says nothing of the others,
    so let it be given; its flag stays down with probability s^N for N users and phantoms,
    ``s = 1 − p``. One more multiplies that by s, which is at least ``e^{−ε}``, and raises the
    chance of "up" by ``(1 − s^{N+1})/(1 − s^N)``, largest at N = k and at most 1/s if
    ``s^k (1 + s) <= 1``. So the whole sketch is ε-DP, and "yes" a not-prior target (as in Smith,
    Song, Thakurta, *The Flajolet-Martin Sketch Itself Preserves Differential Privacy*, NeurIPS
    2020, with flags in place of maxima).
    """

    users: Callable[[Any], ArrayLike]
    """From the data to (n,) identities, integers that may repeat."""
    registers: int
    """r >= 1."""
    least_flags: int
    """Yes if at least that number of flags is up; see :meth:`expected_flags`."""
    epsilon: Fraction
    """ε of the test, at least 1e-4."""

    def __post_init__(self) -> None:
        at_least(1, registers=self.registers)
        within("[1e-4, 40]", epsilon=self.epsilon)

    @property
    def target(self) -> Target:
        """Yes: ``q = 1/(e^ε + 1)``."""
        return not_prior(self.epsilon)

    @property
    def stays_down(self) -> Fraction:
        """s, a multiple of 2⁻³² that is at least ``e^{−ε}``."""
        exact = Fraction(above(math.exp(-float(self.epsilon))))
        return multiple_above(exact, _FINE)

    @property
    def phantoms(self) -> int:
        """The least k with ``s^k (1 + s) <= 1``."""
        s = float(self.stays_down)
        return math.ceil(math.log1p(s) / -math.log(s) * (1 + 1e-12))

    def expected_flags(self, users: int) -> float:
        """How many flags n different users raise, on average."""
        s = float(self.stays_down)
        return self.registers * (1 - s**self.phantoms * (1 - (1 - s) / self.registers) ** users)

    def draw(self, data: Any, source: WordSource) -> Outcome[bool]:
        """Build a fresh sketch and look at it."""
        flags = int(self.sketch(data, source).sum())
        return Outcome(flags >= self.least_flags, (flags >= self.least_flags,))

    def sketch(self, data: Any, source: WordSource) -> Booleans:
        """(r,) flags, ε-DP as a whole."""
        users = np.unique(integers(self.users(data))).size
        phantoms = np.tile(np.arange(self.registers), self.phantoms)
        place = np.concatenate([phantoms, uniform_below(self.registers, users, source)])
        raised = uniform_below(_FINE, place.size, source) >= int(self.stays_down * _FINE)
        flags = np.zeros(self.registers, dtype=np.bool_)
        flags[place[raised]] = True
        return flags


def _scale(epsilon: Fraction, sensitivity: int) -> Fraction:
    at_least(1, sensitivity=sensitivity)
    if max(epsilon.numerator * sensitivity, epsilon.denominator * sensitivity) > 1 << 48:
        raise PrivacyError(f"epsilon={epsilon} must be a fraction of numbers below 2**48; round it")
    return sensitivity / epsilon


def integers(counts: ArrayLike) -> Integers:
    """A vector of integers, or one number as such."""
    return counted(np.atleast_1d(np.asarray(counts)), "counts", signed=True)
