"""Broken twins: each claims what a right build keeps, and each leaks in one known way.

They are as small as the fault allows. Samplers turn label indices and words into output codes;
releases turn labels and entropy into what would be published.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from labelveil.audit.attacks.exact_channel import WordSampler
from labelveil.audit.attacks.replay import Published
from labelveil.audit.canaries.party import Observation
from labelveil.audit.power import guess_probability
from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy, seeded_entropy, system_entropy
from labelveil.common.exact.channel import TOTAL, FiniteChannel, randomized_response_rows
from labelveil.common.randomizers import build_randomizer, private_prior

Rows = list[list[int]]
Labels = Floats


def word_sampler(rows: Sequence[Sequence[int]]) -> WordSampler:
    """Sample rows of weights by comparing words with their sums; zeros are allowed."""
    sums = [np.cumsum([0, *row[:-1]], dtype=object) for row in rows]
    # the last threshold at or below a word; those of weightless outputs are passed over
    starts = [
        np.array([s for s, w in zip(t, r, strict=True) if w], dtype=np.uint64)
        for t, r in zip(sums, rows, strict=True)
    ]
    codes = [np.flatnonzero(np.array([w > 0 for w in row])) for row in rows]

    def sample(indices: Integers, words: NDArray[np.uint64]) -> Integers:
        out = np.empty(indices.size, dtype=np.int64)
        for y in np.unique(indices).tolist():
            here = indices == y
            out[here] = codes[y][np.searchsorted(starts[y], words[here], side="right") - 1]
        return out

    return sample


def mechanism(sampler: WordSampler) -> Callable[[Labels], Integers]:
    """A black box over labels 0, 1, … with fresh words at each call."""

    def run(labels: Labels) -> Integers:
        words = system_entropy().words("labels", 0, labels.size)
        return np.asarray(sampler(labels.astype(np.int64), words))

    return run


def response_rows(outputs: int, keep: float) -> Rows:
    """Randomized response that keeps with a given probability, whatever ε that is."""
    lie = int(Fraction(1 - keep) / (outputs - 1) * TOTAL)
    own = TOTAL - (outputs - 1) * lie
    return [[own if z == y else lie for z in range(outputs)] for y in range(outputs)]


def own_bin(outputs: int) -> Rows:
    """A redraw may return its own bin: claims 1, is 1.86 or 1.41."""
    keep = guess_probability(1.0, outputs)
    return response_rows(outputs, keep + (1 - keep) / outputs)


def rounded_up(epsilon: float, step: float) -> Rows:
    """The keep-probability is rounded up to a multiple of ``step``."""
    return response_rows(2, math.ceil(guess_probability(epsilon) / step) * step)


def raw_leak(words: int = TOTAL >> 20) -> Rows:
    """With probability 2⁻²⁰ the raw label is sent, as an output of its own: claims 1, is ∞."""
    rows = randomized_response_rows(2, 1.0)
    return [
        [row[0] - words // 2, row[1] - (words - words // 2)] + [words * (y == z) for z in range(2)]
        for y, row in enumerate(rows)
    ]


def low_bits_leak(indices: Integers, words: NDArray[np.uint64]) -> Integers:
    """The raw label is sent where the low 20 bits of a word are one value: scattered words."""
    honest = word_sampler(randomized_response_rows(2, 1.0))(indices, words)
    leak = (words & np.uint64((1 << 20) - 1)) == np.uint64(0xABCDE)
    return np.where(leak, indices + 2, honest)


def releaser(
    *,
    drawn_epsilon: Fraction = Fraction(1),
    stated_scale: Fraction = Fraction(2),
    raw_bins: bool = False,
    skip_empty: bool = False,
) -> Callable[[Labels, Entropy], Published]:
    """A two-step release over the labels 0, 1, 2, ε₁ = 1; the defaults make the right build."""

    def release(labels: Labels, entropy: Entropy) -> Published:
        counts = np.bincount(labels.astype(np.int64), minlength=3)
        drawn = private_prior(counts, drawn_epsilon, entropy)
        noisy = tuple(np.where(skip_empty & (counts == 0), 0, drawn.noisy_counts).tolist())
        prior = counts / counts.sum() if raw_bins else drawn.probabilities
        built = build_randomizer("rr-on-bins", labels=np.arange(3.0), prior=prior, epsilon=1.0)
        stated = built.channel.outputs.tobytes(), built.channel.weights
        return Published(noisy, stated_scale, Fraction(1), stated)

    return release


def serving(entropy: Callable[[], Entropy]) -> Callable[[], bytes]:
    """A server that randomizes at each request, under whatever entropy it then gets."""
    labels = np.resize(np.array([0, 1]), 500)
    channel = FiniteChannel([0.0, 1.0], [0.0, 1.0], randomized_response_rows(2, 1.0))
    return lambda: channel.sample(labels, entropy().words("labels", 0, labels.size)).tobytes()


def right_response(labels: Labels) -> Integers:
    """Randomized response as it should be, ε = 1."""
    return mechanism(word_sampler(randomized_response_rows(2, 1.0)))(np.clip(labels, 0, 1))


def right_pair(labels: Labels) -> Integers:
    """Two labels of an event, (n, 2), by randomized response at ε = 1/2 each."""
    one = mechanism(word_sampler(randomized_response_rows(2, 0.5)))
    first, second = (one(column) for column in np.clip(labels, 0, 1).T)
    return 2 * first + second


def epsilon_for_each(labels: Labels) -> Integers:
    """Two labels of an event, (n, 2), with the whole of ε = 1 spent on each."""
    first, second = (right_response(column) for column in labels.T)
    return 2 * first + second


def strict_response(labels: Labels) -> Integers:
    """Randomized response that refuses labels outside its domain."""
    if labels.min() < 0 or labels.max() > 1:
        raise ValueError("a label is outside 0 … 1")
    return right_response(labels)


def clip_after(labels: Labels, entropy: Entropy) -> Integers:
    """Add the noise first and clip what comes out: a label far outside is always the bound."""
    words = entropy.words("labels", 0, labels.size)
    noise = (words % np.uint64(7)).astype(np.int64) - 3
    return np.clip(labels.astype(np.int64) + noise, 0, 10)


def clip_before(labels: Labels, entropy: Entropy) -> Integers:
    return clip_after(np.clip(labels, 0, 10), entropy)


class WorkClock:
    """A clock that advances by work done and a little jitter, whatever else the machine does."""

    def __init__(self) -> None:
        self.now = 0
        self._reads = 0
        self._jitter = seeded_entropy(41).words("jitter", 0, 1 << 14) % np.uint64(256)

    def __call__(self) -> int:
        self.now += 1000 + int(self._jitter[self._reads % self._jitter.size])
        self._reads += 1
        return self.now

    def work(self, nanoseconds: int) -> None:
        """Let time pass."""
        self.now += nanoseconds


CLOCK = WorkClock()
"""What the twins below work against; a test gives it to the audit, too."""


def dropped_rows(labels: dict[str, float | None]) -> Observation:
    """Send the events that have a label."""
    return Observation(tuple(key for key, label in sorted(labels.items()) if label is not None))


def whole_population(labels: dict[str, float | None]) -> Observation:
    return Observation(tuple(sorted(labels)))


def sorted_by_label(labels: dict[str, float]) -> Observation:
    return Observation(tuple(sorted(labels, key=lambda key: (labels[key], key))))
