"""Twins whose rows say something about each other, or whose starts do."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace

import numpy as np

from labelveil.common.arrays import Floats, Words
from labelveil.common.entropy import Entropy, system_entropy
from tests.effort import effort
from tests.labelveil.audit.twins.library import SIZES, SMALL, MechanismTwin, Outputs, twin


@twin
class SameWordsInEveryBlock(MechanismTwin):
    """Every block of 65,536 rows starts its stream again."""

    caught_by = "repeated words"

    def words(self, count: int) -> Words:
        return np.resize(super().words(min(count, 1 << 16)), count)


@twin
class SameWordsInEveryWorker(MechanismTwin):
    """Four workers share the rows, and one seed."""

    caught_by = "repeated words"

    def words(self, count: int) -> Words:
        return np.resize(super().words(-(-count // 4)), count)


@twin
class OneStretchTwice(MechanismTwin):
    """A task that is retried keeps what it had drawn: 300 rows come back somewhere else."""

    caught_by = "repeated words"

    def words(self, count: int) -> Words:
        words = super().words(count).copy()
        if count > 100_000:
            words[70_123:70_423] = words[1000:1300]
        return words


@twin
class WordsOfLabels(MechanismTwin):
    """Noise is made from the labels, so that a rerun is repeatable: equal labels, equal noise."""

    caught_by = "call against call"

    def words(self, count: int) -> Words:
        return Entropy(hashlib.sha256(str(count).encode()).digest()).words("labels", 0, count)


@twin
class EveryThirdCall(MechanismTwin):
    """A pool of three generators, each wound back when its turn comes again."""

    caught_by = "call against call"

    def __init__(self) -> None:
        self._pool = [system_entropy().key for _ in range(3)]
        self._calls = 0

    def words(self, count: int) -> Words:
        self._calls += 1
        return Entropy(self._pool[self._calls % 3]).words("labels", 0, count)


@twin
class SharedWithSeventhRow(MechanismTwin):
    """One row in fifty takes the word of the seventh row before it."""

    caught_by = "repeated words"

    def words(self, count: int) -> Words:
        words = super().words(count).copy()
        rows = np.arange(49, count, 50)
        words[rows] = words[rows - 7]
        return words


@twin
class AntitheticRows(MechanismTwin):
    """Every second word is the complement of the one before it, to save half of them."""

    caught_by = "repeated words"

    def words(self, count: int) -> Words:
        words = super().words(count).copy()
        words[1::2] = ~words[: count - 1 : 2]
        return words


@twin
class AcrossTheBorder(MechanismTwin):
    """The first row of each block of 4,096 takes the last word of the block before, and so on."""

    caught_by = "repeated words"

    def words(self, count: int) -> Words:
        words = super().words(count).copy()
        rows = np.arange(count)
        late = rows[(rows >= 4096) & (rows % 4096 < 100)]
        words[late] = words[late - 100]
        return words


@twin
class WhetherTwoRowsAgree(MechanismTwin):
    """One row in a hundred sends whether the labels of the two rows before it agree."""

    caught_by = "labels of other rows"
    slow = True

    def __call__(self, labels: Floats) -> Outputs:
        out = super().__call__(labels).copy()
        rows = np.arange(99, labels.size, 100)
        out[rows] = labels[rows - 1] == labels[rows - 2]
        return out


@twin
class LabelInTwoRows(MechanismTwin):
    """Each label is used in two rows."""

    caught_by = "labels of other rows"
    sizes = SMALL

    def __call__(self, labels: Floats) -> Outputs:
        return super().__call__(np.repeat(labels[::2], 2)[: labels.size])


@twin
class FarRow(MechanismTwin):
    """One row in fifty is about the label 100,000 rows before it: an index that wraps."""

    caught_by = "labels of other rows"

    def __call__(self, labels: Floats) -> Outputs:
        taken = labels.copy()
        rows = np.arange(100_000, labels.size, 50)
        taken[rows] = labels[rows - 100_000]
        return super().__call__(taken)


@twin
class LastRowOfACall(MechanismTwin):
    """The last row of a call sends the first row's label, half of the time."""

    caught_by = "labels of other rows"

    def __call__(self, labels: Floats) -> Outputs:
        out = super().__call__(labels).copy()
        if self.words(1)[0] < np.uint64(1 << 63):
            out[-1] = labels[0]
        return out


@twin
class SortedOutputs(MechanismTwin):
    """Outputs leave in the order of their values: a database that groups."""

    caught_by = "rows are not ordered by label"

    def __call__(self, labels: Floats) -> Outputs:
        return np.sort(super().__call__(labels))


class Seeded(MechanismTwin):
    """A mechanism whose noise is drawn under one seed, from the first call on."""

    caught_by = "cold starts"

    def __init__(self) -> None:
        self._entropy: Entropy | None = None
        self._used = 0

    def seed(self) -> int:
        """Where the noise begins."""
        raise NotImplementedError

    def words(self, count: int) -> Words:
        if self._entropy is None:
            # a generator of somebody's own, which a fork takes along: ours refuses there
            self._entropy = Entropy(self.seed().to_bytes(32, "big"), secure=False)
        found = self._entropy.words("labels", self._used, count)
        self._used += count
        return found


@twin
class TwelveBits(Seeded):
    """A generator with 12 bits of seed."""

    sizes = replace(SIZES, starts=400)
    slow = True

    def seed(self) -> int:
        return int.from_bytes(os.urandom(2), "big") >> 4


@twin
class MoreBits(Seeded):
    """A generator with 16 bits of seed, or 20 where everything is tried."""

    bits = effort(16, 20)
    sizes = replace(SIZES, starts=effort(1254, 5014))  # some 12 pairs agree
    slow = True

    def seed(self) -> int:
        return int.from_bytes(os.urandom(3), "big") >> 24 - self.bits


@twin
class ConstantSeed(Seeded):
    """One seed forever."""

    def seed(self) -> int:
        return 7


@twin
class ProcessSeed(Seeded):
    """Seeded with the process id."""

    slow = True

    def seed(self) -> int:
        return os.getpid()


@twin
class ClockSeed(Seeded):
    """Seeded with the second of the day."""

    slow = True

    def seed(self) -> int:
        return int(time.time())


@twin
class InheritedByWorkers(Seeded):
    """Seeded well, once: workers that are forked afterwards go on from the same place."""

    slow = True

    def seed(self) -> int:
        return int.from_bytes(os.urandom(32), "big")
