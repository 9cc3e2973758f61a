"""The mechanisms of DP-Auditorium that are wrong on purpose, made anew from their descriptions.

Source: github.com/google/differential-privacy, python/dp_auditorium (``mechanisms``); Lyu, Su, Li,
*Understanding the Sparse Vector Technique for Differential Privacy*, VLDB 2017, Algorithms 1 to 6.
A label says which of two data sets a run is on; an output is a whole number, so that it is not the
floating-point noise, which they all have, that gives it away.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import system_entropy
from tests.labelveil.audit.twins.library import SIZES, MechanismTwin, Outputs, twin

QUERIES = 6
CELLS = 8.0  # real outputs are rounded down to so many parts of 1


def laplace(scale: Floats | float, *shape: int) -> Floats:
    words = system_entropy().words("laplace", 0, int(np.prod(shape)))
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53 - 0.5
    return np.asarray(-scale * np.sign(uniform).reshape(shape)) * np.log1p(
        -2 * np.abs(uniform).reshape(shape)
    )


RIGHT: list[MechanismTwin] = []


def right(made: type[MechanismTwin]) -> MechanismTwin:
    """Decorator: the class's one instance takes its name, and stands among the right ones."""
    RIGHT.append(made())
    return RIGHT[-1]


class Auditorium(MechanismTwin):
    """Claims ε = 1 for one record that is there or not."""

    caught_by = "every label"
    sizes = replace(SIZES, runs=200_000)


class Mean(Auditorium):
    """Of one record 0, or of 0 and 1, whose number is noised with half of ε where it is noised."""

    noisy_mean: ClassVar[bool] = False
    noisy_scale: ClassVar[bool] = False

    def __call__(self, labels: Floats) -> Outputs:
        total, count = labels, 1 + labels
        half = 0.5 if self.noisy_mean or self.noisy_scale else 1.0
        noisy = count + laplace(1 / half, labels.size)
        scale = np.maximum(1e-12, 1 / half / np.where(self.noisy_scale, noisy, count))
        mean = total / np.where(self.noisy_mean, noisy, count) + laplace(scale, labels.size)
        return np.floor(CELLS * np.clip(mean, -20, 20) + 0.5).astype(np.int64)


@twin
class MeanOfTrueCounts(Mean):
    """``non_private_mean_v1``: the true number is divided by, and scales the noise."""


@twin
class MeanWithNoisyScale(Mean):
    """``non_private_mean_v2``: only the noise's scale is of a noisy number."""

    noisy_scale = True


@twin
class MeanWithNegativeCounts(Mean):
    """``private_mean``, of so few records that a noisy number is often negative: then no noise."""

    noisy_mean = noisy_scale = True


class Sparse(Auditorium):
    """Queries that show one record, and the other one: 1, …, 1, 0 or 0, …, 0, 1; threshold 1."""

    answers: ClassVar[int] = 3  # that are given before it ends
    threshold: ClassVar[float] = 2.0  # scale of its noise
    query: ClassVar[float] = 2.0  # scale of each query's noise
    shown: ClassVar[bool] = False  # whether noisy queries above the threshold are

    def __call__(self, labels: Floats) -> Outputs:
        last = np.arange(QUERIES) == QUERIES - 1
        values = np.where(labels[:, None] == 1, last, ~last).astype(np.float64)
        noisy = values + (laplace(self.query, *values.shape) if self.query else 0)
        above = noisy >= 1 + laplace(self.threshold, labels.size, 1)
        silent = np.cumsum(above, axis=1) - above >= self.answers
        said = np.where(silent, 2, above)
        codes: Integers = said @ 3 ** np.arange(QUERIES)
        if not self.shown:
            return codes
        first = noisy[np.arange(labels.size), above.argmax(axis=1)]
        answer = np.floor(first.clip(-8, 8) * 2).astype(np.int64)
        return np.where(above.any(axis=1), 32 * codes + answer, 32 * codes + 31)


@right
class SparseVector1(Sparse):
    """Algorithm 1."""

    query = 4.0 * Sparse.answers


@right
class SparseVector2(Sparse):
    """Algorithm 2."""

    threshold, query = 2.0 * Sparse.answers, 4.0 * Sparse.answers


@twin
class SparseVector3(Sparse):
    """The noisy query itself is shown where it is above."""

    answers, query, shown = 1, 2.0, True


@twin
class SparseVector4(Sparse):
    """Noise does not grow with the number of answers."""

    threshold, query = 4.0, 4.0 / 3


@twin
class SparseVector5(Sparse):
    """Queries have no noise."""

    answers, query = QUERIES, 0.0


@twin
class SparseVector6(Sparse):
    """There is no end to the answers."""

    answers = QUERIES


@right
class NoisyMax(Auditorium):
    """Gumbel noise of scale 2/ε on the counts of three elements; one record has the last."""

    def __call__(self, labels: Floats) -> Outputs:
        counts = np.stack([labels * 0 + 1, labels * 0 + 1, labels], axis=1)
        words = system_entropy().words("gumbel", 0, counts.size)
        uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        gumbel = -2 * np.log(-np.log(uniform)).reshape(counts.shape)
        return np.asarray((counts + gumbel).argmax(axis=1))
