"""StableTopK: choose k where the counts fall off a cliff, then show the set without noise.

Source: Zhu and Wang 2022, Algorithms 2 and 3 with Theorems 11 and 12. Both halves are exact, and
the guarantee is computed from the noise that is really drawn: ρ = ε_c²/8 for the choice of k plus
1/(2σ²) for the test, and the noise's exact tail as the failure probability.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.exponential_choice import exponential_peeling
from labelveil.common.exact.rounding import multiple_above, root_below
from labelveil.common.guarantees import BoundedRange, RenyiDP, ZeroConcentratedDP, to_renyi, to_zcdp
from labelveil.common.guarantees.limits import at_least, positive, within
from labelveil.common.mechanisms.selection.base import Ranking, Selection, ranked
from labelveil.common.mechanisms.selection.choose_k import (
    ChooseRank,
    Regularizer,
    indifferent,
    pull_towards,
)
from labelveil.common.mechanisms.selection.noisy_max import Law, NoisyMax
from labelveil.common.mechanisms.selection.peeling import LimitedDomain
from labelveil.common.mechanisms.selection.stability import GaussianTest, LaplaceTest

_GRAIN = 1 << 12
LEAST_RHO = Fraction(1, 10**8)
"""What is always enough for one choice: its ε is a multiple of 1/4096."""
STABLE_SHARE = Fraction(1, 10)
"""Part of an exact k's ρ for the stable set where none is named."""


def choice_epsilon(rho: Fraction, divisor: int = 8) -> Fraction:
    """Return the largest convenient ε with ε²/8 <= ρ (2: that of plain ε-DP)."""
    epsilon = root_below(divisor * rho, _GRAIN)
    if epsilon <= 0:
        raise PrivacyError(f"rho={float(rho)} is too small to choose with; give at least 1e-8")
    return epsilon


def variance_for(rho: Fraction, step: int = 1) -> Fraction:
    """Return the least σ², a multiple of 1/4096, with step²/(2σ²) <= ρ."""
    positive(rho=rho)
    return multiple_above(step * step / (2 * rho), _GRAIN)


@dataclass(frozen=True)
class StableTopK:
    """Adaptive k: δ-approximate ρ-zCDP for the chosen k and the unordered top-k set, or ⊥.

    With other noise than the default the guarantee is an RDP curve: Gaussian noise for the choice
    (RNM-Gaussian) costs ``ln(most)/(α−1)`` beyond its part of ρ at order α, and pure noise at most
    its ε.

    Utility: if some gap among the considered ranks exceeds all others by
    ``2 (ln(m) + t)/ε_c`` and is at least ``T + 2 + s``, with T the test's threshold, then exactly
    its set comes out but for probability ``e^{−t} + P[noise < −s]``.
    """

    rho: Fraction
    """Budget ρ > 0 of choice and test together."""
    delta: Fraction
    """Failure probability δ_t of the test."""
    most: int | None = None
    """Largest k considered, a public number. None considers every rank of a public list of
    candidates; without such a list it must be given."""
    regularizer: Regularizer = indifferent
    """Preference among the k; public."""
    share: Fraction = Fraction(1, 2)
    """Part of ρ that chooses k."""
    step: int = 1
    """How far a gap can move: 1 if a user comes or goes, 2 if votes are replaced."""
    choice_law: Law = Law.GUMBEL
    """Noise of the choice of k; Gaussian noise needs ``most``."""
    test_law: Law = Law.GAUSSIAN
    """Noise of the test: Gaussian or Laplace."""

    def __post_init__(self) -> None:
        if self.choice_law == Law.GAUSSIAN and self.most is None:
            raise PrivacyError("Gaussian noise pays for the number of ranks; give most=")
        if self.test_law not in (Law.GAUSSIAN, Law.LAPLACE):
            raise PrivacyError(f"test_law={self.test_law} must be gaussian or laplace")

    @cached_property
    def rank_choice(self) -> ChooseRank:
        """The first half: Algorithm 1."""
        law, rho = self.choice_law, self.rho * self.share
        if law == Law.GAUSSIAN:  # adds ln(m)/(α−1) to ρ
            noise = NoisyMax(law, variance=variance_for(rho, 2 * self.step), step=self.step)
        else:
            epsilon = choice_epsilon(rho, 8 if law == Law.GUMBEL else 2)
            noise = NoisyMax(law, epsilon, step=self.step)
        return ChooseRank(noise, self.most, self.regularizer)

    @cached_property
    def test(self) -> GaussianTest | LaplaceTest:
        """The second half: propose-test-release, Algorithm 4 or 5."""
        rest = self.rho * (1 - self.share)
        if self.test_law == Law.LAPLACE:
            return LaplaceTest(choice_epsilon(rest, 2), self.delta, self.step)
        return GaussianTest(variance_for(rest, self.step), self.delta, self.step)

    @cached_property
    def guarantee(self) -> ZeroConcentratedDP | RenyiDP:
        """The guarantee, derived from the two halves' own numbers; RDP where that says more."""
        choice, test = self.rank_choice.guarantee((self.most or 1) + 1), self.test.guarantee
        if isinstance(choice, BoundedRange) and isinstance(test, ZeroConcentratedDP):
            return to_zcdp(choice).compose(test)
        return to_renyi(choice).compose(to_renyi(test))

    def draw(self, counts: Ranking | ArrayLike, entropy: Entropy) -> Selection:
        """Select a set whose size the data choose."""
        ranking, source = ranked(counts), entropy.source("stable-top-k")
        k = self.rank_choice.draw(ranking, source)
        stable = self.test.draw(int(ranking.padded_gaps(k)[-1]), source)
        return Selection(ranking.top(k) if stable else None, self.guarantee)


@dataclass(frozen=True)
class FixedStableTopK:
    """Exactly k: StableTopK pulled towards k, then filled up or thinned out by peeling.

    The chosen k̃ is public, so the rest of the budget may depend on it. Choice and test get
    ``share`` of ρ, half each, and peeling the rest. It adds the k − k̃ best of the others, or takes
    k̃ − k away from the released set; after ⊥ it selects all k. The candidates are a public list.

    Without such a list, give ``domain``: what is missing is then taken by :class:`LimitedDomain`
    from that many leaders of the rest, and fewer than k come out where its ⊥ does.
    """

    k: int
    """How many to select."""
    rho: Fraction
    """Budget ρ > 0 of everything."""
    delta: Fraction
    """Failure probability of the test."""
    domain: int | None = None
    """k̄ >= k, a public number, or None for a public list. A limited domain fails with probability
    δ, too, below 1/(2k + 2)."""
    share: Fraction = STABLE_SHARE
    """Part of ρ for choice and test, inside (0, 1): 1/2 in Algorithm 3. A large one pays where a
    wide gap lies near rank k, a small one where there is none."""
    step: int = 1
    """How far a gap can move: 1 if a user comes or goes, 2 if votes are replaced (each count then
    moves by 1, up or down). Replaced votes need a public list."""

    def __post_init__(self) -> None:
        at_least(1, k=self.k)
        positive(rho=self.rho)
        within("(0, 1)", share=self.share)
        self._rate(self.k)  # checks that the rest of ρ is enough for all draws
        if self.domain is not None:
            if self.step != 1:
                raise PrivacyError("a limited domain is for users who come or go; leave domain out")
            self._limited(self.k, self.domain)  # checks

    @cached_property
    def rank_choice(self) -> ChooseRank:
        """Algorithm 1, pulled towards k, over 1 … 2k."""
        epsilon = choice_epsilon(self.rho * self.share / 2)
        noise = NoisyMax(Law.GUMBEL, epsilon, step=self.step)
        return ChooseRank(noise, 2 * self.k, pull_towards(self.k))

    @cached_property
    def test(self) -> GaussianTest:
        """The stability test of the set at the chosen k̃."""
        return GaussianTest(
            variance_for(self.rho * self.share / 2, self.step), self.delta, self.step
        )

    @cached_property
    def guarantee(self) -> ZeroConcentratedDP | RenyiDP:
        """The guarantee of the whole: choice, test, and peeling at most its part of ρ.

        A limited domain adds most where it draws all k.
        """
        choice = to_zcdp(self.rank_choice.noise.guarantee(2)).compose(self.test.guarantee)
        peel = replace(choice, exact_rho=self._peeling_rho, exact_delta=Fraction(0))
        if self.domain is None:
            return choice.compose(peel)
        return to_renyi(choice).compose(self._limited(self.k, self.domain).limiting(to_renyi(peel)))

    def draw(self, counts: Ranking | ArrayLike, entropy: Entropy) -> Selection:
        """Select exactly k candidates, by index, or all if there are no more."""
        ranking, source = ranked(counts), entropy.source("fixed-stable-top-k")
        if self.domain is None and ranking.counts.size <= self.k:
            return Selection(ranking.top(self.k), self.guarantee)
        k = self.rank_choice.draw(ranking, source)
        stable = self.test.draw(int(ranking.padded_gaps(k)[-1]), source)
        chosen = ranking.top(k) if stable else np.zeros(0, dtype=np.int64)
        rest = np.setdiff1d(np.arange(ranking.counts.size), chosen, assume_unique=True)
        draws = abs(self.k - chosen.size)
        if chosen.size > self.k:
            removed = self._peel(-ranking.counts[chosen], draws, entropy)
            chosen = np.delete(chosen, removed)
        elif draws and rest.size:
            added = self._peel(ranking.counts[rest], draws, entropy, self.domain)
            chosen = np.sort(np.concatenate([chosen, rest[added]]))
        return Selection(chosen if chosen.size else None, self.guarantee)

    @property
    def _peeling_rho(self) -> Fraction:
        return self.rho * (1 - self.share)

    def _rate(self, draws: int) -> Fraction:
        """r of the weights ``exp(r · count)`` of each of that many draws, each of sr-bounded range.

        Replaced votes (s = 2) move counts up and down, so that two scores move apart by 2.
        """
        return choice_epsilon(self._peeling_rho / draws) / self.step

    def _limited(self, draws: int, domain: int) -> LimitedDomain:
        return LimitedDomain(draws, domain, self._rate(draws), self.delta)

    def _peel(
        self, scores: Integers, draws: int, entropy: Entropy, domain: int | None = None
    ) -> Integers:
        if domain is not None:
            chosen = self._limited(draws, domain).draw(scores, entropy).chosen
            return np.zeros(0, dtype=np.int64) if chosen is None else chosen
        source = entropy.source("fixed-stable-top-k peeling")
        return exponential_peeling(scores, self._rate(draws), draws, source)
