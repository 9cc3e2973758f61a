"""Exact output laws of the selectors on tiny domains, written down independently of their code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np

from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.guarantees import Guarantee
from tests.common.mechanisms import enumeration

Law = dict[Any, float]
BOTTOM = None


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


def in_parts(law: tuple[np.ndarray, np.ndarray], parts: int) -> tuple[np.ndarray, np.ndarray]:
    """The same law, of values that are counted in parts of a user."""
    points, mass = law
    finer = np.arange(points[0] * parts, points[-1] * parts + 1)
    masses = np.zeros(finer.size)
    masses[::parts] = mass
    return finer, masses


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


def broken(guarantee: Guarantee, p: Law, q: Law) -> str | None:
    """Why two neighbours' laws break the guarantee, or None; looked at in both directions."""
    return enumeration.broken(guarantee, enumeration.Law(p, 0.0), enumeration.Law(q, 0.0))


def renyi(p: Law, q: Law, order: float) -> float:
    if any(mass > 0 and q.get(z, 0.0) == 0 for z, mass in p.items()):
        return math.inf
    logs = [order * math.log(m) + (1 - order) * math.log(q[z]) for z, m in p.items() if m > 0]
    return float(np.logaddexp.reduce(logs)) / (order - 1)


def broken_twin(law: Law) -> Law:
    """The law with 30% of its mass moved to its least likely outcome."""
    least = min(law, key=lambda outcome: law[outcome])
    return {z: 0.7 * mass + (0.3 if z == least else 0.0) for z, mass in law.items()}


def drawn(draw: Callable[[Entropy], Any], draws: int = 400) -> Counter[Any]:
    """How often each outcome comes up under as many seeds."""
    return Counter(draw(seeded_entropy(7_000_021 + i)) for i in range(draws))
