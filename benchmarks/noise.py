"""Exact discrete noise, samples a second."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.harness import Bench, Table
from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.noise import discrete_gaussian, discrete_laplace


def run(bench: Bench) -> Table:
    size, entropy = bench.size(1_000_000), seeded_entropy(0)
    table: list[list[str | float]] = []
    for scale in (Fraction(1, 2), Fraction(2), Fraction(20), Fraction(2 << 24, 1_677_721)):
        seconds = bench.seconds(lambda s=scale: discrete_laplace(s, size, entropy.source("n")))
        table.append([f"discrete Laplace, scale {float(scale):.4g}", seconds, size / seconds / 1e6])
    for deviation in (1, 10, 100):
        variance = Fraction(deviation**2)
        seconds = bench.seconds(lambda v=variance: discrete_gaussian(v, size, entropy.source("n")))
        table.append([f"discrete Gaussian, σ {deviation}", seconds, size / seconds / 1e6])
    return Table(f"{size:,} exact samples", ["law", "seconds", "M samples/s"], table)
