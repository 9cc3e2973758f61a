"""Workloads: the linear queries that a synthetic table is to answer well.

A linear query sums a weight over the records. Weights are integers 0 … ``scale`` that stand for
0 … 1, so that answers are integers and their sensitivity is exact: replacing a record moves an
answer by at most ``scale``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import ConfigError
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.guarantees.limits import positive
from labelveil.common.mechanisms.synthesis.domain import Domain, check_histogram

_EXACT_CELLS = 1 << 10
_MOST_SCALE = 1 << 20
"""So that answers about 2**40 records are int64."""


class Workload(Protocol):
    """A list of linear queries on the cells of one domain."""

    @property
    def size(self) -> int:
        """Number of queries."""

    @property
    def cells(self) -> int:
        """Number of cells that they are about."""

    @property
    def scale(self) -> int:
        """What stands for a weight of 1, and how far one replaced record moves one answer."""

    @property
    def l1_sensitivity(self) -> int:
        """How far one replaced record moves all answers together, in the L1 norm, at most."""

    def answers(self, table: NDArray[np.number]) -> NDArray[np.number]:
        """(size,) answers, in units of 1/scale, to (cells,) counts or weights of any type."""

    def support(self, query: int) -> tuple[Integers, Floats]:
        """Cells where one query's weight is not 0, and those weights as shares of ``scale``."""


@dataclass(frozen=True, eq=False)
class LinearQueries:
    """Queries written out as a matrix, for small domains."""

    weights: Integers
    """(m, cells) integers in 0 … ``scale``, m >= 1."""
    scale: int = 1
    """At least 1; 1 for counting queries."""

    def __post_init__(self) -> None:
        weights = np.array(self.weights)
        if weights.ndim != 2 or not weights.size or weights.dtype.kind not in "iub":
            raise ConfigError(
                f"weights of shape {weights.shape}, type {weights.dtype} must be a matrix of"
                " integers, a row for each query"
            )
        if not 1 <= self.scale <= _MOST_SCALE or weights.min() < 0 or weights.max() > self.scale:
            raise ConfigError(
                f"weights from {weights.min()} to {weights.max()} must lie in 0 … {self.scale}, and"
                f" scale in 1 … {_MOST_SCALE}"
            )
        weights = weights.astype(np.int64)
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)

    @property
    def size(self) -> int:
        return int(self.weights.shape[0])

    @property
    def cells(self) -> int:
        return int(self.weights.shape[1])

    @cached_property
    def l1_sensitivity(self) -> int:
        """The largest distance between two columns; for large domains a bound of it."""
        if self.cells > _EXACT_CELLS:
            return int(np.sum(self.weights.max(axis=1) - self.weights.min(axis=1)))
        columns = self.weights.T
        return max(int(np.abs(columns - column).sum(axis=1).max()) for column in columns)

    def answers(self, table: NDArray[np.number]) -> NDArray[np.number]:
        return np.asarray(self.weights @ table)

    def support(self, query: int) -> tuple[Integers, Floats]:
        at = np.flatnonzero(self.weights[query])
        return at, self.weights[query, at] / self.scale


@dataclass(frozen=True)
class Marginals:
    """All cells of the contingency tables of chosen sets of attributes: counting queries."""

    domain: Domain
    """The table's domain."""
    sets: tuple[tuple[int, ...], ...]
    """Distinct ascending tuples of attribute positions."""

    def __post_init__(self) -> None:
        d = len(self.domain.sizes)
        good = all(s and list(s) == sorted(set(s)) and 0 <= s[0] <= s[-1] < d for s in self.sets)
        if not self.sets or not good or len(set(self.sets)) < len(self.sets):
            raise ConfigError(
                f"marginals {self.sets!r:.80} must be distinct ascending sets of 0 … {d - 1}"
            )

    @classmethod
    def up_to(cls, domain: Domain, most: int) -> Marginals:
        """All marginals of 1 … ``most`` attributes, small sets first.

        Raises
        ------
        ConfigError
            If ``most`` is not between 1 and the number of attributes.
        """
        attributes = len(domain.sizes)
        if not 1 <= most <= attributes:
            raise ConfigError(f"marginals of {most} attributes must be of 1 … {attributes}")
        sizes = range(1, most + 1)
        return cls(domain, tuple(s for k in sizes for s in combinations(range(attributes), k)))

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Number of cells of each marginal."""
        return tuple(prod(self.domain.sizes[j] for j in s) for s in self.sets)

    @cached_property
    def offsets(self) -> Integers:
        """(sets + 1,) where each marginal starts in :meth:`answers`."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    @property
    def size(self) -> int:
        return sum(self.lengths)

    @property
    def cells(self) -> int:
        return self.domain.cells

    @property
    def scale(self) -> int:
        return 1

    @property
    def l1_sensitivity(self) -> int:
        """2 for each marginal: a replaced record leaves one of its cells and enters another."""
        return 2 * len(self.sets)

    def marginal(self, table: NDArray[np.number], which: int) -> NDArray[np.number]:
        """The counts of one marginal, flat."""
        others = tuple(j for j in range(len(self.domain.sizes)) if j not in self.sets[which])
        counts: NDArray[np.number] = np.asarray(table).reshape(self.domain.sizes).sum(axis=others)
        return counts.ravel()

    def spread(self, values: Floats, which: int) -> Floats:
        """One marginal's values, given to all cells that they are sums of: shape ``sizes``.

        The array broadcasts against a table in that shape.
        """
        chosen = self.sets[which]
        shape = [size if j in chosen else 1 for j, size in enumerate(self.domain.sizes)]
        return values.reshape(shape)

    def answers(self, table: NDArray[np.number]) -> NDArray[np.number]:
        return np.concatenate([self.marginal(table, i) for i in range(len(self.sets))])

    def support(self, query: int) -> tuple[Integers, Floats]:
        which = int(np.searchsorted(self.offsets, query, side="right")) - 1
        chosen = self.sets[which]
        inside = [self.domain.sizes[j] for j in chosen]
        values = np.unravel_index(query - int(self.offsets[which]), inside)
        at: list[int | slice] = [slice(None)] * len(self.domain.sizes)
        for j, value in zip(chosen, values, strict=True):
            at[j] = int(value)
        cells = np.arange(self.cells).reshape(self.domain.sizes)[tuple(at)].ravel()
        return cells, np.ones(cells.size)


def errors(workload: Workload, truth: ArrayLike, answers: ArrayLike) -> tuple[float, float]:
    """Largest and mean absolute error of answers, as shares of the number of records.

    ``truth`` are (cells,) counts; (size,) answers are as :meth:`Workload.answers` would give them.
    """
    table = np.asarray(truth)
    gap = np.abs(np.asarray(answers, dtype=np.float64) - workload.answers(table))
    gap /= workload.scale * float(table.sum())
    return float(gap.max()), float(gap.mean())


def laplace_answers(
    workload: Workload, histogram: ArrayLike, epsilon: Fraction, entropy: Entropy
) -> Integers:
    """(size,) answers, in units of 1/scale, with discrete Laplace noise of scale Δ₁/ε: a baseline.

    Δ₁ is the workload's ``l1_sensitivity``, and all answers together are ε-DP.
    """
    positive(epsilon=epsilon)
    truth = workload.answers(check_histogram(histogram, workload.cells)).astype(np.int64)
    scale = workload.l1_sensitivity / epsilon
    noise = discrete_laplace(scale, truth.size, entropy.source("laplace-answers"))
    return np.asarray(truth + noise)
