"""What a release computes of its rows, as pure functions of a row range.

Histogram and randomization of rows ``start`` to ``stop`` depend on their labels, on ``start``, and
on the release's key alone: word ``i`` of a stream of randomness belongs to row ``i``. Anyone who
computes a range, in whatever order, cut however, once or again after a failure, gets the same
bytes; every engine calls these functions and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.arrays import Floats, Indices, Integers
from common.engine.shuffle import Keys
from common.entropy import Entropy
from common.randomizers.cells import Group
from common.randomizers.message.codebooks import Codebooks
from common.randomizers.message.strata import count_cells
from common.release.blocks import KEY_BYTES, block_ranges, encode_codes
from common.release.manifest import block_digest

_ROWS_AT_ONCE, _STRATA_ROWS = 1 << 16, 1 << 19


@dataclass(frozen=True)
class Randomized:
    """The message's rows of a row range."""

    # keys, codes: as they will be sent; no keys where the features party submitted them
    keys: bytes | memoryview
    codes: bytes
    blocks: list[str]  # digests of the blocks that begin in the range


def count_rows(
    labels: Floats,
    start: int,
    groups: Sequence[Group],
    entropy: Entropy,
    strata: Indices | None = None,
    parts: int = 1,
) -> list[Integers]:
    """Round the labels of rows ``start`` … onto their grids, and count the cells of each group.

    The (n, m) labels are completed, and not yet clipped; ``start`` is the row of the first in the
    whole release. (k,) counts of each group; with the (n,) ``strata`` of the rows (parts, k).
    """
    sizes = [len(group.cells) for group in groups]
    counts = [np.zeros(k if strata is None else (parts, k), dtype=np.int64) for k in sizes]
    for low, high in block_ranges(len(labels), _ROWS_AT_ONCE):
        own = None if strata is None else strata[low:high]
        for group, found in zip(groups, counts, strict=True):
            cells = group.round(labels[low:high], entropy, start + low)
            found += count_cells(cells, found.shape[-1], own, parts)
    return counts


def randomize_rows(
    labels: Floats,
    keys: Keys | None,
    start: int,
    codebooks: Codebooks,
    entropy: Entropy,
    block_rows: int,
    strata: Indices | None = None,
) -> Randomized:
    """Randomize (n, m) completed labels of rows ``start`` … and digest their blocks.

    ``keys`` are the (n,) hashed keys, or None if they are not sent. ``start`` is a multiple of
    ``block_rows``, and the range ends with a block, or with the release. ``strata`` has the (n,)
    stratum of each; None where there is one.
    """
    if start % block_rows:
        raise ValueError(f"start={start} must be a multiple of block_rows={block_rows}")
    sent = b"" if keys is None else keys.view(np.uint8).data
    blocks, coded = [], []
    # a stratum's table of outputs is read once for many rows: there are as many as strata
    at_once = block_rows if strata is None else max(1, _STRATA_ROWS // block_rows) * block_rows
    for begin, end in block_ranges(len(labels), at_once):
        # rounding again costs less than keeping the grid indices of all rows
        own = None if strata is None else strata[begin:end]
        randomized = codebooks.randomize(labels[begin:end], own, entropy, start + begin)
        for low, high in block_ranges(end - begin, block_rows):
            codes = encode_codes(randomized[low:high], codebooks.code_bytes)
            keys_of_block = slice(KEY_BYTES * (begin + low), KEY_BYTES * (begin + high))
            blocks.append(block_digest(sent[keys_of_block], codes))
            coded.append(codes)
    return Randomized(sent, b"".join(coded), blocks)
