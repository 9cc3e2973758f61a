"""Pairs of neighbouring laws, their best decomposition by linear programming, measured privacy."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import linprog

from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import seeded_entropy
from labelveil.common.guarantees import ApproximateDP

Law = dict[Hashable, float]

DELTAS = (0.2, 0.1, 0.03, 0.01, 1e-3, 1e-4)


def largest_q(one: Floats, other: Floats, target: Collection[int], epsilon: float) -> float:
    """The largest q of Definition 2.1, by a linear program in (1/(1 − p), pC/(1 − p), q).

    The residuals are ``sW^b − c`` with s = 1/(1 − p) and c = pC/(1 − p); they sum to 1.
    """
    n = one.size
    grow = math.exp(epsilon)
    inside = np.isin(np.arange(n), list(target)).astype(float)
    eye = np.eye(n)
    rows, bounds = [], []
    for mine, theirs in ((one, other), (other, one)):
        rows.append(np.column_stack([mine - grow * theirs, (grow - 1) * eye, np.zeros(n)]))
        bounds.append(np.zeros(n))  # r <= e^ε r'
        rows.append(np.column_stack([-mine, eye, np.zeros(n)]))
        bounds.append(np.zeros(n))  # c <= s W
        rows.append(np.concatenate([[-float(mine @ inside)], inside, [1.0]])[None])
        bounds.append(np.zeros(1))  # q <= r(T)
    found = linprog(
        np.concatenate([np.zeros(n + 1), [-1.0]]),
        A_ub=np.vstack(rows),
        b_ub=np.concatenate(bounds),
        A_eq=np.concatenate([[1.0], -np.ones(n), [0.0]])[None],
        b_eq=[1.0],
        bounds=[(0, None)] * (n + 1) + [(0, 1)],
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert found.status == 0, found.message
    return float(-found.fun)


def neighbours(epsilon: float, outcomes: int, count: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """Random ε-close pairs: extreme ones (all losses ±ε), mixed with a common law or not."""
    u = 1 / (math.exp(epsilon) + 1)
    source = seeded_entropy(seed).source("pairs")

    def uniform(size: int) -> Floats:
        return (source.take(size) >> np.uint64(11)).astype(np.float64) / 2**53

    def simplex(size: int) -> Floats:
        weights = (-np.log(uniform(size) + 1e-300)) ** (0.3 + 4 * uniform(1)[0])
        return np.asarray(weights / weights.sum())

    for _ in range(count):
        ups = 1 + int(uniform(1)[0] * (outcomes - 1))
        first, second, common = simplex(ups), simplex(outcomes - ups), simplex(outcomes)
        share = [0.0, float(uniform(1)[0]), 1 - 10 ** (-3 * float(uniform(1)[0]))]
        p = share[int(3 * uniform(1)[0])]
        one = np.concatenate([(1 - u) * first, u * second]) * (1 - p) + p * common
        other = np.concatenate([u * first, (1 - u) * second]) * (1 - p) + p * common
        yield one, other


def wrapped(law: Floats) -> Floats:
    """The boundary wrapper's law: the boundary first (Algorithm 4, as published)."""
    pi = 1 - float(law.max())
    g = min(1 / 3, pi / (1 + pi))
    return np.concatenate([[g], (1 - g) * law])


def twice(law: Floats) -> Floats:
    """The law of two independent runs, row by row."""
    return np.outer(law, law).ravel()


def hockey_stick(p: Mapping[Any, float], q: Mapping[Any, float], epsilon: float) -> float:
    """``Σ max(0, p − e^ε q)``."""
    grow = math.exp(epsilon)
    return sum(max(0.0, mass - grow * q.get(z, 0.0)) for z, mass in p.items())


def violation(
    pairs: Sequence[tuple[Law, Law]],
    stated: Callable[[float], ApproximateDP],
    deltas: Sequence[float] = DELTAS,
) -> str | None:
    """Why some pair of neighbouring laws breaks what is stated, or None."""
    claims = [(stated(delta).epsilon, delta) for delta in deltas]
    for index, (one, other) in enumerate(pairs):
        for law in (one, other):
            assert abs(sum(law.values()) - 1) < 1e-6, sum(law.values())
        for p, q in ((one, other), (other, one)):
            for epsilon, delta in claims:
                found = hockey_stick(p, q, epsilon)
                if found > delta * (1 + 1e-9) + 1e-12:
                    return f"pair {index}: {found:.3g} at epsilon {epsilon:.3g}, stated {delta:.3g}"
    return None


def laplace(scale: float, reach: int) -> tuple[Integers, Floats]:
    """Points and masses of the discrete Laplace law; the tails are added to the ends."""
    points = np.arange(-reach, reach + 1)
    ratio = math.exp(-1 / scale)
    mass = (1 - ratio) / (1 + ratio) * ratio ** np.abs(points)
    mass[[0, -1]] += ratio ** (reach + 1) / (1 + ratio)
    return points, mass


def at_least(scale: float, distance: Integers | int) -> Floats:
    """``P[Z >= d]`` of the discrete Laplace law."""
    d = np.asarray(distance, dtype=np.float64)
    ratio = math.exp(-1 / scale)
    return np.where(
        d > 0,
        ratio ** np.maximum(d, 0) / (1 + ratio),
        1 - ratio ** (1 - np.minimum(d, 0)) / (1 + ratio),
    )


def transcripts(length: int, cutoff: int) -> Iterator[tuple[bool, ...]]:
    """All runs of misses and hits that end at the cutoff-th hit, or at the last question."""
    for whole in product((False, True), repeat=length):
        stop = length
        seen = 0
        for i, hit in enumerate(whole):
            seen += hit
            if seen == cutoff:
                stop = i + 1
                break
        if not any(whole[stop:]):
            yield whole[:stop]
