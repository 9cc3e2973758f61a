"""Match the events of a features table with those of a release."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.channel import Codes
from common.errors import ConfigError, DataError
from common.keys import canonical_keys, hash_keys
from common.release import Release
from feature_party.report import MatchCounts
from feature_party.spool import key_array

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
        (m,) uint16 privatized labels.
    matches
        Counts on both sides.
    rows
        (m,) row of each matched event in the features.
    """

    table: pl.DataFrame
    codes: Codes
    matches: MatchCounts
    rows: NDArray[np.int64]

    def poor_match(self, share: float) -> str | None:
        """One sentence if less than a share of either side found its counterpart."""
        counts = self.matches
        of_features = counts.matched / counts.feature_rows
        of_release = counts.matched / counts.release_rows
        if min(of_features, of_release) >= share:
            return None
        return (
            f"only {counts.matched:,} events match: {of_features:.1%} of the"
            f" {counts.feature_rows:,} in the features and {of_release:.1%} of the"
            f" {counts.release_rows:,} in the release; check key column, epoch and key secret"
        )


def scan_table(path: Path, key: str = "") -> pl.LazyFrame:
    """Scan a CSV or Parquet file lazily; the key column of a CSV file is text (007 is not 7).

    Raises
    ------
    DataError
        If the file is missing, of another kind, or cannot be read.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist; name a CSV or Parquet file")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            frame = pl.scan_parquet(path)
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
        raise DataError(f"{path} cannot be read: {_first_line(error)}") from error
    return frame


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
        raise DataError(f"the table cannot be read: {_first_line(error)}") from error


def check_key(frame: pl.LazyFrame, key: str, source: str = "the features") -> None:
    """Raise ``DataError`` unless the key column exists."""
    columns = frame.collect_schema().names()
    if key not in columns:
        shown = ", ".join(columns[:12]) + (", …" if len(columns) > 12 else "")
        raise DataError(f"{source} have no key column {key!r}; set [data] key to one of: {shown}")


def join_release(release: Release, features: Table, key: str, secret: bytes | None) -> Joined:
    """Match features with privatized labels.

    Parameters
    ----------
    release
        A verified release.
    features
        One row an event.
    key
        Its key column; unused where the release has no keys, because we submitted them.
    secret
        The shared secret that keys are hashed with; None where the release has no keys.

    Raises
    ------
    DataError
        If keys are missing, occur twice, or match nothing.
    """
    frame = lazy_table(features, key)
    if release.manifest.content.key_bytes == 0:
        return _join_by_order(release, collect_table(frame))
    check_key(frame, key)
    if secret is None:
        raise ConfigError(
            "the release has hashed keys, but no secret is configured; set [keys] secret_file"
        )
    table = collect_table(frame)
    hashed = hashed_keys(table[key], secret)
    left = pl.DataFrame({"row": np.arange(table.height), "key": hashed})
    right = release.labels.select("key", "code")
    both = left.join(right, on="key", how="inner").sort("row")
    matches = MatchCounts(release.labels.height, table.height, both.height)
    if not both.height:
        raise DataError(
            f"none of the {table.height:,} events in the features is among the"
            f" {release.labels.height:,} in the release; check the key column {key!r}, the epoch"
            " and that both parties use the same key secret"
        )
    rows = both["row"].to_numpy()
    matched = table if both.height == table.height else table[rows]
    return Joined(matched, both["code"].to_numpy().astype(np.uint16), matches, rows)


def hashed_keys(keys: pl.Series, secret: bytes) -> pl.Series:
    """(n,) 16-byte hashes of a key column without repetitions."""
    if not keys.len():
        raise DataError("the features have no rows")
    text = canonical_keys(keys)
    if text.n_unique() != text.len():
        twice = text.filter(text.is_duplicated())
        raise DataError(
            f"key {twice[0]!r} and {twice.n_unique() - 1:,} others occur more than once in column"
            f" {keys.name!r}; keep one row for each event"
        )
    array = key_array(hash_keys(keys, secret), keys.len())
    return pl.Series("key", pl.from_arrow(array), dtype=pl.Binary)


def _join_by_order(release: Release, table: pl.DataFrame) -> Joined:
    if table.height != release.labels.height:
        raise DataError(
            f"{table.height:,} rows of features for a release of {release.labels.height:,} rows"
            " without keys; use exactly the events that were submitted, in their order"
        )
    matches = MatchCounts(table.height, table.height, table.height)
    return Joined(table, release.codes, matches, np.arange(table.height))


def split_holdout(
    events: int, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows to score on, each ascending; fixed by count, share and seed."""
    held = round(events * share)
    if events - held < 2:
        raise DataError(
            f"{events:,} matched events leave {events - held} to train on after a holdout of"
            f" {share:g}; match more events or lower [training] holdout"
        )
    order = np.random.default_rng(seed).permutation(events)
    return np.sort(order[held:]), np.sort(order[:held])


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
