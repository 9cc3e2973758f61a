"""What a release computes of its rows, as pure functions of a row range.

Histogram and randomization of rows ``start`` to ``stop`` depend on their labels, on ``start``, and
on the release's key alone: word ``i`` of a stream of randomness belongs to row ``i``. Anyone who
computes a range, in whatever order, cut however, once or again after a failure, gets the same
bytes; every engine calls these functions and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from common.arrays import Floats, Integers
from common.engine.shuffle import Keys
from common.entropy import Entropy
from common.exact.channel import FiniteChannel
from common.randomizers.base import LABEL_STREAM, ROUNDING_STREAM
from common.randomizers.grid import Grid
from common.release.blocks import BLOCK_ROWS, block_ranges, encode_codes
from common.release.manifest import block_digest

_ROWS_AT_ONCE = 1 << 16
_MOST_BLOCKS = 1 << 14


class RowWriter(Protocol):
    """Where the rows go, in order."""

    def write_rows(self, keys: bytes, codes: bytes) -> None:
        """Append rows."""
        ...

    def adopt(self, keys: Path, codes: Path) -> None:
        """Append rows that lie in files of their own, durably; they become the release's."""
        ...


def block_rows_for(rows: int) -> int:
    """Rows of a block in a release of so many: 2**16, and more beyond 2**30 rows.

    The manifest lists every block's digest and is sent as one message: it stays near a megabyte.
    """
    return max(BLOCK_ROWS, 1 << (-(-rows // _MOST_BLOCKS) - 1).bit_length())


@dataclass(frozen=True)
class Counted:
    """The histogram of a row range.

    Attributes
    ----------
    counts
        (k,) int64, how many labels were rounded to each grid point.
    outside
        How many labels clipping changes.
    """

    counts: Integers
    outside: int

    def __add__(self, other: Counted) -> Counted:
        return Counted(self.counts + other.counts, self.outside + other.outside)


@dataclass(frozen=True)
class Randomized:
    """The message's rows of a row range.

    Attributes
    ----------
    keys, codes
        As they will be sent; no keys where the features party submitted them.
    blocks
        Digests of the blocks that begin in the range.
    """

    keys: bytes
    codes: bytes
    blocks: list[str]


def count_rows(labels: Floats, start: int, grid: Grid, entropy: Entropy) -> Counted:
    """Round the labels of rows ``start`` … onto the grid, and count.

    Parameters
    ----------
    labels
        (n,) completed labels, not yet clipped.
    start
        Row of the first of them in the whole release.
    """
    counts = np.zeros(len(grid), dtype=np.int64)
    for low, high in block_ranges(labels.size, _ROWS_AT_ONCE):
        counts += np.bincount(
            _round(labels[low:high], start + low, grid, entropy), minlength=len(grid)
        )
    return Counted(counts, grid.outside(labels))


def randomize_rows(
    labels: Floats,
    keys: Keys | None,
    start: int,
    channel: FiniteChannel,
    entropy: Entropy,
    block_rows: int,
) -> Randomized:
    """Randomize the labels of rows ``start`` … and digest their blocks.

    Parameters
    ----------
    labels
        (n,) completed labels.
    keys
        (n,) their hashed keys, or None if they are not sent.
    start
        Row of the first of them, a multiple of ``block_rows``.
    channel
        From the grid's points to what is sent.
    block_rows
        Rows of a block. The range ends with a block, or with the release.
    """
    if start % block_rows:
        raise ValueError(f"start={start} must be a multiple of block_rows={block_rows}")
    grid = Grid(channel.inputs)
    blocks, sent, coded = [], [], []
    for low, high in block_ranges(labels.size, block_rows):
        indices = _round(labels[low:high], start + low, grid, entropy)
        words = entropy.words(LABEL_STREAM, start + low, high - low)
        codes = encode_codes(channel.sample(indices, words), channel.code_bytes)
        part = b"" if keys is None else keys[low:high].tobytes()
        blocks.append(block_digest(part, codes))
        sent.append(part)
        coded.append(codes)
    return Randomized(b"".join(sent), b"".join(coded), blocks)


def _round(labels: Floats, start: int, grid: Grid, entropy: Entropy) -> Integers:
    # rounding again costs less than keeping the grid indices of all rows
    return grid.round(labels, entropy.words(ROUNDING_STREAM, start, labels.size))
