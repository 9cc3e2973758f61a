"""The exact joint audit of the two-step release, by enumeration over tiny data sets.

The message is the noisy histogram h, the channel that was built, and one output for each label. For
neighbours D and D' that differ in one label, its log-likelihood ratio is

    ln P(h | D) - ln P(h | D') + Σ_j ln K_h[y_j, z_j] - ln K_h[y'_j, z_j].

With discrete Laplace noise of scale s the first difference is (‖h - c'‖₁ - ‖h - c‖₁) / s, a
rational number, and beyond a box around the counts it no longer changes; so the supremum over all
histograms, channels and outputs is a maximum over finitely many messages, and it is exactly ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import permutations, product

from common.exact.channel import FiniteChannel

Counts = tuple[int, ...]

ChannelRule = Callable[[Counts, Counts], FiniteChannel]
"""Noisy counts and true counts to the channel that is used: a right rule ignores the second."""


@dataclass(frozen=True)
class JointAudit:
    """What the enumeration found."""

    epsilon: float  # the largest log-likelihood ratio of any message under any two neighbours
    messages: int
    """Number of (pair of neighbours, noisy histogram) combinations enumerated; all outputs of
    all labels are covered in each."""
    data_set: Counts  # true counts, where the largest ratio occurs
    neighbour: Counts  # and of the other data set


def joint_audit(
    rule: ChannelRule, scale: Fraction, *, labels: int = 3, rows: int = 4, margin: int = 2
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
