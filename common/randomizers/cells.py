"""One or several labels of an event as one cell.

The grids of m labels make Π k_j cells, numbered in row-major order, the last label fastest. A
message has one prior and one channel for each *group* of labels, over the cells of that group. An
event's neighbours differ in all of its labels, so the ε of the groups add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Floats, Indices
from labelveil.common.entropy import Entropy
from labelveil.common.randomizers.base import ROUNDING_STREAM
from labelveil.common.randomizers.grid import Grid


def row_products(left: Floats, right: Floats) -> Floats:
    """(n, k l) products of the entries of (n, k) and (n, l), row by row; the last run fastest."""
    return np.asarray((left[:, :, None] * right[:, None, :]).reshape(len(left), -1))


def stream(name: str, index: int) -> str:
    """Name the stream of random words of one of several: the first keeps the plain name."""
    return f"{name} {index}" if index else name


@dataclass(frozen=True)
class Cells:
    """The product of label grids, one a label; with one alone the cells are its points."""

    grids: tuple[Grid, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Points of each grid."""
        return tuple(len(grid) for grid in self.grids)

    def __len__(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def points(self) -> Floats:
        """(k, m) the labels' values in each cell."""
        return self.values(self.indices(np.arange(len(self))))

    @property
    def inputs(self) -> Floats:
        """(k,) a channel's inputs: the points of the only grid, else the cells' numbers."""
        return self.grids[0].points if len(self.grids) == 1 else np.arange(float(len(self)))

    def number(self, indices: NDArray[np.integer]) -> Indices:
        """(n,) cells of (n, m) indices into the grids."""
        return np.asarray(np.ravel_multi_index(tuple(indices.T), self.shape), dtype=np.int64)

    def indices(self, cells: NDArray[np.integer]) -> Indices:
        """(n, m) indices into the grids of (n,) cells."""
        return np.column_stack(np.unravel_index(cells, self.shape))

    def values(self, indices: NDArray[np.integer]) -> Floats:
        """(n, m) labels of (n, m) indices into the grids."""
        columns = [grid.points[i] for grid, i in zip(self.grids, indices.T, strict=True)]
        return np.column_stack(columns)

    def marginal(self, weights: Floats, label: int) -> Floats:
        """(…, k_j) sums over all other labels of (…, k) weights of cells."""
        table = weights.reshape(*weights.shape[:-1], *self.shape)
        axis = weights.ndim - 1
        others = tuple(axis + j for j in range(len(self.grids)) if j != label)
        return np.asarray(table.sum(axis=others))


@dataclass(frozen=True)
class Group:
    """Labels that share a histogram, or a channel."""

    labels: tuple[int, ...]  # their positions among the labels of the message
    cells: Cells  # the product of their grids, in the same order

    def round(self, labels: Floats, entropy: Entropy, start_row: int = 0) -> Indices:
        """Round events' labels to their grids at random, without bias: (n,) cells of this group.

        The (n, m) labels are all those of the message, without NaN; they are clipped to the grids'
        ranges. ``start_row`` is the index of the first event in the whole data set.
        """
        cells = np.zeros(len(labels), dtype=np.int64)
        for label, grid in zip(self.labels, self.cells.grids, strict=True):
            words = entropy.coins(stream(ROUNDING_STREAM, label), start_row, cells.size)
            cells *= len(grid)
            cells += grid.round(labels[:, label], words)
        return cells

    def number(self, indices: NDArray[np.integer]) -> Indices:
        """(n,) cells of this group, of (n, m) indices into the grids of all labels."""
        return self.cells.number(indices[:, self.labels])
