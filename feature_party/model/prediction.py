"""Predict a file of any size: in batches, to Parquet or CSV, never holding more than one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
from pyarrow.csv import CSVWriter

from common.arrays import Booleans
from common.errors import DataError
from common.files import PUBLIC, appearing
from feature_party.model.model import Model
from feature_party.tables import BATCH_ROWS, check_key, feature_file, scan_table


def predict_file(
    model: Model,
    features: Path,
    output: Path,
    *,
    key: str = "",
    interval: float | None = 0.9,
    quantiles: Sequence[float] = (),
    above: Sequence[float] = (),
    trained: Callable[[int, int], Booleans] | None = None,
    batch_rows: int = BATCH_ROWS,
    on_rows: Callable[[int, int], None] | None = None,
) -> int:
    """Predict every row of a features file.

    Parameters
    ----------
    model
        A trained model.
    features
        CSV or Parquet, or a directory of Parquet files.
    output
        File, CSV if its suffix says so and Parquet otherwise, with the key column (if one is
        named), ``prediction`` and, where the model gives distributions, what they say. It appears
        only once it is complete.
    key
        Column that is copied to the output.
    interval
        Probability of the predictive interval; None leaves it out.
    quantiles, above
        Probabilities of quantiles, and label values t for P(y > t).
    trained
        Says which rows of a range the model was trained on; the output then gets a column
        ``held_out``, true for all others.
    batch_rows
        Rows in memory at a time.
    on_rows
        Called with rows done and rows in all.

    Returns
    -------
    Number of rows.
    """
    frame = scan_table(features, key)
    if key:
        check_key(frame, key)
    model.encoder.check(frame.collect_schema().names())
    columns = list(dict.fromkeys(([key] if key else []) + list(model.encoder.columns)))
    output.parent.mkdir(parents=True, exist_ok=True)
    writer: pq.ParquetWriter | CSVWriter | None = None
    done = 0
    with (
        appearing(output, mode=PUBLIC) as file,
        feature_file(features, key, columns, output.parent) as source,
        ExitStack() as closing,
    ):
        for batch in source.batches(columns, batch_rows):
            predicted = model.predict(batch, interval, quantiles, above)
            if key:
                predicted = pl.DataFrame({key: batch[key]}).hstack(predicted)
            if trained is not None:
                held_out = ~trained(done, done + batch.height)
                predicted = predicted.with_columns(held_out=pl.Series(held_out))
            table = predicted.to_arrow()
            if writer is None:
                writer = (
                    CSVWriter(file, table.schema)
                    if output.suffix.lower() == ".csv"
                    else pq.ParquetWriter(file, table.schema, compression="zstd")
                )
                closing.enter_context(writer)
            writer.write_table(table)
            done += batch.height
            if on_rows is not None:
                on_rows(done, source.rows)
        if not done:
            raise DataError(f"{features} has no rows to predict")
    return done
