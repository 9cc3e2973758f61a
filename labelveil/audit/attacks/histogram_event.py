"""The sharpest event against the two-step release: it sees both steps at once.

For a label i that is a in world D and b in world D', and true counts c under D,

    E* = {noisy h_a >= c_a,  noisy h_b <= c_b,  ỹ_i = Φ(a)},

where Φ(a) is the output that the published channel gives a most often. Its probability under D is
about ¼ e^ε₂ / (e^ε₂ + k - 1), and its ratio is exactly e^(ε₁+ε₂): no event reveals more.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from common.arrays import Integers
from common.entropy import system_entropy
from common.exact.channel import FiniteChannel, randomized_response_rows
from common.randomizers import private_prior
from labelveil.audit.attacks.one_run import OneRun, draw_secrets

BATCH = 1 << 16


class TwoStepResponse:
    """This project's own two steps, many at a time: noisy histogram, randomized response.

    Each of k labels y is a grid point and an output of its own, Φ(y) = y. Called with (k,) true
    counts, the audited label and N runs, it gives (N, k) noisy histograms and the label's (N,)
    outputs in as many independent releases.
    """

    def __init__(
        self, labels: int, prior_epsilon: float | Fraction, labels_epsilon: float | Fraction
    ) -> None:
        self._epsilon = prior_epsilon
        grid = np.arange(labels, dtype=np.float64)
        self._channel = FiniteChannel(grid, grid, randomized_response_rows(labels, labels_epsilon))

    def __call__(self, counts: Integers, label: int, runs: int) -> tuple[Integers, Integers]:
        entropy = system_entropy()
        # noise is drawn cell by cell: one call on repeated counts is many releases
        noisy = private_prior(np.tile(counts, runs), self._epsilon, entropy).noisy_counts
        words = entropy.words("labels", 0, runs)
        sent = self._channel.sample(np.full(runs, label, dtype=np.int64), words)
        return noisy.reshape(runs, counts.size), sent.astype(np.int64)


def histogram_event(sampler: TwoStepResponse, counts: Integers, runs: int) -> OneRun:
    """Guess by E* which releases are of (k,) counts, and which have a label moved from 0 to 1.

    Each of so many runs is one or the other, by the toss of a coin.
    """
    if counts[0] < 1:
        raise ValueError(f"counts[0]={counts[0]} must be at least 1")
    moved = counts.copy()
    moved[:2] += [-1, 1]

    def hits(histogram: Integers, label: int, runs: int) -> int:
        found = 0
        for start in range(0, runs, BATCH):
            noisy, sent = sampler(histogram, label, min(BATCH, runs - start))
            inside = (noisy[:, 0] >= counts[0]) & (noisy[:, 1] <= counts[1])
            found += int(np.count_nonzero(inside & (sent == 0)))
        return found

    first = int(draw_secrets(runs).sum())
    right = hits(counts, 0, first)
    return OneRun.of(right, right + hits(moved, 1, runs - first))
