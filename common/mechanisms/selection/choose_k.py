"""Algorithm 1: choose how many to select, where the counts fall off a cliff.

Source: Zhu and Wang, *Adaptive Private-K-Selection with Adaptive K and Application to Multi-label
PATE*, AISTATS 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from labelveil.common.entropy import WordSource
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.guarantees import Guarantee
from labelveil.common.guarantees.limits import at_least
from labelveil.common.mechanisms.selection.base import Ranking
from labelveil.common.mechanisms.selection.noisy_max import NoisyMax

Regularizer = Callable[[int], Fraction]
"""Maps a rank j to r(j), in users; public, so it must not look at the counts."""

_MAX_DENOMINATOR = 1 << 20


def indifferent(rank: int) -> Fraction:
    """r(j) = 0: any k is as good as another."""
    return Fraction(0)


def pull_towards(k: int, strength: Fraction | float = 1) -> Regularizer:
    """r(j) = −λ |j − k|: a gap must be λ users wider for each rank that it is away from k."""
    exact = rational(strength)
    return lambda rank: -exact * abs(rank - k)


@dataclass(frozen=True)
class ChooseRank:
    """``argmax_j h_(j) − h_(j+1) + r(j) + noise`` over 1 <= j <= ``most``.

    A gap moves by at most 1 when a user comes or goes, in either direction, so this is report noisy
    max on utilities that are not monotone. Restricting j to a public limit (r = −∞ beyond it) is
    the limited-domain form; it needs no public list of candidates, since ranks without candidates
    have gap 0. With Gumbel noise the chosen rank's utility is within ``2 (ln(m) + t)/ε`` of the
    best with probability at least 1 − e^{−t}.
    """

    noise: NoisyMax
    """Noise for utilities that are not monotone."""
    most: int | None = None
    """Largest k considered; None for all m − 1 of a public list of m."""
    regularizer: Regularizer = indifferent
    """r(j)."""

    def __post_init__(self) -> None:
        if self.noise.monotone:
            raise PrivacyError("gaps are not monotone: one may grow while another shrinks")
        at_least(1, most=self.most)

    def ranks(self, candidates: int) -> int:
        """How many ranks are considered among that many candidates.

        Raises
        ------
        PrivacyError
            If there are fewer than two candidates.
        """
        if self.most is not None:
            return self.most
        if candidates < 2:
            raise PrivacyError(f"{candidates} candidate leaves nothing to choose; give at least 2")
        return candidates - 1

    def guarantee(self, candidates: int) -> Guarantee:
        """The guarantee of the chosen rank."""
        return self.noise.guarantee(self.ranks(candidates))

    def draw(self, ranking: Ranking, source: WordSource) -> int:
        """Return the chosen k >= 1, by gap plus r(j), as integers over a common denominator.

        Raises
        ------
        PrivacyError
            If values of the regularizer have too fine a common denominator.
        """
        gaps = ranking.padded_gaps(self.ranks(ranking.counts.size))
        if self.regularizer is indifferent:
            return 1 + self.noise.draw(gaps, source)
        extra = [self.regularizer(rank) for rank in range(1, gaps.size + 1)]
        denominator = int(np.lcm.reduce([value.denominator for value in extra]))
        if denominator > _MAX_DENOMINATOR:
            raise PrivacyError(
                f"regularizer values with a common denominator of {denominator} are too fine;"
                f" use multiples of 1/{_MAX_DENOMINATOR}"
            )
        scaled = np.array([int(value * denominator) for value in extra], dtype=np.int64)
        return 1 + self.noise.draw(gaps * denominator + scaled, source, denominator)
