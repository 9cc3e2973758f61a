"""Thresholdout: a holdout that can be asked again and again without being overfitted.

Assumption: neighbours differ in one record of the holdout; a question is the mean over (some of)
its records of a value in 0 … 1, together with the asker's own estimate of that mean, made from
other data. The answer repeats the estimate unless it is far from the holdout's mean, which is
decided by the sparse vector technique; only answers that come from the holdout use its budget, B of
them.

Privacy: in units of the sum of values, with Δ the most that it moves between neighbours and σ the
noise rate, a question is compared with threshold noise Lap(2σ), fresh after each answer from the
holdout, and query noise Lap(4σ), which is Δ/σ-DP until that answer, and the answer's own noise
Lap(σ) is Δ/σ-DP again. B of them: ``ε = 2BΔ/σ``, so σ = 2BΔ/ε. Values are rounded to integers and
noise is discrete, so this holds exactly; the proof shifts the threshold by Δ and a query's noise by
2Δ, both integers.

Generalization: answers that are ε-DP in the holdout, and whatever is chosen by them, can be wrong
about the population by little: ``|E[h(S)] − E[h(P)]| <= e^ε − 1`` for values in 0 … 1.

Source: Dwork, Feldman, Hardt, Pitassi, Reingold, Roth, *Generalization in Adaptive Data Analysis
and Holdout Reuse*, NeurIPS 2015, Figure 1 and Lemma 23; the sparse vector is Algorithm 2 of Dwork
and Roth (2014) with refreshed threshold noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import BudgetError, DataError
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.exact.rounding import multiple_above
from labelveil.common.guarantees import Adjacency, ApproximateDP, PureDP, Unit, optimal_composition
from labelveil.common.guarantees.limits import at_least, positive, within
from labelveil.common.noncopyable import NonCopyable

RESOLUTION = 1 << 16
"""What stands for a value of 1."""


@dataclass(frozen=True)
class Answer:
    """An answer."""

    # the mean: the asker's own estimate, or the holdout's with noise, which may leave 0 … 1
    value: float
    from_holdout: bool  # whether it is the holdout's, which used one of the answers that there are


@dataclass(frozen=True)
class Thresholdout:
    """The mechanism with all its parameters fixed. It keeps no state: the caller counts."""

    epsilon: Fraction
    """ε > 0 of all answers together."""
    most: int
    """B >= 1, how many answers may come from the holdout."""
    threshold: Fraction
    """T >= 0: an estimate is far if it is off by about this much."""
    group: int = 1
    """Records of one privacy unit, >= 1."""
    adjacency: Adjacency = Adjacency.REPLACE_RECORD
    """What neighbours are; the holdout's size is public."""
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        at_least(1, most=self.most, group=self.group)
        within("[0, 1]", threshold=self.threshold)

    @property
    def sensitivity(self) -> int:
        """Δ: how far the sum of integer values moves between neighbours."""
        return RESOLUTION * self.group

    @property
    def scale(self) -> Fraction:
        """σ = 2BΔ/ε, rounded up to a multiple of 1/4096, in units of 1/RESOLUTION."""
        return multiple_above(2 * self.most * self.sensitivity / self.epsilon)

    @property
    def once(self) -> PureDP:
        """The guarantee of one answer from the holdout and all questions since the one before."""
        return PureDP.of(self.epsilon / self.most, self.adjacency, self.unit)

    @property
    def guarantee(self) -> PureDP:
        """The guarantee of all answers, from the holdout or not."""
        return PureDP.of(self.epsilon, self.adjacency, self.unit)

    def approximate(self, delta: float | Fraction) -> ApproximateDP:
        """(ε, δ) of all answers: B adaptive uses of :attr:`once` by optimal composition."""
        return optimal_composition([self.once] * self.most, delta)

    def draw(
        self, values: Integers, estimate: float, *, used: int, question: str, entropy: Entropy
    ) -> Answer:
        """Answer one question; the same question in the same state gets the same answer.

        ``values`` are (m,) integers of :func:`rounded`, m >= 1, of the records that are asked
        about, and ``estimate`` is the asker's own mean, clipped to 0 … 1. ``question`` names the
        noise: different questions must have different names. Entropy is made from the holdout's
        key, anew for each question: those between two answers from the holdout share the
        threshold's noise.

        Raises
        ------
        BudgetError
            If the answers ``used``, which came from the holdout so far, are all of them.
        DataError
            If the question is about no record, or the estimate is no number.
        """
        if used >= self.most:
            raise BudgetError(
                f"the holdout has given its {self.most} answers; start another with fresh data"
            )
        if not values.size:
            raise DataError("a question must be about at least one record")
        if math.isnan(estimate):
            raise DataError("the estimate is not a number; give the mean of your own data")
        units = values.size * RESOLUTION
        total = int(values.sum())
        claimed = round(min(max(estimate, 0.0), 1.0) * units)
        bar = math.ceil(self.threshold * units)
        bar += _laplace(2 * self.scale, entropy, f"thresholdout threshold {used}")
        far = abs(total - claimed) + _laplace(
            4 * self.scale, entropy, f"question {used} {question}"
        )
        if far <= bar:
            return Answer(claimed / units, from_holdout=False)
        noisy = total + _laplace(self.scale, entropy, f"answer {question}")
        return Answer(noisy / units, from_holdout=True)

    def tolerance(
        self, records: int, questions: int, beta: float, *, from_holdout: bool | None = None
    ) -> float:
        """How far any answer may be from the holdout's mean, but for probability β.

        Of noise that is Lap(b), ``P[noise > x] <= exp(−x/b)``; a union bound over B thresholds,
        ``questions`` queries about that many records each and B answers, β/3 each. ``from_holdout``
        says of which kind of answer; None for the larger, which is the other kind's.
        """
        sigma = float(self.scale) / (records * RESOLUTION)
        own = sigma * math.log(6 * self.most / beta)
        hidden = 2 * math.log(3 * self.most / beta) + 4 * math.log(3 * questions / beta)
        repeated = float(self.threshold) + sigma * hidden
        return own if from_holdout else repeated


def rounded(values: ArrayLike) -> Integers:
    """Values clipped to 0 … 1 as integers 0 … RESOLUTION, each on its own; refuses NaN."""
    array = np.asarray(values, dtype=np.float64)
    if np.isnan(array).any():
        raise DataError("a value is NaN; a question needs a number for each record")
    return np.rint(np.clip(array, 0.0, 1.0) * RESOLUTION).astype(np.int64)


class ReusableHoldout(NonCopyable):
    """A holdout in memory, which counts what was asked; entropy is the secret of this one."""

    def __init__(self, mechanism: Thresholdout, entropy: Entropy) -> None:
        super().__init__()
        self.mechanism = mechanism
        self._key = entropy.words("reusable holdout", 0, 4).tobytes()
        self._asked = 0
        self._used = 0

    @property
    def left(self) -> int:
        """Answers that may still come from the holdout."""
        return self.mechanism.most - self._used

    def ask(self, values: ArrayLike, estimate: float) -> Answer:
        """Answer a question about the mean of ``values``, one in 0 … 1 for each record."""
        integers = rounded(values)
        with self._lock:
            number, self._asked = self._asked, self._asked + 1
            answer = self.mechanism.draw(
                integers,
                estimate,
                used=self._used,
                question=str(number),
                entropy=Entropy(self._key),
            )
            self._used += answer.from_holdout
            return answer


def _laplace(scale: Fraction, entropy: Entropy, stream: str) -> int:
    return int(discrete_laplace(scale, 1, entropy.source(stream))[0])
