"""Who leads, for replaced votes: with noisy counts and a pure ε, or as a stable set with a δ.

Where a ledger has no δ, :class:`Leaders` chooses k by the widest gap (Algorithm 1 of Zhu and Wang
2022), names the k leaders by peeling, and adds discrete Laplace noise to their counts. Where it has
one, :class:`StableLeaders` shows the whole set in front of a wide gap without noise, at a price
that does not grow with k, and names exactly k with its help. The candidates are a public list.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.exponential_choice import exponential_peeling
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.guarantees import (
    Adjacency,
    PureDP,
    Unit,
    ZeroConcentratedDP,
    largest_rho,
    to_zcdp,
)
from labelveil.common.guarantees.limits import at_least, positive, within
from labelveil.common.mechanisms.selection.base import Ranking, ranked
from labelveil.common.mechanisms.selection.choose_k import ChooseRank
from labelveil.common.mechanisms.selection.noisy_max import Law, NoisyMax
from labelveil.common.mechanisms.selection.stable_top_k import (
    LEAST_RHO,
    STABLE_SHARE,
    FixedStableTopK,
    StableTopK,
)

_CHOICE_SHARE = Fraction(1, 4)


@dataclass(frozen=True, eq=False)
class Leading:
    """The released leaders."""

    chosen: Integers  # (k,) indices of the candidates, in the order in which they were named
    noisy_counts: Integers  # (k,) their counts with discrete Laplace noise of scale ``scale``
    scale: Fraction


@dataclass(frozen=True)
class Leaders:
    """The k leading candidates of a public list with noisy counts; ε-DP for one unit's votes.

    Replacing a unit's votes moves each count by at most 1, up or down. So a gap moves by at most 2,
    a draw with weights ``exp(r · count)`` is 2r-DP, and noise of scale b on counts of L1
    sensitivity Δ is Δ/b-DP: of k counts at most k move, and of a unit with v votes at most 2v, so
    Δ = min(k, 2v).
    """

    # ε > 0 of everything: a quarter chooses k if it is adaptive, the rest is halved between names
    # and counts
    epsilon: Fraction
    k: int | None = None  # how many to name; None lets the widest gap decide
    most: int = 20  # largest k considered where it is adaptive
    unit: Unit = Unit.RECORD  # whose votes are replaced
    # v, how many candidates one unit votes for at most, at most once each; None: any number
    votes: int | None = None

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        at_least(1, k=self.k, most=self.most, votes=self.votes)

    @property
    def guarantee(self) -> PureDP:
        """The guarantee: ε, exactly."""
        return PureDP.of(self.epsilon, Adjacency.REPLACE_LABEL, self.unit)

    def split(self, k: int) -> tuple[Fraction, Fraction, Fraction]:
        """ε for choosing k, rate of one draw, and scale of the counts' noise."""
        choice = self.epsilon * _CHOICE_SHARE if self.k is None else Fraction(0)
        half = (self.epsilon - choice) / 2
        sensitivity = k if self.votes is None else min(k, 2 * self.votes)
        return choice, half / (2 * k), sensitivity / half

    def draw(self, counts: Ranking | ArrayLike, entropy: Entropy) -> Leading:
        """Name the leaders."""
        ranking = ranked(counts)
        candidates = ranking.counts.size
        if candidates < 2 or (self.k is not None and self.k > candidates):
            raise PrivacyError(
                f"k={self.k} of {candidates} candidates cannot be named; give a public list of at"
                " least 2, and at least k"
            )
        k = self.k
        if k is None:
            choice, _, _ = self.split(1)
            noise = NoisyMax(Law.GUMBEL, choice, step=2)
            most = min(self.most, candidates - 1)
            k = ChooseRank(noise, most).draw(ranking, entropy.source("leaders-k"))
        _, rate, scale = self.split(k)
        chosen = exponential_peeling(ranking.counts, rate, k, entropy.source("leaders-names"))
        noise_values = discrete_laplace(scale, k, entropy.source("leaders-counts"))
        noisy = np.asarray(ranking.counts[chosen] + noise_values)
        return Leading(chosen, noisy, scale)


@dataclass(frozen=True)
class StableLeaders:
    """The set of leaders in front of a wide gap, or nothing; or exactly k, by stability. No counts.

    StableTopK of Zhu and Wang (2022) with gaps that move by at most 2, which is what replacing one
    unit's votes does to them whatever the unit: each count moves by at most 1, up or down. With k
    their Algorithm 3: the set at a gap near k, filled up or thinned out by peeling.
    """

    epsilon: Fraction
    delta: Fraction  # half of it is the test's failure probability
    most: int = 20  # largest k considered where the data choose it
    unit: Unit = Unit.RECORD  # whose votes are replaced
    k: int | None = None  # how many to name; None: the data choose
    share: Fraction = STABLE_SHARE  # part of ρ for the set where k is given; the rest peels

    def __post_init__(self) -> None:
        at_least(1, k=self.k, most=self.most)
        within("(0, 1)", share=self.share)
        parts = [Fraction(1, 2)]  # of ρ, for each choice
        if self.k is not None:
            parts = [self.share / 2, (1 - self.share) / self.k]
        if min(parts) * self._rho < LEAST_RHO:
            split = "" if self.k is None else f" for k={self.k} and share={float(self.share):g}"
            raise PrivacyError(
                f"epsilon={float(self.epsilon):g} is too small to choose with{split}; raise epsilon"
                + ("" if self.k is None else " or take a share nearer to 1/2")
            )

    @property
    def _rho(self) -> Fraction:
        return largest_rho(float(self.epsilon), self.delta, self.delta / 2)

    def mechanism(self, most: int) -> StableTopK | FixedStableTopK:
        """Return the mechanism for a list with at least ``most`` + 1 candidates."""
        rho, failure = self._rho, self.delta / 2
        if self.k is not None:
            return FixedStableTopK(self.k, rho, failure, share=self.share, step=2)
        return StableTopK(rho, failure, min(self.most, most), step=2)

    @property
    def guarantee(self) -> ZeroConcentratedDP:
        """The guarantee, as the mechanism derives it from its own noise."""
        guarantee = to_zcdp(self.mechanism(self.most).guarantee)
        return replace(guarantee, adjacency=Adjacency.REPLACE_LABEL, unit=self.unit)

    def gap_needed(self, miss: float) -> int:
        """The least gap behind a set that is shown but for probability ``miss``, once chosen."""
        return self.mechanism(self.most).test.gap_needed(miss)

    def draw(self, counts: Ranking | ArrayLike, entropy: Entropy) -> Integers | None:
        """Return the (k,) indices of the set, ascending, or None: no gap is wide enough.

        Never None where k is given.
        """
        ranking = ranked(counts)
        candidates = ranking.counts.size
        if candidates < 2:
            raise PrivacyError("1 candidate leads whatever the votes; give a list of at least 2")
        if self.k is not None and self.k > candidates:
            raise PrivacyError(f"k={self.k} must be at most the {candidates} candidates")
        return self.mechanism(candidates - 1).draw(ranking, entropy).chosen
