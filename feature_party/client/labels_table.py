"""A fetched release as one Parquet table, for other programs."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from labelveil.common.files import PUBLIC, appearing
from labelveil.common.release.blocks import block_ranges
from labelveil.common.release.folder import LABELS_FILE
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.rows import keys_column, open_rows
from labelveil.common.release.table import stands_for

_ROWS_AT_ONCE = 1 << 20
_COLUMNS = [("key", pa.binary()), ("code", pa.uint16()), ("label", pa.float64())]


def write_labels_table(folder: Path, manifest: Manifest) -> Path:
    """Write ``labels.parquet`` beside a fetched release's rows, unless it is there.

    Its columns are those of :class:`labelveil.common.release.table.Release`; a million rows are in
    memory at a time.
    """
    manifest.check_codes()
    path = folder / LABELS_FILE
    if path.is_file():
        return path
    schema = pa.schema(_COLUMNS if len(manifest.labels) == 1 else _COLUMNS[:2])
    rows = open_rows(folder, manifest)
    with (
        appearing(path, durable=True, mode=PUBLIC) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for start, stop in block_ranges(manifest.population.rows, _ROWS_AT_ONCE):
            keys, codes = rows.read(start, stop)
            column = pa.nulls(codes.size, pa.binary())
            if keys.size:
                column = keys_column(keys).to_arrow().cast(pa.binary())
            # by way of Polars: Arrow would import pandas to see whether these are its arrays
            labels = map(pl.Series, stands_for(manifest, codes).values())
            others = [pl.Series(codes), *labels]
            columns = [column, *(each.to_arrow() for each in others)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return path
