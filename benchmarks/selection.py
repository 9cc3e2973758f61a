"""Private selection from a million candidates, and PATE's accounting for 100,000 queries."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from benchmarks.harness import Bench, Table
from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms.pate.data_dependent import data_dependent_curve, error_probability
from labelveil.common.mechanisms.selection import (
    ChooseRank,
    FixedStableTopK,
    Law,
    LimitedDomain,
    NoisyMax,
    Peeling,
    Ranking,
    StableTopK,
    TopStable,
)
from labelveil.common.mechanisms.selection.leaders import Leaders


def run(bench: Bench) -> Table:
    size, entropy = bench.size(1_000_000), seeded_entropy(0)
    words = entropy.words("counts", 0, size)
    # a power law, like users of locations: most candidates have a handful
    counts = np.minimum(1e6 / (1.0 + (words >> np.uint64(44)).astype(float)) ** 0.5, 2e5)
    whole = counts.astype(np.int64)
    delta = Fraction(1, 10**7)
    work: dict[str, Callable[[], object]] = {
        "StableTopK, adaptive": lambda: StableTopK(Fraction(1, 8), delta).draw(whole, entropy),
        "StableTopK, k = 50": lambda: FixedStableTopK(50, Fraction(1, 8), delta).draw(
            whole, entropy
        ),
        "peeling, k = 50": lambda: Peeling(50, Fraction(1, 5)).draw(whole, entropy),
        "Limited Domain, k = 50 of 200": lambda: LimitedDomain(50, 200, Fraction(1, 5), delta).draw(
            whole, entropy
        ),
        "Top-Stable, k = 50": lambda: TopStable(50, Fraction(1), delta).draw(whole, entropy),
        "leaders with counts, k = 50": lambda: Leaders(Fraction(1), 50).draw(whole, entropy),
    }
    for law in Law:
        noise = NoisyMax(
            law,
            epsilon=None if law == Law.GAUSSIAN else Fraction(1, 2),
            variance=Fraction(50) if law == Law.GAUSSIAN else None,
        )
        work[f"choose k among all, {law} noise"] = lambda n=noise: ChooseRank(n).draw(
            Ranking(whole), entropy.source("k")
        )
    rows: list[list[str | int | float]] = [
        [name, size, bench.seconds(action)] for name, action in work.items()
    ]
    queries = bench.size(100_000)
    first = 150 + (words[:queries] % np.uint64(100)).astype(np.int64)
    rest = 250 - first
    votes = np.column_stack([first, rest // 2, rest - rest // 2, *[np.zeros_like(first)] * 7])

    def accounting() -> object:
        return data_dependent_curve(error_probability(votes, Fraction(1600)), 1 / 1600)

    rows.append(["data-dependent cost of GNMax, queries", queries, bench.seconds(accounting)])
    return Table("Selection and PATE accounting", ["what", "size", "seconds"], rows)
