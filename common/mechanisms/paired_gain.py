"""By how much a model's loss is below a constant's: an exactly private mean of paired differences.

A question is a prediction f for each of some records. Its answer is the mean of ℓ(c, y) − ℓ(f, y),
which cancels most of what the loss varies by. The constant c and the bound B come from the released
prior, which both parties have: c is its mean (the median, of the absolute loss) and B the quantile
at which few labels are left with a larger ℓ(c, y). Differences are clipped to −B … B and rounded to
integers in units of B / 2¹⁶.

Privacy: for a prediction f the difference is monotone in y, so that it lies between its integers at
both ends of the domain, and is clipped to them. The sum then moves by at most Δ between neighbours,
the widest of these spans times the records of a privacy unit: a whole number, a function of the
predictions alone. With noise Lap(Δ m / ε), discrete and exact, each of m answers is ε/m-DP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import DataError
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.exact.rounding import multiple_above
from labelveil.common.guarantees import Adjacency, PureDP, Unit
from labelveil.common.guarantees.limits import at_least, positive

RESOLUTION = 1 << 16
"""What stands for a difference of B."""

_FEW = 1e-3
"""Share of the released labels with a larger loss than B."""

LossName = Literal["squared", "absolute"]


@dataclass(frozen=True)
class PairedGain:
    """Public parameters of the differences."""

    loss: LossName
    """``squared`` or ``absolute``."""
    lower: float
    """The labels' domain; predictions are clipped to it."""
    upper: float
    constant: float
    """C, in label units."""
    bound: float
    """B > 0, in units of the loss."""
    constant_loss: float
    """E ℓ(c, y) under the released prior: what a gain is compared with."""

    @classmethod
    def of_prior(
        cls, grid: Floats, prior: Floats, loss: LossName, largest: float | None = None
    ) -> PairedGain:
        """Derive it from (k,) labels and their released shares; ``largest`` replaces B.

        Raises
        ------
        DataError
            If the prior holds one label alone: no model can be better.
        """
        if loss == "squared":
            constant = float(prior @ grid)
        else:
            constant = float(grid[np.searchsorted(np.cumsum(prior), 0.5 * prior.sum())])
        losses = _losses(loss, np.full_like(grid, constant), grid)
        order = np.argsort(losses)
        beyond = prior.sum() - np.cumsum(prior[order])
        bound = float(losses[order][np.searchsorted(-beyond, -_FEW)])
        if largest is not None:
            bound = min(largest, float(losses.max()))
        if not bound > 0:
            raise DataError("the released prior holds one label alone: no model can be better")
        ends = float(grid[0]), float(grid[-1])
        return cls(loss, *ends, constant, bound, float(prior @ losses))

    @classmethod
    def of_ends(cls, lower: float, upper: float) -> PairedGain:
        """The gain in squared error, with even odds of both ends, that audits ask about."""
        return cls.of_prior(np.array([lower, upper]), np.full(2, 0.5), "squared")

    def differences(self, predictions: Floats, labels: Floats) -> Integers:
        """(m,) clipped differences, −RESOLUTION … RESOLUTION, of predictions that are no NaN."""
        low, high = self._ends(predictions)
        return np.clip(
            self._rounded(predictions, np.clip(labels, self.lower, self.upper)), low, high
        )

    def span(self, predictions: Floats) -> int:
        """How far one label can move the sum of differences; at least 1."""
        low, high = self._ends(predictions)
        return max(1, int((high - low).max()))

    def _ends(self, predictions: Floats) -> tuple[Integers, Integers]:
        ends = [
            self._rounded(predictions, np.full_like(predictions, end))
            for end in (self.lower, self.upper)
        ]
        return np.minimum(*ends), np.maximum(*ends)

    def _rounded(self, predictions: Floats, labels: Floats) -> Integers:
        points = np.clip(predictions, self.lower, self.upper)
        constant = np.full_like(points, self.constant)
        gains = _losses(self.loss, constant, labels) - _losses(self.loss, points, labels)
        # a label that is no number says nothing
        shares = np.clip(np.nan_to_num(gains / self.bound, nan=0.0), -1, 1)
        return np.rint(shares * RESOLUTION).astype(np.int64)


@dataclass(frozen=True)
class NoisyAnswers:
    """m answers to such questions."""

    epsilon: Fraction
    """ε > 0 of all answers together."""
    most: int = 1
    """m >= 1."""
    group: int = 1
    """Records of one privacy unit, >= 1."""
    unit: Unit = Unit.RECORD
    """What neighbours differ in; which records there are is public."""

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        at_least(1, most=self.most, group=self.group)

    @property
    def guarantee(self) -> PureDP:
        """The guarantee of all answers."""
        return PureDP.of(self.epsilon, Adjacency.REPLACE_LABEL, self.unit)

    def scale(self, span: int) -> Fraction:
        """Δ m / ε, rounded up to a multiple of 1/4096, for a sum that one record moves so far."""
        return multiple_above(self.group * span * self.most / self.epsilon)

    def unsure(self, gain: PairedGain, span: int, records: int) -> float:
        """Scale of the noise on a mean over some records, in units of the loss."""
        return float(self.scale(span)) * gain.bound / (RESOLUTION * records)

    def draw(
        self,
        gain: PairedGain,
        predictions: Floats,
        labels: Floats,
        *,
        question: str,
        entropy: Entropy,
    ) -> float:
        """Mean of the (m,) differences, m >= 1, with noise, in units of the loss.

        ``question`` names the noise: different questions must have different names. Entropy is the
        secret of all these answers.

        Raises
        ------
        DataError
            If the question is about no record.
        """
        if not predictions.size:
            raise DataError("a question must be about at least one record")
        total = int(gain.differences(predictions, labels).sum())
        scale = self.scale(gain.span(predictions))
        noise = int(discrete_laplace(scale, 1, entropy.source(f"gain {question}"))[0])
        return (total + noise) / (RESOLUTION * predictions.size) * gain.bound


def half_width(scale: float) -> float:
    """How far Laplace noise of a scale reaches with a probability of 95%."""
    return scale * math.log(20)


def _losses(loss: LossName, points: Floats, labels: Floats) -> Floats:
    gaps = points - labels
    return gaps**2 if loss == "squared" else np.abs(gaps)
