"""Exact output laws of the selectors on tiny domains, written down independently of their code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import numpy as np

from common.entropy import Entropy, seeded_entropy
from common.guarantees import BoundedRange, Guarantee, PureDP, RenyiDP, to_approximate

Law = dict[Any, float]
BOTTOM = None


def neighbours(candidates: int, most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All pairs of counts up to ``most``, without and with one more user of any choice."""
    steps = [step for step in product((0, 1), repeat=candidates) if any(step)]
    for counts in product(range(most + 1), repeat=candidates):
        for step in steps:
            yield counts, tuple(a + b for a, b in zip(counts, step, strict=True))


def softmax(scores: list[float]) -> np.ndarray:
    values = np.exp(np.array(scores) - max(scores))
    return values / values.sum()


def permute_and_flip(scores: list[float]) -> list[float]:
    """P[i] by going through every order of flipping."""
    heads = np.exp(np.array(scores) - max(scores))
    law = [0.0] * len(scores)
    orders = list(permutations(range(len(scores))))
    for order in orders:
        left = 1.0
        for i in order:
            law[i] += left * heads[i] / len(orders)
            left *= 1 - heads[i]
    return law


def laplace_mass(scale: float, reach: int) -> tuple[np.ndarray, np.ndarray]:
    points = np.arange(-reach, reach + 1)
    ratio = math.exp(-1 / scale)
    return points, (1 - ratio) / (1 + ratio) * ratio ** np.abs(points)


def gaussian_mass(variance: float, reach: int) -> tuple[np.ndarray, np.ndarray]:
    points = np.arange(-reach, reach + 1)
    mass = np.exp(-(points**2) / (2 * variance))
    return points, mass / mass.sum()


def noisy_argmax(utilities: list[int], noise: tuple[np.ndarray, np.ndarray]) -> list[float]:
    """P[i is the first argmax] with independent integer noise: sum over the winner's value."""
    points, mass = noise
    below = np.concatenate([[0.0], np.cumsum(mass)])
    law = []
    for i, u in enumerate(utilities):
        chances = mass.copy()
        for j, other in enumerate(utilities):
            if j != i:  # another wins a tie if its index is lower
                reach = u + points - other - (j < i) - points[0] + 1
                chances *= below[np.clip(reach, 0, len(points))]
        law.append(float(chances.sum()))
    return law


def tail(noise: tuple[np.ndarray, np.ndarray], threshold: int) -> float:
    points, mass = noise
    return float(mass[points > threshold].sum())


def order_of(counts: tuple[int, ...]) -> list[int]:
    return sorted(range(len(counts)), key=lambda i: (-counts[i], i))


def gaps_of(counts: tuple[int, ...], ranks: int) -> list[int]:
    padded = sorted(counts, reverse=True) + [0] * (ranks + 1)
    return [padded[j] - padded[j + 1] for j in range(ranks)]


def top_of(counts: tuple[int, ...], k: int) -> tuple[int, ...]:
    return tuple(sorted(order_of(counts)[:k]))


def hockey_stick(p: Mapping[Any, float], q: Mapping[Any, float], epsilon: float) -> float:
    return sum(max(0.0, mass - math.exp(epsilon) * q.get(z, 0.0)) for z, mass in p.items())


class Claim:
    """A guarantee, turned once into the numbers that two laws are checked against."""

    def __init__(self, guarantee: Guarantee) -> None:
        self.guarantee = guarantee
        failure = float(getattr(guarantee, "exact_delta", 0))
        self.points = [
            (to_approximate(guarantee, Fraction(delta)).epsilon, delta)
            for delta in (failure + extra for extra in (1e-1, 1e-2, 1e-3, 1e-5))
        ]
        self.orders: list[tuple[float, float]] = []
        if isinstance(guarantee, RenyiDP) and not guarantee.exact_delta:
            pairs = list(zip(guarantee.orders, guarantee.values, strict=True))[::40]
            self.orders = [(float(order), float(value)) for order, value in pairs]

    def broken(self, p: Law, q: Law) -> str | None:
        """Why two neighbours' laws break the guarantee, or None; checked in both directions."""
        for one, other in ((p, q), (q, p)):
            if isinstance(self.guarantee, PureDP | BoundedRange):
                reason = self._ratios(one, other)
                if reason:
                    return reason
            for order, bound in self.orders:
                if renyi(one, other, order) > bound + 1e-9:
                    return f"divergence above {bound} at order {order}"
            for epsilon, delta in self.points:
                found = hockey_stick(one, other, epsilon)
                if found > delta * (1 + 1e-9) + 1e-13:
                    return f"delta {found} above {delta} at epsilon {epsilon}"
        return None

    def _ratios(self, one: Law, other: Law) -> str | None:
        if set(one) != set(other):
            return "an outcome of one is impossible for the other"
        limit = self.guarantee.epsilon * (1 + 1e-9)  # type: ignore[attr-defined]
        logs = [math.log(one[z] / other[z]) for z in one]
        if max(logs) > limit:
            return f"log ratio {max(logs)} above {limit}"
        single = (
            isinstance(self.guarantee, BoundedRange)
            and sum(n for _, n in self.guarantee.parts) == 1
        )
        if single and max(logs) - min(logs) > limit:
            return f"range {max(logs) - min(logs)} above {limit}"
        return None


def renyi(p: Law, q: Law, order: float) -> float:
    if any(mass > 0 and q.get(z, 0.0) == 0 for z, mass in p.items()):
        return math.inf
    logs = [order * math.log(m) + (1 - order) * math.log(q[z]) for z, m in p.items() if m > 0]
    return float(np.logaddexp.reduce(logs)) / (order - 1)


def worst(
    guarantee: Guarantee, law: Callable[[tuple[int, ...]], Law], candidates: int, most: int
) -> str | None:
    """The first broken guarantee over all neighbours, or None."""
    cache: dict[tuple[int, ...], Law] = {}
    claim = Claim(guarantee)
    for one, other in neighbours(candidates, most):
        for counts in (one, other):
            if counts not in cache:
                cache[counts] = law(counts)
                total = sum(cache[counts].values())
                assert abs(total - 1) < 1e-9, (counts, total)
        broken = claim.broken(cache[one], cache[other])
        if broken:
            return f"{one} against {other}: {broken}"
    return None


def broken_twin(law: Law) -> Law:
    """The law with 30% of its mass moved to its least likely outcome."""
    least = min(law, key=lambda outcome: law[outcome])
    return {z: 0.7 * mass + (0.3 if z == least else 0.0) for z, mass in law.items()}


def drawn(draw: Callable[[Entropy], Any], draws: int = 400) -> Counter[Any]:
    """How often each outcome comes up under as many seeds."""
    return Counter(draw(seeded_entropy(7_000_021 + i)) for i in range(draws))
