"""PATE through the boundary wrapper: a vote that is nearly unanimous is nearly free.

Each query runs the exponential mechanism over the teachers' votes inside the boundary wrapper
(:mod:`common.mechanisms.interactive.boundary`). Replacing one teacher's vote takes one from a count
and gives it to another, so two counts move apart by at most 2: ε-DP at rate ε/2. A query at the
boundary stays without an answer and counts as a hit; the batch stops at the τ-th. What is charged
is the number of hits, which is fixed, not of queries: the guarantee holds for any number of them.

Source: Cohen and Lyu, NeurIPS 2023, Section 2.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial

import numpy as np
from numpy.typing import ArrayLike

from common.arrays import Integers
from common.entropy import Entropy
from common.guarantees import Unit
from common.mechanisms.interactive import Boundary, ExponentialMechanism, Session, Terms
from common.mechanisms.pate.gnmax import ADJACENCY, NO_ANSWER, ClassAnswers, checked_votes


@dataclass(frozen=True)
class BoundaryVote:
    """Classes for the queries on which the teachers agree, until τ were contested.

    Attributes
    ----------
    epsilon
        ε of one vote: a class with a lead of d votes loses with odds of about ``e^{−εd/2}``.
    hits
        τ >= 1.
    unit
        Whose data one teacher's shard isolates.
    """

    epsilon: Fraction
    hits: int
    unit: Unit = Unit.RECORD

    @cached_property
    def terms(self) -> Terms:
        """The guarantee, whatever the number of queries; ``terms.guarantee(δ)`` is the tightest."""
        target = Boundary(ExponentialMechanism(partial(_counts, 0), self.epsilon)).target
        return Terms(target, self.hits, adjacency=ADJACENCY, unit=self.unit)

    def aggregate(self, votes: ArrayLike, entropy: Entropy) -> ClassAnswers:
        """Answer queries in order; -1 where the vote is at the boundary, and after the τ-th."""
        counts = checked_votes(votes)
        session: Session[Integers] = Session(counts, self.terms, entropy)
        labels = np.full(len(counts), NO_ANSWER, dtype=np.int64)
        for i in range(len(counts)):
            if session.halted:
                break
            label = session.run(Boundary(ExponentialMechanism(partial(_counts, i), self.epsilon)))
            if label is not None:
                labels[i] = label
        return ClassAnswers(labels, self.terms.renyi_guarantee, None)


def _counts(query: int, votes: Integers) -> Integers:
    return np.asarray(votes[query])
