"""Private tests of a session that are not charged, and what its guarantee takes to compute."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from benchmarks.harness import Bench, Table
from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms.interactive import (
    Boundary,
    ExponentialMechanism,
    NotPrior,
    Session,
    SparseVector,
    Terms,
    ThresholdTests,
)
from labelveil.common.mechanisms.interactive.optimal_curve import optimal_curve
from labelveil.common.mechanisms.interactive.targets import boundary, not_prior


def run(bench: Bench) -> Table:
    call = Fraction(1, 10)
    size = bench.size(1_000_000)
    counts = np.zeros(size, dtype=np.int64)
    far = 400  # forty noise scales: no hit in a million tests but once in 10¹¹ runs

    def session(terms: Terms) -> Session[np.ndarray]:
        return Session(counts, terms, seeded_entropy(0))

    def batch() -> object:
        tests = ThresholdTests(lambda data: data, far, call)
        answers = session(Terms(not_prior(call), 10)).run_batch(tests)
        assert answers.above.size == size
        return answers

    alone = bench.size(10_000)

    def one_by_one() -> None:
        s = session(Terms(not_prior(call), 10))
        quiet = NotPrior(lambda data, source: 0, call, 0)
        for _ in range(alone):
            s.run(quiet)

    votes = np.array([0, 900, 50, 50], dtype=np.int64)

    def wrapped() -> None:
        s: Session[np.ndarray] = Session(votes, Terms(boundary(call), 10), seeded_entropy(0))
        vote = Boundary(ExponentialMechanism(lambda data: data, call - Fraction(1, 10**6)))
        for _ in range(alone):
            s.run(vote)

    work: dict[str, tuple[int, Callable[[], object]]] = {
        "threshold tests in one batch": (size, batch),
        "calls one by one": (alone, one_by_one),
        "unanimous votes in the boundary wrapper": (alone, wrapped),
        "classical sparse vector": (
            size,
            lambda: SparseVector.best_split(10, Fraction(1)).draw(counts, far, seeded_entropy(0)),
        ),
    }
    rows: list[list[str | int | float]] = []
    for name, (times, action) in work.items():
        seconds = bench.seconds(action)
        rows.append([name, times, seconds, times / seconds])
    for hits in (10, 100, 1000):

        def guarantee(hits: int = hits) -> object:
            optimal_curve.cache_clear()
            return Terms(not_prior(call), hits).approximate(1e-6)

        seconds = bench.seconds(guarantee)
        rows.append([f"guarantee of a session of {hits} hits", 1, seconds, 1 / seconds])
    return Table("Target charging", ["what", "times", "seconds", "a second"], rows)
