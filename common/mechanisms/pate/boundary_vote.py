"""PATE by target charging: nearly unanimous votes, or those that were expected, are nearly free.

Each query runs the exponential mechanism over the teachers' votes. Replacing one teacher's vote
takes one from a count and gives it to another, so two counts move apart by at most 2: ε-DP at rate
ε/2. *Low agreement* may stand as one more outcome with a fixed number of votes: it wins where no
class has many more, and moves no further from a count than counts do from each other.

:class:`BoundaryVote` puts the boundary wrapper around it
(:mod:`labelveil.common.mechanisms.interactive.boundary`): a query at the boundary stays without an
answer and counts as a hit. :class:`PriorVote` counts an answer as a hit that is not the student's
prediction: what the student knows already is free. Either batch stops at the τ-th hit. What is
charged is the number of hits, which is fixed, not of queries: the guarantee holds for any number of
them.

Source: Cohen and Lyu, NeurIPS 2023, Section 2.7 and Lemma 2.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees import Unit
from labelveil.common.mechanisms.interactive import (
    Boundary,
    ExponentialMechanism,
    NotPrior,
    Session,
    Terms,
)
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.common.mechanisms.pate.gnmax import ADJACENCY, NO_ANSWER, ClassAnswers, checked_votes


@dataclass(frozen=True)
class _Vote:
    """Parameters of both kinds of vote."""

    # ε of one vote: a class with a lead of d votes loses with odds of about ``e^{−εd/2}``
    epsilon: Fraction
    hits: int  # τ >= 1
    unit: Unit = Unit.RECORD  # whose data one teacher's shard isolates
    # votes of the outcome "low agreement", which leaves a query without an answer; None: there is
    # no such outcome
    agreement: int | None = None

    def _mechanism(self, query: int) -> ExponentialMechanism:
        """The vote on one query, of (q, classes) counts; low agreement is the last outcome."""
        extra = [] if self.agreement is None else [self.agreement]
        last = np.array(extra, dtype=np.int64)
        return ExponentialMechanism(lambda votes: np.append(votes[query], last), self.epsilon)


@dataclass(frozen=True)
class BoundaryVote(_Vote):
    """Classes for the queries on which the teachers agree, until τ were contested.

    Low agreement that is plain, all counts being far below it, is as free as a plain answer.
    """

    @cached_property
    def terms(self) -> Terms:
        """Terms of the session, for any number of queries."""
        return Terms(
            Boundary(self._mechanism(0)).target, self.hits, adjacency=ADJACENCY, unit=self.unit
        )

    def draw(self, votes: ArrayLike, entropy: Entropy) -> ClassAnswers:
        """Answer queries in order; -1 at the boundary, for low agreement and after the τ-th hit."""
        counts = checked_votes(votes)
        session: Session[Integers] = Session(counts, self.terms, entropy)
        labels = np.full(len(counts), NO_ANSWER, dtype=np.int64)
        for i in range(len(counts)):
            if session.halted:
                break
            label = session.run(Boundary(self._mechanism(i)))
            if label is not None and label < counts.shape[1]:
                labels[i] = label
        return ClassAnswers(labels, self.terms.guarantee, None)


@dataclass(frozen=True)
class PriorVote(_Vote):
    """Classes for all queries, until the teachers contradicted what was expected τ times."""

    @cached_property
    def terms(self) -> Terms:
        """Terms of the session, for any number of queries."""
        return Terms(not_prior(self.epsilon), self.hits, adjacency=ADJACENCY, unit=self.unit)

    def draw(
        self, votes: ArrayLike, expect: Callable[[int, Integers], int], entropy: Entropy
    ) -> ClassAnswers:
        """Answer queries in order; -1 for low agreement and after the τ-th hit.

        ``expect`` leads from a query's number and the answers before it to the class that is
        expected, or -1 for low agreement. It may learn from these answers, and from nothing else
        that is private.

        Raises
        ------
        PrivacyError
            If what is expected is no class.
        """
        counts = checked_votes(votes)
        session: Session[Integers] = Session(counts, self.terms, entropy)
        labels = np.full(len(counts), NO_ANSWER, dtype=np.int64)
        for i in range(len(counts)):
            if session.halted:
                break
            prior = int(expect(i, labels[:i].copy()))
            if not NO_ANSWER <= prior < counts.shape[1]:
                raise PrivacyError(
                    f"a prior of {prior} must be a class 0 … {counts.shape[1] - 1}, or -1"
                )
            expected = counts.shape[1] if prior == NO_ANSWER else prior
            label = session.run(NotPrior(self._mechanism(i).draw, self.epsilon, expected))
            if label < counts.shape[1]:
                labels[i] = label
        return ClassAnswers(labels, self.terms.guarantee, None)
