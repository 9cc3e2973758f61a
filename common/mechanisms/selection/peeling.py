"""Top-k by the exponential mechanism: peeling over the whole domain, and over a limited one.

Counts move together when a user comes or goes, so one draw with weights ``exp(ε · count)`` is of
ε-bounded range, and k draws are kε²/8-zCDP (Durfee and Rogers 2019; Dong, Durfee, Rogers 2020).
Peeling k times is the same law as taking the k largest of counts plus Gumbel(1/ε) in one shot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.entropy import Entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.exponential_choice import exponential_choice, exponential_peeling
from labelveil.common.exact.rounding import above
from labelveil.common.guarantees import BoundedRange, RenyiDP, to_renyi
from labelveil.common.guarantees.limits import at_least, positive
from labelveil.common.mechanisms.selection.base import ADJACENCY, UNIT, Ranking, Selection, ranked


@dataclass(frozen=True)
class Peeling:
    """The k best in order, never ⊥: k draws of ε-bounded range each ("EM-CDP")."""

    k: int
    """How many to select."""
    epsilon: Fraction
    """ε > 0 of one draw."""

    def __post_init__(self) -> None:
        at_least(1, k=self.k)
        positive(epsilon=self.epsilon)

    @cached_property
    def guarantee(self) -> BoundedRange:
        """The guarantee of all draws."""
        return BoundedRange.of(self.epsilon, ADJACENCY, UNIT).repeat(self.k)

    def draw(self, counts: Ranking | ArrayLike, entropy: Entropy) -> Selection:
        """Select k candidates, or all if there are no more."""
        scores = ranked(counts).counts
        draws = min(self.k, scores.size)
        source = entropy.source("peeling")
        chosen = exponential_peeling(scores, self.epsilon, draws, source)
        return Selection(chosen, self.guarantee)


@dataclass(frozen=True)
class LimitedDomain:
    """Up to k of the true top k̄ in order; stops at ⊥. It needs no public list of candidates.

    ⊥ takes part with count ``h_(k̄+1) + 1 + ln(k̄/δ)/ε``. Peel until k are found or ⊥ comes out.

    Privacy (Durfee and Rogers 2019, Theorem 1, here with the RDP of bounded range). Let G be the
    candidates in the top k̄ of both neighbours. Any other has at most ``h_(k̄+1) + 1`` users, so
    noise lifts it above ⊥ with probability at most δ/k̄, and some one with at most δ. But for that
    event a run is peeling over G and ⊥, whose counts are monotone. A sequence within G is at most
    as likely as in that peeling, and at least ``1 − (k + 1)δ`` times as likely: given the sequence,
    the expected race time until its end is at most k + 1 expected times of ⊥. Hence with failure
    probability δ, ``ε(α) <= k·BR(α) + α/(α−1) ln(1/(1−δ)) + ln(1/(1−(k+1)δ))``.
    """

    k: int
    """The most to select."""
    domain: int
    """k̄ >= k, a public number."""
    epsilon: Fraction
    """ε > 0 of one draw."""
    delta: Fraction
    """Failure probability, below 1/(2k + 2)."""

    def __post_init__(self) -> None:
        at_least(1, k=self.k)
        positive(epsilon=self.epsilon)
        at_least(self.k, domain=self.domain)
        if not 0 < self.delta < Fraction(1, 2 * self.k + 2):
            raise PrivacyError(
                f"delta={float(self.delta)} must lie in 0 … {1 / (2 * self.k + 2):.3g}"
            )

    @cached_property
    def guarantee(self) -> RenyiDP:
        """The guarantee, as an RDP curve with a failure probability."""
        ranges = BoundedRange.of(self.epsilon, ADJACENCY, UNIT).repeat(self.k)
        return self.limiting(to_renyi(ranges))

    def limiting(self, peeling: RenyiDP) -> RenyiDP:
        """The guarantee with the limit, from that of k draws over G and ⊥."""
        near = Fraction(above(-math.log1p(-float(self.delta))))
        far = Fraction(above(-math.log1p(-float((self.k + 1) * self.delta))))
        values = tuple(
            value + near * order / (order - 1) + far
            for order, value in zip(peeling.orders, peeling.values, strict=True)
        )
        return replace(peeling, values=values, exact_delta=self.delta)

    def draw(self, counts: Ranking | ArrayLike, entropy: Entropy) -> Selection:
        """Select up to k candidates; ⊥ if none comes out before it."""
        ranking, source = ranked(counts), entropy.source("limited-domain")
        size = min(self.domain, ranking.counts.size)
        next_count = int(ranking.sorted[size]) if size < ranking.counts.size else 0
        candidates = ranking.order[:size].tolist()
        scores = np.append(ranking.sorted[:size], next_count + 1)
        weights = [Fraction(1)] * size + [self.domain / self.delta]
        chosen: list[int] = []
        while len(chosen) < min(self.k, size):
            drawn = exponential_choice(scores, self.epsilon, source, weights)
            if drawn == len(candidates):
                break
            chosen.append(candidates.pop(drawn))
            scores = np.delete(scores, drawn)
            del weights[drawn]
        indices = np.array(chosen, dtype=np.int64) if chosen else None
        return Selection(indices, self.guarantee)
