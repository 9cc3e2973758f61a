"""Online learning in private: what is played follows from noisy sums of what was seen.

In every round the learner plays, then sees a loss. Neighbours differ in the loss of one round;
every play of all rounds is released. Both learners look at the past through
:class:`~labelveil.common.mechanisms.continual.tree.RunningSums` alone, so that their plays are
post-processing, and a round's loss may depend on all plays before.

*Follow the regularised leader:* ``w_{t+1}`` minimises ``η ⟨Σ g, w⟩ + ‖w‖²/2`` over the ball of
radius R, with the gradients g of norm C at most, rounded to a grid. Without noise the regret is
``R²/(2η) + ηTC²/2``; noise N_t in the sums moves a play by ``η E‖N_t‖`` at most, and so adds C
times that a round.

*Hedge:* experts' weights are ∝ ``e^{-η Σ losses}``, losses in 0 … 1.

Source: Guha Thakurta and Smith, *(Nearly) Optimal Algorithms for Private Online Learning in
Full-information and Bandit Settings*, NeurIPS 2013; Kairouz, McMahan, Song, Thakkar, Thakurta, Xu,
*Practical and Private (Deep) Learning Without Sampling or Shuffling*, ICML 2021; Agarwal and Singh,
*The Price of Differential Privacy for Online Learning*, ICML 2017 (experts).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from labelveil.common.arrays import Floats
from labelveil.common.entropy import Entropy
from labelveil.common.errors import DataError
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import multiple_above
from labelveil.common.guarantees import Adjacency, Guarantee
from labelveil.common.guarantees.limits import positive
from labelveil.common.mechanisms.clipping import rounded_within
from labelveil.common.mechanisms.continual.tree import RunningSums, TreeNoise
from labelveil.common.sole import Sole

_GRID = 1 << 10


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


class FollowTheLeader(Sole):
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
        with self._turn:
            sums = self._sums.add(rounded_within(scaled[None], self._grid)[0]) * self._unit
            ahead = -self._rate * sums
            shrunk = min(1.0, self._radius / max(float(np.linalg.norm(ahead)), 1e-300))
            self.play = np.asarray(ahead * shrunk, dtype=np.float64)
            return self.play


class PrivateHedge(Sole):
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
        with self._turn:
            self.weights = softmax(-self._rate * self._sums.add(steps) / self._grid)
            return self.weights
