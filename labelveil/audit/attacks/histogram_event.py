"""The sharpest event against the two-step release: it sees both steps at once.

For a label i that is a in world D and b in world D', and true counts c under D,

    E* = {noisy h_a >= c_a,  noisy h_b <= c_b,  ỹ_i = Φ(a)},

where Φ(a) is the output that the published channel gives a most often. Each count event has
probability 1 / (1 + e^(-ε₁/2)) under D, by the discrete Laplace law of scale 2/ε₁; the label's own
output has e^ε₂ / (e^ε₂ + k - 1), of k outputs of randomized response. Under D' all three are
exactly e^(ε₁/2), e^(ε₁/2) and e^ε₂ times rarer, together e^(ε₁+ε₂): no event reveals more.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from common.arrays import Integers
from common.entropy import system_entropy
from common.exact.channel import FiniteChannel, randomized_response_rows
from common.randomizers import private_prior
from labelveil.audit.attacks.one_run import OneRun, draw_secrets
from labelveil.audit.bounds import guess_probability

BATCH = 1 << 16


WORLDS = np.array([2, 2, 0, 0]), np.array([1, 3, 0, 0])
"""True counts in both: a label is moved from the first point to the second."""


def histogram_event(
    prior_epsilon: float | Fraction, labels_epsilon: float | Fraction, runs: int
) -> OneRun:
    """Guess by E* which of two worlds this project's own two steps were run in.

    Each of so many runs, noisy histogram and randomized response over the same points, is in one
    or the other by the toss of a coin.
    """
    first, second = WORLDS
    points = first.size
    grid = np.arange(points, dtype=np.float64)
    channel = FiniteChannel(grid, grid, randomized_response_rows(points, labels_epsilon))

    def hits(counts: Integers, label: int, runs: int) -> int:
        found = 0
        for start in range(0, runs, BATCH):
            size, entropy = min(BATCH, runs - start), system_entropy()
            # noise is drawn cell by cell: one call on repeated counts is many releases
            drawn = private_prior(np.tile(counts, size), prior_epsilon, entropy)
            noisy = drawn.noisy_counts.reshape(size, counts.size)
            sent = channel.sample(np.full(size, label), entropy.words("labels", 0, size))
            inside = (noisy[:, 0] >= first[0]) & (noisy[:, 1] <= first[1])
            found += int(np.count_nonzero(inside & (sent == 0)))
        return found

    others = int(draw_secrets(runs).sum())
    right = hits(first, 0, runs - others)
    return OneRun.of(right, right + hits(second, 1, others))


def event_probability(prior_epsilon: float, labels_epsilon: float) -> float:
    """Of E*, in the world that it is aimed at."""
    side = guess_probability(prior_epsilon / 2)
    return side * side * guess_probability(labels_epsilon, WORLDS[0].size)
