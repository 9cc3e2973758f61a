"""Read a finished run for `inference`: release, predictions, features, truth, in one row order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from common.arrays import Booleans, Floats, Integers
from common.csv_files import read_table
from common.errors import DataError
from common.release.event_keys import hash_keys, read_secret
from common.release.rows import keys_column
from common.release.table import read_release
from labelveil.audit.settings import RunFiles

_MAX_LEVELS = 20


@dataclass(frozen=True)
class Run:
    """A run's events in one order."""

    codes: Integers  # (n,) outputs
    labels: Floats  # (n, m) true labels, NaN if unknown
    predictions: dict[str, Floats]  # (n,) of each label, by its column
    trained: Booleans  # (n,) whether the model was trained on the event
    features: Floats | None  # (n, r) standardised features, or None
    planted: Integers | None
    """(n,) secret bits of planted canaries, -1 for other events; None if nothing was planted."""

    def within(self, start: int, stop: int) -> Run:
        """The events whose codes are ``start`` … ``stop``, counted from ``start``."""
        mine = (start <= self.codes) & (self.codes < stop)
        return Run(
            self.codes[mine] - start,
            self.labels[mine],
            {name: values[mine] for name, values in self.predictions.items()},
            self.trained[mine],
            None if self.features is None else self.features[mine],
            None if self.planted is None else self.planted[mine],
        )


def read_run(files: RunFiles) -> Run | None:
    """Join everything by key; None where there are no predictions to attack.

    ``LabelveilError`` if a file that is there cannot be used.
    """
    if not (files.predictions.is_file() and files.secret.is_file()):
        return None
    release = read_release(files.release)
    predictions = read_table(files.predictions)
    names = release.manifest.names
    several = len(names) > 1
    columns = names if several else ["prediction"]
    _need(predictions, columns, files.predictions)
    key = predictions.columns[0]
    table = _keyed(predictions, key, files.secret).join(
        release.labels.select("key", "code"), on="key", how="inner", maintain_order="left"
    )
    if not table.height:
        raise DataError(f"{files.predictions} shares no event with the release; check the secret")

    def beside(path: Path, key: str, needed: Sequence[str] = ()) -> pl.DataFrame:
        """Another file's columns, in the order of the table."""
        other = _keyed(read_table(path), key, files.secret)
        _need(other, needed, path)
        joined = table.select("key").join(other, on="key", how="left", maintain_order="left")
        return joined.drop("key")

    labels, planted, features = np.full((table.height, len(names)), np.nan), None, None
    if files.truth.is_file():
        known = names if several else ["label"]
        labels = _numbers(beside(files.truth, "key", known).select(known))
    if files.canaries is not None:
        bits = _numbers(beside(files.canaries, "key", ["secret"]).select("secret"))[:, 0]
        planted = np.where(np.isnan(bits), -1, bits).astype(np.int64)
    if files.features.is_file():
        features = numeric_features(beside(files.features, key))
    held_out = (
        table["held_out"].to_numpy() if "held_out" in table.columns else np.zeros(table.height)
    )
    return Run(
        table["code"].to_numpy().astype(np.int64),
        labels,
        {name: table[name].to_numpy().astype(np.float64) for name in columns},
        ~held_out.astype(np.bool_),
        features,
        planted,
    )


def numeric_features(table: pl.DataFrame) -> Floats:
    """(n, r) numbers of mean 0 and variance 1: categories become indicators of their commonest
    levels, missing values the mean."""
    columns = []
    for series in table.get_columns():
        if series.dtype.is_numeric() or series.dtype == pl.Boolean:
            values = series.cast(pl.Float64).fill_nan(None)
            mean = values.mean()
            filled = values.fill_null(mean if isinstance(mean, float) else 0.0)
            columns.append(filled.to_numpy())
        else:
            text = series.cast(pl.String)
            common = text.value_counts(sort=True).head(_MAX_LEVELS)[series.name].to_list()
            columns += [(text == level).fill_null(False).to_numpy() * 1.0 for level in common]
    matrix = np.stack(columns, axis=1)
    spread = matrix.std(axis=0)
    return np.asarray((matrix - matrix.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _need(table: pl.DataFrame, columns: Sequence[str], path: Path) -> None:
    for name in columns:
        if name not in table.columns:
            raise DataError(f"{path} has no column {name!r}")


def _keyed(table: pl.DataFrame, key: str, secret: Path) -> pl.DataFrame:
    if key not in table.columns:
        raise DataError(f"a table has no key column {key!r}; its columns are {table.columns[:8]}")
    hashed = keys_column(hash_keys(table[key], read_secret(secret)))
    return table.drop(key).with_columns(key=hashed)


def _numbers(table: pl.DataFrame) -> Floats:
    """(n, m) a column each, NaN for what is missing."""
    return table.cast(pl.Float64).fill_null(float("nan")).to_numpy()
