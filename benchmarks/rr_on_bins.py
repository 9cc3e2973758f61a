"""Choosing the bins of RR-on-bins: time against the number of labels, its exponent, and memory."""

from __future__ import annotations

import tracemalloc
from functools import partial

import numpy as np

from benchmarks.harness import Bench, Cell, Table
from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.randomizers import build_randomizer, optimal_binning
from labelveil.common.randomizers.base import Problem, check_prior
from labelveil.common.randomizers.losses import LOSS_NAMES, get_loss
from labelveil.common.randomizers.prior import private_prior

SIZES = (500, 1_000, 4_000)
EPSILONS = (0.5, 4.0)
ROWS = 1_000_000


def run(bench: Bench) -> Table:
    sizes = [bench.size(k) for k in SIZES]
    table: list[list[Cell]] = []
    for kind, prior in (("smooth", smooth_prior), ("noisy", noisy_prior)):
        for epsilon in EPSILONS:
            for loss in LOSS_NAMES:
                problems = [
                    Problem(np.arange(k, dtype=np.float64), prior(k), epsilon, get_loss(loss))
                    for k in sizes
                ]
                times = [bench.seconds(partial(optimal_binning, problem)) for problem in problems]
                exponent = float(np.polyfit(np.log(sizes[1:]), np.log(times[1:]), 1)[0])
                bins = optimal_binning(problems[-1]).values.size
                peak = peak_memory(problems[-1])
                table.append([kind, epsilon, loss, *times, exponent, bins, peak / 1e6])
    return Table(
        "RR-on-bins",
        ["prior", "ε", "loss", *(f"{k:,} labels [s]" for k in sizes), "exponent", "bins",
         "memory [MB]"],
        table,
        "The exponent is that of the last step in size; bins and memory (the peak of what building"
        " the whole randomizer allocates) are for the most labels. The noisy prior is the released"
        f" histogram of {ROWS:,} log-normal labels at ε = 0.25.",
    )  # fmt: skip


def smooth_prior(k: int) -> Floats:
    """(k,) probabilities of a falling density with a ripple."""
    labels = np.arange(k, dtype=np.float64)
    return check_prior(np.exp(-5 * labels / k) + 0.1 * np.sin(labels) ** 2, k)


def noisy_prior(k: int) -> Floats:
    """(k,) probabilities as the labels party releases them."""
    labels = np.random.default_rng(1).lognormal(0, 1.5, ROWS) * k / 40
    counts = np.bincount(np.minimum(labels.astype(np.int64), k - 1), minlength=k)
    return private_prior(counts, 0.25, seeded_entropy(3)).probabilities


def peak_memory(problem: Problem) -> int:
    """Bytes that building the randomizer allocates at most."""
    tracemalloc.start()
    build_randomizer(
        "rr-on-bins",
        labels=problem.labels,
        prior=problem.prior,
        epsilon=problem.epsilon,
        loss=problem.loss,
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak
