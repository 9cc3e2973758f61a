"""Both steps of the two-step release at once: what they spend exactly, and the sharpest event.

*Exactly*, by enumeration over tiny data sets. The message is the noisy histogram h, the channel
that was built, and one output for each label. For neighbours D and D' that differ in one label, its
log-likelihood ratio is

    ln P(h | D) - ln P(h | D') + Σ_j ln K_h[y_j, z_j] - ln K_h[y'_j, z_j].

With discrete Laplace noise of scale s the first difference is (‖h - c'‖₁ - ‖h - c‖₁) / s, a
rational number, and beyond a box around the counts it no longer changes; so the supremum over all
histograms, channels and outputs is a maximum over finitely many messages, and it is exactly ε.

*The sharpest event*, for a label i that is a in world D and b in world D', and true counts c in D:

    E* = {noisy h_a >= c_a,  noisy h_b <= c_b,  ỹ_i = Φ(a)},

where Φ(a) is the output that the published channel gives a most often. Each count event has
probability 1 / (1 + e^(-ε₁/2)) under D, by the discrete Laplace law of scale 2/ε₁; the label's own
output has e^ε₂ / (e^ε₂ + k - 1), of k outputs of randomized response. Under D' all three are
exactly e^(ε₁/2), e^(ε₁/2) and e^ε₂ times rarer, together e^(ε₁+ε₂): no event reveals more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import permutations, product

import numpy as np

from labelveil.audit.attacks.one_run import OneRun, draw_secrets
from labelveil.audit.power import guess_probability
from labelveil.common.arrays import Integers
from labelveil.common.entropy import system_entropy
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers import private_prior

BATCH = 1 << 16

WORLDS = np.array([2, 2, 0, 0]), np.array([1, 3, 0, 0])
"""True counts in both: a label is moved from the first point to the second."""

Counts = tuple[int, ...]

ChannelRule = Callable[[Counts, Counts], FiniteChannel]
"""Noisy counts and true counts to the channel that is used: a right rule ignores the second."""


@dataclass(frozen=True)
class JointAudit:
    """What the enumeration found."""

    epsilon: float  # the largest log-likelihood ratio of any message under any two neighbours
    messages: int  # pairs of neighbours × noisy histograms, with all outputs of all labels in each
    data_set: Counts  # true counts, where the largest ratio occurs
    neighbour: Counts  # and of the other data set


def joint_audit(
    rule: ChannelRule, scale: Fraction, *, labels: int, rows: int, margin: int
) -> JointAudit:
    """Enumerate every data set of n ``rows`` over k ``labels``, its neighbours and every message.

    Channels are chosen by ``rule``, and ``scale`` is the true scale of the discrete Laplace noise
    on each cell. Noisy counts are enumerated ``margin`` beyond 0 … n: there the noise's ratio is
    constant, and the margin lets the channel vary further out.
    """
    # thousands of histograms lead to a few channels: each is built and compared once
    distinct: dict[tuple[bytes, tuple[Counts, ...]], FiniteChannel] = {}

    @cache
    def channel(noisy: Counts, counts: Counts) -> FiniteChannel:
        built = rule(noisy, counts)
        return distinct.setdefault((built.outputs.tobytes(), built.weights), built)

    ratios = cache(_labels_ratio)
    box = list(product(range(-margin, rows + margin + 1), repeat=labels))
    worst, messages = JointAudit(-math.inf, 0, (), ()), 0
    for counts, other, moved in _neighbours(labels, rows):
        for noisy in box:
            messages += 1
            near = sum(abs(h - c) for h, c in zip(noisy, counts, strict=True))
            far = sum(abs(h - c) for h, c in zip(noisy, other, strict=True))
            used = channel(noisy, counts), channel(noisy, other)
            ratio = float(Fraction(far - near) / scale) + ratios(*used, *moved)
            if ratio > worst.epsilon:
                worst = JointAudit(ratio, messages, counts, other)
    return replace(worst, messages=messages)


def _neighbours(labels: int, rows: int) -> Iterator[tuple[Counts, Counts, tuple[int, int]]]:
    """Every histogram of ``rows`` labels with each way of moving one label from a to b."""
    for counts in product(range(rows + 1), repeat=labels):
        for a, b in permutations(range(labels), 2):
            if sum(counts) == rows and counts[a]:
                other = tuple(n - (i == a) + (i == b) for i, n in enumerate(counts))
                yield counts, other, (a, b)


def _labels_ratio(used: FiniteChannel, other: FiniteChannel, a: int, b: int) -> float:
    """Largest Σ_j ln K[y_j, z_j] - ln K'[y'_j, z_j] over all outputs, where one label moves.

    Labels are randomized independently, so that it is the sum of each label's maximum, and a label
    that stays adds nothing. The channel itself is published: two that differ cannot be confused,
    and the ratio is infinite.
    """
    if used is not other:
        return math.inf
    rows = used.weights[a], used.weights[b]
    worst = max(Fraction(high, low) for high, low in zip(*rows, strict=True))
    return math.log(worst.numerator) - math.log(worst.denominator)


def histogram_event(
    prior_epsilon: float | Fraction, labels_epsilon: float | Fraction, runs: int
) -> OneRun:
    """Guess by E* which of two worlds this project's own two steps were run in.

    Each of n ``runs``, noisy histogram and randomized response over the same points, is in one
    or the other by the toss of a coin.
    """
    first, second = WORLDS
    points = first.size
    grid = np.arange(points, dtype=np.float64)
    channel = FiniteChannel(grid, grid, randomized_response_rows(points, labels_epsilon))

    def hits(counts: Integers, label: int, runs: int) -> int:
        seen = 0
        for start in range(0, runs, BATCH):
            size, entropy = min(BATCH, runs - start), system_entropy()
            # noise is drawn cell by cell: one call on repeated counts is many releases
            drawn = private_prior(np.tile(counts, size), prior_epsilon, entropy)
            noisy = drawn.noisy_counts.reshape(size, counts.size)
            sent = channel.sample(np.full(size, label), entropy.words("labels", 0, size))
            inside = (noisy[:, 0] >= first[0]) & (noisy[:, 1] <= first[1])
            seen += int(np.count_nonzero(inside & (sent == 0)))
        return seen

    others = int(draw_secrets(runs).sum())
    right = hits(first, 0, runs - others)
    return OneRun.from_guesses(right, right + hits(second, 1, others))


def event_probability(prior_epsilon: float, labels_epsilon: float) -> float:
    """Of E*, in the world that it is aimed at."""
    side = guess_probability(prior_epsilon / 2)
    return side * side * guess_probability(labels_epsilon, WORLDS[0].size)
