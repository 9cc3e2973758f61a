"""Choosing the bins of RR-on-bins: time against the number of labels, and its exponent."""

from __future__ import annotations

import numpy as np

from common.losses import get_loss
from common.randomizers import optimal_binning
from common.randomizers.base import Problem, check_prior
from tests.benchmarks.harness import Bench, Table

SIZES = (100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000)
LOSSES = ("squared", "absolute", "poisson")


def run(bench: Bench) -> Table:
    sizes = SIZES[:5] if bench.quick else SIZES
    times: dict[str, list[float]] = {loss: [] for loss in LOSSES}
    rounds = []
    for k in sizes:
        labels = np.arange(k, dtype=np.float64)
        prior = check_prior(np.exp(-5 * labels / k) + 0.1 * np.sin(labels) ** 2, k)
        problems = {loss: Problem(labels, prior, 1.0, get_loss(loss)) for loss in LOSSES}
        for loss, problem in problems.items():
            times[loss].append(bench.seconds(lambda p=problem: optimal_binning(p)))
        rounds.append(optimal_binning(problems["squared"]).rounds)
    table: list[list[str | int | float | None]] = [
        [k, *(times[loss][at] for loss in LOSSES), rounds[at]] for at, k in enumerate(sizes)
    ]
    upper = slice(len(sizes) // 2, None)
    exponents = [
        float(np.polyfit(np.log(sizes[upper]), np.log(times[loss][upper]), 1)[0]) for loss in LOSSES
    ]
    table.append(["exponent", *exponents, None])
    return Table(
        "RR-on-bins, ε = 1",
        ["labels", *(f"{loss} [s]" for loss in LOSSES), "rounds (squared)"],
        table,
        "The exponent is fitted to the larger half of the sizes.",
    )
