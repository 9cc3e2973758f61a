"""The sparse vector technique with individual charging: who did not match is not charged.

A question asks how many records match a predicate. Its noisy answer is published if it reaches the
threshold, and only the records that matched pay for it; a record that has paid τ times is no longer
counted. The number of questions, and of answers, has no limit.

Privacy (Cohen and Lyu 2023, Algorithm 5). Let neighbours differ in one record that is added or
removed. Questions that it does not match have the same law. Those that it matches while it is still
counted are ε-DP with a not-prior target, "published"; it is no longer counted after τ hits, and the
laws are the same from then on. So the whole is a session of τ hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from common.arrays import Integers
from common.entropy import Entropy
from common.errors import DataError
from common.exact.noise import discrete_laplace
from common.guarantees import Adjacency, ApproximateDP, Unit
from common.mechanisms.interactive.targets import not_prior
from common.mechanisms.interactive.terms import Terms


class IndividualSparseVector:
    """Counts of matching records, published above a threshold, charged to those that matched.

    Parameters
    ----------
    records
        n, known to the party that answers; not published.
    epsilon
        ε of a question: noise is discrete Laplace of scale 1/ε.
    hits
        τ: a record is no longer counted once it matched so many published answers.
    entropy
        Where noise comes from.
    unit
        Whether a record is all that a person has.
    """

    def __init__(
        self,
        records: int,
        epsilon: Fraction,
        hits: int,
        entropy: Entropy,
        unit: Unit = Unit.RECORD,
    ) -> None:
        self.terms = Terms(not_prior(epsilon), hits, adjacency=Adjacency.ADD_REMOVE, unit=unit)
        self._charges: Integers = np.zeros(records, dtype=np.int64)
        self._source = entropy.source("individual-sparse-vector")
        self._scale = 1 / epsilon

    def guarantee(self, delta: float | Fraction) -> ApproximateDP:
        """(ε, δ) of everything, for adding or removing one record."""
        return self.terms.guarantee(delta)

    @property
    def charges(self) -> Integers:
        """(n,) how often each record was charged: as private as the records."""
        return self._charges.copy()

    def ask(self, questions: Sequence[Integers], threshold: int) -> list[int | None]:
        """Answer questions in order: the noisy number of matching records, or None if it is below.

        Parameters
        ----------
        questions
            Of each question, the (m,) distinct indices of the records that match. The predicate
            must look at each record alone.
        threshold
            A public integer.

        Raises
        ------
        DataError
            If a question names a record twice, or one that there is not. Nothing is asked then.
        """
        for matches in questions:
            self._check(matches)
        noise = discrete_laplace(self._scale, len(questions), self._source)
        answers: list[int | None] = []
        for matches, added in zip(questions, noise.tolist(), strict=True):
            counted = matches[self._charges[matches] < self.terms.hits]
            noisy = counted.size + added
            if noisy >= threshold:
                self._charges[counted] += 1
            answers.append(noisy if noisy >= threshold else None)
        return answers

    def _check(self, matches: Integers) -> None:
        if matches.ndim != 1 or matches.dtype.kind not in "iu":
            raise DataError(f"matches of type {matches.dtype} must be a vector of record indices")
        if not matches.size:
            return
        if not 0 <= int(matches.min()) <= int(matches.max()) < self._charges.size:
            raise DataError(f"a match lies outside the records 0 … {self._charges.size - 1}")
        if np.unique(matches).size != matches.size:
            raise DataError("a record matches twice; name each once")
