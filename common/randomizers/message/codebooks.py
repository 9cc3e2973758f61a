"""What codes mean: of one stratum's events, and of a whole message.

An event's code stands for all of its labels: the codes of several channels are written as one
number in mixed radix, the last channel's fastest. A message has one codebook a stratum, their codes
one behind the other, so that a code says of itself in which stratum its event is, which is public.
Without strata it has one, and its codes are that one's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Floats, Indices, Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import ConfigError
from labelveil.common.exact.channel import MAX_OUTPUTS, Codes, FiniteChannel
from labelveil.common.randomizers.base import LABEL_STREAM
from labelveil.common.randomizers.cells import Cells, Group, row_products, stream
from labelveil.common.randomizers.grid import Grid


@dataclass(frozen=True)
class Codebook:
    """What the codes of events that are sent in the same way mean.

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
        return self.likelihood_of(self.cells.indices(np.arange(len(self.cells))))

    def likelihood_of(self, indices: NDArray[np.integer]) -> Floats:
        """(n, d) probability of each combined code for (n, m) indices into the grids."""
        table = np.ones((len(indices), 1))
        for group, channel in zip(self.groups, self.channels, strict=True):
            table = row_products(table, channel.probabilities[group.number(indices)])
        return table

    @property
    def at_the_ends(self) -> Floats:
        """(2, d) probability of each combined code where all labels are lowest, and highest."""
        highest = np.array(self.cells.shape) - 1
        return self.likelihood_of(np.stack([0 * highest, highest]))

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


@dataclass(frozen=True)
class Codebooks:
    """What the codes of a message mean.

    ``ConfigError`` if the strata have other groups, or all have more than 65,536 codes together.
    """

    books: tuple[Codebook, ...]  # one a stratum, over the same groups of labels

    def __post_init__(self) -> None:
        if any(book.groups != self.groups or book.names != self.names for book in self.books):
            raise ConfigError("all strata must send the same groups of labels")
        if self.outputs > MAX_OUTPUTS:
            raise ConfigError(
                f"{len(self.books)} strata have {self.outputs:,} codes together, more than"
                f" {MAX_OUTPUTS:,}; send fewer labels in one message, or name fewer strata"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return self.books[0].names

    @property
    def groups(self) -> tuple[Group, ...]:
        """Labels that share a channel."""
        return self.books[0].groups

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First code of each stratum, and their number."""
        return tuple(accumulate((book.outputs for book in self.books), initial=0))

    @property
    def outputs(self) -> int:
        return sum(book.outputs for book in self.books)

    @property
    def code_bytes(self) -> int:
        """Bytes that a code takes in a release."""
        return 1 if self.outputs <= 256 else 2

    @property
    def only(self) -> Codebook:
        """That of a message without strata; ``ConfigError`` if it has several."""
        if len(self.books) > 1:
            raise ConfigError(
                f"events in {len(self.books)} strata are sent by channels of their own, where one"
                " channel for all is expected"
            )
        return self.books[0]

    def to_json(self) -> dict[str, Any]:
        return {"books": [book.to_json() for book in self.books]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(tuple(map(Codebook.from_json, data["books"])))

    def randomize(
        self, labels: Floats, strata: Indices | None, entropy: Entropy, start_row: int = 0
    ) -> Codes:
        """Round the labels of events to their grids, and randomize them: (n,) uint16 codes.

        Takes (n, m) numbers without NaN, which are clipped to the grids' ranges, and the (n,)
        ``strata`` of the events; None where there is one. ``start_row`` is the index of the first
        event in the whole data set: its noise depends on that, its stratum and its labels alone.
        """
        n = len(labels)
        order, ends = np.arange(n), [0, n]
        if strata is not None:
            order = np.argsort(strata.astype(np.uint16), kind="stable")  # a radix sort
            ends = np.searchsorted(strata[order], np.arange(len(self.books) + 1)).tolist()
        codes = np.zeros(n, dtype=np.uint16)
        for i, group in enumerate(self.groups):
            words = entropy.words(stream(LABEL_STREAM, i), start_row, n)
            cells = group.round(labels, entropy, start_row)
            for book, low, high in zip(self.books, ends, ends[1:], strict=False):
                rows = slice(None) if high - low == n else order[low:high]
                channel = book.channels[i]
                codes[rows] *= np.uint16(channel.outputs.size)
                codes[rows] += channel.sample(cells[rows], words[rows])
        for first, low, high in zip(self.starts, ends, ends[1:], strict=False):
            codes[order[low:high]] += np.uint16(first)
        return codes

    def codes_of(self, name: str) -> Indices:
        """(d,) what each code is to the channels that send a label, one behind the other."""
        parts, first = [], 0
        for book in self.books:
            column = book.column_of(name)
            parts.append(first + book.split(np.arange(book.outputs))[:, column].astype(np.int64))
            first += book.radices[column]
        return np.concatenate(parts)

    def rows_by_stratum(self, codes: Integers) -> list[int]:
        """How many of (n,) codes are of each stratum."""
        at = np.searchsorted(self.starts, codes, side="right") - 1
        return [int(np.count_nonzero(at == stratum)) for stratum in range(len(self.books))]

    def counts_by_channel(self, counts: Integers) -> list[Integers]:
        """How many codes there are of each, by channel, one stratum's after another's."""
        found = []
        for book, own in zip(self.books, np.split(counts, self.starts[1:-1]), strict=True):
            table = own.reshape(book.radices)
            axes = range(table.ndim)
            found += [table.sum(axis=tuple(j for j in axes if j != i)) for i in axes]
        return found


def check_outputs(radices: Sequence[int]) -> None:
    """Raise ``ConfigError`` where the codes of several channels do not fit two bytes."""
    if math.prod(radices) > MAX_OUTPUTS:
        raise ConfigError(
            f"{' × '.join(map(str, radices))} combined codes are more than {MAX_OUTPUTS:,};"
            " send fewer labels in one message, or give them coarser grids"
        )
