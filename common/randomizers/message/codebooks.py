"""The codes of a whole message: one codebook a stratum, their codes one behind the other.

A code so says of itself in which stratum its event is, which is public. Without strata a message
has one codebook, and its codes are that one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Self

import numpy as np

from labelveil.common.arrays import Floats, Indices, Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import ConfigError
from labelveil.common.exact.channel import MAX_OUTPUTS, Codes
from labelveil.common.randomizers.base import LABEL_STREAM
from labelveil.common.randomizers.cells import Codebook, Group, stream


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

    def rows_of(self, codes: Integers) -> list[int]:
        """How many of (n,) codes are of each stratum."""
        at = np.searchsorted(self.starts, codes, side="right") - 1
        return [int(np.count_nonzero(at == stratum)) for stratum in range(len(self.books))]

    def of_channels(self, counts: Integers) -> list[Integers]:
        """How many codes there are of each, by channel, one stratum's after another's."""
        found = []
        for book, own in zip(self.books, np.split(counts, self.starts[1:-1]), strict=True):
            table = own.reshape(book.radices)
            axes = range(table.ndim)
            found += [table.sum(axis=tuple(j for j in axes if j != i)) for i in axes]
        return found
