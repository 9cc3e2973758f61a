"""One class from the teachers' votes: with Gaussian noise, or by target charging.

*GNMax and Confident-GNMax.* Changing one teacher's vote moves two counts by 1, an L2 distance of
√2, so an answer is (α, α/σ²)-RDP, i.e. 1/σ²-zCDP; the largest count moves by at most 1, so a
threshold test is 1/(2σ₁²)-zCDP. Noise is the exact discrete Gaussian.

*Target charging:* nearly unanimous votes, or those that were expected, are nearly free. Each query
runs the exponential mechanism over the teachers' votes. Replacing one teacher's vote takes one from
a count and gives it to another, so two counts move apart by at most 2: ε-DP at rate ε/2. *Low
agreement* may stand as one more outcome with a fixed number of votes: it wins where no class has
many more, and moves no further from a count than counts do from each other.

:class:`BoundaryVote` puts the boundary wrapper around it
(:mod:`labelveil.common.mechanisms.interactive.boundary`): a query at the boundary stays without an
answer and counts as a hit. :class:`PriorVote` counts an answer as a hit that is not the student's
prediction: what the student knows already is free. Either batch stops at the τ-th hit. What is
charged is the number of hits, which is fixed, not of queries: the guarantee holds for any number of
them.

Sources: Papernot et al., *Scalable Private Learning with PATE*, ICLR 2018, Sections 4.1 and 4.2;
Cohen and Lyu, NeurIPS 2023, Section 2.7 and Lemma 2.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Booleans, Floats, Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.noise import discrete_gaussian
from labelveil.common.guarantees import Adjacency, Guarantee, Unit, ZeroConcentratedDP
from labelveil.common.mechanisms.interactive import (
    Boundary,
    ExponentialMechanism,
    NotPrior,
    Session,
    Terms,
)
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.common.mechanisms.pate.data_dependent import data_dependent_curve, error_probability

ADJACENCY = Adjacency.REPLACE_RECORD
NO_ANSWER = -1


@dataclass(frozen=True, eq=False)
class ClassAnswers:
    """What the aggregator releases for a batch of queries, and what it cost."""

    labels: Integers
    """(q,) classes; -1 where no answer was given."""
    guarantee: Guarantee
    """Made before looking at any vote."""
    incurred: Floats | None
    """(a,) data-dependent RDP at ``labelveil.common.mechanisms.pate.data_dependent.ORDERS``:
    private, see there. None where there is no such cost."""

    @property
    def answered(self) -> Booleans:
        """(q,) whether the query was answered."""
        return np.asarray(self.labels != NO_ANSWER)


@dataclass(frozen=True)
class GNMax:
    """``argmax_j n_j + N_Z(σ²)`` for every query."""

    variance: Fraction
    """σ² > 0, denominator at most 4096."""
    unit: Unit = Unit.RECORD
    """Whose data one teacher's shard isolates."""

    def guarantee(self, queries: int) -> ZeroConcentratedDP:
        """The guarantee of that many answers."""
        return ZeroConcentratedDP(ADJACENCY, self.unit, queries / self.variance, Fraction(0))

    def draw(self, votes: ArrayLike, entropy: Entropy) -> ClassAnswers:
        """Answer every query; ``votes`` is (q, classes)."""
        counts = checked_votes(votes)
        labels = _noisy_argmax(counts, self.variance, entropy)
        errors = error_probability(counts, self.variance)
        incurred = data_dependent_curve(errors, 1 / float(self.variance))
        return ClassAnswers(labels, self.guarantee(len(counts)), incurred)


@dataclass(frozen=True)
class ConfidentGNMax:
    """GNMax on those queries alone whose largest count passes a noisy threshold.

    Every query pays for the test; at most ``most_answers`` pay for an answer, and the batch stops
    there, so the guarantee is fixed before any vote is seen.
    """

    threshold: int
    """T, in teachers."""
    test_variance: Fraction
    """σ₁² of a test, denominator at most 4096."""
    answer_variance: Fraction
    """σ₂² of an answer, likewise."""
    most_answers: int
    """Stop after that many."""
    unit: Unit = Unit.RECORD
    """Whose data one teacher's shard isolates."""

    def guarantee(self, queries: int) -> ZeroConcentratedDP:
        """The guarantee of testing that many queries and answering up to ``most_answers``."""
        tests = queries / (2 * self.test_variance)
        answers = min(queries, self.most_answers) / self.answer_variance
        return ZeroConcentratedDP(ADJACENCY, self.unit, tests + answers, Fraction(0))

    def draw(self, votes: ArrayLike, entropy: Entropy) -> ClassAnswers:
        """Answer the confident queries in order; the others get -1."""
        counts = checked_votes(votes)
        noise = discrete_gaussian(self.test_variance, len(counts), entropy.source("confident"))
        largest = counts.max(axis=1)
        passed = np.flatnonzero(largest + noise >= self.threshold)
        stop = len(counts)
        if passed.size > self.most_answers:
            passed, stop = passed[: self.most_answers], int(passed[self.most_answers - 1]) + 1
        labels = np.full(len(counts), NO_ANSWER, dtype=np.int64)
        labels[passed] = _noisy_argmax(counts[passed], self.answer_variance, entropy)
        tested = threshold_error(largest[:stop] - self.threshold, self.test_variance)
        errors = error_probability(counts[passed], self.answer_variance)
        incurred = data_dependent_curve(
            tested, 1 / (2 * float(self.test_variance))
        ) + data_dependent_curve(errors, 1 / float(self.answer_variance))
        return ClassAnswers(labels, self.guarantee(len(counts)), incurred)


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


def threshold_error(margins: Integers, variance: Fraction) -> Floats:
    """Bound the chance that noise moves a count across its threshold, (n,).

    The discrete Gaussian's tail is at most ``e^{−d²/(2σ²)}`` (Canonne, Kamath, Steinke 2020).
    """
    distance = np.where(margins >= 0, margins + 1, -margins).astype(np.float64)
    return np.asarray(np.exp(-(distance**2) / (2 * float(variance))))


def checked_votes(votes: ArrayLike) -> Integers:
    """Return (q, classes) counts as integers; raises ``PrivacyError`` where they are not."""
    counts = np.asarray(votes, dtype=np.int64)
    if counts.ndim != 2 or counts.shape[1] < 2 or counts.min(initial=0) < 0:
        raise PrivacyError(
            f"votes of shape {counts.shape} must be (queries, classes >= 2) counts >= 0"
        )
    return counts


def _noisy_argmax(counts: Integers, variance: Fraction, entropy: Entropy) -> Integers:
    noise = discrete_gaussian(variance, counts.size, entropy.source("gnmax"))
    return np.asarray(np.argmax(counts + noise.reshape(counts.shape), axis=1))
