"""The best bins by a plain O(k²) program in extended precision."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Floats
from labelveil.common.randomizers.base import Problem

Extended = NDArray[np.longdouble]


def exhaustive_objective(problem: Problem) -> float:
    """E ℓ(output, label) of the best bins; float64 rounding plays no part in it."""
    seen = problem.prior > 0
    labels = problem.labels[seen].astype(np.longdouble)
    prior = problem.prior[seen].astype(np.longdouble)
    prior /= prior.sum()
    boost = np.expm1(np.longdouble(problem.epsilon))
    costs = _COSTS[problem.loss.name](labels, prior, boost)
    ratio = costs[-1][0] / (1 + boost)
    while True:
        best = np.zeros(labels.size + 1, dtype=np.longdouble)
        bins = np.zeros(labels.size + 1, dtype=np.int64)
        for i, row in enumerate(costs, start=1):
            found = best[:i] + row
            r = int(found.argmin())
            best[i], bins[i] = found[r] - ratio, bins[r] + 1
        lower = (best[-1] + ratio * bins[-1]) / (boost + bins[-1])
        if not lower < ratio - 1e-18 * abs(ratio):
            return float(ratio)
        ratio = lower


def _squared(labels: Extended, prior: Extended, boost: np.longdouble) -> list[Extended]:
    centred = labels - prior @ labels
    spread, costs = prior @ centred**2, []
    for i in range(1, labels.size + 1):
        p, y = prior[:i][::-1], centred[:i][::-1] - centred[i - 1]
        mass, first, second = np.cumsum(p), np.cumsum(p * y), np.cumsum(p * y * y)
        mean = first / mass
        apart = mean + centred[i - 1]
        own = second - mean * first + mass / (1 + boost * mass) * apart**2
        costs.append((spread + boost * own)[::-1])
    return costs


def _poisson(labels: Extended, prior: Extended, boost: np.longdouble) -> list[Extended]:
    costs = []
    for i in range(1, labels.size + 1):
        mass = 1 + boost * np.cumsum(prior[:i][::-1])
        total = prior @ labels + boost * np.cumsum((prior * labels)[:i][::-1])
        costs.append((total - total * np.log(total / mass))[::-1])
    return costs


def _absolute(labels: Extended, prior: Extended, boost: np.longdouble) -> list[Extended]:
    """Each bin's cost at every label; the least of them, O(k³)."""
    distances = np.abs(labels[:, None] - labels)
    everything = distances @ prior
    costs = []
    for i in range(1, labels.size + 1):
        own = np.cumsum((distances[:, :i] * prior[:i])[:, ::-1], axis=1)[:, ::-1]
        costs.append((everything[:, None] + boost * own).min(axis=0))
    return costs


_COSTS = {"squared": _squared, "poisson": _poisson, "absolute": _absolute}


def adversarial_priors(k: int, seed: int) -> dict[str, Floats]:
    """(k,) priors that a search could get wrong: tails, holes, ties, noise, far-apart atoms."""
    draw = np.random.default_rng(seed)
    place = np.arange(k)
    steps = np.repeat(draw.random(math.ceil(k / 7)), 7)[:k]
    return {
        "uniform": np.ones(k),
        "heavy tail": (place + 1.0) ** -2.5,
        "light tail": np.exp(-20 * place / k),
        "empty cells": np.where(draw.random(k) < 0.05, draw.random(k), 0.0) + (place == k // 3),
        "ties": 1.0 + place % 2,
        "steps": steps + 1e-6,
        "noise": np.maximum(draw.laplace(size=k) + 20 * np.exp(-place / (k / 9)), 0.0) + 1e-300,
        "atoms": np.where(place % (k // 4) == 0, 1.0, 1e-9 * draw.random(k) + 1e-12),
        "tiny": 10.0 ** draw.uniform(-15, 0, k),
    }
