"""StableTopK: choose k where the counts fall off a cliff, then show the set without noise.

Source: Zhu and Wang 2022, Algorithms 2 and 3 with Theorems 11 and 12. Both halves are exact, and
the guarantee is computed from the noise that is really drawn: ρ = ε_c²/8 for the choice of k plus
1/(2σ²) for the test, and the noise's exact tail as the failure probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from common.arrays import Integers
from common.entropy import Entropy, WordSource
from common.errors import PrivacyError
from common.exact.exponential_choice import exponential_peeling
from common.guarantees import BoundedRange, ZeroConcentratedDP, to_zcdp
from common.mechanisms.selection.base import ADJACENCY, UNIT, Ranking, Selection, ranked
from common.mechanisms.selection.choose_k import ChooseRank, Regularizer, indifferent, pull_towards
from common.mechanisms.selection.noisy_max import Law, NoisyMax
from common.mechanisms.selection.stability import GaussianTest

_GRAIN = 1 << 12


def choice_epsilon(rho: Fraction) -> Fraction:
    """Return the largest convenient ε with ε²/8 <= ρ."""
    epsilon = Fraction(math.isqrt(int(8 * rho * _GRAIN**2)), _GRAIN)
    if epsilon <= 0:
        raise PrivacyError(f"rho={float(rho)} is too small to choose with; give at least 1e-8")
    return epsilon


def variance_for(rho: Fraction, step: int = 1) -> Fraction:
    """Return the least σ², a multiple of 1/4096, with step²/(2σ²) <= ρ."""
    if rho <= 0:
        raise PrivacyError(f"rho={float(rho)} must be > 0")
    return Fraction(math.ceil(_GRAIN * step * step / (2 * rho)), _GRAIN)


@dataclass(frozen=True)
class StableTopK:
    """Adaptive k: δ-approximate ρ-zCDP for the chosen k and the unordered top-k set, or ⊥.

    Utility: if some gap among the considered ranks exceeds all others by
    ``2 (ln(m) + t)/ε_c`` and is at least ``T + 2 + s``, with T the test's threshold, then exactly
    its set comes out but for probability ``e^{−t} + P[noise < −s]``.

    Attributes
    ----------
    rho
        Budget ρ > 0 of choice and test together.
    delta
        Failure probability δ_t of the test.
    most
        Largest k considered, a public number. None considers every rank of a public list of
        candidates; without such a list it must be given.
    regularizer
        Preference among the k; public.
    share
        Part of ρ that chooses k.
    step
        How far a gap can move: 1 if neighbours differ by a user who comes or goes, 2 if one
        user's votes are replaced.
    """

    rho: Fraction
    delta: Fraction
    most: int | None = None
    regularizer: Regularizer = indifferent
    share: Fraction = Fraction(1, 2)
    step: int = 1

    @cached_property
    def rank_choice(self) -> ChooseRank:
        """The first half: Algorithm 1 with Gumbel noise."""
        epsilon = choice_epsilon(self.rho * self.share)
        return ChooseRank(
            NoisyMax(Law.GUMBEL, epsilon, step=self.step), self.most, self.regularizer
        )

    @cached_property
    def test(self) -> GaussianTest:
        """The second half: propose-test-release with Gaussian noise."""
        return GaussianTest(
            variance_for(self.rho * (1 - self.share), self.step), self.delta, self.step
        )

    @cached_property
    def guarantee(self) -> ZeroConcentratedDP:
        """The guarantee, derived from the two halves' own numbers."""
        choice = to_zcdp(self.rank_choice.noise.guarantee(2))
        return choice.compose(self.test.guarantee)

    def select(self, counts: Ranking | ArrayLike, entropy: Entropy) -> Selection:
        """Select a set whose size the data choose."""
        ranking, source = ranked(counts), entropy.source("stable-top-k")
        k = self.rank_choice.choose(ranking, source)
        stable = self.test.passes(int(ranking.padded_gaps(k)[-1]), source)
        return Selection(ranking.top(k) if stable else None, False, self.guarantee)


@dataclass(frozen=True)
class FixedStableTopK:
    """Exactly k: StableTopK pulled towards k, then filled up or thinned out by peeling.

    The chosen k̃ is public, so the rest of the budget may depend on it. The test gets what the
    choice and, if k̃ ≠ k, the peeling leave. Peeling adds the k − k̃ best of the rest, or takes k of
    the released set away from it; after ⊥ it selects all k. The candidates are a public list.

    Attributes
    ----------
    k
        How many to select.
    rho
        Budget ρ > 0 of everything.
    delta
        Failure probability of the test.
    strength
        λ of the regularizer −λ|j − k|.
    most
        Largest k̃ considered; the default is 2k.
    choice_share, peel_share
        Parts of ρ for choosing k̃ and for peeling.
    """

    k: int
    rho: Fraction
    delta: Fraction
    strength: Fraction = Fraction(1)
    most: int | None = None
    choice_share: Fraction = Fraction(1, 20)
    peel_share: Fraction = Fraction(9, 10)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise PrivacyError(f"k={self.k} must be at least 1")
        if min(self.choice_share, self.peel_share) <= 0 or self.choice_share + self.peel_share >= 1:
            raise PrivacyError(
                f"choice_share={self.choice_share} and peel_share={self.peel_share} must be > 0"
                " and leave something for the test"
            )

    @cached_property
    def rank_choice(self) -> ChooseRank:
        """Algorithm 1, pulled towards k."""
        epsilon = choice_epsilon(self.rho * self.choice_share)
        pull = pull_towards(self.k, self.strength)
        return ChooseRank(NoisyMax(Law.GUMBEL, epsilon), self.most or 2 * self.k, pull)

    @cached_property
    def test(self) -> GaussianTest:
        """The stability test of the set at the chosen k̃."""
        left = 1 - self.choice_share - self.peel_share
        return GaussianTest(variance_for(self.rho * left), self.delta)

    @cached_property
    def guarantee(self) -> ZeroConcentratedDP:
        """The guarantee of the whole: choice, test, and peeling at most ``peel_share · ρ``."""
        choice = to_zcdp(self.rank_choice.noise.guarantee(2)).compose(self.test.guarantee)
        peel = ZeroConcentratedDP(ADJACENCY, UNIT, self.rho * self.peel_share, Fraction(0))
        return choice.compose(peel)

    def select(self, counts: Ranking | ArrayLike, entropy: Entropy) -> Selection:
        """Select exactly k candidates, or all if there are no more."""
        ranking, source = ranked(counts), entropy.source("fixed-stable-top-k")
        if ranking.counts.size <= self.k:
            return Selection(ranking.top(self.k), False, self.guarantee)
        chosen = self.rank_choice.choose(ranking, source)
        stable = self.test.passes(int(ranking.padded_gaps(chosen)[-1]), source)
        top = ranking.top(chosen) if stable else np.zeros(0, dtype=np.int64)
        return Selection(self._mend(ranking, top, source), False, self.guarantee)

    def _mend(self, ranking: Ranking, top: Integers, source: WordSource) -> Integers:
        """Add or take away by peeling, within its share of ρ."""
        draws = abs(self.k - top.size)
        if not draws:
            return top
        if top.size < self.k:
            rest = np.setdiff1d(np.arange(ranking.counts.size), top, assume_unique=True)
            added = rest[self._peel(ranking.counts[rest], draws, source)]
            return np.sort(np.concatenate([top, added]))
        removed = self._peel(-ranking.counts[top], draws, source)
        return np.delete(top, removed)

    def _peel(self, scores: Integers, draws: int, source: WordSource) -> Integers:
        """Spend ``peel_share · ρ`` on that many draws; each is of ε-bounded range."""
        epsilon = choice_epsilon(self.rho * self.peel_share / draws)
        guarantee = to_zcdp(BoundedRange.of(epsilon, ADJACENCY, UNIT).repeat(draws))
        assert guarantee.exact_rho <= self.rho * self.peel_share
        return exponential_peeling(scores, epsilon, draws, source)
