"""Exchange rows between partitions through files: each is written by one task and read by many.

A file holds one task's rows, grouped by the bucket that they go to, and column by column: how many
rows lie before each bucket, and all of them (int64), then every column in turn. A bucket's rows
keep the order in which the task had them, and files are read in the order in which they are named,
so that what a reader gets does not depend on who wrote the files, or when, or how often: a file
appears under its name at once, and a retried task writes the same one again.

Where all rows fit into one bucket in this process, they stay in memory (:class:`InMemoryExchange`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Booleans, Integers, Words
from labelveil.common.engine.task import Secrets
from labelveil.common.errors import DataError
from labelveil.common.files import appearing

Keys = NDArray[np.bytes_]
Columns = dict[str, NDArray[Any]]
IntegerT = TypeVar("IntegerT", bound=np.integer)

KEY_TYPE = "S16"
WORD_TYPE = "<u8"
ROW_TYPE = "<i8"
_COUNT = np.dtype("<i8")
_KEYS_AT_ONCE = 1 << 16
_SORTED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Files:
    """The files ``stem-0``, ``stem-1``, … that one step's tasks write, in the tasks' order."""

    stem: Path
    count: int

    def __getitem__(self, index: int) -> Path:
        return self.stem.with_name(f"{self.stem.name}-{index}")

    def __iter__(self) -> Iterator[Path]:
        return map(self.__getitem__, range(self.count))


def halves(keys: Keys) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """First and last eight bytes of (n,) 16-byte keys, as (n,) numbers that order as they do."""
    words = keys.view(">u8").astype(np.uint64)
    return words[::2], words[1::2]


def key_buckets(keys: NDArray[Any], buckets: int) -> Integers:
    """Cut the keys' range into equal parts: (n,) numbers 0 … buckets - 1, ascending with the key.

    Keys are hashed, 16-byte strings or 8-byte numbers, so the parts are nearly equally full.
    """
    if not 1 <= buckets <= 1 << 31:
        raise ValueError(f"buckets={buckets} must lie in 1 … 2**31")
    if buckets == 1:
        return np.zeros(keys.size, dtype=np.int64)
    heads = (keys if keys.dtype == WORD_TYPE else halves(keys)[0]) >> np.uint64(32)
    return (heads * np.uint64(buckets) >> np.uint64(32)).astype(np.int64)


def ascending(numbers: NDArray[IntegerT]) -> NDArray[IntegerT]:
    """Return (n,) integers in ascending order.

    By Polars, 20 ns each of a million: NumPy 2.4 takes 60 where AVX-512 is AMD's, 13 elsewhere.
    """
    import polars as pl  # not for a server, which sorts nothing

    return pl.Series(numbers).sort(multithreaded=False).to_numpy()


def count_repeated(keys: Keys) -> int:
    """Return how many of (n,) 16-byte keys occurred before.

    Sorting their first eight bytes as integers, a part of them at a time, finds all suspects many
    times faster than sorting the keys, and in bounded memory unless nearly all are alike.
    """
    heads = keys.view("<u8")[::2]
    parts = -(-heads.size // _SORTED_AT_ONCE)
    repeated = 0
    for part in range(parts):
        starts = range(0, heads.size, _KEYS_AT_ONCE)
        slices = (heads[start : start + _KEYS_AT_ONCE] for start in starts)
        ordered = ascending(np.concatenate([piece[piece % parts == part] for piece in slices]))
        twins = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        if twins.size:
            suspects = keys[np.isin(heads, twins)]  # rare, or the submitter's doing
            repeated += int(suspects.size - np.unique(suspects).size)
    return repeated


def distinct(words: Words) -> Words:
    """Return those of (n,) numbers that differ, ascending."""
    words = ascending(words)
    return words[first_of_each(words)]


def first_of_each(ordered: Keys | Words) -> Booleans:
    """(n,) which of keys or numbers in order are the first of those that are equal."""
    first = np.ones(ordered.size, dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return first


def sort_keys(keys: Keys) -> Integers:
    """(n,) positions that sort 16-byte keys; those of equal keys stay in their order."""
    heads, tails = halves(keys)
    # numbers are sorted several times faster than their positions: each gives up its last bits
    bits = np.uint64(max(heads.size - 1, 1).bit_length())
    low = (np.uint64(1) << bits) - np.uint64(1)
    packed = heads & ~low
    packed |= np.arange(heads.size, dtype=np.uint64)
    packed = ascending(packed)
    order = (packed & low).astype(np.int64)
    packed = packed >> bits
    tied = np.flatnonzero(packed[1:] == packed[:-1])
    if tied.size:  # rare but for equal keys: these are put in order among themselves
        at = np.union1d(tied, tied + 1)
        rows = order[at]
        order[at] = rows[np.lexsort((rows, tails[rows], heads[rows]))]
    return order


def match_keys(ordered: Keys, keys: Keys) -> tuple[Integers, Booleans]:
    """Look (n,) 16-byte keys up in (m,) strictly ascending ones, m >= 1.

    Returns (n,) positions in ``ordered``, and (n,) whether the key is there. Several times faster
    if ``keys`` ascend, too.
    """
    heads, tails = halves(ordered)
    if (heads[1:] == heads[:-1]).any():
        at = np.minimum(np.searchsorted(ordered, keys), ordered.size - 1)
        return at.astype(np.int64), ordered[at] == keys
    wanted, rest = halves(keys)
    at = np.minimum(np.searchsorted(heads, wanted), ordered.size - 1)
    return at.astype(np.int64), (heads[at] == wanted) & (tails[at] == rest)


class KeyedRows(Protocol):
    """Rows that a task can read."""

    def columns(self, secrets: Secrets) -> Columns:
        """(n,) values by name; the first are the keys, of 16 bytes or 8, that rows are sent by."""
        ...


@dataclass(frozen=True, eq=False)
class Exchange:
    """The files through which the tasks of one step send rows to those of the next."""

    files: Files  # one for each task that sends
    buckets: int  # how many tasks receive
    types: Mapping[str, str]  # of the columns, of fixed width; ``(2,)<f8`` has two values a row
    durable: bool = False  # whether a file waits until its bytes are on the disk

    def tasks(self, parts: Iterable[KeyedRows]) -> list[Send]:
        """Return the tasks that send some parts' rows to the buckets of their keys."""
        return [Send(part, self, index) for index, part in enumerate(parts)]

    def send(self, index: int, bucket: NDArray[np.integer], columns: Columns) -> None:
        """Write the rows of task ``index``, each to its ``bucket``, (n,) 0 … buckets - 1.

        Columns have (n,) values each, or (n, m) where their type says so.
        """
        order: slice | Integers = slice(None)
        if self.buckets > 1:
            narrow = bucket.astype(np.uint16 if self.buckets <= 1 << 16 else np.int64)
            order = np.argsort(narrow, kind="stable")
        ends = np.cumsum(np.bincount(bucket, minlength=self.buckets))
        with appearing(self.files[index], durable=self.durable) as file:
            file.write(np.concatenate([[0], ends]).astype(_COUNT, copy=False).data)
            for name, kind in self.types.items():
                values, base = columns[name][order], np.dtype(kind).base
                file.write(values.astype(base, casting="same_kind", copy=False).data)

    def receive(self, bucket: int, senders: Sequence[int] | None = None) -> Columns:
        """Read one bucket's rows from the files of all tasks, or of some, in the tasks' order."""
        types = {name: np.dtype(kind) for name, kind in self.types.items()}
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in types}
        for index in range(self.files.count) if senders is None else senders:
            with self.files[index].open("rb", buffering=0) as file:  # many small pieces are read
                starts = _rows(file, 0, self.buckets + 1, _COUNT)
                first, end, total = map(int, starts[[bucket, bucket + 1, -1]])
                offset = starts.nbytes
                for name, kind in types.items():
                    at = offset + first * kind.itemsize
                    parts[name].append(_rows(file, at, end - first, kind))
                    offset += total * kind.itemsize
        return {
            name: np.concatenate(pieces) if pieces else np.empty(0, dtype=self.types[name])
            for name, pieces in parts.items()
        }

    def read(self, index: int, name: str, start: int, out: NDArray[Any]) -> None:
        """Read one column of a task's rows ``start`` …, which go to one bucket, into an array."""
        sizes = {other: np.dtype(kind).itemsize for other, kind in self.types.items()}
        before = sum(sizes[other] for other in takewhile(name.__ne__, sizes))
        with self.files[index].open("rb", buffering=0) as file:
            total = int(_rows(file, 0, 2, _COUNT)[1])
            _fill(file, out, 2 * _COUNT.itemsize + total * before + start * sizes[name])

    def remove(self) -> None:
        for path in self.files:
            path.unlink()


@dataclass(frozen=True, eq=False)
class InMemoryExchange(Exchange):
    """Rows that stay in this process's memory, all in one bucket; no file is written."""

    sent: dict[int, Columns] = field(default_factory=dict, repr=False, compare=False)

    def send(self, index: int, bucket: NDArray[np.integer], columns: Columns) -> None:
        self.sent[index] = {name: columns[name] for name in self.types}

    def receive(self, bucket: int, senders: Sequence[int] | None = None) -> Columns:
        parts = [self.sent[index] for index in senders or range(self.files.count)]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.types}

    def read(self, index: int, name: str, start: int, out: NDArray[Any]) -> None:
        out[:] = self.sent[index][name][start : start + len(out)]

    def remove(self) -> None:
        self.sent.clear()


def read_rows(path: Path, offset: int, rows: int, kind: str) -> NDArray[Any]:
    """Return (rows,) values that begin at a byte of a file; ``DataError`` if it ends too early."""
    with path.open("rb", buffering=0) as file:
        return _rows(file, offset, rows, np.dtype(kind))


def _rows(file: FileIO, offset: int, rows: int, kind: np.dtype[Any]) -> NDArray[Any]:
    values = np.empty(rows, dtype=kind)
    _fill(file, values, offset)
    return values


def _fill(file: FileIO, out: NDArray[Any], offset: int) -> None:
    """Read an array; what is missing in the file would be sent as it lay in memory."""
    filled = 0
    while filled < out.nbytes:
        rest = out.view(np.uint8).reshape(-1)[filled:] if filled else out
        count = os.preadv(file.fileno(), [rest.data], offset + filled)
        if not count:
            raise DataError(
                f"{file.name} ends after {offset + filled:,} bytes where"
                f" {offset + out.nbytes:,} were written; see that nothing else clears that"
                " folder, and start again"
            )
        filled += count


@dataclass(frozen=True)
class Send:
    """Send rows to the buckets of their keys."""

    rows: KeyedRows
    exchange: Exchange
    index: int

    @property
    def out(self) -> Path:
        return self.exchange.files[self.index]

    def run(self, secrets: Secrets) -> int:
        """Return the number of rows."""
        columns = self.rows.columns(secrets)
        keys = next(iter(columns.values()))
        self.exchange.send(self.index, key_buckets(keys, self.exchange.buckets), columns)
        return keys.size
