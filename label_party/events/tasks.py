"""The tasks that completing a population consists of.

Labels and population are cut into slices of rows, hashed, and exchanged
(:mod:`labelveil.common.engine.shuffle`) so that one task has all rows of a range of keys; those
ranges, one after the other, are the release's rows. Every task reads files, calls pure functions,
and writes one file of its own. What fits into memory is one slice and one range, and no file.

How rows are numbered: a file's rows in file order, the files of a directory in the order of their
names. That order decides which of several labels is the last, and the order in which labels of one
key are added up. Rows of the release are in the order of their hashed keys, or of the population
that was submitted. Neither depends on slices, buckets, workers or engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from labelveil.common.arrays import Floats, Indices
from labelveil.common.engine.shuffle import (
    KEY_TYPE,
    ROW_TYPE,
    WORD_TYPE,
    Columns,
    Exchange,
    Keys,
    distinct,
    first_of_each,
    key_buckets,
    read_rows,
    sort_keys,
)
from labelveil.common.engine.task import Secrets
from labelveil.common.randomizers.message.strata import Strata
from labelveil.common.release.blocks import KEY_BYTES
from labelveil.label_party.events.columns import NONE
from labelveil.label_party.events.completion import (
    Rules,
    beyond_limit,
    complete_part,
    hash_column,
    label_values,
)
from labelveil.label_party.events.epoch import Rows
from labelveil.label_party.events.tally import Tally
from labelveil.label_party.sources.anomalies import NOTHING, Anomalies
from labelveil.label_party.sources.tables import KEY, LABEL, PLACE, STRATUM, USER, column_name
from labelveil.label_party.store.fingerprints import Prints, fingerprint, fingerprint_hashed

ROW, PRINT, OWNER = "row", "fingerprint", "fingerprint of the user"
STRATUM_TYPE = "<u2"
ROWS_OF_KEYS = {KEY: KEY_TYPE, ROW: ROW_TYPE}
ROWS_OF_USERS = {USER: KEY_TYPE, ROW: ROW_TYPE}
ROWS = {ROW: ROW_TYPE}
PRINTS = {PRINT: WORD_TYPE}
NAMES = {KEY: KEY_TYPE, PRINT: WORD_TYPE, OWNER: WORD_TYPE}
NO_OWNER = np.uint64(1)
"""No fingerprint of a name is odd."""


@dataclass(frozen=True, eq=False)
class Slice:
    """Rows of a table: ``start`` … ``stop`` of a Parquet file, or all that were read already."""

    table: Rows
    part: tuple[int, int] | None = None
    loaded: tuple[pl.DataFrame, Anomalies] | None = None

    @property
    def types(self) -> dict[str, str]:
        """Names and types of its columns, the keys first."""
        types = {KEY: KEY_TYPE}
        if self.table.labels:
            types |= {LABEL: f"({len(self.table.labels)},)<f8", PLACE: ROW_TYPE}
        if self.table.user is not None:
            types[USER] = KEY_TYPE
        if self.table.stratum is not None:
            types[STRATUM] = STRATUM_TYPE
        return types | {column_name(column.name): "<i8" for column in self.table.others}

    @property
    def of_names(self) -> Slice:
        """The same rows, of which only the key and the user are wanted."""
        return replace(self, table=replace(self.table, labels=(), others=(), stratum=None))

    @property
    def names_users(self) -> bool:
        """Whether its own rows say whose an event is, so that only the first of each counts."""
        return self.table.holds == "both" and self.table.user is not None

    def read(self) -> tuple[pl.DataFrame, Anomalies]:
        return self.loaded or self.table.read(self.part)

    def load(self, secrets: Secrets) -> tuple[Columns, Anomalies]:
        events, odd = self.read()
        columns: Columns = {KEY: hash_column(events[KEY], secrets.join)}
        if self.table.labels:
            columns[LABEL] = label_values(events, len(self.table.labels))
            columns[PLACE] = events[PLACE].to_numpy()
        if self.table.user is not None:
            columns[USER] = hash_column(events[USER], secrets.join)
        if (stratum := self.table.stratum) is not None:
            columns[STRATUM] = stratum.places(events[column_name(stratum.name)]).astype(
                STRATUM_TYPE
            )
        for column in self.table.others:
            columns[column_name(column.name)] = column.codes(
                events[column_name(column.name)], secrets.join
            )
        return columns, odd


@dataclass(frozen=True)
class SubmittedRows:
    """A submitted population, in the order in which it was submitted."""

    keys: Path  # a file that begins with 16 bytes a key
    rows: int
    question: Path | None = None  # what is asked of them (:mod:`labelveil.common.release.question`)
    # at which byte of it their strata begin, one byte each; None where it gathers none
    strata_at: int | None = None

    @property
    def types(self) -> dict[str, str]:
        """Names and types of its columns."""
        return ROWS_OF_KEYS | ({STRATUM: STRATUM_TYPE} if self.strata_at is not None else {})


@dataclass(frozen=True)
class SubmittedSlice:
    """Some rows of a submitted population."""

    rows: SubmittedRows
    start: int
    stop: int

    def load(self, secrets: Secrets) -> tuple[Columns, Anomalies]:
        start, stop = self.start, self.stop
        keys = read_rows(self.rows.keys, start * KEY_BYTES, stop - start, KEY_TYPE)
        columns: Columns = {KEY: keys, ROW: np.arange(start, stop)}
        if self.rows.question is not None and self.rows.strata_at is not None:
            at = self.rows.strata_at + start
            strata = read_rows(self.rows.question, at, stop - start, "u1")
            columns[STRATUM] = strata.astype(STRATUM_TYPE)
        return columns, NOTHING


@dataclass(frozen=True)
class SendSlice:
    """Send a slice's rows to the buckets of their keys."""

    slice: Slice | SubmittedSlice
    exchange: Exchange
    index: int

    def run(self, secrets: Secrets) -> tuple[int, Anomalies]:
        """Return how many there are, and what is odd about them."""
        columns, odd = self.slice.load(secrets)
        buckets = key_buckets(columns[KEY], self.exchange.buckets)
        self.exchange.send(self.index, buckets, columns)
        return columns[KEY].size, odd


@dataclass(frozen=True)
class Complete:
    """Give every event of a bucket its labels."""

    bucket: int
    labels: Exchange
    population: Exchange | None  # none: the labels' own keys
    rules: Rules
    out: Exchange  # where completed rows go
    # 0: to the bucket's own file, in the order of their keys. Where the population was submitted,
    # to ranges of this number of its rows.
    range_rows: int = 0

    def run(self, secrets: Secrets) -> Tally:
        """Return what was found."""
        labels = self.labels.receive(self.bucket)
        own = self.population is None
        listed = labels if self.population is None else self.population.receive(self.bucket)
        rows = {name: values for name, values in labels.items() if name != STRATUM}
        columns, order, tally = complete_part(rows, None if own else listed[KEY], self.rules)
        columns |= {name: listed[name][order] for name in listed if name not in columns}
        where = np.zeros(tally.rows, dtype=np.int64)
        if self.range_rows:
            where = columns[ROW] // self.range_rows
        self.out.send(self.bucket, where, columns)
        return tally


@dataclass(frozen=True)
class Place:
    """Put the labels of a range of rows in the order in which their keys were submitted."""

    piece: Piece
    ranges: Exchange
    keys: Path

    def run(self, secrets: Secrets) -> None:
        completed, piece = self.ranges.receive(self.piece.index), self.piece
        order = np.empty(piece.rows, dtype=np.int64)
        order[completed[ROW] - piece.start] = np.arange(piece.rows)
        columns = {name: values[order] for name, values in completed.items()}
        keys = read_rows(self.keys, piece.start * KEY_BYTES, piece.rows, KEY_TYPE)
        piece.write(columns | {KEY: keys})


@dataclass(frozen=True)
class FindBeyond:
    """Find the rows of a bucket's users beyond the limit; send them to the pieces they are of."""

    bucket: int
    users: Exchange
    limit: int
    starts: tuple[int, ...]
    beyond: Exchange

    def run(self, secrets: Secrets) -> None:
        events = self.users.receive(self.bucket)
        rows = events[ROW][beyond_limit(events[USER], self.limit)]
        piece = np.searchsorted(np.array(self.starts), rows, side="right") - 1
        self.beyond.send(self.bucket, piece, {ROW: rows})


@dataclass(frozen=True)
class Limit:
    """Give the events of a piece that are beyond their users' limit the missing value."""

    piece: Piece
    index: int
    beyond: Exchange
    missing: tuple[float, ...]
    out: Piece

    def run(self, secrets: Secrets) -> int:
        """Return how many."""
        rows = self.beyond.receive(self.index)[ROW]
        whole = Range(self.piece.start, self.piece.stop, (self.piece,))
        columns = {name: whole.read(name) for name in self.out.file.types}
        for name, values in columns.items():
            if name not in (KEY, STRATUM):
                values[rows - self.piece.start] = self.missing if name == LABEL else NONE
        self.out.write(columns)
        return int(rows.size)


@dataclass(frozen=True)
class Piece:
    """Completed rows ``start`` … ``stop``: what one task has sent, to one bucket."""

    file: Exchange
    index: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def write(self, columns: Columns) -> None:
        self.file.send(self.index, np.zeros(self.rows, dtype=np.int64), columns)

    def columns(self, secrets: Secrets) -> Columns:
        users = Range(self.start, self.stop, (self,)).read(USER)
        return {USER: users, ROW: np.arange(self.start, self.stop)}


@dataclass(frozen=True)
class Range:
    """Completed rows ``start`` … ``stop``, and the pieces that they lie in, in order."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]

    def by_piece(self) -> Iterator[Range]:
        """Cut it where another piece begins."""
        for piece in self.pieces:
            yield Range(max(self.start, piece.start), min(self.stop, piece.stop), (piece,))

    def read(self, name: str) -> NDArray[Any]:
        out = np.empty(self.stop - self.start, dtype=self.pieces[0].file.types[name])
        for part in self.by_piece():
            (piece,) = part.pieces
            rows = out[part.start - self.start : part.stop - self.start]
            piece.file.read(piece.index, name, part.start - piece.start, rows)
        return out

    def keys(self) -> Keys:
        return self.read(KEY)

    def labels(self) -> Floats:
        return self.read(LABEL)

    def strata(self, strata: Strata | None) -> Indices | None:
        """(n,) strata of its events; None where all are in one."""
        return None if strata is None else strata.of_value[self.read(STRATUM)]


@dataclass(frozen=True)
class NamePrints:
    """The fingerprints of the names of a slice's events, and of their users."""

    slice: Slice

    def columns(self, secrets: Secrets) -> Columns:
        return {PRINT: fingerprints_of(self.slice.read()[0], secrets.fingerprints)}


@dataclass(frozen=True)
class RowPrints:
    """The hashed keys of a slice's rows, and the fingerprints of their names and users."""

    slice: Slice

    def columns(self, secrets: Secrets) -> Columns:
        rows, secret = self.slice.read()[0], secrets.fingerprints
        owners = np.full(rows.height, NO_OWNER)
        owners[rows[USER].is_not_null().to_numpy()] = user_fingerprints(rows, secret)
        names = fingerprint(rows[KEY], secret)
        return {KEY: hash_column(rows[KEY], secrets.join), PRINT: names, OWNER: owners}


@dataclass(frozen=True)
class FirstPrints:
    """The fingerprints of a bucket's events, and of those whose they are: their first rows'."""

    bucket: int
    rows: Exchange

    def columns(self, secrets: Secrets) -> Columns:
        rows = self.rows.receive(self.bucket)
        order = sort_keys(rows[KEY])  # rows of one key stay in file order
        keys = rows[KEY][order]
        owners = rows[OWNER][order[first_of_each(keys)]]
        return {PRINT: np.concatenate([rows[PRINT], owners[owners != NO_OWNER]])}


@dataclass(frozen=True)
class KeyPrints:
    """The fingerprints of the hashed keys of completed rows."""

    rows: Range

    def columns(self, secrets: Secrets) -> Columns:
        return {PRINT: fingerprint_hashed(self.rows.keys(), secrets.fingerprints)}


@dataclass(frozen=True)
class MergeFingerprints:
    """Write the fingerprints in a range of values: ascending, each once."""

    bucket: int
    prints: Exchange
    out: Exchange

    def run(self, secrets: Secrets) -> None:
        merged = distinct(self.prints.receive(self.bucket)[PRINT])
        self.out.send(self.bucket, np.zeros(merged.size, dtype=np.int64), {PRINT: merged})


def fingerprints_of(rows: pl.DataFrame, secret: bytes) -> Prints:
    """Return the fingerprints of the keys of rows, and of their users where these were read.

    A user's is distinguished from that of an event by the NUL in front, which no key has. Rows that
    name no user add none.
    """
    prints = fingerprint(rows[KEY], secret)
    if USER in rows.columns:
        prints = np.concatenate([prints, user_fingerprints(rows, secret)])
    return prints


def user_fingerprints(rows: pl.DataFrame, secret: bytes) -> Prints:
    """Return the fingerprint of each row's user, in their order, of rows that name one."""
    return fingerprint(rows[USER].drop_nulls(), secret, mark="\0")
