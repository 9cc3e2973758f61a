"""Match the events of a features table with those of a release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import DataError
from common.parquet import PARQUET_SUFFIXES, directory_files
from common.release.folder import Release
from feature_party.client.spool import key_array
from feature_party.client.submission import Population, hash_population
from feature_party.report import MatchCounts

if TYPE_CHECKING:
    import pandas as pd

Table: TypeAlias = "pl.DataFrame | pl.LazyFrame | pd.DataFrame | Path"
"""What the Python interface accepts as a table: in memory, lazy, or a file."""


@dataclass(frozen=True)
class Joined:
    """Matched events, in the order of the features.

    Attributes
    ----------
    table
        (m, …) their features, key column included.
    codes
        (m,) unsigned privatized labels.
    matches
        Counts on both sides.
    rows
        (m,) row of each matched event in the features.
    """

    table: pl.DataFrame
    codes: NDArray[np.unsignedinteger[Any]]
    matches: MatchCounts
    rows: NDArray[np.int64]


def scan_table(path: Path, key: str = "") -> pl.LazyFrame:
    """Scan a table lazily: a CSV or Parquet file, or a directory of Parquet files.

    The key column of a CSV file is text (007 is not 7).

    Raises
    ------
    DataError
        If the file is missing, of another kind, or cannot be read.
    """
    files = table_files(path)
    try:
        if path.is_dir() or path.suffix.lower() in PARQUET_SUFFIXES:
            frame = pl.scan_parquet(files)
        elif path.suffix.lower() in (".csv", ".tsv", ".txt"):
            separator = "\t" if path.suffix.lower() == ".tsv" else ","
            frame = pl.scan_csv(
                path,
                separator=separator,
                infer_schema_length=10_000,
                try_parse_dates=True,
                schema_overrides={key: pl.String} if key else None,
            )
        else:
            raise DataError(f"{path} has the suffix {path.suffix!r}; use .csv, .tsv or .parquet")
        frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} cannot be read: {first_line(error)}") from error
    return frame


def table_files(path: Path) -> list[Path]:
    """Return the files that a table lies in, in the order of its rows.

    Raises
    ------
    DataError
        If there are none.
    """
    if path.is_dir():
        return directory_files(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist; name a CSV or Parquet file")
    return [path]


def lazy_table(table: Table, key: str = "") -> pl.LazyFrame:
    """Any accepted form of a table as a lazy frame."""
    if isinstance(table, pl.LazyFrame):
        return table
    if isinstance(table, pl.DataFrame):
        return table.lazy()
    if isinstance(table, str | Path):
        return scan_table(Path(table), key)
    return pl.from_pandas(table).lazy()


def collect_table(table: Table) -> pl.DataFrame:
    """Any accepted form of a table in memory."""
    try:
        return lazy_table(table).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"the table cannot be read: {first_line(error)}") from error


def check_key(frame: pl.LazyFrame, key: str, source: str = "the features") -> None:
    """Raise ``DataError`` unless the key column exists."""
    columns = frame.collect_schema().names()
    if key not in columns:
        shown = ", ".join(columns[:12]) + (", …" if len(columns) > 12 else "")
        raise DataError(f"{source} have no key column {key!r}; set [data] key to one of: {shown}")


def join_release(release: Release, features: Table, key: str, secret: bytes) -> Joined:
    """Match features with privatized labels.

    Parameters
    ----------
    release
        A verified release.
    features
        One row an event.
    key
        Its key column. Where we submitted the population, the release has no keys, and the column
        must be what was submitted, in the same order.
    secret
        The shared secret that keys are hashed with.

    Raises
    ------
    DataError
        If keys are missing, occur twice, or match nothing.
    """
    frame = lazy_table(features, key)
    check_key(frame, key)
    table = collect_table(frame)
    population = hash_population(table[key], secret)
    if release.manifest.content.key_bytes == 0:
        return _join_by_order(release, table, key, population)
    right = release.labels.select("key", "code")
    both = _matched(population, right, key, release.labels.height)
    rows = both["row"].to_numpy()
    matched = table if both.height == table.height else table[rows]
    counts = MatchCounts(release.labels.height, table.height, both.height)
    return Joined(matched, both["code"].to_numpy().astype(np.uint16), counts, rows)


def join_releases(
    releases: Sequence[Release], starts: Sequence[int], features: Table, key: str, secret: bytes
) -> Joined:
    """Match features with the labels of several releases; an event may be in more than one.

    Parameters
    ----------
    releases
        Verified releases, all with keys.
    starts
        First code of each among the codes of all.
    features, key, secret
        As in :func:`join_release`.

    Raises
    ------
    DataError
        If keys are missing, occur twice, match nothing, or were submitted.
    """
    for release in releases:
        if release.manifest.content.key_bytes == 0:
            raise DataError(
                f"epoch {release.manifest.epoch!r} covers a submitted population, whose rows have"
                " no keys to tell them apart from other epochs'; train on it alone"
            )
    frame = lazy_table(features, key)
    check_key(frame, key)
    table = collect_table(frame)
    population = hash_population(table[key], secret)
    labels = pl.concat(
        release.labels.select("key", pl.col("code").cast(pl.UInt32) + start)
        for release, start in zip(releases, starts, strict=False)
    )
    both = _matched(population, labels, key, labels.height)
    rows = both["row"].to_numpy()
    counts = MatchCounts(labels.height, table.height, both.height)
    return Joined(table[rows], both["code"].to_numpy(), counts, rows)


def _matched(
    population: Population, labels: pl.DataFrame, key: str, release_rows: int
) -> pl.DataFrame:
    """Rows of ours with their codes, in our order."""
    array = key_array(population.keys, population.rows)
    hashed = pl.Series("key", pl.from_arrow(array), dtype=pl.Binary)
    left = pl.DataFrame({"row": np.arange(population.rows), "key": hashed})
    both = left.join(labels, on="key", how="inner").sort("row", "code")
    if not both.height:
        raise DataError(
            f"none of the {population.rows:,} events in the features is among the"
            f" {release_rows:,} in the release; check the key column {key!r}, the epoch"
            " and that both parties use the same key secret"
        )
    return both


def _join_by_order(
    release: Release, table: pl.DataFrame, key: str, population: Population
) -> Joined:
    """Match row by row; sound if our keys, in our order, are those that the release covers."""
    rows = release.labels.height
    if population.digest.hex() != release.manifest.population.digest:
        raise DataError(
            f"the release covers {rows:,} submitted events, and column {key!r} of the features,"
            f" with {table.height:,} rows, is not the list that was submitted; use exactly the"
            " submitted events in their order, and the same [keys] secret_file"
        )
    matches = MatchCounts(rows, rows, rows)
    return Joined(table, release.codes, matches, np.arange(rows))


def split_holdout(
    events: int, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows to score on, each ascending; fixed by count, share and seed."""
    held = held_events(events, share, seed)
    rest = np.ones(events, dtype=np.bool_)
    rest[held] = False
    return np.flatnonzero(rest), held


def held_events(events: int, share: float, seed: int) -> NDArray[np.int64]:
    """Events to score on, ascending, in memory of their own size where they are few of many."""
    held = round(events * share)
    if events - held < 2:
        raise DataError(
            f"{events:,} matched events leave {events - held} to train on after a holdout of"
            f" {share:g}; match more events or lower [training] holdout"
        )
    generator = np.random.default_rng(seed)
    return np.sort(generator.choice(events, held, replace=False, shuffle=False))


def split_events(
    rows: NDArray[np.int64], share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As :func:`split_holdout`, where several labels may be about one event: they stay together.

    Parameters
    ----------
    rows
        (n,) the event that each label is about.
    """
    events, event_of = np.unique(rows, return_inverse=True)
    held = np.zeros(events.size, dtype=np.bool_)
    held[split_holdout(events.size, share, seed)[1]] = True
    return np.flatnonzero(~held[event_of]), np.flatnonzero(held[event_of])


def first_line(error: BaseException) -> str:
    """First line of an error's message, or its kind."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
