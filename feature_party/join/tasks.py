"""The tasks that a join consists of when neither features nor release fit into memory.

Keys of both sides are cut into slices of rows and exchanged
(:mod:`labelveil.common.engine.shuffle`), so that one task has all rows of a range of keys; what it
matches goes back to the slices of the features. Every task reads files, writes one of its own, and
returns a few numbers, so that it can run anywhere, and twice.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from labelveil.common.arrays import Indices
from labelveil.common.csv_files import unreadable
from labelveil.common.engine.shuffle import (
    KEY_TYPE,
    ROW_TYPE,
    Columns,
    Exchange,
    Keys,
    ascending,
    match_keys,
    sort_keys,
)
from labelveil.common.engine.task import Secrets, Task
from labelveil.common.errors import DataError, ReleaseError
from labelveil.common.exact.channel import Codes
from labelveil.common.files import appearing
from labelveil.common.release.blocks import block_ranges
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.rows import WireRows, read_keys, verify_blocks
from labelveil.feature_party.tables import SOURCE

CODE = "privatized_label_code"
"""Column of the shards with each event's code among all releases' outputs, one after another."""
ROW = "feature_row"
"""Column of the shards with the row of each event in the features."""

ROWS_OF_KEYS = {"key": KEY_TYPE, "row": ROW_TYPE}
KEYED_CODES = {"key": KEY_TYPE, "code": "<u2"}
CODES_OF_ROWS = {"row": ROW_TYPE, "code": "<u4"}
ResultT = TypeVar("ResultT")

_CODE_BITS = 32
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Once(Generic[ResultT]):
    """A task whose result is kept in a file: an interrupted join does not do it again."""

    task: Task[ResultT]  # its result can be written as JSON
    done: Path  # the file

    def run(self, secrets: Secrets) -> ResultT:
        """Do it, unless that was done before; an engine does not try a ``DiskFull`` again."""
        if self.done.exists():
            kept: ResultT = json.loads(self.done.read_bytes())
            return kept
        try:
            result = self.task.run(secrets)
            with appearing(self.done, durable=True) as file:
                file.write(json.dumps(result).encode())
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise DiskFull(self.done.parent, error) from None
        return result


class DiskFull(DataError):
    """There is no room for what a join writes; what it has done is kept."""

    def __init__(self, folder: Path, error: OSError) -> None:
        self.folder, self.error = folder, error
        super().__init__(
            f"{folder} cannot be written: {error.strerror}; free some space and join again to go"
            f" on, or remove {folder} to give up"
        )

    def __reduce__(self) -> tuple[type[DiskFull], tuple[Path, OSError]]:
        return DiskFull, (self.folder, self.error)


@dataclass(frozen=True)
class FeatureSlice:
    """Rows ``start`` … ``stop`` of the features: pieces of Parquet files, in order."""

    start: int
    stop: int
    pieces: tuple[tuple[Path, int, int], ...]  # file, and first and last row + 1 in it
    key: str  # its key column

    def read(self, *columns: str) -> pl.DataFrame:
        """Read columns, or all of them; ``DataError`` if a file cannot be read."""
        wanted = cs.by_name(*columns) if columns else cs.all()
        try:
            scans = [
                pl.scan_parquet(path, glob=False).select(wanted).slice(first, last - first)
                for path, first, last in self.pieces
            ]
            return pl.concat(pl.collect_all(scans), rechunk=True)
        except pl.exceptions.PolarsError as error:
            raise unreadable(self.pieces[0][0], error) from None

    def columns(self, secrets: Secrets) -> Columns:
        """Hash their keys, and number them."""
        return {"key": self.hashed(secrets.join), "row": np.arange(self.start, self.stop)}

    def hashed(self, secret: bytes) -> Keys:
        """(n,) hashed keys."""
        keys = self.read(self.key)[self.key]
        return np.frombuffer(hash_keys(keys, secret), dtype=KEY_TYPE)


def slices_of(files: Iterable[tuple[Path, int]], rows: int, key: str) -> list[FeatureSlice]:
    """Cut files, given with their numbers of rows, into slices of ``rows``."""
    files = list(files)
    starts = [0, *accumulate(count for _, count in files)]
    slices = []
    for start, stop in block_ranges(starts[-1], rows):
        pieces = tuple(
            (path, max(start - first, 0), min(stop - first, count))
            for (path, count), first in zip(files, starts, strict=False)
            if count and first < stop and start < first + count
        )
        slices.append(FeatureSlice(start, stop, pieces, key))
    return slices


@dataclass(frozen=True)
class HashKeys:
    """Hash the keys of a slice of the features, in their order, for a population we submitted."""

    slice: FeatureSlice
    out: Path

    def run(self, secrets: Secrets) -> int:
        """Return the number of rows."""
        keys = self.slice.hashed(secrets.join)
        with appearing(self.out, durable=True) as file:
            file.write(keys.tobytes())
        return keys.size


@dataclass(frozen=True)
class ReleaseBlocks:
    """Blocks of a fetched release, with what its manifest says of them."""

    rows: WireRows  # all of its rows
    submitted: Path | None  # a file of their keys, where we submitted them
    start: int  # first row of the blocks
    stop: int  # last row + 1
    block_rows: int
    blocks: tuple[str, ...]  # their digests
    code_bytes: int  # width of a code
    outputs: int  # of the channel

    def read(self) -> tuple[Keys, Codes]:
        """(n,) keys and (n,) codes; ``ReleaseError`` if the manifest says others."""
        table, codes = self.rows.read(self.start, self.stop)
        verify_blocks(table, codes, self.blocks, self.block_rows, self.code_bytes, self.start)
        if int(codes.max()) >= self.outputs:
            raise ReleaseError(f"code {int(codes.max())} is outside the {self.outputs} outputs")
        if self.submitted is not None:
            table = read_keys(self.submitted, self.start, self.stop)
        return np.frombuffer(table.tobytes(), dtype=KEY_TYPE), codes

    def columns(self, secrets: Secrets) -> Columns:
        """Verify keys and codes."""
        return dict(zip(KEYED_CODES, self.read(), strict=True))


@dataclass(frozen=True)
class Match:
    """Match the rows of a bucket, and send them back to the slices of the features."""

    bucket: int
    ours: Exchange  # where keys of the features come from
    theirs: tuple[Exchange, ...]  # and labels of each release whose keys are hashed alike
    offsets: tuple[int, ...]  # first code of each release among the codes of all
    matched: Exchange  # where the rows go
    index: int  # of this task among those that send
    slice_rows: int  # rows of a slice

    @property
    def out(self) -> Path:
        return self.matched.files[self.index]

    def run(self, secrets: Secrets) -> int:
        """Return how many rows repeat a key of an earlier one; then nothing is matched."""
        mine = _by_key(self.ours.receive(self.bucket))
        repeated = _repeated(mine["key"])
        if repeated:
            return repeated
        rows, codes = [np.empty(0, np.int64)], [np.empty(0, np.uint32)]
        for releases, offset in zip(self.theirs, self.offsets, strict=True):
            sent = _by_key(releases.receive(self.bucket))
            if _repeated(sent["key"]):
                raise ReleaseError("the release names an event twice; fetch again")
            if sent["key"].size:
                at, known = match_keys(sent["key"], mine["key"])
                rows.append(mine["row"][known])
                codes.append(sent["code"][at[known]].astype(np.uint32) + np.uint32(offset))
        columns: Columns = {"row": np.concatenate(rows), "code": np.concatenate(codes)}
        self.matched.send(self.index, columns["row"] // self.slice_rows, columns)
        return 0


@dataclass(frozen=True)
class WriteShard:
    """Write a slice's matched events, in the features' order."""

    slice: FeatureSlice  # the rows
    index: int  # which it is
    matched: Exchange  # what was matched
    offsets: tuple[int, ...]  # as in :class:`Match`
    names: tuple[str, ...]  # of the labels party of each release
    out: Path

    def run(self, secrets: Secrets) -> dict[str, Any]:
        """Return the number of different events, and of labels from each release."""
        start = self.slice.start
        received = self.matched.receive(self.index)
        # a number that orders as the pair does is sorted many times faster
        pairs = ascending((received["row"] - start) << _CODE_BITS | received["code"])
        rows, codes = start + (pairs >> _CODE_BITS), pairs.astype("<u4")
        part = self.slice.read()[rows - start]
        part = with_source(part, codes, self.offsets, self.names).with_columns(
            pl.Series(ROW, rows, dtype=pl.Int64), pl.Series(CODE, codes, dtype=pl.UInt32)
        )
        with appearing(self.out, durable=True) as file:
            part.write_parquet(file, compression="zstd")
        events = int(np.count_nonzero(np.diff(rows, prepend=-1)))  # they ascend
        counts = np.bincount(_release_of(codes, self.offsets), minlength=len(self.offsets))
        return {"events": events, "labels": counts.tolist()}


def with_source(
    table: pl.DataFrame, codes: NDArray[Any], starts: Sequence[int], names: Sequence[str]
) -> pl.DataFrame:
    """Add whose each of (n,) labels is, where there are several labels parties, from the first code
    and the labels party of each release."""
    if len(set(names)) < 2:
        return table
    return table.with_columns(pl.Series(SOURCE, names)[_release_of(codes, starts)])


def _release_of(codes: NDArray[Any], starts: Sequence[int]) -> Indices:
    """(n,) which release each code is of."""
    return np.searchsorted(starts, codes, side="right") - 1


def _by_key(rows: Columns) -> Columns:
    """Sort rows by their keys: then looking each up in the others is one walk through both."""
    order = sort_keys(rows["key"])
    return {name: values[order] for name, values in rows.items()}


def _repeated(ordered: Keys) -> int:
    return int(np.count_nonzero(ordered[1:] == ordered[:-1]))
