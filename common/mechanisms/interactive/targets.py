"""What a private call guarantees about its target, and how often a target is hit.

*Target* (Cohen and Lyu, *The Target-Charging Technique for Privacy Analysis across Interactive
Computations*, NeurIPS 2023, Definition 2.1). A set T of outcomes is a q-target of a mechanism M if
for all neighbours there are p, a law C that is the same for both, and laws B⁰, B¹ with

    M(D⁰) = p C + (1 − p) B⁰,   M(D¹) = p C + (1 − p) B¹,   B⁰ ≈_ε B¹,   min_b P[B^b ∈ T] >= q.

With probability p the call learns nothing about which neighbour it sees; when it does learn
something, it hits T with probability at least q. So hits can be counted instead of calls.

For two given laws the best decomposition has a closed form. Of an outcome outside T at most
``(e^ε min − max)/(e^ε − 1)`` of its two probabilities can be common (more would leave a ratio above
e^ε), nothing of T should be (it would lower q), and taking the maximum everywhere is best, because
``q = min_b P[M(D^b) ∈ T] / (1 − p)``. :func:`hit_probability` is that formula.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rounding import SLACK, above, below
from labelveil.common.guarantees.limits import at_least, within


@dataclass(frozen=True)
class Target:
    """A guarantee about one call: ε, q and δ."""

    epsilon: Fraction
    """ε > 0 of ``B⁰ ≈_ε B¹``."""
    probability: Fraction
    """q in (0, 1]: a lower bound of the chance to hit where something is learned."""
    delta: Fraction = Fraction(0)
    """δ of the call in 0 … 1: an (ε, δ)-DP call behaves like an ε-DP one but for an event of
    probability δ (Kairouz, Oh, Viswanath 2015), which every call pays, hit or not."""

    def __post_init__(self) -> None:
        within("(0, 40]", epsilon=self.epsilon)
        within("(0, 1]", q=self.probability)
        within("[0, 1)", delta=self.delta)

    def within(self, other: Target) -> bool:
        """Whether a call with this guarantee keeps the other one, δ aside.

        B⁰ ≈_ε B¹ implies B⁰ ≈_ε' B¹ for ε' >= ε, and a q-target is a q'-target for q' <= q.
        """
        return self.epsilon <= other.epsilon and self.probability >= other.probability


def not_prior(epsilon: Fraction, delta: Fraction = Fraction(0)) -> Target:
    """Every outcome but one that was named before: ``q = 1/(e^ε + 1)`` (Lemma 2.3).

    Proof. Let the prior have probabilities 1 − x >= 1 − y under the neighbours, so y <= e^ε x.
    The formula of this module gives ``1 − p = (e^ε y − x)/(e^ε − 1)`` and
    ``q = x (e^ε − 1)/(e^ε y − x)``, which is least at ``y = e^ε x``.
    """
    share = 1 / (math.exp(float(epsilon)) + 1)
    # by a share of it alone: an absolute distance is more than the whole above ε = 34
    return Target(epsilon, Fraction(share) * (1 - Fraction(SLACK)), delta)


def between_thresholds(epsilon: Fraction, width: int, sensitivity: int = 1) -> Target:
    """A noisy count in one of ``width`` neighbouring integers, against below and above.

    Noise is the discrete Laplace law of scale Δ/ε, and ``q = (1 − e^{−ε w/Δ})/(e^ε + 1)``: Lemma
    G.1 with the interval's length replaced by the number w of integers in it.

    Proof. Let the count move by κΔ/ε, κ <= ε, from the farther neighbour below the interval, and g
    its chance to leave "below". If both are below, the other's is e^κ g, "above" is in the ratio
    e^κ as well, so ``1 − p <= g (e^{ε+κ} − 1)/(e^ε − 1) <= g (e^ε + 1)``, and the chance of
    "between" is ``g (1 − e^{−εw/Δ})``. If a neighbour is in the interval, it is hit with at least
    the chance from just below it, ``(1 − e^{−εw/Δ})/(1 + e^{ε/Δ})``, which is at least q.
    """
    at_least(1, width=width, sensitivity=sensitivity)
    e = float(epsilon)
    gap = -math.expm1(-e * width / sensitivity)
    return Target(epsilon, Fraction(below(gap / (math.exp(e) + 1))))


def boundary_closeness(epsilon: Fraction) -> Fraction:
    """t(ε) of the boundary wrapper, ``ε + ln(3/(2 + e^{−ε}))``, rounded up; at most 4ε/3.

    Proof. The wrapper shows the boundary with probability ``g = min{1/3, π/(1 + π)}``, π the chance
    of any outcome but the likeliest. Between neighbours π changes by a factor of at most e^ε, and
    so does g, which grows more slowly. An outcome's probability changes by at most
    ``e^ε (1 − g')/(1 − g)``; ``1 − g = max{2/3, 1/(1 + π)}``, so the factor is largest for π = 1/2
    and π' = e^{−ε}/2. An outcome of vanishing probability comes as near as one likes.
    """
    e = float(epsilon)
    return min(epsilon * Fraction(4, 3), Fraction(above(e - math.log1p(math.expm1(-e) / 3))))


def boundary(epsilon: Fraction, slack: Fraction = Fraction(0)) -> Target:
    """The boundary symbol of the wrapper around an ε-DP mechanism (Lemmas 2.8 and 2.9, sharpened).

    t(ε)-DP with ``q = (e^t − 1)/(e^t − 1 + (e^ε − 1)(2e^t + 1))``: about 4/13 for small ε, where
    the published ``(e^t − 1)/(2(e^{ε+t} − 1))`` is about 2/7. No larger q holds for all mechanisms:
    an outcome of probability nearly 1 against many whose ratio is e^ε attains it.

    Proof. Let g₀ <= g₁ be the boundary's chances. ``q >= g₀``, since p >= 0. If the likeliest
    outcome has more than half under both laws, the wrapper shows it with probability 1 − 2g_b and
    all others together with g_b. The former adds ``2e^t (g₁ − g₀)/(e^t − 1)`` to 1 − p, and another
    outcome that grows by a factor ρ <= e^ε adds ``(ρ − 1)/(e^t − 1)`` of itself; one that shrinks
    adds less than it takes from g₁. So ``1 − p <= g₀ (1 + (e^ε − 1)(2e^t + 1)/(e^t − 1))``.
    Otherwise π_b >= 1/2 under one law, hence π >= e^{−ε}/2 and g >= 1/(2e^ε + 1) under both, which
    is at least q because ``2e^t + 1 <= 3e^ε``.

    ``slack`` is added to t, for a mechanism that knows where π = 1/2 lies up to an error only.
    """
    closeness = boundary_closeness(epsilon)
    e, t = float(epsilon), float(closeness)
    grown = math.expm1(t)
    q = grown / (grown + math.expm1(e) * (2 * math.exp(t) + 1))
    return Target(closeness + slack, Fraction(below(q)))


def run_twice(epsilon: Fraction) -> Target:
    """Two independent runs of an ε-DP mechanism, both published; target: they differ (Lemma F.1).

    2ε-DP with ``q = min{2e^ε/(e^ε + 1)², (e^{2ε} − 1)/(e^{3ε} − 1)}``, about 1/2 for small ε.
    Randomized response attains the first, a nearly certain outcome the second.

    Proof. Let E = e^ε, p and q the two laws, ``H = 1 − Σ pᵢ²`` the chance to differ under p, and A
    and B the outcomes with pᵢ > qᵢ and with pᵢ <= qᵢ. By the formula of this module H is the share
    1/(1 + R) of 1 − p, with ``(E² − 1) H R = E² Σ_A (pᵢ² − qᵢ²) + Σ_B (qᵢ² − pᵢ²)``. Take λH off
    the right side, λ > 0: it grows when two outcomes of A are made one, by
    ``2 (E² + λ) pᵢpⱼ − 2E² qᵢqⱼ``, and two of B, by ``2 qᵢqⱼ + 2 (λ − 1) pᵢpⱼ``. Both stay within
    the ratio E, so R is largest for two outcomes, (p, 1 − p) and (q, 1 − q) with p > q. There

        (E² − 1) 2p (1 − p) R = d (2 (1 − p) + 2E² p − (E² − 1) d),   d = p − q,

    which grows with d up to ``min{p (E − 1)/E, (E − 1)(1 − p)}``. Where the former is less, R grows
    with p; where the latter is, R is a ratio of two linear functions of p, so it is largest at an
    end: p = E/(E + 1), with ``R = (E² + 1)/(2E)``, or p → 1, with ``R = E²/(E + 1)``. Where the
    other law's chance to differ is the smaller, exchange the two.
    """
    e = float(epsilon)
    response = 2 / (math.exp(e) + 2 + math.exp(-e))
    certain = math.expm1(2 * e) / math.expm1(3 * e)
    return Target(2 * epsilon, Fraction(below(min(response, certain))))


def hit_probability(
    law: ArrayLike, neighbour: ArrayLike, target: Collection[int], epsilon: float
) -> float:
    """The largest q for which Definition 2.1 can be met by two laws; 1 if they are equal.

    ``law`` and ``neighbour`` are (n,) probabilities of the outcomes, ``target`` has the indices of
    those in T.

    Raises
    ------
    PrivacyError
        If the laws are no two distributions of as many outcomes, or not ε-close, so that nothing
        can be decomposed.
    """
    law, neighbour = np.asarray(law, dtype=np.float64), np.asarray(neighbour, dtype=np.float64)
    if law.ndim != 1 or law.shape != neighbour.shape:
        raise PrivacyError(f"laws of shapes {law.shape} and {neighbour.shape} must be two vectors")
    for each in (law, neighbour):
        total = float(each.sum())
        if not (each >= 0).all() or not math.isclose(total, 1.0, abs_tol=1e-9):
            raise PrivacyError(f"the laws' probabilities must be >= 0 and sum to 1, not {total:g}")
    laws = np.stack([law, neighbour])
    low, high = laws.min(axis=0), laws.max(axis=0)
    if np.any(high > low * math.exp(epsilon) * (1 + 1e-12)):
        raise PrivacyError(f"the two laws are not within a factor of e^{epsilon:g} of each other")
    hit = np.isin(np.arange(low.size), list(target))
    # 1 − p, written without cancellation: what each outcome keeps beside its common part
    rest = np.where(laws == low, high - low, math.exp(epsilon) * (high - low))
    own = laws[:, hit].sum(axis=1) + (rest[:, ~hit] / math.expm1(epsilon)).sum(axis=1)
    total = float(own.max())
    return 1.0 if total == 0 else float(laws[:, hit].sum(axis=1).min()) / total
