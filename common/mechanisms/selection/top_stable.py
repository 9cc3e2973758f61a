"""Top-Stable: look for a wide gap with the sparse vector technique, then show the set above it.

Source: Carvalho, Wang, Gondara, Miao, *Differentially Private Top-k Selection via Stability on
Unknown Domain*, UAI 2020. Noise here is discrete, and the threshold is the least one at which the
chance of stopping at an unstable rank, over all k̄ of them, is at most δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import not_none
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.exact.rounding import multiple_above
from labelveil.common.exact.search import least_integer
from labelveil.common.guarantees import ApproximateDP
from labelveil.common.guarantees.limits import at_least, positive, within
from labelveil.common.mechanisms.selection.base import ADJACENCY, UNIT, Ranking, Selection, ranked

_ERROR = 1e-9
_SHARE = Fraction(37, 100)
"""ε₁/ε, as in the authors' experiments."""


@dataclass(frozen=True)
class TopStable:
    """Up to k candidates as an unordered set: the first rank whose noisy gap passes, from k down.

    The query of rank i is ``max{h_(i) − h_(i+1) − 1, 0}``, of sensitivity 1, with noise
    Lap_Z(2/ε₂); the threshold carries Lap_Z(1/ε₁). Finding the rank is (ε₁ + ε₂)-DP (Dwork and Roth
    2014, Theorem 3.23). A rank with a positive query has the same set in every neighbour; a rank
    with query 0 passes with probability at most δ/k. So the whole is (ε₁ + ε₂, δ)-DP.
    """

    k: int
    """The most to select."""
    epsilon: Fraction
    """ε = ε₁ + ε₂ > 0."""
    delta: Fraction
    """Failure probability over all ranks."""

    def __post_init__(self) -> None:
        at_least(1, k=self.k)
        positive(epsilon=self.epsilon)
        within("[1e-100, 1)", delta=self.delta)

    @cached_property
    def scales(self) -> tuple[Fraction, Fraction]:
        """Scales of the threshold's and of a query's noise, ``1/ε₁`` and ``2/ε₂``, rounded up."""
        first = multiple_above(1 / (_SHARE * self.epsilon))
        return first, multiple_above(2 / ((1 - _SHARE) * self.epsilon))

    @cached_property
    def threshold(self) -> int:
        """The least integer T with ``P[query noise − threshold noise > T] <= δ/k``."""
        allowed = self.delta / self.k
        return not_none(least_integer(lambda t: self._alarm(t) <= allowed, 1))

    @cached_property
    def guarantee(self) -> ApproximateDP:
        """The guarantee, from the scales and the threshold that are used."""
        first, second = self.scales
        failure = self.k * self._alarm(self.threshold)
        return ApproximateDP(ADJACENCY, UNIT, 1 / first + 2 / second, failure)

    def draw(self, counts: Ranking | ArrayLike, entropy: Entropy) -> Selection:
        """Select the set above the first gap that passes, or ⊥."""
        ranking, source = ranked(counts), entropy.source("top-stable")
        queries: Integers = np.maximum(ranking.padded_gaps(self.k) - 1, 0)
        first, second = self.scales
        bar = self.threshold + int(discrete_laplace(first, 1, source)[0])
        noisy = queries + discrete_laplace(second, queries.size, source)
        passed = np.flatnonzero(noisy > bar)
        chosen = ranking.top(int(passed[-1]) + 1) if passed.size else None
        return Selection(chosen, self.guarantee)

    def _alarm(self, threshold: int) -> Fraction:
        """``P[X − Y > T]``, T >= 0, X noise of a query and Y of the threshold, summed over Y."""
        first, second = (float(scale) for scale in self.scales)
        reach = math.ceil(750 * first) + 1
        y = np.arange(-reach, reach + 1.0)
        r1, r2 = math.exp(-1 / first), math.exp(-1 / second)
        mass = (1 - r1) / (1 + r1) * np.exp(-np.abs(y) / first)
        t = y + threshold
        tail = np.where(
            t >= 0,
            np.exp(-(np.maximum(t, 0) + 1) / second) / (1 + r2),
            1 - np.exp(np.minimum(t, 0) / second) / (1 + r2),
        )
        return Fraction(float(np.sum(mass * tail)) * (1 + _ERROR) + 1e-320)  # rounded up
