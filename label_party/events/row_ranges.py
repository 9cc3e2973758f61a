"""What a release computes of its rows: tasks that are pure functions of a row range.

Histogram and randomization of rows ``start`` to ``stop`` depend on their labels, on ``start``, and
on the release's key alone: word ``i`` of a stream of randomness belongs to row ``i``. Anyone who
computes a range, in whatever order, cut however, once or again after a failure, gets the same
bytes, on every engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from labelveil.common.arrays import Floats, Integers
from labelveil.common.engine.task import Secrets
from labelveil.common.errors import not_none
from labelveil.common.files import appearing
from labelveil.common.randomizers.cells import Group
from labelveil.common.randomizers.grid import Grid, RoundingEffect
from labelveil.common.randomizers.message.codebooks import Codebooks
from labelveil.common.randomizers.message.strata import Strata, count_cells
from labelveil.common.release.blocks import KEY_BYTES, block_ranges, encode_codes
from labelveil.common.release.manifest import block_digest
from labelveil.label_party.events.tasks import Range
from labelveil.label_party.sources.tables import STRATUM

ResultT = TypeVar("ResultT")

_ROWS_AT_ONCE, _STRATA_ROWS = 1 << 16, 1 << 19


@dataclass(frozen=True)
class Count:
    """Count the cells of each group of labels in a range: those of each stratum."""

    rows: Range
    groups: tuple[Group, ...]
    strata: Strata | None

    def run(self, secrets: Secrets) -> list[Integers]:
        """(k,) counts of each group; with strata (parts, k).

        The labels are rounded onto their grids for that, as they will be when they are randomized.
        """
        labels, strata = self.rows.labels(), self.rows.strata(self.strata)
        sizes, parts = [len(group.cells) for group in self.groups], 1
        counts = [np.zeros(size, dtype=np.int64) for size in sizes]
        if self.strata is not None:
            parts = len(self.strata.names)
            counts = [np.zeros((parts, size), dtype=np.int64) for size in sizes]
        entropy = secrets.entropy()
        for low, high in block_ranges(len(labels), _ROWS_AT_ONCE):
            own = None if strata is None else strata[low:high]
            for group, count in zip(self.groups, counts, strict=True):
                cells = group.round(labels[low:high], entropy, self.rows.start + low)
                count += count_cells(cells, count.shape[-1], own, parts)
        return counts


@dataclass(frozen=True)
class OfRange(Generic[ResultT]):
    """What a function makes of a range's rows: one of a module, or a part of one, for workers."""

    rows: Range
    made: Callable[[Range], ResultT]

    def run(self, secrets: Secrets) -> ResultT:
        return self.made(self.rows)


def events_of_values(rows: Range, values: int) -> Integers:
    """(values + 1,) events of each public value of the strata's column, and of none of them."""
    return np.bincount(rows.read(STRATUM), minlength=values + 1)


def rounding_effects(rows: Range, grids: Sequence[Grid]) -> list[RoundingEffect]:
    """What placing each label on its grid does."""
    pairs = zip(grids, rows.labels().T, strict=True)
    return [grid.rounding_effect(label) for grid, label in pairs]


def moments(rows: Range, strata: Strata) -> Floats:
    """(m, 3, strata) sums of 1, y and y² of each label, over the events of each stratum."""
    of_rows, labels = not_none(rows.strata(strata)), rows.labels().T
    powers = np.stack([labels**0, labels, labels**2], axis=1)
    size = len(strata.names)
    return np.apply_along_axis(lambda w: np.bincount(of_rows, w, size), 2, powers)


@dataclass(frozen=True)
class Randomize:
    """Randomize a range and write its rows, durably: two files of the release."""

    rows: Range  # what to randomize
    # from labels to codes; for other processes, which would get a copy with every task, a file with
    # them as JSON. They are public.
    codebooks: Codebooks | Path
    block_rows: int
    submitted: bool  # whether keys are not sent
    strata: Strata | None  # whose channels send them
    # keys, codes: the files to write
    keys: Path
    codes: Path

    def run(self, secrets: Secrets) -> list[str]:
        """Return the digests of the range's blocks; it begins with one, and ends with one or with
        the release."""
        start, block_rows = self.rows.start, self.block_rows
        if start % block_rows:
            raise ValueError(f"start={start} must be a multiple of block_rows={block_rows}")
        books = self.codebooks
        books = _codebooks(books) if isinstance(books, Path) else books
        labels, strata = self.rows.labels(), self.rows.strata(self.strata)
        keys = b"" if self.submitted else self.rows.keys().view(np.uint8).data
        entropy, digests, coded = secrets.entropy(), [], []
        # a stratum's table of outputs is read once for many rows: there are as many as strata
        at_once = block_rows if strata is None else max(1, _STRATA_ROWS // block_rows) * block_rows
        for begin, end in block_ranges(len(labels), at_once):
            # rounding again costs less than keeping the grid indices of all rows
            own = None if strata is None else strata[begin:end]
            randomized = books.randomize(labels[begin:end], own, entropy, start + begin)
            for low, high in block_ranges(end - begin, block_rows):
                codes = encode_codes(randomized[low:high], books.code_bytes)
                keys_of_block = slice(KEY_BYTES * (begin + low), KEY_BYTES * (begin + high))
                digests.append(block_digest(keys[keys_of_block], codes))
                coded.append(codes)
        for path, data in ((self.keys, keys), (self.codes, b"".join(coded))):
            with appearing(path, durable=True) as file:
                file.write(data)
        return digests


@lru_cache(maxsize=1)
def _codebooks(path: Path) -> Codebooks:
    return Codebooks.from_json(json.loads(path.read_text(encoding="utf-8")))
