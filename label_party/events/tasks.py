"""The tasks that a release consists of when its rows do not fit into memory.

Labels and population are cut into slices of rows, hashed, and exchanged
(:mod:`common.engine.shuffle`) so that one task has all rows of a range of keys; those ranges, one
after the other, are the release's rows. Every task reads files, calls pure functions, and writes
one file of its own.

How rows are numbered: a file's rows in file order, the files of a directory in the order of their
names. That order decides which of several labels is the last, and the order in which labels of one
key are added up. Rows of the release are in the order of their hashed keys, or of the population
that was submitted. Neither depends on slices, buckets, workers or engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.arrays import Floats, Integers
from common.engine.shuffle import (
    KEY_TYPE,
    ROW_TYPE,
    WORD_TYPE,
    Columns,
    Exchange,
    Keys,
    distinct,
    fill,
    read_rows,
)
from common.engine.task import Secrets
from common.files import appearing
from common.randomizers.cells import Codebook, Group
from common.release.blocks import KEY_BYTES
from label_party.events.completion import (
    Domain,
    beyond_limit,
    complete_part,
    hash_column,
    hash_users,
    label_values,
)
from label_party.events.epoch import Rows
from label_party.events.fingerprints import fingerprints_of
from label_party.events.row_ranges import count_rows, randomize_rows
from label_party.events.tally import Duplicates, Tally
from label_party.sources.tables import KEY, LABEL, USER
from label_party.store.fingerprints import fingerprint_hashed

ArrayT = TypeVar("ArrayT", bound=NDArray[Any])

_ROW, _PRINT = "row", "fingerprint"
ROWS_OF_KEYS = {KEY: KEY_TYPE, _ROW: ROW_TYPE}
ROWS_OF_USERS = {USER: KEY_TYPE, _ROW: ROW_TYPE}
ROWS = {_ROW: ROW_TYPE}
PRINTS = {_PRINT: WORD_TYPE}


def label_type(labels: int) -> str:
    """NumPy type of an event's labels."""
    return f"({labels},)<f8"


def labels_of_rows(labels: int) -> dict[str, str]:
    """Columns of completed labels on their way to their rows."""
    return {_ROW: ROW_TYPE, LABEL: label_type(labels)}


@dataclass(frozen=True)
class Slice:
    """The rows ``start`` … ``stop`` of a Parquet file."""

    table: Rows
    start: int
    stop: int

    def columns(self, secrets: Secrets) -> Columns:
        """Read them, and hash their keys and users."""
        events, _ = self.table.read((self.start, self.stop))
        columns: Columns = {KEY: hash_column(events[KEY], secrets.join)}
        if self.table.labels:
            columns[LABEL] = label_values(events, len(self.table.labels))
        if USER in events.columns:
            columns[USER] = hash_users(events[USER], secrets.join)
        return columns


@dataclass(frozen=True)
class FingerprintedSlice:
    """The fingerprints of a slice's events, and of their users."""

    slice: Slice

    def columns(self, secrets: Secrets) -> Columns:
        """Read and compute them."""
        table = replace(self.slice.table, labels=(), others=())
        rows, _ = table.read((self.slice.start, self.slice.stop))
        return {_PRINT: fingerprints_of(rows, secrets.fingerprints)}


@dataclass(frozen=True)
class FingerprintedPiece:
    """The fingerprints of the hashed keys of completed rows."""

    piece: Piece

    def columns(self, secrets: Secrets) -> Columns:
        """Read and compute them."""
        keys = read_keys(self.piece.path, 0, self.piece.stop - self.piece.start)
        return {_PRINT: fingerprint_hashed(keys, secrets.fingerprints)}


@dataclass(frozen=True)
class MergeFingerprints:
    """Write the fingerprints in a range of values: ascending, each once."""

    bucket: int
    prints: Exchange
    out: Path

    def run(self, secrets: Secrets) -> int:
        """Return how many there are."""
        merged = distinct(self.prints.receive(self.bucket)[_PRINT])
        with appearing(self.out) as file:
            file.write(merged.data)
        return merged.size


@dataclass(frozen=True)
class SubmittedSlice:
    """Some rows of a submitted population."""

    keys: Path
    start: int
    stop: int

    def columns(self, secrets: Secrets) -> Columns:
        """Read their keys, and number them."""
        return {
            KEY: read_keys(self.keys, self.start, self.stop),
            _ROW: np.arange(self.start, self.stop),
        }


@dataclass(frozen=True)
class Complete:
    """Give every event of a bucket its labels.

    Attributes
    ----------
    population
        None: the labels' own keys.
    out
        The file to write, unless the population was submitted.
    ranges, range_rows
        If it was: where labels are sent on to the ranges of their rows, and rows of such a range.
    """

    bucket: int
    labels: Exchange
    population: Exchange | None
    missing: tuple[float, ...]
    domains: tuple[Domain, ...]
    duplicates: Duplicates
    users: bool
    out: Path
    ranges: Exchange | None = None
    range_rows: int = 0

    def run(self, secrets: Secrets) -> Tally:
        """Return what was found."""
        own_users = self.users and self.population is None
        labels = self.labels.receive(self.bucket)
        listed = {} if self.population is None else self.population.receive(self.bucket)
        part = complete_part(
            labels[KEY],
            labels[LABEL],
            listed.get(KEY),
            missing=self.missing,
            domains=self.domains,
            duplicates=self.duplicates,
            users=labels[USER] if own_users else None,
        )
        if self.ranges is not None:
            rows = listed[_ROW][part.order]
            columns = {_ROW: rows, LABEL: part.labels}
            self.ranges.send(self.bucket, rows // self.range_rows, columns)
            return part.tally
        with appearing(self.out) as file:
            file.write(part.keys.data)
            file.write(part.labels.astype("<f8", copy=False).data)
            if self.users:
                users = (labels if own_users else listed)[USER]
                file.write(users[part.order].data)
        return part.tally


@dataclass(frozen=True)
class FindBeyond:
    """Find the rows of a bucket's users beyond the limit; send them to the pieces they are of."""

    bucket: int
    users: Exchange
    limit: int
    starts: tuple[int, ...]
    beyond: Exchange

    def run(self, secrets: Secrets) -> None:
        found = self.users.receive(self.bucket)
        rows = found[_ROW][beyond_limit(found[USER], self.limit)]
        piece = np.searchsorted(np.array(self.starts), rows, side="right") - 1
        self.beyond.send(self.bucket, piece, {_ROW: rows})


@dataclass(frozen=True)
class Limit:
    """Give the events of a piece that are beyond their users' limit the missing value."""

    piece: Piece
    index: int
    beyond: Exchange
    missing: tuple[float, ...]
    out: Path

    def run(self, secrets: Secrets) -> int:
        """Return how many."""
        rows = self.beyond.receive(self.index)[_ROW]
        whole = Range(self.piece.start, self.piece.stop, (self.piece,))
        labels = whole.labels()
        labels[rows - self.piece.start] = self.missing
        with appearing(self.out) as file:
            file.write(whole.keys().data)
            file.write(labels.data)
        return rows.size


@dataclass(frozen=True)
class Place:
    """Put the labels of a range of rows in the order of the rows."""

    index: int
    start: int
    stop: int
    ranges: Exchange
    keys: Path
    out: Path

    def run(self, secrets: Secrets) -> None:
        found = self.ranges.receive(self.index)
        labels = np.empty((self.stop - self.start, *found[LABEL].shape[1:]), dtype="<f8")
        labels[found[_ROW] - self.start] = found[LABEL]
        with appearing(self.out) as file:
            file.write(read_keys(self.keys, self.start, self.stop).data)
            file.write(labels.data)


@dataclass(frozen=True)
class Piece:
    """A file of completed rows ``start`` … ``stop``: keys, labels, and users if they count."""

    path: Path
    start: int
    stop: int
    labels: int

    def read_keys(self, start: int, out: Keys) -> None:
        """Read (n,) keys, of row ``start`` and the following."""
        fill(out, self.path, (start - self.start) * KEY_BYTES)

    def read_labels(self, start: int, out: Floats) -> None:
        """Read (n, m) labels, of row ``start`` and the following."""
        fill(out, self.path, self._rows * KEY_BYTES + (start - self.start) * 8 * self.labels)

    def columns(self, secrets: Secrets) -> Columns:
        """Read the users of all its rows, and number them."""
        offset = self._rows * (KEY_BYTES + 8 * self.labels)
        users = read_rows(self.path, offset, self._rows, KEY_TYPE)
        return {USER: users, _ROW: np.arange(self.start, self.stop)}

    @property
    def _rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Range:
    """Completed rows ``start`` … ``stop``, and the pieces that they lie in, in order."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]

    def keys(self) -> Keys:
        """Return their (n,) keys."""
        return self._read(Piece.read_keys, np.empty(self.stop - self.start, dtype=KEY_TYPE))

    def labels(self) -> Floats:
        """Return their (n, m) labels."""
        shape = self.stop - self.start, self.pieces[0].labels
        return self._read(Piece.read_labels, np.empty(shape, dtype="<f8"))

    def _read(self, read: Callable[[Piece, int, Any], None], out: ArrayT) -> ArrayT:
        for piece in self.pieces:
            start, stop = max(self.start, piece.start), min(self.stop, piece.stop)
            read(piece, start, out[start - self.start : stop - self.start])
        return out


@dataclass(frozen=True)
class Count:
    """Count the cells of each group of labels in a range."""

    rows: Range
    groups: tuple[Group, ...]

    def run(self, secrets: Secrets) -> list[Integers]:
        return count_rows(self.rows.labels(), self.rows.start, self.groups, secrets.entropy())


@dataclass(frozen=True)
class Randomize:
    """Randomize a range and write its rows, durably: two files of the release.

    Attributes
    ----------
    rows
        What to randomize.
    codebook
        A file with the codebook as JSON; it is public, and the same for all tasks.
    submitted
        Whether keys are not sent.
    keys, codes
        The files to write.
    """

    rows: Range
    codebook: Path
    block_rows: int
    submitted: bool
    keys: Path
    codes: Path

    def run(self, secrets: Secrets) -> list[str]:
        """Return the digests of the range's blocks."""
        codebook = _codebook(self.codebook)
        done = randomize_rows(
            self.rows.labels(),
            None if self.submitted else self.rows.keys(),
            self.rows.start,
            codebook,
            secrets.entropy(),
            self.block_rows,
        )
        for path, data in ((self.keys, done.keys), (self.codes, done.codes)):
            with appearing(path, durable=True) as file:
                file.write(data)
        return done.blocks


@lru_cache(maxsize=1)
def _codebook(path: Path) -> Codebook:
    return Codebook.from_json(json.loads(path.read_text(encoding="utf-8")))


def read_keys(path: Path, start: int, stop: int) -> Keys:
    """Return keys ``start`` to ``stop`` of a file that begins with 16-byte keys."""
    return read_rows(path, start * KEY_BYTES, stop - start, KEY_TYPE)
