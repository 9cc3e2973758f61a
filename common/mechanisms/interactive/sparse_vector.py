"""The sparse vector technique: which of many counts are above a threshold, at a fixed price.

Noise is discrete here and the classical proofs carry over unchanged. Raising the threshold's noise
by Δ makes up for what all counts below can have moved, and costs a factor ``e^{Δ/b₁}``; raising a
passing count's noise by 2Δ (by Δ if all counts move in one direction) makes up for the rest, at
``e^{2Δ/b₂}``. Both shifts are integers, and the discrete Laplace law changes by exactly these
factors under them; sums over all noise values take the place of integrals.

Sources: Dwork and Roth, *The Algorithmic Foundations of Differential Privacy*, 2014, Algorithms 1
to 3 (AboveThreshold, Sparse, NumericSparse); Lyu, Su, Li, *Understanding the Sparse Vector
Technique for Differential Privacy*, VLDB 2017, Algorithm 7 and Section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.entropy import Entropy
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.exact.rounding import multiple_above
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    PureDP,
    Unit,
    calibrate,
    compose,
    optimal_composition,
    to_approximate,
)
from labelveil.common.guarantees.limits import at_least, positive, within
from labelveil.common.mechanisms.interactive.session import Answers
from labelveil.common.mechanisms.interactive.thresholds import integers


@dataclass(frozen=True)
class SparseVector:
    """Above or below for a stream of counts until c are above, with noise scales as given."""

    cutoff: int
    """c >= 1."""
    threshold_scale: Fraction
    """b₁ > 0 of the discrete Laplace noise on the threshold."""
    count_scale: Fraction
    """b₂ > 0 of that on each count."""
    value_scale: Fraction | None = None
    """Of that on a published value; None publishes none."""
    refresh: bool = False
    """Whether the threshold's noise is drawn again after every count above. Each of c runs then
    costs ``Δ/b₁ + 2Δ/b₂``, and they compose; otherwise all cost ``Δ/b₁ + 2cΔ/b₂`` together."""
    sensitivity: int = 1
    """Δ >= 1."""
    monotone: bool = False
    """Whether all counts move in one direction between neighbours: Δ then stands for 2Δ at b₂."""
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.USER

    def __post_init__(self) -> None:
        at_least(1, cutoff=self.cutoff, sensitivity=self.sensitivity)
        positive(threshold_scale=self.threshold_scale, count_scale=self.count_scale)
        positive(value_scale=self.value_scale)

    @classmethod
    def refreshed(
        cls,
        cutoff: int,
        epsilon: Fraction,
        delta: Fraction,
        values: bool = False,
        sensitivity: int = 1,
        monotone: bool = False,
    ) -> SparseVector:
        """The least noise whose c refreshed runs, optimally composed, are (ε, δ)-DP.

        Threshold and counts in the ratio that gives the sum of noises its least variance; with
        ``values`` a third part of equal ε goes to each published value.
        """
        positive(epsilon=epsilon)
        within("[0, 1)", delta=delta)

        def build(scale: Fraction) -> SparseVector:
            wide = multiple_above(scale * Fraction(1.0 if monotone else 2.0 ** (1 / 3)))
            published = scale if values else None
            return cls(cutoff, scale, wide, published, True, sensitivity, monotone)

        scale = calibrate(lambda noise: build(noise).approximate(delta), float(epsilon), delta)
        return build(scale)

    @classmethod
    def best_split(
        cls,
        cutoff: int,
        epsilon: Fraction,
        values: Fraction = Fraction(0),
        sensitivity: int = 1,
        monotone: bool = False,
    ) -> Self:
        """Lyu, Su, Li: one threshold noise, ``ε₁ : ε₂ = 1 : (2c)^{2/3}`` (monotone: ``c^{2/3}``).

        ``values`` is the share of ε that is kept for publishing values, 0 for none.
        """
        positive(epsilon=epsilon)
        within("[0, 1)", values=values)
        reach = cutoff if monotone else 2 * cutoff
        tests = epsilon * (1 - values)
        first = tests / (1 + Fraction(reach ** (2 / 3)))
        return cls(
            cutoff,
            multiple_above(sensitivity / first),
            multiple_above(reach * sensitivity / (tests - first)),
            multiple_above(cutoff * sensitivity / (epsilon * values)) if values else None,
            False,
            sensitivity,
            monotone,
        )

    @property
    def guarantee(self) -> PureDP:
        """Pure ε of everything: the sum over all runs and values."""
        return compose(self._parts)

    def approximate(self, delta: float | Fraction) -> ApproximateDP:
        """The least ε at δ, by optimal composition of runs and values."""
        if not delta:
            return to_approximate(self.guarantee, delta)
        return optimal_composition(self._parts, delta)

    @property
    def _parts(self) -> list[PureDP]:
        shift = self.sensitivity if self.monotone else 2 * self.sensitivity
        threshold, count = self.sensitivity / self.threshold_scale, shift / self.count_scale
        parts = [threshold + self.cutoff * count]
        if self.refresh:
            parts = [threshold + count] * self.cutoff
        if self.value_scale is not None:
            parts += [self.sensitivity / self.value_scale] * self.cutoff
        return [PureDP(self.adjacency, self.unit, part) for part in parts]

    def draw(self, counts: ArrayLike, thresholds: ArrayLike, entropy: Entropy) -> Answers:
        """Answer (n,) integer counts in order, until c are above their (n,) thresholds, or one.

        Entropy must be fresh for every stream.
        """
        exact = integers(counts)
        source = entropy.source("sparse-vector")
        bars = discrete_laplace(self.threshold_scale, self.cutoff, source)
        distance = exact - np.asarray(thresholds, dtype=np.int64)
        noisy = distance + discrete_laplace(self.count_scale, exact.size, source)
        above = np.zeros(exact.size, dtype=np.bool_)
        start = 0
        for i in range(self.cutoff):
            passed = np.flatnonzero(noisy[start:] >= bars[i if self.refresh else 0])
            if not passed.size:
                start = exact.size
                break
            start += int(passed[0]) + 1
            above[start - 1] = True
        values = None
        if self.value_scale is not None:  # noise of its own: what passed was chosen by the other
            noise = discrete_laplace(self.value_scale, exact.size, source)
            values = np.where(above, exact + noise, 0)
        return Answers(above, values).first(start)
