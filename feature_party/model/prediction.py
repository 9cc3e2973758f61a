"""Predict a file of any size: in batches, to Parquet or CSV, never holding more than one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.csv import CSVWriter

from labelveil.common.arrays import Booleans, Indices
from labelveil.common.errors import DataError
from labelveil.common.files import PUBLIC, appearing
from labelveil.common.release.event_keys import shown_keys
from labelveil.feature_party.model.drift import ColumnDrift, DriftCounts
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.tables import BATCH_ROWS, SOURCE, FeatureFile, Table, check_key
from labelveil.feature_party.threads import threads_for

Trained = Callable[[int, int], Booleans]
"""Which rows of a range, from its start to its end, a model was trained on."""


class Predictor(Protocol):
    """What predicts: a model of one label, of several, or of sums."""

    @property
    def sources(self) -> tuple[str, ...]: ...
    @property
    def encoder(self) -> Encoder: ...
    @property
    def has_distributions(self) -> bool: ...
    @property
    def key(self) -> str: ...
    def for_source(self, source: str) -> Predictor: ...
    def predict(
        self,
        features: Table,
        interval: float | None = None,
        quantiles: Sequence[float] = (),
        above: Sequence[float] = (),
    ) -> pl.DataFrame: ...


@dataclass(frozen=True)
class Predicted:
    """What was predicted."""

    rows: int  # predictions that were written
    drift: Sequence[ColumnDrift]  # how each column differs from what the model was trained on


def predict_file(
    model: Predictor,
    features: Path,
    output: Path,
    *,
    key: str = "",
    source: str = "",
    interval: float | None = 0.9,
    quantiles: Sequence[float] = (),
    above: Sequence[float] = (),
    trained: Trained | None = None,
    warn: Callable[[str], object] = lambda text: None,
    batch_rows: int = BATCH_ROWS,
    on_rows: Callable[[int, int], None] | None = None,
) -> Predicted:
    """Predict every row of features.

    Features are CSV or Parquet, or a directory of Parquet files. The output, CSV if its suffix says
    so and Parquet otherwise, appears only once it is complete: the column ``key`` (if one is
    named), ``prediction`` and, where the model gives distributions, what they say of the central
    interval of a probability, of quantiles and of P(y > t); and, where ``trained`` says which rows
    of a range the model was trained on, ``held_out`` for all others.

    Of a model of several labels parties a column says whose each prediction is. ``source`` is one's
    name, or the column that names one for each row; by default every row is predicted for each.

    ``warn`` is called with a sentence for every column of which many rows are unlike those that the
    model was trained on, ``on_rows`` with rows done and rows in all. ``DataError`` if no cell of a
    column is what the model was trained with.
    """
    table = FeatureFile(features)
    if key:
        check_key(table.frame, key)
    names = table.frame.collect_schema().names()
    by = source if model.sources and source in names and source not in model.sources else ""
    chosen = model.sources if by or not source else (source,)
    models = {name: model.for_source(name) for name in chosen or ("",)}
    used = next(iter(models.values())).encoder
    used.check(names)
    columns = list(dict.fromkeys([*filter(None, (key, by)), *used.columns]))
    output.parent.mkdir(parents=True, exist_ok=True)
    writer: pq.ParquetWriter | CSVWriter | None = None
    done, predictions, counts = 0, 0, DriftCounts(used)
    with threads_for(table.rows), appearing(output, mode=PUBLIC) as file, ExitStack() as closing:
        for batch in table.batches(columns, batch_rows):
            counts.add(batch)
            predicted, rows = _predicted(models, batch, by, interval, quantiles, above)
            if key:
                predicted = pl.DataFrame({key: shown_keys(batch[key][rows])}).hstack(predicted)
            if trained is not None:
                held_out = ~trained(done, done + batch.height)[rows]
                predicted = predicted.with_columns(held_out=pl.Series(held_out))
            written = predicted.to_arrow()
            if writer is None:
                writer = closing.enter_context(_writer(file, output.suffix, written.schema))
            writer.write_table(written)
            done += batch.height
            predictions += predicted.height
            if on_rows is not None:
                on_rows(done, table.rows)
        if not done:
            raise DataError(f"{features} has no rows to predict")
        counts.check()
    drift = counts.columns()
    for column in drift:
        for sentence in column.sentences:
            warn(f"{sentence}; check the column, or train on newer events")
    return Predicted(predictions, drift)


def _predicted(
    models: Mapping[str, Predictor],
    batch: pl.DataFrame,
    by: str,
    interval: float | None,
    quantiles: Sequence[float],
    above: Sequence[float],
) -> tuple[pl.DataFrame, Indices]:
    """Predictions of a batch in the order of its rows, and which row each is of: of several labels
    parties every row has one for each, or for the one that column ``by`` names."""
    places = list(_rows_by_model(models, batch, by))
    parts = [
        _of(name, one.predict(batch[rows], interval, quantiles, above))
        for name, one, rows in places
    ]
    rows = np.concatenate([rows for *_, rows in places])
    order = np.argsort(rows, kind="stable")
    return pl.concat(parts)[order], rows[order]


def _writer(file: BinaryIO, suffix: str, schema: pa.Schema) -> pq.ParquetWriter | CSVWriter:
    if suffix.lower() == ".csv":
        return CSVWriter(file, schema)
    return pq.ParquetWriter(file, schema, compression="zstd")


def _rows_by_model(
    models: Mapping[str, Predictor], batch: pl.DataFrame, by: str
) -> Iterator[tuple[str, Predictor, Indices]]:
    """Yield each labels party's model, by its name, with the rows that it is to predict."""
    if not by:
        yield from ((name, model, np.arange(batch.height)) for name, model in models.items())
        return
    named = batch[by].alias("").cast(pl.String)
    others = named.filter(~named.is_in(list(models)).fill_null(False))
    if others.len():
        raise DataError(
            f"{by}={others[0]!r} must name a labels party that was learned from:"
            f" {', '.join(models)}; correct the column, or pass --source NAME"
        )
    for name, model in models.items():
        rows = np.flatnonzero((named == name).to_numpy())
        if rows.size:
            yield name, model, rows


def _of(source: str, predicted: pl.DataFrame) -> pl.DataFrame:
    """Predictions with whose they are; columns named after ends of one's range are left out."""
    if not source:
        return predicted
    return predicted.select(pl.lit(source).alias(SOURCE), pl.exclude("^equal_.*$"))
