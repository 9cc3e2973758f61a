"""Twins that are drawn: of each class of faults a random member, so that no check is tuned to one.

``drawn:CLASS_SEED`` is a mechanism over 0 … 10 that claims ε = 1, made by that name alone, in this
process and in any other. What is in between the whole numbers is rounded to them at random.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

import numpy as np

from labelveil.common.arrays import Booleans, Floats, Integers, Words
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.exact.channel import randomized_response_rows
from tests.labelveil.audit.twins import samplers
from tests.labelveil.audit.twins.library import Outputs
from tests.labelveil.audit.twins.samplers import word_sampler

LABELS = np.arange(11.0)
RESPONSE = word_sampler(randomized_response_rows(LABELS.size, 1.0))


class Drawn:
    """A right build; a class of faults draws its member in ``draw``.

    Attributes
    ----------
    caught_by
        Probes one of which must fail it.
    """

    caught_by: ClassVar[tuple[str, ...]] = ()

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng([seed, *type(self).__name__.encode()])
        ends = np.sort(self.random.uniform(0.5, 9.5, 2))
        if ends[1] - ends[0] < 1.5:  # some labels in the middle, between those of a grid too
            ends = np.array([ends[0] - 0.75, ends[0] + 0.75]).clip(0.25, 9.75)
        self.inside = ends
        self.draw()

    def draw(self) -> None:
        """Draw the fault's parameters."""

    def between(self, low: float, high: float) -> int:
        """A whole number, its logarithm uniform."""
        return int(np.exp(self.random.uniform(np.log(low), np.log(high))))

    def concerned(self, labels: Floats) -> Booleans:
        """Whether a label is one of those on which it misbehaves: an interval in the middle."""
        return np.asarray((labels > self.inside[0]) & (labels < self.inside[1]))

    def words(self, labels: Floats) -> Words:
        """One word a row."""
        return system_entropy().words("labels", 0, labels.size)

    def __call__(self, labels: Floats) -> Outputs:
        return self.send(np.asarray(labels, dtype=np.float64), self.words(labels))

    def send(self, labels: Floats, words: Words) -> Outputs:
        return np.asarray(RESPONSE(rounded(labels), words))


def rounded(labels: Floats) -> Integers:
    """To whole numbers 0 … 10, at random and without bias."""
    coins = system_entropy().words("coins", 0, labels.size) >> np.uint64(11)
    return np.floor(labels.clip(0, 10) + coins.astype(np.float64) * 2.0**-53).astype(np.int64)


class CopiesTheRowBefore(Drawn):
    """Labels in the middle send the output of the row before."""

    caught_by = ("repeated words", "labels of other rows", "call against call")

    def draw(self) -> None:
        self.share = self.random.uniform(0.4, 1)

    def send(self, labels: Floats, words: Words) -> Outputs:
        out = np.array(super().send(labels, words))
        rows = np.flatnonzero(self.concerned(labels) & (self.random.random(out.size) < self.share))
        rows = rows[rows > 0]
        out[rows] = out[rows - 1]
        return out


class CachedNoise(Drawn):
    """Noise is kept by label for all labels in the middle, in a call or as long as it runs."""

    caught_by = ("repeated words", "call against call", "every label")

    def draw(self) -> None:
        self.forever = bool(self.random.integers(2))
        self._cache: dict[float, np.uint64] = {}

    def words(self, labels: Floats) -> Words:
        words = super().words(labels).copy()
        if not self.forever:
            self._cache.clear()
        for label in np.unique(labels[self.concerned(labels)]).tolist():
            rows = labels == label
            words[rows] = self._cache.setdefault(label, words[rows][0])
        return words


class SlowInTheMiddle(Drawn):
    """Labels in the middle take 0.05 to 0.5 ms longer."""

    caught_by = ("timing",)

    def draw(self) -> None:
        self.nanoseconds = self.between(50_000, 500_000)

    def send(self, labels: Floats, words: Words) -> Outputs:
        samplers.CLOCK.work(self.nanoseconds * int(self.concerned(labels).sum()))
        return super().send(labels, words)


class SeedInTheMiddle(Drawn):
    """Labels in the middle have noise of a seed of 6 to 10 bits, drawn at the start."""

    caught_by = ("cold starts",)

    def draw(self) -> None:
        self.bits = int(self.random.integers(6, 11))
        self._entropy: Entropy | None = None
        self._used = 0

    def words(self, labels: Floats) -> Words:
        if self._entropy is None:
            word = int(system_entropy().words("seed", 0, 1)[0]) >> 64 - self.bits
            self._entropy = Entropy(word.to_bytes(32, "big"))
        words = super().words(labels).copy()
        rows = self.concerned(labels)
        count = int(rows.sum())
        words[rows] = self._entropy.words("labels", self._used, count)
        self._used += count
        return words


class TruthInBetween(Drawn):
    """Labels that are no whole number are sent as the nearest one, a share of them."""

    caught_by = ("every label",)

    def draw(self) -> None:
        self.share = self.random.uniform(0.1, 0.6)

    def send(self, labels: Floats, words: Words) -> Outputs:
        raw = (labels % 1 > 0) & (self.random.random(labels.size) < self.share)
        near = np.rint(labels.clip(0, 10)).astype(np.int64)
        return np.where(raw, near, super().send(labels, words))


class FarInfluence(Drawn):
    """One row in a few is about the label up to 400,000 rows before it."""

    caught_by = ("labels of other rows",)

    def draw(self) -> None:
        self.distance = self.between(1, 400_000)
        self.every = int(self.random.integers(2, 12))
        self.first = int(self.random.integers(self.every))

    def send(self, labels: Floats, words: Words) -> Outputs:
        taken = labels.copy()
        rows = np.arange(self.first, labels.size, self.every)
        rows = rows[rows >= self.distance]
        taken[rows] = labels[rows - self.distance]
        return super().send(taken, words)


class ThreeTogether(Drawn):
    """One row in a few says whether an odd number of three rows just before have a high label."""

    caught_by = ("labels of other rows",)

    def draw(self) -> None:
        self.back = np.sort(self.random.choice(np.arange(1, 5), 3, replace=False))
        self.every = int(self.random.integers(5, 25))

    def send(self, labels: Floats, words: Words) -> Outputs:
        out = np.array(super().send(labels, words))
        rows = np.arange(self.every, labels.size, self.every)
        odd = np.sum([labels[rows - back] > 5 for back in self.back], axis=0) % 2
        out[rows] = np.where(odd == 1, 10, 0)
        return out


class Period(Drawn):
    """Words come again after 1,000 to 2,000,000 rows."""

    caught_by = ("repeated words",)

    def draw(self) -> None:
        self.period = self.between(1_000, 2_000_000)

    def words(self, labels: Floats) -> Words:
        return np.resize(super().words(labels[: self.period]), labels.size)


class TruthFrom(Drawn):
    """From some row on, up to the two millionth, a share of labels is sent as it is."""

    caught_by = ("one run",)

    def draw(self) -> None:
        self.row = self.between(2_000, 2_000_000)
        self.share = self.random.uniform(0.3, 1)

    def send(self, labels: Floats, words: Words) -> Outputs:
        out = np.array(super().send(labels, words))
        rows = np.arange(self.row, labels.size)
        rows = rows[self.random.random(rows.size) < self.share]
        out[rows] = np.rint(labels[rows].clip(0, 10))
        return out


class Stretch(Drawn):
    """Of rows 0 … 400,000 a stretch of some hundreds comes again somewhere else."""

    caught_by = ("repeated words",)

    def draw(self) -> None:
        self.rows = int(self.random.integers(300, 2000))
        self.first, self.second = self.random.integers(0, 400_000, 2).tolist()

    def words(self, labels: Floats) -> Words:
        words = super().words(labels).copy()
        source = words[self.first : self.first + self.rows]
        target = words[self.second : self.second + self.rows]
        size = min(source.size, target.size)
        target[:size] = source[:size]
        return words


class SomeWordsAgain(Drawn):
    """Some rows in a hundred take the word of a row before, at any distance."""

    caught_by = ("repeated words",)

    def draw(self) -> None:
        self.lag = self.between(1, 200_000)
        self.share = self.random.uniform(0.05, 0.3)

    def words(self, labels: Floats) -> Words:
        words = super().words(labels).copy()
        rows = np.flatnonzero(self.random.random(labels.size) < self.share)
        rows = rows[rows >= self.lag]
        words[rows] = words[rows - self.lag]
        return words


class PoolOfGenerators(Drawn):
    """A pool of generators, each wound back when its turn comes again."""

    caught_by = ("call against call",)

    def draw(self) -> None:
        self._pool = [system_entropy() for _ in range(self.between(1, 100))]
        self._calls = 0

    def words(self, labels: Floats) -> Words:
        self._calls += 1
        pool = self._pool[self._calls % len(self._pool)]
        return Entropy(pool.key).words("labels", 0, labels.size)


class Beyond(Drawn):
    """A label beyond the bounds, on one side or both, gives itself away in a share of rows."""

    caught_by = ("labels outside the domain",)

    def draw(self) -> None:
        self.below, self.above = ((True, True), (True, False), (False, True))[
            int(self.random.integers(3))
        ]
        self.share = self.random.uniform(0.05, 1)

    def send(self, labels: Floats, words: Words) -> Outputs:
        out = np.array(super().send(labels, words))
        raw = self.random.random(labels.size) < self.share
        out[raw & (labels < 0) & self.below] = 0
        out[raw & (labels > 10) & self.above] = 10
        return out


class OneLabel(Drawn):
    """One label in the middle, of a grid's or not, is sent raw in some rows of a hundred."""

    caught_by = ("every label",)

    def draw(self) -> None:
        self.label = float(self.random.integers(1, 20)) / 2
        self.share = self.random.uniform(0.1, 0.4)

    def send(self, labels: Floats, words: Words) -> Outputs:
        raw = (labels == self.label) & (self.random.random(labels.size) < self.share)
        return np.where(raw, np.floor(labels).astype(np.int64), super().send(labels, words))


class Message:
    """Canaries and what a right labels party makes of them: a code for each, by a word."""

    def __init__(self, keys: list[str], order: Integers, kinds: Integers, laws: Floats) -> None:
        """(n,) keys in the order in which they were handed over, their places in a release, their
        kinds, and the (k, d) laws of each kind's code."""
        self.keys, self.order, self.kinds, self.laws = keys, order, kinds, laws

    @property
    def places(self) -> Integers:
        """(n,) where each canary stands in the release."""
        return np.argsort(self.order)

    def words(self) -> Floats:
        """(n,) fresh uniform numbers."""
        bits = system_entropy().words("message", 0, len(self.keys)) >> np.uint64(11)
        return bits.astype(np.float64) * 2.0**-53

    def codes(self, words: Floats) -> Integers:
        sums = self.laws.cumsum(axis=1)[self.kinds, :-1]
        return np.asarray((words[:, None] >= sums).sum(axis=1))

    def hashed(self, salt: int, characters: slice) -> Floats:
        """(n,) uniform numbers that are a function of a part of each key."""
        texts = (f"{salt} {key[characters]}".encode() for key in self.keys)
        digests = [int.from_bytes(hashlib.sha256(text).digest()[:6]) for text in texts]
        return np.array(digests) / 2.0**48


class MessageTwin:
    """A labels party of whom only messages are seen: codes of one epoch, and of the next.

    Attributes
    ----------
    caught_by
        Checks one of which must fail it.
    """

    caught_by: ClassVar[tuple[str, ...]] = ()

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = np.random.default_rng([seed, *type(self).__name__.encode()])
        self.draw()

    def draw(self) -> None:
        """Draw the fault's parameters."""

    def words(self, message: Message) -> Floats:
        return message.words()

    def codes(self, message: Message, words: Floats) -> Integers:
        return message.codes(words)

    def __call__(self, message: Message) -> Integers:
        """Codes of one epoch, in the order in which canaries were handed over."""
        return self.codes(message, self.words(message))


class RowsAgain(MessageTwin):
    """Rows take the word of another one so far before, in the order of the file or the release."""

    caught_by = ("noise of other rows",)

    def draw(self) -> None:
        self.lag = int(np.exp(self.random.uniform(0, np.log(4000))))
        self.share = self.random.uniform(0.2, 0.8)  # all words moved along would be right
        self.of_file = bool(self.random.integers(2))

    def words(self, message: Message) -> Floats:
        words = message.words()
        order = np.arange(words.size) if self.of_file else message.order
        rows = np.flatnonzero(self.random.random(words.size) < self.share)
        rows = rows[rows >= self.lag]
        words[order[rows]] = words[order[rows - self.lag]]
        return words


class Workers(MessageTwin):
    """Some workers share the rows, and one seed."""

    caught_by = ("noise of other rows",)

    def draw(self) -> None:
        self.workers = int(self.random.integers(2, 9))

    def words(self, message: Message) -> Floats:
        words = message.words()
        words[message.order] = np.resize(words[: -(-words.size // self.workers)], words.size)
        return words


class NoiseOfKeys(MessageTwin):
    """A share of the keys has the same noise in every epoch."""

    caught_by = ("noise of two epochs",)

    def draw(self) -> None:
        self.share = self.random.uniform(0.2, 1)

    def words(self, message: Message) -> Floats:
        kept = message.hashed(self.seed, slice(None))
        chosen = message.hashed(self.seed + 1, slice(None)) < self.share
        return np.where(chosen, kept, message.words())


class NoiseOfPrefixes(MessageTwin):
    """Keys that begin or end alike have the same noise."""

    caught_by = ("noise of other rows", "outputs follow the stated channel", "groups of keys")

    def draw(self) -> None:
        characters = int(self.random.integers(1, 4))
        self.part = slice(characters) if self.random.integers(2) else slice(-characters, None)

    def words(self, message: Message) -> Floats:
        salt = int(system_entropy().words("salt", 0, 1)[0])
        return message.hashed(salt, self.part)


class RawGroup(MessageTwin):
    """A group of keys sends its labels' likeliest codes: by their ends, or where they stand."""

    caught_by = ("groups of keys",)

    def draw(self) -> None:
        self.by = str(self.random.choice(["prefix", "suffix", "file", "release"]))
        self.first = self.random.uniform(0, 0.9)
        self.share = self.random.uniform(0.4, 1)

    def codes(self, message: Message, words: Floats) -> Integers:
        size = len(message.keys)
        if self.by in ("prefix", "suffix"):
            digit = f"{int(16 * self.first):x}"
            at = 0 if self.by == "prefix" else -1
            group = np.array([key[at] == digit for key in message.keys])
        else:
            places = np.arange(size) if self.by == "file" else message.places
            group = (places >= self.first * size) & (places < (self.first + 0.1) * size)
        raw = group & (self.random.random(size) < self.share)
        return np.where(raw, message.laws.argmax(axis=1)[message.kinds], message.codes(words))


class OddKind(MessageTwin):
    """One kind of events has codes of its own in a share of rows: those without a label, beyond a
    bound, between two points, with several rows.
    """

    caught_by = ("outputs follow the stated channel", "canaries told apart")

    def draw(self) -> None:
        self.share = self.random.uniform(0.25, 1)
        self.kind = self.random.uniform(0, 1)

    def codes(self, message: Message, words: Floats) -> Integers:
        kind = int(self.kind * len(message.laws))
        code = int(self.random.integers(message.laws.shape[1]))
        raw = (message.kinds == kind) & (self.random.random(words.size) < self.share)
        return np.where(raw, code, message.codes(words))


def every(base: type[Any]) -> list[type[Any]]:
    """The classes of faults."""
    return base.__subclasses__()


def __getattr__(name: str) -> Drawn:
    """Make a mechanism by its name, as in ``Period_17``."""
    kind, _, seed = name.partition("_")
    made = globals().get(kind)
    if not (isinstance(made, type) and issubclass(made, Drawn) and seed.isdigit()):
        raise AttributeError(name)
    twin = made(int(seed))
    globals()[name] = twin  # one instance a process, as a module's function is
    return twin
