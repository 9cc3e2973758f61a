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
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from common.exact.channel import FiniteChannel

Counts = tuple[int, ...]

ChannelRule = Callable[[Counts, Counts], FiniteChannel]
"""Noisy counts and true counts to the channel that is used: a right rule ignores the second."""


@dataclass(frozen=True)
class JointAudit:
    """What the enumeration found.

    Attributes
    ----------
    epsilon
        The largest log-likelihood ratio of any message under any two neighbours.
    messages
        Number of (pair of neighbours, noisy histogram) combinations enumerated; all outputs of
        all labels are covered in each.
    data_set, neighbour, noisy
        Where the largest ratio occurs: true counts of both data sets, and the noisy counts.
    """

    epsilon: float
    messages: int
    data_set: Counts
    neighbour: Counts
    noisy: Counts


def joint_audit(
    channel: ChannelRule,
    scale: Fraction,
    *,
    labels: int = 3,
    rows: int = 4,
    margin: int = 2,
    noise_on_empty: bool = True,
) -> JointAudit:
    """Enumerate every pair of neighbouring data sets and every message.

    Parameters
    ----------
    channel
        How the channel is chosen. Every data set of the given size is tried.
    scale
        The true scale of the discrete Laplace noise on each cell.
    labels, rows
        Number of grid points k and of labels n.
    margin
        How far beyond 0 … n the noisy counts are enumerated. The noise's ratio is constant from 0
        and n on; a margin lets the channel vary further out.
    noise_on_empty
        Whether cells without a label get noise, as they must.
    """
    box = list(product(range(-margin, rows + margin + 1), repeat=labels))
    worst = JointAudit(-math.inf, 0, (), (), ())
    messages = 0
    channels = _Channels(channel)
    for counts, other, moved in _neighbours(labels, rows):
        for noisy in box:
            noise = _noise_ratio(noisy, counts, other, scale, noise_on_empty)
            if noise is None:
                continue
            messages += 1
            ratio = noise + channels.ratio(noisy, counts, other, moved)
            if ratio > worst.epsilon:
                worst = JointAudit(ratio, messages, counts, other, noisy)
    return JointAudit(worst.epsilon, messages, worst.data_set, worst.neighbour, worst.noisy)


class _Channels:
    """Channels as they are built, alike ones kept once, so that each ratio is computed once."""

    def __init__(self, rule: ChannelRule) -> None:
        self._rule = rule
        self._built: dict[tuple[Counts, Counts], int] = {}
        self._known: dict[tuple[object, ...], int] = {}
        self._distinct: list[FiniteChannel] = []
        self._ratios: dict[tuple[int, int, Counts, tuple[int, int]], float] = {}

    def _index(self, noisy: Counts, counts: Counts) -> int:
        index = self._built.get((noisy, counts))
        if index is None:
            channel = self._rule(noisy, counts)
            key = (channel.outputs.tobytes(), channel.weights)
            index = self._known.setdefault(key, len(self._distinct))
            if index == len(self._distinct):
                self._distinct.append(channel)
            self._built[noisy, counts] = index
        return index

    def ratio(self, noisy: Counts, counts: Counts, other: Counts, moved: tuple[int, int]) -> float:
        """Largest Σ_j ln K[y_j, z_j] - ln K'[y'_j, z_j] over all outputs of all labels."""
        one, two = self._index(noisy, counts), self._index(noisy, other)
        key = (one, two, counts, moved)
        if key not in self._ratios:
            self._ratios[key] = _labels_ratio(
                self._distinct[one], self._distinct[two], counts, moved
            )
        return self._ratios[key]


def _neighbours(labels: int, rows: int) -> Iterator[tuple[Counts, Counts, tuple[int, int]]]:
    """Every histogram of ``rows`` labels with each way of moving one label from a to b."""
    for counts in product(range(rows + 1), repeat=labels):
        if sum(counts) != rows:
            continue
        for a, b in product(range(labels), repeat=2):
            if a != b and counts[a] > 0:
                other = list(counts)
                other[a] -= 1
                other[b] += 1
                yield counts, tuple(other), (a, b)


def _noise_ratio(
    noisy: Counts, counts: Counts, other: Counts, scale: Fraction, noise_on_empty: bool
) -> float | None:
    """ln P(h | D) - ln P(h | D'); infinite if h cannot occur under D', None if not under D."""
    if not noise_on_empty:
        if any(c == 0 and h != 0 for h, c in zip(noisy, counts, strict=True)):
            return None
        if any(c == 0 and h != 0 for h, c in zip(noisy, other, strict=True)):
            return math.inf
        if [c == 0 for c in counts] != [c == 0 for c in other]:
            return 0.0  # the worst messages are those above; this one's ratio is not needed
    near = sum(abs(h - c) for h, c in zip(noisy, counts, strict=True))
    far = sum(abs(h - c) for h, c in zip(noisy, other, strict=True))
    return float(Fraction(far - near) / scale)


def _labels_ratio(
    one: FiniteChannel, two: FiniteChannel, counts: Counts, moved: tuple[int, int]
) -> float:
    """The maximum over all outputs of all labels, label by label.

    Labels are randomized independently, so the maximum over (z_1, …, z_n) is the sum of maxima.
    The channel itself is published: two that differ cannot be confused, and the ratio is infinite.
    """
    if one is not two:
        return math.inf
    total = 0.0
    for label, count in enumerate(counts):
        stays = count - (label == moved[0])
        if stays:
            total += stays * _row_ratio(one.weights[label], two.weights[label])
    return total + _row_ratio(one.weights[moved[0]], two.weights[moved[1]])


def _row_ratio(row: tuple[int, ...], other: tuple[int, ...]) -> float:
    pairs = [Fraction(high, low) for high, low in zip(row, other, strict=True)]
    worst = max(pairs)
    return math.log(worst.numerator) - math.log(worst.denominator)
