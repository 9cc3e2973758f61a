"""Twins that say too much about their own label."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np

from labelveil.audit.attacks import implementation
from labelveil.audit.verdict import Check
from labelveil.common.arrays import Floats
from labelveil.common.entropy import system_entropy
from labelveil.common.exact.channel import TOTAL, randomized_response_rows
from tests.labelveil.audit.twins import samplers
from tests.labelveil.audit.twins.library import SIZES, MechanismTwin, Outputs, twin
from tests.labelveil.audit.twins.samplers import Rows, word_sampler


class ChannelTwin(MechanismTwin):
    """A mechanism that is a matrix of weights."""

    labels = np.arange(11.0)
    caught_by = "every label"

    def __init__(self) -> None:
        self._sampler = word_sampler(self.rows())

    def rows(self) -> Rows:
        """(k, d) weights; by default randomized response at the claimed ε."""
        return [list(row) for row in randomized_response_rows(self.labels.size, self.epsilon)]

    def __call__(self, labels: Floats) -> Outputs:
        return np.asarray(self._sampler(labels.astype(np.int64), self.words(labels.size)))


def move(row: list[int], source: int, target: int, share: float) -> None:
    """Move a share of all words from one output to another."""
    words = int(TOTAL * share)
    row[source] -= words
    row[target] += words


@twin
class TwiceEpsilon(ChannelTwin):
    """e^ε is applied twice."""

    def rows(self) -> Rows:
        return [list(row) for row in randomized_response_rows(self.labels.size, 2 * self.epsilon)]


@twin
class OwnBin(ChannelTwin):
    """A redraw may return its own bin."""

    def rows(self) -> Rows:
        return samplers.own_bin(self.labels.size)


@twin
class RoundedToHundredths(ChannelTwin):
    """The keep-probability is rounded up to two decimals."""

    labels = np.array([0.0, 1.0])
    caught_by = "one run"

    def rows(self) -> Rows:
        return samplers.rounded_up(1.0, 0.01)


@twin
class RoundedToEightBits(ChannelTwin):
    """The keep-probability is rounded up to 8 bits."""

    labels = np.array([0.0, 1.0])
    epsilon = 4.0
    caught_by = "one run"

    def rows(self) -> Rows:
        return samplers.rounded_up(4.0, 2**-8)


@twin
class EverySecondLabelRaw(ChannelTwin):
    """Labels with an odd index are sent raw, the others as they should be."""

    def __call__(self, labels: Floats) -> Outputs:
        odd = labels.astype(np.int64) % 2 == 1
        return np.where(odd, labels.astype(np.int64), super().__call__(labels))


@twin
class OneInteriorLabel(ChannelTwin):
    """One label in the middle has ε = 1.1."""

    def rows(self) -> Rows:
        rows = super().rows()
        rows[4] = list(randomized_response_rows(self.labels.size, 1.1)[4])
        return rows


@twin
class OneLabelOfThreeHundred(ChannelTwin):
    """One of 300 labels is sent raw in one row of fifty."""

    labels = np.arange(300.0)
    sizes = replace(SIZES, runs=300_000)
    slow = True

    def rows(self) -> Rows:
        rows = super().rows()
        row = rows[217]
        for z in range(len(row)):
            if z != 217:
                move(row, z, 217, row[z] / TOTAL * 0.02)
        return rows


@twin
class OneInteriorPair(ChannelTwin):
    """Two labels in the middle are told apart; each is close to all others."""

    def rows(self) -> Rows:
        rows = [[TOTAL // 11 + (z < TOTAL % 11) for z in range(11)] for _ in range(11)]
        for y, z in ((4, 6), (6, 4)):
            move(rows[y], y, z, 0.045)
        return rows


@twin
class RareOutputOfOneLabel(ChannelTwin):
    """An output that only label 0 can give, in one row of ten thousand."""

    def rows(self) -> Rows:
        rows = [[*row, 0] for row in super().rows()]
        move(rows[0], 0, 11, 1e-4)
        return rows


@twin
class RareOutputOfAllOthers(ChannelTwin):
    """An output that every label but one can give: an error value that only zero never meets."""

    def rows(self) -> Rows:
        rows = [[*row, 0] for row in super().rows()]
        for y in range(1, 11):
            move(rows[y], y, 11, 2e-4)
        return rows


@twin
class RareButTooLikely(ChannelTwin):
    """A rare output is e^2.5 times likelier for one label."""

    def rows(self) -> Rows:
        rows = [[*row, 0] for row in super().rows()]
        for y in range(11):
            move(rows[y], y, 11, 1e-3 * (np.exp(2.5) if y == 3 else 1.0))
        return rows


@twin
class NegativeZero(MechanismTwin):
    """Sometimes a kept 0 is sent as -0.0: equal in every comparison, but not on the wire."""

    caught_by = "every label"

    def __call__(self, labels: Floats) -> Outputs:
        out = super().__call__(labels).astype(np.float64)
        raw = self.words(labels.size) < np.uint64(TOTAL // 100)
        return np.where(raw & (labels == 0) & (out == 0), -0.0, out)


@twin
class FloatLaplace(MechanismTwin):
    """Label plus floating-point Laplace noise: its low bits tell all."""

    caught_by = "float mantissa"

    def __call__(self, labels: Floats) -> Outputs:
        words = self.words(labels.size)
        uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        sign = np.where(words & np.uint64(1), 1.0, -1.0)
        return np.asarray(labels - sign * np.log(uniform))


@twin
class ClippedAfter(MechanismTwin):
    """Noise first and the clip after it: a label far outside is always the bound."""

    labels = np.arange(11.0)
    caught_by = "labels outside the domain"

    def __call__(self, labels: Floats) -> Outputs:
        return samplers.clip_after(labels, system_entropy())


@twin
class SlowFlips(MechanismTwin):
    """Flipping a label takes some work that keeping it does not."""

    caught_by = "timing"
    sizes = replace(SIZES, calls=1000)
    slow = True

    def __call__(self, labels: Floats) -> Outputs:
        out = super().__call__(labels)
        if out[0] != labels[0]:
            samplers.CLOCK.work(500)
        return out

    def audit(self) -> Check:
        with mock.patch.object(implementation, "clock", samplers.CLOCK):
            return super().audit()
