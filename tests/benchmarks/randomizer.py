"""Randomizing labels beside the bare cost of its random words and a plain NumPy kernel."""

from __future__ import annotations

import numpy as np

from common.entropy import seeded_entropy
from common.exact.channel import FiniteChannel, randomized_response_rows
from tests.benchmarks.harness import Bench, Table


def run(bench: Bench) -> Table:
    rows = bench.size(10_000_000)
    entropy, generator = seeded_entropy(0), np.random.default_rng(0)
    words = bench.seconds(lambda: entropy.words("labels", 0, rows))
    table = []
    for outputs in (2, 10, 100):
        grid = np.arange(outputs)
        channel = FiniteChannel(grid, grid, randomized_response_rows(outputs, 1.0))
        labels = generator.integers(0, outputs, rows)
        channel.sample(labels[:1], entropy.words("labels", 0, 1))  # builds the table

        def randomize(channel: FiniteChannel = channel, labels: np.ndarray = labels) -> None:
            channel.sample(labels, entropy.words("labels", 0, rows))

        def plain(outputs: int = outputs, labels: np.ndarray = labels) -> None:
            keep = generator.random(rows) < np.expm1(1.0) / (np.expm1(1.0) + outputs)
            np.where(keep, labels, generator.integers(0, outputs, rows)).astype(np.uint16)

        ours, theirs = bench.seconds(randomize), bench.seconds(plain)
        speed = rows / ours / 1e6
        table.append([outputs, ours, speed, words, ours / words, theirs, ours / theirs])
    return Table(
        f"Randomized response of {rows:,} labels",
        [
            "outputs",
            "exact, AES [s]",
            "M labels/s",
            "AES words [s]",
            "exact / words",
            "NumPy generator [s]",
            "exact / NumPy",
        ],
        table,
        "The NumPy kernel draws a float and an integer a label: neither exact nor secure.",
    )
