"""The exact certificate of a channel, in rational arithmetic, from its sampler or its matrix.

A sampler that turns one uniform 64-bit word into an output is a matrix of integers: weight
``W[y, z]`` is the number of words that give z for label y. Counting them through an injected
entropy source sees what really leaves, where a published matrix only says so. A randomizer is ε-DP
if and only if

    max over outputs z, labels y and y' of  W[y, z] / W[y', z]  <=  e^ε,

and e^ε is replaced by ``Σ_{j<60} ε^j / j!``, which is below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from labelveil.common.arrays import Integers, Words
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.exact.rational import log_upper_bound
from labelveil.common.randomizers.base import LABEL_STREAM, ROUNDING_STREAM

WORDS = 1 << 64
PROBES = 1 << 20
"""Words tried for each label; an interval this many times shorter than all words is found."""

_MAX_PROBES = 1 << 24
_MIN_BITS = 12

WordSampler = Callable[[Integers, Words], np.ndarray]
"""Label indices (n,) and one uniform word each, (n,) uint64, to (n,) outputs."""


@dataclass(frozen=True)
class WorstRatio:
    """The worst ratio of a matrix of weights against a claimed ε."""

    ratio: Fraction | None
    """max W[y, z] / W[y', z]; None where an output excludes a label, so that no ε is enough."""
    limit: Fraction  # the rational number just below e^ε that it must not pass
    output: int  # index z where the ratio is attained

    @property
    def holds(self) -> bool:
        return self.ratio is not None and self.ratio <= self.limit

    @property
    def epsilon(self) -> float:
        """ln(ratio) as a float, rounded up."""
        return math.inf if self.ratio is None else log_upper_bound(self.ratio)


@dataclass(frozen=True)
class CountedMatrix:
    """The distinct outputs seen, ascending, and how many of the 2**64 words give each: a row a
    label."""

    outputs: tuple[Any, ...]
    weights: tuple[tuple[int, ...], ...]


def exp_series(epsilon: float | Fraction) -> Fraction:
    """``Σ_{j<60} ε^j / j!``, exactly; every term is positive, so it is below e^ε.

    Above ε = 8 more terms are taken, so that what is left out stays far below one part in 10²⁰.
    """
    value = Fraction(epsilon)
    if value < 0:
        raise ValueError(f"epsilon={float(value):g} must be >= 0")
    total = term = Fraction(1)
    for j in range(1, max(60, 8 * math.ceil(value))):
        term = term * value / j
        total += term
    return total


def worst_ratio(rows: Sequence[Sequence[int]], epsilon: float | Fraction) -> WorstRatio:
    """Find the worst ratio of an (r, d) matrix of non-negative integers and compare it with e^ε.

    Row y are the weights of label y; all rows have one sum.
    """
    # e^64 is above any ratio of words; a claim of a hundred digits would never be done
    limit = exp_series(min(Fraction(epsilon), Fraction(64)))
    worst, output = Fraction(1), 0
    for z, column in enumerate(zip(*rows, strict=True)):
        high, low = max(column), min(column)
        if low == 0 < high:
            return WorstRatio(None, limit, z)
        # high / low > worst, without a fraction for every column
        if high * worst.denominator > low * worst.numerator:
            worst, output = Fraction(high, low), z
    return WorstRatio(worst, limit, output)


def count_weights(sampler: WordSampler, labels: int, probes: int = PROBES) -> CountedMatrix:
    """Count the words behind every output of the labels 0 … labels - 1.

    The words are cut into ``probes`` strata (a power of two), each stratum is tried at its first
    word and at a random one, and wherever two neighbouring tries differ the boundary is found by
    bisection. A run of words shorter than a stratum between equal neighbours can be missed; compare
    the counts with the published weights, and the check is complete. The sampler must be
    deterministic, given its words.
    """
    most = (_MAX_PROBES // labels).bit_length() - 1
    bits = max(min((probes - 1).bit_length(), most), _MIN_BITS)
    counted = [_count_row(sampler, label, bits) for label in range(labels)]
    outputs = tuple(sorted({value for row in counted for value in row}))
    return CountedMatrix(outputs, tuple(tuple(row.get(z, 0) for z in outputs) for row in counted))


def _count_row(sampler: WordSampler, label: int, bits: int) -> dict[Any, int]:
    def call(words: Words) -> np.ndarray:
        return np.asarray(sampler(np.full(words.size, label, dtype=np.int64), words))

    # first word and one random word of each of 2**bits strata, and the last word, ascending
    first = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
    inside = system_entropy().words("probes", 0, first.size) >> np.uint64(bits)
    words = np.append(np.column_stack([first, first + inside]).ravel(), np.uint64(WORDS - 1))
    seen = call(words)
    weights: dict[Any, int] = {}
    runs = [(0, seen[0].item()), *_boundaries(call, words, seen), (WORDS, None)]
    for (start, value), (stop, _) in pairwise(runs):
        weights[value] = weights.get(value, 0) + stop - start
    return weights


def _boundaries(
    call: Callable[[Words], np.ndarray], words: Words, seen: np.ndarray
) -> list[tuple[int, Any]]:
    """(first word, output) of every run of words that begins between two tries that differ."""
    boundaries: list[tuple[int, Any]] = []
    at = np.flatnonzero(seen[1:] != seen[:-1])
    low, high, at_low, at_high = words[at], words[at + 1], seen[at], seen[at + 1]
    while low.size:
        before, behind = low.copy(), high.copy()
        while True:  # the first word whose output is not the bracket's first output
            wide = np.flatnonzero(behind - before > 1)
            if not wide.size:
                break
            middle = before[wide] + (behind[wide] - before[wide]) // np.uint64(2)
            same = call(middle) == at_low[wide]
            before[wide[same]] = middle[same]
            behind[wide[~same]] = middle[~same]
        reached = call(behind)
        boundaries += zip(behind.tolist(), reached.tolist(), strict=True)
        more = reached != at_high  # a third output inside the bracket: go on behind it
        low, high, at_low, at_high = behind[more], high[more], reached[more], at_high[more]
    return sorted(boundaries)


class PlantedEntropy(Entropy):
    """Entropy whose label noise is given word by word, so that a sampler can be interrogated."""

    __slots__ = ("_planted",)

    def __init__(self, words: Words) -> None:
        super().__init__(bytes(32), secure=False)
        self._planted = words

    def words(self, stream: str, start: int, count: int) -> Words:
        """Return the planted words for the stream ``labels``, a repeatable stream for others."""
        if stream != LABEL_STREAM:
            return super().words(stream, start, count)
        return self._planted[start : start + count]


class RecordedEntropy(Entropy):
    """Entropy that repeats, and keeps every word it has given out and the streams of noise."""

    __slots__ = ("drawn", "tape")

    def __init__(self, key: bytes) -> None:
        super().__init__(key, secure=False)
        self.drawn: set[str] = set()
        self.tape = np.empty(0, np.uint64)

    def words(self, stream: str, start: int, count: int) -> Words:
        words = super().words(stream, start, count)
        with self._lock:
            self.tape = np.append(self.tape, words)
        if stream != ROUNDING_STREAM:  # those coins may be read again
            self.drawn.add(stream)
        return words
