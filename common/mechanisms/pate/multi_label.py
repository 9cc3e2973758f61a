"""Many labels at once: which labels do the teachers agree on?

Each teacher may vote for any number of the c labels; the number n of teachers is public. Neighbours
differ by one teacher whose votes are withdrawn, the voter who comes or goes of Zhu and Wang 2022.
Where one *record* changes within a teacher's shard, his votes may change in both directions: that
doubles the step of gaps and the distance of clipped votes (``replacing=True``). Noise is exact and
discrete in every aggregator.

======================  ==========================================  ============================
aggregator              releases for a query                        zCDP of one query
======================  ==========================================  ============================
:class:`StableVote`     the stable top-k of the labels, k chosen    ρ, failure probability δ_t
:class:`StableMajority` the majority's labels, if none is contested ρ, failure probability δ_t
:class:`FullVote`       every label whose noisy count passes half   ``c/(2σ²)``
:class:`ClippedVote`    the same, a teacher's votes clipped to τ    L1 ``τ/(2σ²)``, L2 ``τ²/(2σ²)``
:class:`BinaryVote`     each label by its own noisy majority        ``c/(2σ²)``, or as incurred
======================  ==========================================  ============================
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from typing import Protocol

import numpy as np

from common.arrays import Booleans, Floats, Integers
from common.entropy import Entropy
from common.errors import PrivacyError
from common.exact.noise import discrete_gaussian
from common.guarantees import Adjacency, Guarantee, Unit, ZeroConcentratedDP
from common.mechanisms.pate.data_dependent import data_dependent_curve
from common.mechanisms.pate.gnmax import threshold_error
from common.mechanisms.selection import GaussianTest, Law, Ranking, StableTopK
from common.mechanisms.selection.stable_top_k import variance_for


@dataclass(frozen=True)
class LabelAnswers:
    """What an aggregator releases for a batch of queries.

    Attributes
    ----------
    labels
        (q, c) label indicators; all False where nothing was answered.
    answered
        (q,) whether the query was answered.
    guarantee
        The guarantee for the whole batch.
    incurred
        (a,) data-dependent RDP at ``common.mechanisms.pate.data_dependent.ORDERS``, where there is
        one.
    """

    labels: Booleans
    answered: Booleans
    guarantee: Guarantee
    incurred: Floats | None = None


class MultiLabelAggregator(Protocol):
    """Votes in, label sets and a guarantee out."""

    def aggregate(self, votes: Booleans, entropy: Entropy) -> LabelAnswers:
        """Answer queries; ``votes`` is (teachers, q, c)."""
        ...


def _neighbours(replacing: bool) -> Adjacency:
    return Adjacency.REPLACE_RECORD if replacing else Adjacency.ADD_REMOVE


@dataclass(frozen=True)
class StableVote:
    """StableTopK over the labels of each query, "none" and "all" included.

    Two candidates that everybody knows stand at the ends: one that every teacher votes for, and one
    that nobody does. The gap above the first real label then says that no label is agreed on, and
    the gap below the last one that all are; both move like any gap.

    Attributes
    ----------
    rho, delta
        Budget and failure probability of one query.
    share
        Part of ρ that chooses k.
    replacing
        Whether neighbours replace a teacher's votes rather than withdraw them.
    most
        Public limit of the number of agreed labels that is considered; None for all.
    choice_law
        Noise of the choice of k; Gaussian noise needs ``most``.
    """

    rho: Fraction
    delta: Fraction
    share: Fraction = Fraction(1, 2)
    replacing: bool = False
    most: int | None = None
    choice_law: Law = Law.GUMBEL

    @cached_property
    def selector(self) -> StableTopK:
        """The selector run on every query; rank 1 is the candidate that everybody votes for."""
        step = 2 if self.replacing else 1
        ranks = None if self.most is None else self.most + 1
        return StableTopK(
            self.rho, self.delta, ranks, share=self.share, step=step, choice_law=self.choice_law
        )

    def aggregate(self, votes: Booleans, entropy: Entropy) -> LabelAnswers:
        """Answer every query that is stable."""
        teachers, queries, c = votes.shape
        counts = votes.sum(axis=0)
        labels = np.zeros((queries, c), dtype=np.bool_)
        answered = np.zeros(queries, dtype=np.bool_)
        source = entropy.source("stable-vote")
        for i in range(queries):
            ranking = Ranking(np.concatenate([[teachers], counts[i], [0]]))
            k = self.selector.rank_choice.choose(ranking, source)
            if self.selector.test.passes(int(ranking.padded_gaps(k)[-1]), source):
                answered[i] = True
                top = ranking.order[:k]
                labels[i, top[(top >= 1) & (top <= c)] - 1] = True
        return LabelAnswers(labels, answered, self.selector.guarantee.repeat(queries))


@dataclass(frozen=True)
class StableMajority:
    """The set of labels that most teachers vote for, without noise, if no label is contested.

    StableTopK without the choice of k: the majority fixes the set, and its margin
    ``g = min_j |2 n_j − n|`` moves by at most 2 when a teacher's votes are withdrawn or replaced.
    If g exceeds 2, every neighbour has the same majority set, so g is to this set what the gap is
    to a top-k set, and the proof of propose-test-release (Zhu and Wang 2022, Lemma 18) applies
    word for word. The whole budget goes to the test; the price is that one contested label silences
    a query, where StableTopK may find another gap.

    Attributes
    ----------
    rho, delta
        Budget and failure probability of one query.
    replacing
        Which neighbours the guarantee names; the noise is the same.
    """

    rho: Fraction
    delta: Fraction
    replacing: bool = False

    @cached_property
    def test(self) -> GaussianTest:
        """The stability test run on every query."""
        return GaussianTest(variance_for(self.rho, 2), self.delta, 2)

    def guarantee(self, queries: int) -> ZeroConcentratedDP:
        """The guarantee of that many queries, for either neighbours."""
        guarantee = self.test.guarantee.repeat(queries)
        return replace(guarantee, adjacency=_neighbours(self.replacing))

    def aggregate(self, votes: Booleans, entropy: Entropy) -> LabelAnswers:
        """Answer every query without a contested label."""
        teachers, queries, _ = votes.shape
        lead = 2 * votes.sum(axis=0) - teachers
        margins = np.maximum(np.abs(lead).min(axis=1), self.test.step)
        noise = discrete_gaussian(self.test.variance, queries, entropy.source("stable-majority"))
        answered = margins + noise > self.test.step + self.test.threshold
        labels = (lead > 0) & answered[:, None]
        return LabelAnswers(labels, answered, self.guarantee(queries))


@dataclass(frozen=True)
class FullVote:
    """PATE without a trick: noise for all c counts at once, then half the teachers as threshold.

    Attributes
    ----------
    variance
        σ² > 0, denominator at most 4096.
    replacing
        Of no consequence here: a count moves by at most 1 either way.
    """

    variance: Fraction
    replacing: bool = False

    def aggregate(self, votes: Booleans, entropy: Entropy) -> LabelAnswers:
        """Answer every query."""
        teachers, queries, c = votes.shape
        rho = queries * c / (2 * self.variance)
        guarantee = ZeroConcentratedDP(_neighbours(self.replacing), Unit.USER, rho, Fraction(0))
        noisy = _noisy(votes.sum(axis=0), self.variance, entropy)
        return LabelAnswers(2 * noisy > teachers, np.ones(queries, dtype=np.bool_), guarantee)


class Norm(StrEnum):
    """How a teacher's votes are bounded."""

    L1 = "l1"
    L2 = "l2"


@dataclass(frozen=True)
class ClippedVote:
    """PATE-τ: a teacher's votes for one query are clipped to norm τ before they are counted.

    With L1 a teacher keeps at most ⌊τ⌋ of his labels, drawn at random; with L2 all his votes shrink
    by ``min(1, τ/√votes)``, rounded down to 1/64 of a vote.

    Attributes
    ----------
    variance
        σ² > 0 in votes, denominator at most 4096.
    tau
        The norm.
    norm
        L1 or L2.
    replacing
        Whether neighbours replace a teacher's votes: twice the distance.
    """

    variance: Fraction
    tau: Fraction
    norm: Norm = Norm.L2
    replacing: bool = False

    def __post_init__(self) -> None:
        if self.tau <= 0 or (self.norm == Norm.L1 and self.tau < 1):
            raise PrivacyError(f"tau={float(self.tau)} must be > 0, and at least 1 for L1 clipping")

    @property
    def squared_sensitivity(self) -> Fraction:
        """Of the vector of counts, in L2."""
        squared = Fraction(math.floor(self.tau)) if self.norm == Norm.L1 else self.tau**2
        if not self.replacing:
            return squared
        return 2 * squared if self.norm == Norm.L1 else 4 * squared

    def aggregate(self, votes: Booleans, entropy: Entropy) -> LabelAnswers:
        """Answer every query."""
        teachers, queries, _ = votes.shape
        rho = queries * self.squared_sensitivity / (2 * self.variance)
        guarantee = ZeroConcentratedDP(_neighbours(self.replacing), Unit.USER, rho, Fraction(0))
        grain = 1 if self.norm == Norm.L1 else 64
        kept = self._kept(votes, entropy) if grain == 1 else self._shrunk(votes, grain)
        noisy = _noisy(kept.sum(axis=0), self.variance * grain**2, entropy)
        return LabelAnswers(
            2 * noisy > teachers * grain, np.ones(queries, dtype=np.bool_), guarantee
        )

    def _kept(self, votes: Booleans, entropy: Entropy) -> Booleans:
        limit = math.floor(self.tau)
        words = entropy.words("clipped-vote", 0, votes.size).reshape(votes.shape)
        ranks = np.argsort(np.argsort(np.where(votes, words, np.iinfo(np.uint64).max)))
        return votes & (ranks < limit)

    def _shrunk(self, votes: Booleans, grain: int) -> Integers:
        sizes = np.maximum(votes.sum(axis=2, keepdims=True), 1)
        factors = np.minimum(1.0, float(self.tau) / np.sqrt(sizes))
        units = np.floor(factors * grain * (1 - 1e-12)).astype(np.int64)
        units[factors == 1.0] = grain
        return np.asarray(votes * units, dtype=np.int64)


@dataclass(frozen=True)
class BinaryVote:
    """Every label by its own noisy majority, with the data-dependent cost of each.

    Private multi-winner voting's "Binary" (Zhu and others 2022): the guarantee is the same as
    :class:`FullVote`'s, the incurred cost far smaller where teachers agree.

    Attributes
    ----------
    variance
        σ² > 0, denominator at most 4096.
    """

    variance: Fraction

    def aggregate(self, votes: Booleans, entropy: Entropy) -> LabelAnswers:
        """Answer every query."""
        teachers, queries, c = votes.shape
        answers = FullVote(self.variance).aggregate(votes, entropy)
        margins = np.floor(votes.sum(axis=0) - (teachers // 2 + 1)).astype(np.int64).ravel()
        errors = threshold_error(margins, self.variance)
        incurred = data_dependent_curve(errors, 1 / (2 * float(self.variance)))
        assert errors.size == queries * c
        return LabelAnswers(answers.labels, answers.answered, answers.guarantee, incurred)


def _noisy(counts: Integers, variance: Fraction, entropy: Entropy) -> Integers:
    rounded = Fraction(math.ceil(variance * 4096), 4096)
    noise = discrete_gaussian(rounded, counts.size, entropy.source("label-noise"))
    return np.asarray(counts + noise.reshape(counts.shape))
