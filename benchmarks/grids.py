"""What one label tells, Var(E[y | z]) / Var(y), by what was said of it: the grid's price."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.harness import Bench, Table
from labelveil.common.arrays import Floats
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.private_labels import PrivateLabels, randomize_labels

Rng = np.random.Generator
LABELS: dict[str, tuple[float, float, Callable[[Rng, int], Floats]]] = {
    "yes or no, 1 in 10": (0, 1, lambda rng, n: (rng.random(n) < 0.1) * 1.0),
    "ratings from 1 to 5": (
        *(1, 5),
        lambda rng, n: rng.choice(np.arange(1.0, 6), n, p=[0.06, 0.06, 0.11, 0.3, 0.47]),
    ),
    "a rate with two decimals": (0, 1, lambda rng, n: rng.beta(1, 3, n).round(2)),
}
SIZES, EPSILONS = (2_000, 20_000), (1.0, 4.0)


def run(bench: Bench) -> Table:
    rng, rows = np.random.default_rng(0), []
    for name, (lower, upper, draw) in LABELS.items():
        for said in ("whole numbers", "nothing"):
            row: list[str | float] = [name, said]
            for size in SIZES:
                for epsilon in EPSILONS:
                    told = []
                    for _ in range(1 if bench.quick else 10):
                        labels = draw(rng, size)
                        # whole numbers by their type; others are rounded to them at random
                        sent = Grid.from_step(lower, upper, 1).round(labels, _words(rng, size))
                        given = sent + int(lower) if said == "whole numbers" else labels
                        made = randomize_labels(given, lower=lower, upper=upper, epsilon=epsilon)
                        told.append(_explained(labels, made))
                    row.append(float(np.mean(told)))
            rows.append(row)
    columns = [f"{size:,} events, ε = {epsilon:g}" for size in SIZES for epsilon in EPSILONS]
    return Table("What one label tells", ["labels", "said to be", *columns], rows)


def _words(rng: Rng, size: int) -> np.ndarray:
    return rng.integers(0, 2**64, size, dtype=np.uint64)


def _explained(labels: Floats, made: PrivateLabels) -> float:
    """Of the true labels' variance, by the exact channel and their own histogram."""
    grid, channel = Grid(made.channel.inputs), made.channel.probabilities
    values, counts = np.unique(labels, return_counts=True)
    places, shares = grid.neighbours(values)
    joint = (counts / labels.size)[:, None] * np.einsum("vs,vsd->vd", shares, channel[places])
    marginal, mean = joint.sum(axis=0), joint.sum(axis=1) @ values
    told = (values - mean) @ joint
    return float(np.sum(told**2 / np.maximum(marginal, 1e-300)) / labels.var())
