"""Who leads, with noisy counts, under pure ε-DP for replaced votes: what a label ledger can add up.

Stability-based selection needs a δ. Where a ledger keeps exact sums of pure ε, this does the same
job without one: choose k by the widest gap (Algorithm 1 of Zhu and Wang 2022), name the k leaders
by peeling, and add discrete Laplace noise to their counts. The candidates are a public list.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from common.entropy import Entropy
from common.errors import PrivacyError
from common.guarantees import Adjacency, PureDP, Unit
from common.noise import discrete_laplace
from common.selection.base import Integers, Ranking, ranked
from common.selection.choice import exponential_peeling
from common.selection.noisy_max import Law, NoisyMax
from common.selection.rank import ChooseRank

_CHOICE_SHARE = Fraction(1, 4)


@dataclass(frozen=True)
class Leading:
    """The released leaders.

    Attributes
    ----------
    chosen
        (k,) indices of the candidates, in the order in which they were named.
    noisy_counts
        (k,) their counts with discrete Laplace noise of scale ``scale``.
    """

    chosen: Integers
    noisy_counts: Integers
    scale: Fraction


@dataclass(frozen=True)
class Leaders:
    """The k leading candidates of a public list with noisy counts; ε-DP for one unit's votes.

    Replacing a unit's votes moves each count by at most 1, up or down. So a gap moves by at most 2,
    a draw with weights ``exp(r · count)`` is 2r-DP, and noise of scale b on counts of L1
    sensitivity Δ is Δ/b-DP: Δ = k for a user, 2 for a record, which has one vote to move.

    Attributes
    ----------
    epsilon
        ε > 0 of everything: a quarter chooses k if it is adaptive, the rest is halved between
        names and counts.
    k
        How many to name; None lets the widest gap decide.
    most
        Largest k considered where it is adaptive.
    unit
        Whose votes are replaced.
    """

    epsilon: Fraction
    k: int | None = None
    most: int = 20
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        if self.epsilon <= 0:
            raise PrivacyError(f"epsilon={float(self.epsilon)} must be > 0")
        if (self.k is not None and self.k < 1) or self.most < 1:
            raise PrivacyError(f"k={self.k} and most={self.most} must be at least 1")

    @property
    def guarantee(self) -> PureDP:
        """The promise: ε, exactly."""
        return PureDP.of(self.epsilon, Adjacency.REPLACE_LABEL, self.unit)

    def split(self, k: int) -> tuple[Fraction, Fraction, Fraction]:
        """ε for choosing k, rate of one draw, and scale of the counts' noise."""
        choice = self.epsilon * _CHOICE_SHARE if self.k is None else Fraction(0)
        half = (self.epsilon - choice) / 2
        sensitivity = k if self.unit == Unit.USER else min(k, 2)
        return choice, half / (2 * k), sensitivity / half

    def select(self, counts: Ranking | ArrayLike, entropy: Entropy) -> Leading:
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
            k = ChooseRank(noise, most).choose(ranking, entropy.source("leaders-k"))
        _, rate, scale = self.split(k)
        chosen = exponential_peeling(ranking.counts, rate, k, entropy.source("leaders-names"))
        noise_values = discrete_laplace(scale, k, entropy.source("leaders-counts"))
        noisy = np.asarray(ranking.counts[chosen] + noise_values)
        return Leading(chosen, noisy, scale)
