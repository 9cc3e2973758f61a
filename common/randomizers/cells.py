"""One or several labels of an event as one cell, and the one code that stands for all of them.

The grids of m labels make Π k_j cells, numbered in row-major order, the last label fastest. A
message has one prior and one channel for each *group* of labels, over the cells of that group; the
codes of several channels are written as one number in mixed radix, the last channel's fastest. An
event's neighbours differ in all of its labels, so the ε of the groups add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Floats, Indices
from labelveil.common.entropy import Entropy
from labelveil.common.errors import ConfigError
from labelveil.common.exact.channel import MAX_OUTPUTS, Codes, FiniteChannel
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


@dataclass(frozen=True)
class Codebook:
    """What the codes of a message mean.

    ``ConfigError`` if groups, channels and labels do not fit, or there are more than 65,536
    combined codes.
    """

    names: tuple[str, ...]  # (m,) of the labels
    groups: tuple[Group, ...]  # every label in exactly one
    channels: tuple[FiniteChannel, ...]  # one a group, from its cells to outputs

    def __post_init__(self) -> None:
        if sorted(j for group in self.groups for j in group.labels) != list(range(len(self.names))):
            raise ConfigError(f"each of the labels {self.names} must be in exactly one group")
        for group, channel in zip(self.groups, self.channels, strict=True):
            if channel.inputs.size != len(group.cells):
                raise ConfigError(
                    f"a channel of {channel.inputs.size} inputs does not fit"
                    f" {len(group.cells)} cells"
                )
        check_outputs(self.radices)

    @property
    def radices(self) -> tuple[int, ...]:
        """Outputs of each channel."""
        return tuple(channel.outputs.size for channel in self.channels)

    @property
    def outputs(self) -> int:
        return math.prod(self.radices)

    @cached_property
    def cells(self) -> Cells:
        """The product of all labels' grids, in the labels' order."""
        groups = [zip(group.labels, group.cells.grids, strict=True) for group in self.groups]
        places = dict(chain.from_iterable(groups))
        return Cells(tuple(places[j] for j in range(len(self.names))))

    def split(self, codes: NDArray[np.integer]) -> Codes:
        """(n, p) codes, one a channel, of (n,) combined codes."""
        return np.column_stack(np.unravel_index(codes, self.radices)).astype(np.uint16)

    @cached_property
    def likelihood(self) -> Floats:
        """(k, d) probability of each combined code in each cell of all labels."""
        return self.of_labels(self.cells.indices(np.arange(len(self.cells))))

    def of_labels(self, indices: NDArray[np.integer]) -> Floats:
        """(n, d) probability of each combined code for (n, m) indices into the grids."""
        table = np.ones((len(indices), 1))
        for group, channel in zip(self.groups, self.channels, strict=True):
            table = row_products(table, channel.probabilities[group.number(indices)])
        return table

    @property
    def at_the_ends(self) -> Floats:
        """(2, d) probability of each combined code where all labels are lowest, and highest."""
        highest = np.array(self.cells.shape) - 1
        return self.of_labels(np.stack([0 * highest, highest]))

    def laws(self, labels: Floats) -> Floats:
        """(n, d) probability of each combined code for (n, m) labels, rounded to the grids."""
        table = np.ones((len(labels), 1))
        for group, channel in zip(self.groups, self.channels, strict=True):
            cells, shares = np.zeros((len(labels), 1), dtype=np.int64), np.ones((len(labels), 1))
            for label, grid in zip(group.labels, group.cells.grids, strict=True):
                points, share = grid.neighbours(labels[:, label])
                cells = (len(grid) * cells[:, :, None] + points[:, None]).reshape(len(labels), -1)
                shares = row_products(shares, share)
            each = zip(cells.T, shares.T, strict=True)
            law = sum(share[:, None] * channel.probabilities[cell] for cell, share in each)
            table = row_products(table, np.asarray(law))
        return table

    def to_json(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "groups": [
                {"labels": group.labels, "grids": [g.points.tolist() for g in group.cells.grids]}
                for group in self.groups
            ],
            "channels": [channel.to_json() for channel in self.channels],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        groups = tuple(
            Group(tuple(group["labels"]), Cells(tuple(map(Grid.from_edges, group["grids"]))))
            for group in data["groups"]
        )
        channels = (
            FiniteChannel.from_json(channel, group.cells.inputs)
            for channel, group in zip(data["channels"], groups, strict=True)
        )
        return cls(tuple(data["names"]), groups, tuple(channels))

    def column_of(self, name: str) -> int:
        """Which of the channels sends a label, by its name: its column in :meth:`split`."""
        label = self.names.index(name)
        return next(i for i, group in enumerate(self.groups) if label in group.labels)


def check_outputs(radices: Sequence[int]) -> None:
    """Raise ``ConfigError`` where the codes of several channels do not fit two bytes."""
    if math.prod(radices) > MAX_OUTPUTS:
        raise ConfigError(
            f"{' × '.join(map(str, radices))} combined codes are more than {MAX_OUTPUTS:,};"
            " send fewer labels in one message, or give them coarser grids"
        )
