"""Reading features a batch at a time takes memory for a batch."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labelveil.common.errors import DataError
from labelveil.feature_party.schema_search import find_schema
from labelveil.feature_party.tables import (
    FeatureFile,
    collect_table,
    plain_files,
    record_batches,
    scan_table,
)
from tests.refusals import check_refused

ROWS = 20_000


@pytest.mark.slow
def test_batches_take_the_memory_of_a_few_of_them(tmp_path: Path) -> None:
    path = tmp_path / "keys.parquet"
    schema = pa.schema([("key", pa.binary(100)), ("code", pa.int32())])
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(20):
            keys = pa.array([os.urandom(100) for _ in range(ROWS)], pa.binary(100))
            writer.write_table(pa.table([keys, pa.nulls(ROWS, pa.int32())], schema=schema))
    before, most, seen = pa.total_allocated_bytes(), 0, 0
    for batch in record_batches(path, ["key"], ROWS // 2):
        assert batch.schema.names == ["key"]
        seen += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert seen == 20 * ROWS
    assert most < path.stat().st_size / 4


def test_a_file_that_is_cut_off_is_named_by_whatever_reads_it(tmp_path: Path) -> None:
    path, copy = tmp_path / "t.parquet", tmp_path / "copy.parquet"
    pq.write_table(pa.table({"a": list(range(9_000))}), path, row_group_size=1_000)
    whole = path.read_bytes()
    file, table = FeatureFile(path), scan_table(path)
    path.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    check_refused(lambda: list(file.batches(["a"])), DataError, r"t\.parquet")
    check_refused(lambda: file.to_parquet(copy), DataError, r"t\.parquet")
    assert not copy.exists()
    check_refused(lambda: collect_table(table), DataError, "the table cannot be read")
    path.write_bytes(whole[: len(whole) // 2])
    check_refused(lambda: scan_table(path), DataError, r"t\.parquet")
    check_refused(lambda: plain_files(path), DataError, r"t\.parquet")


def test_a_line_of_too_many_cells_is_refused_whatever_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "features.csv"
    path.write_text("key,x,y\na,1,2\nb,1,000,2\n")
    with pytest.raises(DataError, match="line 3 has 4 cells, and the header 3"):
        list(FeatureFile(path).batches(["x"]))


def test_a_pipe_is_not_read_a_second_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "features.csv")
    check_refused(lambda: scan_table(tmp_path / "features.csv"), DataError, "write it to a file")


def test_categories_of_pandas_that_are_whole_numbers_are_categories() -> None:
    """Polars takes 98101, the name of a place, for the number."""
    table = pd.DataFrame({7: pd.Categorical([98101, 1230, None, 98101])}).assign(x=[1, 2, 3, 4])
    read = collect_table(table)
    assert read["7"].cast(pl.String).to_list() == ["98101", "1230", None, "98101"]
    assert str(find_schema([read], 4).schema["7"]) == "category of numbers"
    assert read["x"].dtype == pl.Int64
    assert table[7].cat.categories.tolist() == [1230, 98101], "the caller's table is as it was"
    shares = collect_table(pd.DataFrame({"x": pd.Categorical([0.5, 1.5])}))
    assert shares["x"].to_list() == [0.5, 1.5]
