"""The tasks that a join consists of when neither features nor release fit into memory.

Keys of both sides are cut into slices of rows and exchanged (:mod:`common.engine.shuffle`), so that
one task has all rows of a range of keys; what it matches goes back to the slices of the features.
Every task reads files, writes one of its own, and returns a few numbers, so that it can run
anywhere, and twice.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.arrays import Integers
from common.engine.shuffle import (
    Files,
    Keys,
    key_buckets,
    match_keys,
    read_bucket,
    sort_keys,
    write_buckets,
)
from common.engine.task import Secrets, Task
from common.errors import DataError, ReleaseError
from common.exact.channel import Codes
from common.files import appearing
from common.release.blocks import KEY_BYTES, block_ranges, encode_codes, keys_bytes
from common.release.event_keys import hash_keys
from common.release.manifest import block_digest
from feature_party.tables import first_line

CODE = "privatized_label_code"
"""Column of the shards with each event's code among all releases' outputs, one after another."""
ROW = "feature_row"
"""Column of the shards with the row of each event in the features."""

KEY_TYPE = f"S{KEY_BYTES}"
ResultT = TypeVar("ResultT")

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Once(Generic[ResultT]):
    """A task whose result is kept in a file: an interrupted join does not do it again.

    Attributes
    ----------
    task
        Its result can be written as JSON.
    done
        The file.
    """

    task: Task[ResultT]
    done: Path

    def run(self, secrets: Secrets) -> ResultT:
        """Do it, unless that was done before.

        Raises
        ------
        DataError
            If the disk is full; an engine does not try that again.
        """
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
    """Rows ``start`` … ``stop`` of the features: pieces of one or several Parquet files, in order.

    Attributes
    ----------
    pieces
        File, and first and last row + 1 in it.
    """

    start: int
    stop: int
    pieces: tuple[tuple[Path, int, int], ...]

    def read(self, *columns: str) -> pl.DataFrame:
        """Read columns, or all of them.

        Raises
        ------
        DataError
            If a file cannot be read.
        """
        try:
            scans = [
                pl.scan_parquet(path).select(*columns or "*").slice(first, last - first)
                for path, first, last in self.pieces
            ]
            return pl.concat(pl.collect_all(scans), rechunk=True)
        except pl.exceptions.PolarsError as error:
            raise DataError(f"{self.pieces[0][0]} cannot be read: {first_line(error)}") from None

    def hashed(self, key: str, secret: bytes) -> Keys:
        """(n,) hashed keys."""
        return np.frombuffer(hash_keys(self.read(key)[key], secret), dtype=KEY_TYPE)


def slices_of(files: Iterable[tuple[Path, int]], rows: int) -> list[FeatureSlice]:
    """Cut files, given with their numbers of rows, into slices of ``rows``."""
    files = list(files)
    starts = [0, *accumulate(count for _, count in files)]
    return [
        FeatureSlice(
            start,
            stop,
            tuple(
                (path, max(start - first, 0), min(stop - first, count))
                for (path, count), first in zip(files, starts, strict=False)
                if count and first < stop and start < first + count
            ),
        )
        for start, stop in block_ranges(starts[-1], rows)
    ]


@dataclass(frozen=True)
class HashKeys:
    """Hash the keys of a slice of the features, in their order, for a population we submitted."""

    slice: FeatureSlice
    key: str
    out: Path

    def run(self, secrets: Secrets) -> int:
        """Return the number of rows."""
        keys = self.slice.hashed(self.key, secrets.join)
        with appearing(self.out, durable=True) as file:
            file.write(keys.tobytes())
        return keys.size


def _send(out: Path, keys: NDArray[Any], buckets: int, columns: dict[str, NDArray[Any]]) -> int:
    """Send rows to the buckets that their keys are of, durably; returns their number."""
    write_buckets(out, key_buckets(keys, buckets), buckets, columns, durable=True)
    return keys.size


@dataclass(frozen=True)
class SendKeys:
    """Hash the keys of a slice of the features, and send them to the buckets that they are of."""

    slice: FeatureSlice
    key: str
    buckets: int
    out: Path

    def run(self, secrets: Secrets) -> int:
        """Return the number of rows."""
        keys = self.slice.hashed(self.key, secrets.join)
        rows = np.arange(self.slice.start, self.slice.stop, dtype="<i8")
        columns: dict[str, NDArray[Any]] = {"key": keys, "row": rows}
        return _send(self.out, keys, self.buckets, columns)


@dataclass(frozen=True)
class Released:
    """Blocks of a fetched release, with what its manifest says of them.

    Attributes
    ----------
    labels
        Its Parquet file.
    start, stop
        The rows of the blocks.
    blocks
        Their digests.
    code_bytes, keyed, outputs
        Width of a code, whether there are keys, and how many outputs the channel has.
    """

    labels: Path
    start: int
    stop: int
    block_rows: int
    blocks: tuple[str, ...]
    code_bytes: int
    keyed: bool
    outputs: int

    def read(self) -> tuple[Keys, Codes]:
        """(n,) keys, or none, and (n,) codes.

        Raises
        ------
        ReleaseError
            If they are not what the manifest says.
        """
        rows = self.stop - self.start
        columns = ["key", "code"] if self.keyed else ["code"]
        try:
            scan = pl.scan_parquet(self.labels).select(columns)
            part = scan.slice(self.start, rows).collect()
        except pl.exceptions.PolarsError as error:
            raise ReleaseError(f"{self.labels} is damaged; fetch again") from error
        if part.height != rows or part["code"].null_count():
            raise ReleaseError(f"{self.labels} has fewer rows than its manifest; fetch again")
        table = keys_bytes(part["key"]) if self.keyed else np.empty((rows, 0), dtype=np.uint8)
        codes = part["code"].to_numpy().astype(np.uint16)
        for (low, high), digest in zip(
            block_ranges(rows, self.block_rows), self.blocks, strict=True
        ):
            if digest != block_digest(
                table[low:high].data, encode_codes(codes[low:high], self.code_bytes)
            ):
                raise ReleaseError(
                    f"rows {self.start + low:,} to {self.start + high:,} of {self.labels} do not"
                    " match the manifest's digest; fetch again"
                )
        if int(codes.max()) >= self.outputs:
            raise ReleaseError(f"code {int(codes.max())} is outside the {self.outputs} outputs")
        return np.frombuffer(table.tobytes(), dtype=KEY_TYPE), codes


@dataclass(frozen=True)
class SendLabels:
    """Verify blocks of a release, and send their rows to the buckets of their keys."""

    released: Released
    buckets: int
    out: Path

    def run(self, secrets: Secrets) -> int:
        """Return the number of rows."""
        keys, codes = self.released.read()
        columns: dict[str, NDArray[Any]] = {"key": keys, "code": codes.astype("<u2")}
        return _send(self.out, keys, self.buckets, columns)


@dataclass(frozen=True)
class Match:
    """Match the rows of a bucket, and send them back to the slices of the features.

    Attributes
    ----------
    ours, theirs
        Files of the features, and of each release.
    offsets
        First code of each release among the codes of all.
    slice_rows, slices
        Rows of a slice, and how many slices there are.
    """

    bucket: int
    buckets: int
    ours: Files
    theirs: tuple[Files, ...]
    offsets: tuple[int, ...]
    slice_rows: int
    slices: int
    out: Path

    def run(self, secrets: Secrets) -> int:
        """Return how many rows repeat a key of an earlier one; then nothing is matched."""
        mine = read_bucket(self.ours, self.bucket, self.buckets, {"key": KEY_TYPE, "row": "<i8"})
        repeated = _repeated(mine["key"])
        if repeated:
            return repeated
        rows, codes = [np.empty(0, "<i8")], [np.empty(0, "<u4")]
        for files, offset in zip(self.theirs, self.offsets, strict=True):
            columns = {"key": KEY_TYPE, "code": "<u2"}
            sent = read_bucket(files, self.bucket, self.buckets, columns)
            if _repeated(sent["key"]):
                raise ReleaseError("the release names an event twice; fetch again")
            found = _match(mine, sent)
            rows.append(found[0])
            codes.append((found[1].astype(np.int64) + offset).astype("<u4"))
        values: dict[str, NDArray[Any]] = {
            "row": np.concatenate(rows),
            "code": np.concatenate(codes),
        }
        where = values["row"] // self.slice_rows
        write_buckets(self.out, where, self.slices, values, durable=True)
        return 0


@dataclass(frozen=True)
class WriteShard:
    """Write a slice's matched events, in the features' order.

    Attributes
    ----------
    slice
        The rows.
    index, shards
        Which of how many.
    matched
        What was matched, or the release's blocks that the rows lie in where we submitted it.
    offsets
        As in :class:`Match`.
    """

    slice: FeatureSlice
    index: int
    shards: int
    matched: Files | Released
    offsets: tuple[int, ...]
    out: Path

    def run(self, secrets: Secrets) -> dict[str, Any]:
        """Return the number of different events, and of labels from each release."""
        start, stop = self.slice.start, self.slice.stop
        if isinstance(self.matched, Files):
            columns = {"row": "<i8", "code": "<u4"}
            found = read_bucket(self.matched, self.index, self.shards, columns)
            order = np.lexsort((found["code"], found["row"]))
            rows, codes = found["row"][order], found["code"][order]
        else:
            _, sent = self.matched.read()
            rows = np.arange(start, stop)
            codes = sent[rows - self.matched.start].astype("<u4")
        part = self.slice.read()[rows - start].with_columns(
            pl.Series(ROW, rows, dtype=pl.Int64), pl.Series(CODE, codes, dtype=pl.UInt32)
        )
        with appearing(self.out, durable=True) as file:
            part.write_parquet(file, compression="zstd")
        return {
            "events": int(np.unique(rows).size),
            "labels": np.histogram(codes, [*self.offsets, np.inf])[0].tolist(),
        }


def _repeated(keys: Keys) -> int:
    ordered = keys[sort_keys(keys)]
    return int(np.count_nonzero(ordered[1:] == ordered[:-1]))


def _match(
    mine: Mapping[str, NDArray[Any]], sent: Mapping[str, NDArray[Any]]
) -> tuple[Integers, Codes]:
    """Rows of our events that were sent, and their codes."""
    order = sort_keys(sent["key"])
    if not order.size:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint16)
    at, known = match_keys(sent["key"][order], mine["key"])
    return mine["row"][known], sent["code"][order][at[known]]
