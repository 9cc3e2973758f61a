"""Tree aggregation: T prefix sums of a stream for the price of log T of them.

Numbers 1 … T are the leaves of a binary tree. Each node that is complete holds the sum of its
leaves with noise of its own, drawn once; the sum of the first t is that of the at most
``L = ⌊log₂ T⌋ + 1`` nodes that t's binary digits name. One number is in one node a level, so that L
releases pay for all, whatever later numbers were chosen after seeing: when a node is released its
numbers are fixed. A new noise on every prefix would cost T of them, one noise a number leaves T
noises in the last sum; here it is L at most.

Numbers are integer vectors and noise is exact discrete noise. Each number completes one node that
is released.

Source: Dwork, Naor, Pitassi, Rothblum, *Differential Privacy under Continual Observation*, STOC
2010; Chan, Shi, Song, *Private and Continual Release of Statistics*, ICALP 2010 (the binary
mechanism).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Integers
from labelveil.common.entropy import Entropy, WordSource
from labelveil.common.errors import BudgetError, DataError, PrivacyError
from labelveil.common.exact.noise import discrete_gaussian, discrete_laplace
from labelveil.common.guarantees import Adjacency, PureDP, Unit, ZeroConcentratedDP
from labelveil.common.guarantees.gaussian import gaussian_zcdp
from labelveil.common.guarantees.limits import at_least, positive
from labelveil.common.sole import Sole

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


class RunningSums(Sole):
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
        with self._turn:
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
