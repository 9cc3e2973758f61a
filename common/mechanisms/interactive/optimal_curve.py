"""The least (ε, δ) of a session of target-charged calls: the optimum, by dynamic programming.

*What is computed.* An adversary chooses calls, each an ε-DP pair of laws with a q-target, one after
another and knowing all outcomes, until τ targets were hit. The privacy of the session is the
largest δ(ε₀) within reach. There is no slack for the number of calls: misses are part of the game.

*Why it is small.* What is left of the game depends on the hits to go, k, and the privacy loss so
far, ℓ. With the value written as a function of the two likelihoods it is convex and homogeneous, so
splitting outcomes until each has loss +ε or −ε never hurts the adversary; of a call there remain
the shares s and r of the "+" and "−" outcomes that lie in the target. With u = 1/(e^ε + 1),

    V_k(ℓ) = max over (s, r) of  (1 − u) [s V_{k−1}(ℓ + ε) + (1 − s) V_k(ℓ + ε)]
                               +      u  [r V_{k−1}(ℓ − ε) + (1 − r) V_k(ℓ − ε)],
    V_0(ℓ) = max(0, 1 − e^{−ℓ}),    u s + (1 − u) r >= q,   (1 − u) s + u r >= q,   0 <= s, r <= 1.

That is linear in (s, r), so a vertex of this polygon is best. The common part C of a call changes
nothing or gives away a hit. Then ``δ(ε₀) = V_τ(−ε₀)``; between multiples of ε the chord in e^{ε₀}
is a bound, since δ is convex in it. With q = 1 this is the optimal composition theorem (Kairouz,
Oh, Viswanath 2015) for τ calls.

*Certainty.* Values are found by policy iteration (each policy is one tridiagonal system) and then
checked: if no state gains more than η by one step of the equation, then ``V_k + η k/q`` is an upper
bound of the optimum, because k/q falls by at least 1 a step. Losses above the lattice count as
certain failure and those below as its lowest point; both only add.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import scipy

from labelveil.common.arrays import Floats, Integers
from labelveil.common.exact.rounding import above
from labelveil.common.mechanisms.interactive.call_count_tail import calls_until

_ROUNDS = 60
_WIDTHS = 9.0
_RARE = 1e-14
MOST_WORK = 6_000_000
"""Largest number of states (hits times losses) that is solved."""


@dataclass(frozen=True, eq=False)
class Curve:
    """δ as a function of ε for one session."""

    epsilons: Floats  # (n,) ascending ε₀ >= 0
    deltas: Floats  # (n,) upper bounds of δ, descending

    def epsilon(self, delta: float) -> float:
        """An ε₀ at which δ is at most ``delta``, rounded up; inf if the lattice ends before."""
        if self.deltas[0] <= delta:
            return 0.0
        right = int(np.argmax(self.deltas <= delta))
        if right == 0:
            return math.inf
        low, high = self.epsilons[right - 1 : right + 1].tolist()
        first, last = self.deltas[right - 1 : right + 1].tolist()
        share = (first - delta) / (first - last)
        return above(low + math.log1p(share * math.expm1(high - low)))


def vertices(epsilon: float, q: float) -> list[tuple[float, float]]:
    """The vertices (s, r) of the calls that an adversary may choose from."""
    u = 1 / (math.exp(epsilon) + 1)
    lines = [(u, 1 - u, q), (1 - u, u, q), (1, 0, 0), (0, 1, 0), (1, 0, 1), (0, 1, 1)]
    corners: set[tuple[float, float]] = set()
    for i, (a, b, c) in enumerate(lines):
        for d, e, f in lines[:i]:
            determinant = a * e - b * d
            if abs(determinant) < 1e-14:
                continue
            s, r = (c * e - b * f) / determinant, (a * f - c * d) / determinant
            inside = min(u * s + (1 - u) * r, (1 - u) * s + u * r) >= q - 1e-13
            if inside and -1e-13 <= s <= 1 + 1e-13 and -1e-13 <= r <= 1 + 1e-13:
                # q is a lower bound already; outward by less than it was rounded
                corners.add((min(max(s, 0.0), 1.0), min(max(r, 0.0), 1.0)))
    return sorted(corners)


@lru_cache(maxsize=64)
def optimal_curve(epsilon: float, q: float, hits: int) -> Curve | None:
    """δ(ε₀) of any session of ε-DP calls with q-targets, 0 < q <= 1, that stops at the τ-th hit.

    None where more than ``MOST_WORK`` states would have to be solved.
    """
    calls = calls_until(hits, Fraction(q), _RARE)
    # half the lattice: as far as the loss wanders with any probability that matters
    reach = math.ceil(calls * math.tanh(epsilon / 2) + _WIDTHS * math.sqrt(calls))
    half = min(calls, reach) + 2
    if half * 2 * hits > MOST_WORK:
        return None
    losses = epsilon * np.arange(-half, half + 1.0)
    value = -np.expm1(-np.maximum(losses, 0.0))
    u = 1 / (math.exp(epsilon) + 1)
    # (vertex, 1) chances: hit and up, hit and down, miss and up, miss and down
    s, r = (np.array(column)[:, None] for column in zip(*vertices(epsilon, q), strict=True))
    hit_up, hit_down, up, down = (1 - u) * s, u * r, (1 - u) * (1 - s), u * (1 - r)
    policy = np.zeros(losses.size, dtype=np.int64)
    slack = 0.0
    for _ in range(hits):
        reward = hit_up * _above(value) + hit_down * _below(value)
        value, policy = _solve(reward, up, down, policy, value)
        gain = (reward + up * _above(value) + down * _below(value)).max(axis=0) - value
        slack = max(slack, float(gain.max()))
    deltas = value[half::-1] + (slack + 4e-16) * hits / q
    return Curve(losses[half:], np.minimum(np.minimum.accumulate(deltas), 1.0))


def _above(value: Floats) -> Floats:
    """The value one cell up; certain failure beyond the lattice."""
    return np.append(value[1:], 1.0)


def _below(value: Floats) -> Floats:
    """The value one cell down; the lowest cell's beyond the lattice, which is more than true."""
    return np.insert(value[:-1], 0, value[0])


def _solve(
    reward: Floats, up: Floats, down: Floats, policy: Integers, start: Floats
) -> tuple[Floats, Integers]:
    """Policy iteration for the best choice of a vertex in every cell."""
    size = policy.size
    value = start
    cell = np.arange(size)
    band = np.empty((3, size))
    for _ in range(_ROUNDS):
        move_up, move_down = up[policy, 0], down[policy, 0]
        right = reward[policy, cell]
        right[-1] += move_up[-1]
        band[0, 1:], band[2, :-1], band[1] = -move_up[:-1], -move_down[1:], 1.0
        band[1, 0] -= move_down[0]
        value = scipy.linalg.solve_banded((1, 1), band, right, check_finite=False)
        choices = reward + up * _above(value) + down * _below(value)
        better = choices.argmax(axis=0)
        # change only where it matters, or float error makes equal policies alternate forever
        change = choices[better, cell] > choices[policy, cell] + 1e-16
        if not change.any():
            break
        policy = np.where(change, better, policy)
    return np.clip(value, 0.0, 1.0), policy
