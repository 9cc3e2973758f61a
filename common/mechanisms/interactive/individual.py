"""The sparse vector technique with individual charging: who did not match is not charged.

A question asks for ``Σ f(x)`` over the records, f in [0, 1]: how many match a predicate, or how
much of a bounded quantity they add up to. Its noisy answer is published if it reaches the
threshold, and only the records with f(x) > 0 pay for it; a record that has paid τ times is no
longer counted. The number of questions, and of answers, has no limit.

Privacy (Cohen and Lyu 2023, Algorithm 5). Let neighbours differ in one record that is added or
removed. Questions with f = 0 at it have the same law. In the others, while it is still counted, it
moves the sum by at most 1, so they are ε-DP with a not-prior target, "published"; it is no longer
counted after τ hits, and the laws are the same from then on. So the whole is a session of τ hits.

Values of f are multiples of 1/g, for a public grain g. Sums are integers in that unit, and the
noise is the discrete Laplace law of scale g/ε.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from labelveil.common.arrays import Integers, counted
from labelveil.common.entropy import Entropy
from labelveil.common.errors import DataError
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.guarantees import Adjacency, ApproximateDP, RenyiDP, Unit
from labelveil.common.guarantees.limits import at_least
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.common.mechanisms.interactive.terms import Terms
from labelveil.common.noncopyable import NonCopyable

Question = Integers | tuple[Integers, Integers]
"""(m,) distinct indices of the records that match; or these and (m,) values of f in 1/g, 1 … g."""


class IndividualSparseVector(NonCopyable):
    """Sums over records, published above a threshold, charged to those that added to them.

    Of n ``records``, a number that is not published, each is no longer counted once it matched
    τ = ``hits`` published answers. A question's noise is discrete Laplace of scale 1/ε; values,
    thresholds and answers are in units of 1/g, g >= 1 the ``grain``. ``unit`` says whether a record
    is all that a person has.
    """

    def __init__(
        self,
        records: int,
        epsilon: Fraction,
        hits: int,
        entropy: Entropy,
        unit: Unit = Unit.RECORD,
        grain: int = 1,
    ) -> None:
        super().__init__()
        at_least(1, grain=grain)
        self.terms = Terms(not_prior(epsilon), hits, adjacency=Adjacency.ADD_REMOVE, unit=unit)
        self._charges: Integers = np.zeros(records, dtype=np.int64)
        self._source = entropy.source("individual-sparse-vector")
        self._grain = grain
        self._scale = grain / epsilon

    @property
    def guarantee(self) -> RenyiDP:
        """RDP of everything, for adding or removing one record."""
        return self.terms.guarantee

    def approximate(self, delta: float | Fraction) -> ApproximateDP:
        """The least (ε, δ) known of the same."""
        return self.terms.approximate(delta)

    @property
    def charges(self) -> Integers:
        """(n,) how often each record was charged: as private as the records."""
        return self._charges.copy()

    def ask(self, questions: Sequence[Question], threshold: int) -> list[int | None]:
        """Answer questions in order: the noisy sum, or None if it is below the public threshold.

        A question says who matches, and with what value, 1 without; it must look at each record
        alone. ``DataError``, and answers nothing, if one names a record twice, or one that
        there is not, or a value outside 1 … g.
        """
        checked = [self._checked(question) for question in questions]
        with self._lock:
            noise = discrete_laplace(self._scale, len(checked), self._source)
            answers: list[int | None] = []
            for (matches, values), added in zip(checked, noise.tolist(), strict=True):
                alive = self._charges[matches] < self.terms.hits
                noisy = int(values[alive].sum()) + added
                if noisy >= threshold:
                    self._charges[matches[alive]] += 1
                answers.append(noisy if noisy >= threshold else None)
            return answers

    def _checked(self, question: Question) -> tuple[Integers, Integers]:
        if isinstance(question, tuple):
            matches, values = question
        else:
            matches, values = question, np.full(question.shape, self._grain, dtype=np.int64)
        matches, values = counted(matches, "indices of records"), counted(values, "values")
        if values.size != matches.size:
            raise DataError(f"{values.size} values of {matches.size} matches must be one each")
        if matches.size and matches.max() >= self._charges.size:
            raise DataError(f"a match lies outside the records 0 … {self._charges.size - 1}")
        if not 1 <= values.min(initial=1) <= values.max(initial=1) <= self._grain:
            raise DataError(
                f"values from {values.min()} to {values.max()} must lie in 1 … {self._grain}"
            )
        if np.unique(matches).size != matches.size:
            raise DataError("a record matches twice; name each once")
        return matches, values
