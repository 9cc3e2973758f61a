"""Sums that are kept up to date in private as numbers arrive, and learning online from them.

=====================  ===========================================================
``RunningSums``        every prefix sum of a stream of vectors, by a tree of noisy sums
``FollowTheLeader``    online convex optimisation on noisy sums of gradients
``PrivateHedge``       prediction with expert advice on noisy sums of losses
=====================  ===========================================================

*Tree aggregation:* T prefix sums of a stream for the price of log T of them. Numbers 1 … T are the
leaves of a binary tree. Each node that is complete holds the sum of its leaves with noise of its
own, drawn once; the sum of the first t is that of the at most ``L = ⌊log₂ T⌋ + 1`` nodes that t's
binary digits name. One number is in one node a level, so that L releases pay for all, whatever
later numbers were chosen after seeing: when a node is released its numbers are fixed. A new noise
on every prefix would cost T of them, one noise a number leaves T noises in the last sum; here it is
L at most. Numbers are integer vectors and noise is exact discrete noise. Each number completes one
node that is released.

*Online learning:* in every round the learner plays, then sees a loss. Neighbours differ in the loss
of one round; every play of all rounds is released. Both learners look at the past through
:class:`RunningSums` alone, so that their plays are post-processing, and a round's loss may depend
on all plays before.

*Follow the regularised leader:* ``w_{t+1}`` minimises ``η ⟨Σ g, w⟩ + ‖w‖²/2`` over the ball of
radius R, with the gradients g of norm C at most, rounded to a grid. Without noise the regret is
``R²/(2η) + ηTC²/2``; noise N_t in the sums moves a play by ``η E‖N_t‖`` at most, and so adds C
times that a round.

*Hedge:* experts' weights are ∝ ``e^{-η Σ losses}``, losses in 0 … 1.

Sources: Dwork, Naor, Pitassi, Rothblum, *Differential Privacy under Continual Observation*, STOC
2010, and Chan, Shi, Song, *Private and Continual Release of Statistics*, ICALP 2010 (the binary
mechanism); Guha Thakurta and Smith, *(Nearly) Optimal Algorithms for Private Online Learning in
Full-information and Bandit Settings*, NeurIPS 2013; Kairouz, McMahan, Song, Thakkar, Thakurta, Xu,
*Practical and Private (Deep) Learning Without Sampling or Shuffling*, ICML 2021; Agarwal and Singh,
*The Price of Differential Privacy for Online Learning*, ICML 2017 (experts).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy, WordSource
from labelveil.common.errors import BudgetError, DataError, PrivacyError
from labelveil.common.exact.noise import discrete_gaussian, discrete_laplace
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import multiple_above
from labelveil.common.guarantees import Adjacency, Guarantee, PureDP, Unit, ZeroConcentratedDP
from labelveil.common.guarantees.gaussian import gaussian_zcdp
from labelveil.common.guarantees.limits import at_least, positive
from labelveil.common.mechanisms.clipping import rounded_within
from labelveil.common.noncopyable import NonCopyable

__all__ = ["FollowTheLeader", "PrivateHedge", "RunningSums", "TreeNoise"]

_GRID = 1 << 10
"""Steps of the grid that gradients and losses are rounded to, in one unit of theirs, at most."""
_BLOCK = 1 << 12
"""Numbers of noise that are drawn at once."""


@dataclass(frozen=True)
class TreeNoise:
    """The noise of every node."""

    horizon: int
    """T >= 1."""
    sensitivity: int
    """Δ >= 1: how far one unit's change moves one number of the stream, in L1 for Laplace noise, in
    L2 for Gaussian noise."""
    scale: Fraction
    """Laplace scale, or Gaussian variance σ²."""
    noise: Literal["laplace", "gaussian"] = "gaussian"
    """Gives zCDP; "laplace" pure ε."""
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    """Neighbouring streams differ in one number."""
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        at_least(1, horizon=self.horizon, sensitivity=self.sensitivity)
        positive(scale=self.scale)
        if self.noise not in ("laplace", "gaussian"):
            raise PrivacyError(f"noise={self.noise!r} must be laplace or gaussian")

    @property
    def levels(self) -> int:
        """L: of the nodes that are ever complete."""
        return self.horizon.bit_length()

    @property
    def guarantee(self) -> PureDP | ZeroConcentratedDP:
        """The guarantee of all sums: ``LΔ/b``-DP, or ``LΔ²/(2σ²)``-zCDP."""
        if self.noise == "laplace":
            once: PureDP | ZeroConcentratedDP = PureDP.of(
                self.sensitivity / self.scale, self.adjacency, self.unit
            )
        else:
            once = gaussian_zcdp(self.scale, self.sensitivity**2, self.adjacency, self.unit)
        return once.repeat(self.levels)

    def draw(self, size: int, source: WordSource) -> Iterator[Integers]:
        """Yield (size,) noise of one node after the other, drawn many at a time."""
        sampler = discrete_laplace if self.noise == "laplace" else discrete_gaussian
        block = max(1, _BLOCK // size)
        for first in range(0, self.horizon, block):
            count = min(block, self.horizon - first)
            yield from sampler(self.scale, count * size, source).reshape(count, size)


class RunningSums(NonCopyable):
    """Prefix sums of a stream of vectors of d >= 1 integers, each asked for as it arrives.

    Entropy is the secret of this one stream.
    """

    def __init__(self, noise: TreeNoise, size: int, entropy: Entropy) -> None:
        super().__init__()
        self.noise = noise
        self.time = 0
        self._size = size
        self._draws = noise.draw(size, entropy.source("tree"))
        self._exact: dict[int, Integers] = {}
        self._noisy: dict[int, Integers] = {}

    def add(self, numbers: ArrayLike) -> Integers:
        """Take the next vector in; return the noisy sum of all so far, (d,) int64.

        Raises
        ------
        BudgetError
            After T vectors.
        DataError
            If this is no vector of d integers.
        """
        with self._lock:
            if self.time == self.noise.horizon:
                raise BudgetError(f"the stream has had its {self.time} numbers; start another")
            total = np.asarray(numbers)
            if total.shape != (self._size,) or total.dtype.kind not in "iu":
                raise DataError(f"a number of the stream must be {self._size} integers")
            self.time += 1
            level, total = 0, total.astype(np.int64)
            while level in self._exact:  # both halves of the node above are complete
                total = total + self._exact.pop(level)
                del self._noisy[level]
                level += 1
            self._exact[level] = total
            self._noisy[level] = total + next(self._draws)
            return np.asarray(np.sum(list(self._noisy.values()), axis=0), dtype=np.int64)


def _running_sums(
    horizon: int, size: int, reach: int, rho: float | Fraction, entropy: Entropy
) -> tuple[RunningSums, int]:
    """Sums of vectors that one round moves by ``reach`` in L2, and how fine their grid is; ρ-zCDP.

    The grid is as fine as the exact sampler takes, 1/1024 at most.
    """
    positive(rho=rho)
    variance = Fraction(reach**2 * horizon.bit_length(), 2) / rational(rho)
    grid = _GRID
    while grid > 1 and variance * grid**2 > 1 << 32:
        grid //= 2
    exact = multiple_above(variance * grid**2)
    noise = TreeNoise(horizon, reach * grid, exact, adjacency=Adjacency.REPLACE_RECORD)
    return RunningSums(noise, size, entropy), grid


class FollowTheLeader(NonCopyable):
    """Online convex optimisation in at most T rounds, ρ-zCDP for replacing one round's loss.

    ``play`` is what to play next, (d,) and 0 at first, in a ball of radius R; gradients longer than
    C = ``clip`` are shrunk to it. The learning rate η is by default the best for the noise:
    ``R/√(T(C² + the noise's part))``. Entropy is the secret of this one run.
    """

    def __init__(
        self,
        horizon: int,
        size: int,
        rho: float | Fraction,
        entropy: Entropy,
        *,
        radius: float = 1.0,
        clip: float = 1.0,
        learning_rate: float | None = None,
    ) -> None:
        super().__init__()
        positive(radius=radius, clip=clip, learning_rate=learning_rate)
        self.play: Floats = np.zeros(size)
        self._sums, self._grid = _running_sums(horizon, size, 2, rho, entropy)
        self._radius, self._unit = radius, clip / self._grid
        levels = self._sums.noise.levels  # noises in a sum
        noise = self._unit * math.sqrt(float(self._sums.noise.scale) * size * levels / 2)
        best = radius / math.sqrt(horizon * (clip**2 + 2 * clip * noise))
        self._rate = best if learning_rate is None else learning_rate

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all plays."""
        return self._sums.noise.guarantee

    def see(self, gradient: ArrayLike) -> Floats:
        """Take in the loss's (d,) gradient at :attr:`play`; return the next play.

        A gradient that is too long to have a norm, or holds what is no number, counts as 0.

        Raises
        ------
        DataError
            If the gradient has another length.
        """
        with np.errstate(over="ignore"):
            scaled = np.asarray(gradient, dtype=np.float64) / (self._unit * self._grid)
        if scaled.shape != self.play.shape:
            raise DataError(f"a gradient must be {self.play.size} numbers")
        with self._lock:
            sums = self._sums.add(rounded_within(scaled[None], self._grid)[0]) * self._unit
            ahead = -self._rate * sums
            shrunk = min(1.0, self._radius / max(float(np.linalg.norm(ahead)), 1e-300))
            self.play = np.asarray(ahead * shrunk, dtype=np.float64)
            return self.play


class PrivateHedge(NonCopyable):
    """Prediction with expert advice in at most T rounds, ρ-zCDP for replacing one round's losses.

    ``weights`` are those with which to follow each of k >= 2 experts next. The learning rate η is
    by default ``√(8 ln k / T)``, or less where noise would decide. Entropy is the secret of this
    one run.
    """

    def __init__(
        self,
        horizon: int,
        experts: int,
        rho: float | Fraction,
        entropy: Entropy,
        *,
        learning_rate: float | None = None,
    ) -> None:
        super().__init__()
        self.weights: Floats = np.full(experts, 1 / experts)
        reach = math.isqrt(experts - 1) + 1  # √k, rounded up
        self._sums, self._grid = _running_sums(horizon, experts, reach, rho, entropy)
        deviation = math.sqrt(float(self._sums.noise.scale)) / self._grid
        best = min(math.sqrt(8 * math.log(experts) / horizon), 1 / deviation)
        self._rate = best if learning_rate is None else learning_rate

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all weights."""
        return self._sums.noise.guarantee

    def see(self, losses: ArrayLike) -> Floats:
        """Take in the experts' (k,) losses, clipped to 0 … 1; return the next weights.

        A loss that is no number counts as 0.

        Raises
        ------
        DataError
            If there are not as many losses as experts.
        """
        finite = np.nan_to_num(np.asarray(losses, dtype=np.float64), nan=0.0, posinf=1.0)
        if finite.shape != self.weights.shape:
            raise DataError(f"losses must be {self.weights.size} numbers")
        steps = np.rint(np.clip(finite, 0, 1) * self._grid).astype(np.int64)
        with self._lock:
            self.weights = softmax(-self._rate * self._sums.add(steps) / self._grid)
            return self.weights
