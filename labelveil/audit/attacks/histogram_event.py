"""The sharpest event against the two-step release: it sees both steps at once.

For a label i that is a in world D and b in world D', and true counts c under D,

    E* = {noisy h_a >= c_a,  noisy h_b <= c_b,  ỹ_i = Φ(a)},

where Φ(a) is the output that the published channel gives a most often. Its probability under D is
about ¼ e^ε₂ / (e^ε₂ + k - 1), and its ratio is exactly e^(ε₁+ε₂): no event reveals more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from common.arrays import Integers
from common.entropy import system_entropy
from common.exact.channel import FiniteChannel, randomized_response_rows
from common.randomizers import private_prior
from labelveil.audit.bounds import two_world_bound
from labelveil.audit.verdict import GATE, SHOWN

BATCH = 1 << 16


@dataclass(frozen=True)
class TwoStepRuns:
    """What many independent releases of one data set showed.

    Attributes
    ----------
    noisy
        (N, k) noisy histograms.
    sent
        (N,) output of the label that is audited.
    own
        (N,) output that the published channel gives most often to the first world's label.
    """

    noisy: Integers
    sent: Integers
    own: Integers


TwoStepSampler = Callable[[Integers, int, int, int], TwoStepRuns]
"""(k,) true counts, the audited label's grid index, the index a that Φ is asked for, runs."""


@dataclass(frozen=True)
class HistogramEvent:
    """The bound that E* gave; ``hits`` of ``runs`` in D, ``other_hits`` of as many in D'."""

    bound: float
    shown: float
    hits: int
    other_hits: int
    runs: int


class TwoStepResponse:
    """This project's own two steps, many at a time: noisy histogram, randomized response.

    Parameters
    ----------
    labels
        Number of grid points k, each an output of its own.
    prior_epsilon, labels_epsilon
        ε₁ and ε₂.
    """

    def __init__(
        self, labels: int, prior_epsilon: float | Fraction, labels_epsilon: float | Fraction
    ) -> None:
        self._epsilon = prior_epsilon
        grid = np.arange(labels, dtype=np.float64)
        self.channel = FiniteChannel(grid, grid, randomized_response_rows(labels, labels_epsilon))

    def __call__(self, counts: Integers, label: int, asked: int, runs: int) -> TwoStepRuns:
        entropy = system_entropy()
        # noise is drawn cell by cell: one call on repeated counts is many releases
        noisy = private_prior(np.tile(counts, runs), self._epsilon, entropy).noisy_counts
        sent = self.channel.sample(
            np.full(runs, label, dtype=np.int64), entropy.words("labels", 0, runs)
        )
        own = int(np.argmax(self.channel.probabilities[asked]))
        return TwoStepRuns(
            noisy.reshape(runs, counts.size), sent.astype(np.int64), np.full(runs, own)
        )


def histogram_event(
    sampler: TwoStepSampler,
    counts: Integers,
    runs: int,
    *,
    label: int = 0,
    other: int = 1,
    alpha: float = GATE,
    progress: Callable[[int], None] = lambda runs: None,
) -> HistogramEvent:
    """Count E* in two worlds.

    Parameters
    ----------
    sampler
        Makes independent releases of one data set.
    counts
        (k,) true counts of D; at least one label lies on ``label``.
    runs
        Releases for each world.
    label, other
        Grid indices a and b of the audited label.
    progress
        Told how many releases were made since the last call.
    """
    moved = counts.copy()
    moved[label] -= 1
    moved[other] += 1
    if moved[label] < 0:
        raise ValueError(f"counts[{label}]={counts[label]} must be at least 1")
    hits = [0, 0]
    for world, (histogram, value) in enumerate(((counts, label), (moved, other))):
        for start in range(0, runs, BATCH):
            size = min(BATCH, runs - start)
            found = sampler(histogram, value, label, size)
            inside = (found.noisy[:, label] >= counts[label]) & (
                found.noisy[:, other] <= counts[other]
            )
            hits[world] += int(np.count_nonzero(inside & (found.sent == found.own)))
            progress(size)
    return HistogramEvent(
        two_world_bound(hits[0], hits[1], runs, runs, alpha),
        two_world_bound(hits[0], hits[1], runs, runs, SHOWN),
        hits[0],
        hits[1],
        runs,
    )
