"""Many labels at once: which labels do the teachers agree on?

Each teacher may vote for any number of the c labels; the number n of teachers is public. Neighbours
differ in a record of one teacher's shard, whether it is added, removed or replaced: that teacher
may then vote for any other set of labels, so that each count moves by at most 1, some up and some
down, and gaps by at most 2. Where each teacher *is* a person, who comes or goes with all votes (the
voter of Zhu and Wang 2022, ``replacing=False``), counts move in one direction and gaps by at most
1: half the noise. It must not be asked for where teachers are trained: a record that comes or goes
does not take its teacher's votes away, it turns them. Noise is exact and discrete in every
aggregator.

======================  ==========================================  ============================
aggregator              releases for a query                        zCDP of one query
======================  ==========================================  ============================
:class:`StableVote`     the stable top-k of the labels, k chosen    ρ, failure probability δ_t
:class:`StableMajority` the majority's labels, if none is contested ρ, failure probability δ_t
:class:`FullVote`       every label whose noisy count passes half   ``c/(2σ²)``
:class:`ClippedVote`    the same, a teacher's votes clipped to τ    L0, L1 ``τ/σ²``, L2 ``τ²/σ²``
:class:`BinaryVote`     each label by its own noisy majority        ``c/(2σ²)``, or as incurred
======================  ==========================================  ============================
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import cached_property

import numpy as np

from labelveil.common.arrays import Booleans, Floats, Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.noise import discrete_gaussian
from labelveil.common.exact.rounding import multiple_above
from labelveil.common.guarantees import Adjacency, Guarantee, Unit, ZeroConcentratedDP
from labelveil.common.guarantees.base import GuaranteeT
from labelveil.common.mechanisms.pate.data_dependent import data_dependent_curve
from labelveil.common.mechanisms.pate.single_label import threshold_error
from labelveil.common.mechanisms.selection import GaussianTest, Law, Ranking, StableTopK
from labelveil.common.mechanisms.selection.stable_top_k import variance_for

_GRAIN = 64
"""What stands for a vote where votes are scaled."""


@dataclass(frozen=True, eq=False)
class LabelAnswers:
    """What an aggregator releases for a batch of queries."""

    labels: Booleans
    """(q, c) label indicators; all False where nothing was answered."""
    answered: Booleans
    """(q,) whether the query was answered."""
    guarantee: Guarantee
    """Of the whole batch."""
    incurred: Floats | None = None
    """(a,) data-dependent RDP at ``labelveil.common.mechanisms.pate.data_dependent.ORDERS``, where
    there is one."""


@dataclass(frozen=True, kw_only=True)
class _Teachers:
    """Whose votes are aggregated, which decides between what neighbours the guarantee stands."""

    # Whether neighbours differ in what one teacher votes. False: in one voter who comes or goes.
    replacing: bool = True
    # whose data one teacher's shard isolates, or whether a voter is a record or a user
    unit: Unit = Unit.RECORD

    def _between_neighbours(self, guarantee: GuaranteeT) -> GuaranteeT:
        adjacency = Adjacency.REPLACE_RECORD if self.replacing else Adjacency.ADD_REMOVE
        return replace(guarantee, adjacency=adjacency, unit=self.unit)

    def _concentrated(self, rho: Fraction) -> ZeroConcentratedDP:
        return self._between_neighbours(ZeroConcentratedDP.of(rho))


@dataclass(frozen=True)
class StableVote(_Teachers):
    """StableTopK over the labels of each query, "none" and "all" included.

    Two candidates that everybody knows stand at the ends: one that every teacher votes for, and one
    that nobody does. The gap above the first real label then says that no label is agreed on, and
    the gap below the last one that all are; both move like any gap.
    """

    rho: Fraction
    """Budget of one query."""
    delta: Fraction
    """Failure probability of one query."""
    share: Fraction = Fraction(1, 2)
    """Part of ρ that chooses k."""
    most: int | None = None
    """Public limit of the number of agreed labels that is considered; None for all."""
    choice_law: Law = Law.GUMBEL
    """Noise of the choice of k; Gaussian noise needs ``most``."""

    @cached_property
    def selector(self) -> StableTopK:
        """The selector run on every query; rank 1 is the candidate that everybody votes for."""
        step = 2 if self.replacing else 1
        ranks = None if self.most is None else self.most + 1
        return StableTopK(
            self.rho, self.delta, ranks, share=self.share, step=step, choice_law=self.choice_law
        )

    def guarantee(self, queries: int, labels: int) -> Guarantee:
        """The guarantee of that many queries, whatever the number of labels."""
        return self._between_neighbours(self.selector.guarantee.repeat(queries))

    def draw(self, votes: Booleans, entropy: Entropy) -> LabelAnswers:
        """Answer every query that is stable."""
        teachers, queries, c = votes.shape
        counts = votes.sum(axis=0)
        labels = np.zeros((queries, c), dtype=np.bool_)
        answered = np.zeros(queries, dtype=np.bool_)
        source = entropy.source("stable-vote")
        for i in range(queries):
            ranking = Ranking(np.concatenate([[teachers], counts[i], [0]]))
            k = self.selector.rank_choice.draw(ranking, source)
            if self.selector.test.draw(int(ranking.padded_gaps(k)[-1]), source):
                answered[i] = True
                top = ranking.order[:k]
                labels[i, top[(top >= 1) & (top <= c)] - 1] = True
        return LabelAnswers(labels, answered, self.guarantee(queries, c))


@dataclass(frozen=True)
class StableMajority(_Teachers):
    """The set of labels that most teachers vote for, without noise, if no label is contested.

    StableTopK without the choice of k: the majority fixes the set, and its margin
    ``g = min_j |2 n_j − n|`` moves by at most 2 when a teacher's votes are withdrawn or replaced.
    If g exceeds 2, every neighbour has the same majority set, so g is to this set what the gap is
    to a top-k set, and the proof of propose-test-release (Zhu and Wang 2022, Lemma 18) applies
    word for word. The whole budget goes to the test; the price is that one contested label silences
    a query, where StableTopK may find another gap.
    """

    rho: Fraction
    """Budget of one query."""
    delta: Fraction
    """Failure probability of one query."""

    @cached_property
    def test(self) -> GaussianTest:
        """The stability test run on every query."""
        return GaussianTest(variance_for(self.rho, 2), self.delta, 2)

    def guarantee(self, queries: int, labels: int) -> ZeroConcentratedDP:
        """The guarantee of that many queries: the same for either neighbours, and any labels."""
        return self._between_neighbours(self.test.guarantee.repeat(queries))

    def draw(self, votes: Booleans, entropy: Entropy) -> LabelAnswers:
        """Answer every query without a contested label."""
        teachers, queries, c = votes.shape
        lead = 2 * votes.sum(axis=0) - teachers
        margins = np.maximum(np.abs(lead).min(axis=1), self.test.step)
        noise = discrete_gaussian(self.test.variance, queries, entropy.source("stable-majority"))
        answered = margins + noise > self.test.step + self.test.threshold
        labels = (lead > 0) & answered[:, None]
        return LabelAnswers(labels, answered, self.guarantee(queries, c))


@dataclass(frozen=True)
class FullVote(_Teachers):
    """PATE without a trick: noise for all c counts at once, then half the teachers as threshold."""

    variance: Fraction
    """σ² > 0 in votes, denominator at most 4096."""

    def guarantee(self, queries: int, labels: int) -> ZeroConcentratedDP:
        """The guarantee of that many queries; a count moves by at most 1 either way."""
        return self._concentrated(queries * labels / (2 * self.variance))

    def draw(self, votes: Booleans, entropy: Entropy) -> LabelAnswers:
        """Answer every query."""
        teachers, queries, c = votes.shape
        counts, grain = self._counted(votes, entropy)
        variance = multiple_above(self.variance * grain**2)
        noise = discrete_gaussian(variance, counts.size, entropy.source("label-noise"))
        noisy = counts + noise.reshape(counts.shape)
        everywhere = np.ones(queries, dtype=np.bool_)
        return LabelAnswers(2 * noisy > teachers * grain, everywhere, self.guarantee(queries, c))

    def _counted(self, votes: Booleans, entropy: Entropy) -> tuple[Integers, int]:
        """(q, c) counts, and what stands for a vote in them."""
        return votes.sum(axis=0), 1


class Norm(StrEnum):
    """How a teacher's votes are bounded by τ."""

    L0 = "l0"
    """At most τ votes: others are dropped at random."""
    L1 = "l1"
    """At most τ in sum: s votes count τ/s each where s > τ, as published."""
    L2 = "l2"
    """At most τ in Euclidean norm: s votes count τ/√s each where s > τ²."""


@dataclass(frozen=True)
class ClippedVote(FullVote):
    """PATE-τ: a teacher's votes for one query are clipped to norm τ before they are counted.

    L0 keeps ⌊τ⌋ of the labels, drawn at random. L1 and L2 shrink all s votes to the largest
    multiple of 1/64 of a vote, 1 at most, at which their norm is at most τ.

    The squared L2 norm of clipped votes is ⌊τ⌋ at most for L0 and τ² for L2. For L1 it is s where
    s <= τ and ``s (τ/s)² = τ²/s`` where s > τ, which falls in s: so it is the larger of ⌊τ⌋ and
    τ²/(⌊τ⌋ + 1), and that is ⌊τ⌋ for a whole τ.

    Replaced votes are less than twice as far apart as votes that come or go. Of two vectors v, w
    without negative numbers ``‖v − w‖² = ‖v‖² + ‖w‖² − 2⟨v, w⟩ <= ‖v‖² + ‖w‖²``: at most twice the
    squared norm in place of four times, by the triangle inequality, and reached by votes for
    different labels.

    Source: Zhu, Yu, Chandraker, Wang, *Private-kNN*, CVPR 2020, as described by Zhu and Wang 2022
    (L1: contributions "averaged" to τ).
    """

    tau: Fraction
    """Bound of the norm."""
    norm: Norm = Norm.L2

    def __post_init__(self) -> None:
        if self.tau <= 0 or (self.norm == Norm.L0 and self.tau < 1):
            raise PrivacyError(f"tau={float(self.tau)} must be > 0, and at least 1 for L0 clipping")

    @property
    def squared_sensitivity(self) -> Fraction:
        """Squared L2 sensitivity of the vector of counts."""
        whole = math.floor(self.tau)
        squared = {
            Norm.L0: Fraction(whole),
            Norm.L1: max(Fraction(whole), self.tau**2 / (whole + 1)),
            Norm.L2: self.tau**2,
        }[self.norm]
        return 2 * squared if self.replacing else squared

    def guarantee(self, queries: int, labels: int) -> ZeroConcentratedDP:
        """The guarantee of that many queries, whatever the number of labels."""
        return self._concentrated(queries * self.squared_sensitivity / (2 * self.variance))

    def _counted(self, votes: Booleans, entropy: Entropy) -> tuple[Integers, int]:
        if self.norm == Norm.L0:
            return self._kept(votes, entropy).sum(axis=0), 1
        return self._shrunk(votes).sum(axis=0), _GRAIN

    def _kept(self, votes: Booleans, entropy: Entropy) -> Booleans:
        limit = math.floor(self.tau)
        words = entropy.words("clipped-vote", 0, votes.size).reshape(votes.shape)
        ranks = np.argsort(np.argsort(np.where(votes, words, np.iinfo(np.uint64).max)))
        return votes & (ranks < limit)

    def _shrunk(self, votes: Booleans) -> Integers:
        """Votes in units of 1/64, exactly; s of them have size u with s u or √s u <= 64 τ."""
        most = _GRAIN * self.tau
        l1 = self.norm == Norm.L1

        def size(s: int) -> int:
            return math.floor(most / s) if l1 else math.isqrt(math.floor(most**2 / s))

        units = [_GRAIN, *(min(_GRAIN, size(s)) for s in range(1, votes.shape[2] + 1))]
        return np.asarray(votes * np.array(units)[votes.sum(axis=2)][:, :, None], dtype=np.int64)


@dataclass(frozen=True)
class BinaryVote(FullVote):
    """Every label by its own noisy majority, with the data-dependent cost of each.

    Private multi-winner voting's "Binary" (Zhu and others 2022): the guarantee is the same as
    :class:`FullVote`'s, the incurred cost far smaller where teachers agree.
    """

    def draw(self, votes: Booleans, entropy: Entropy) -> LabelAnswers:
        """Answer every query."""
        margins = (votes.sum(axis=0) - (len(votes) // 2 + 1)).astype(np.int64).ravel()
        errors = threshold_error(margins, self.variance)
        incurred = data_dependent_curve(errors, 1 / (2 * float(self.variance)))
        return replace(super().draw(votes, entropy), incurred=incurred)
