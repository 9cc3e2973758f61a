"""A folder of Parquet, read by both parties: partitions, columns that came later, other types."""

from __future__ import annotations

import gzip
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labelveil.common.csv_files import read_table
from labelveil.common.errors import DataError
from labelveil.feature_party.schema import NOTHING, Stated
from labelveil.feature_party.tables import FeatureFile, check_type_of_key, scan_table
from labelveil.label_party.sources.tables import columns_of
from tests.label_party.sources.reading import read_events


def _write(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def _features(folder: Path, stated: Stated = NOTHING) -> dict[str, list[Any]]:
    """What the features party makes of every column, found and read as training does."""
    table = FeatureFile(folder)
    schema = table.find_schema(stated, without="id").schema
    names = [column.name for column in schema.columns if column.name not in stated.ignored]
    batches = list(table.batches(names))
    return {
        name: [value for batch in batches for value in schema[name].read(batch[name])]
        for name in names
    }


def test_the_folders_of_partitions_are_a_column_for_both_parties(tmp_path: Path) -> None:
    """As Spark writes them: nested, escaped, one for what is null, with marks beside them."""
    folder = tmp_path / "env=prod" / "sales"  # what lies above the folder is no column
    for day, shop, number in (
        ("2026-01-02", "caf%C3%A9 %3D 1", 3),
        ("2026-01-01", "north", 1),
        ("2026-01-01", "__HIVE_DEFAULT_PARTITION__", 2),
    ):
        part = folder / f"day={day}" / f"shop={shop}" / "part-00000.snappy.parquet"
        _write(part, id=[f"e{number}"], y=[float(number)])
        (part.parent / ".part-00000.snappy.parquet.crc").write_bytes(b"x")
    (folder / "_SUCCESS").touch()
    _write(folder / "_temporary" / "day=2026-01-03" / "a.parquet", id=["e9"], y=[9.0])
    assert columns_of(folder) == ["id", "y", "day", "shop"]
    events = read_events(folder, "id", labels=["y"], day=("day", "2026-01-01"))[0]
    assert sorted(events.select("key", "label").rows()) == [("e1", 1.0), ("e2", 2.0)]
    table = scan_table(folder).collect().sort("id")
    assert table["shop"].to_list() == ["north", None, "café = 1"]
    read = _features(folder)
    assert sorted(map(str, read["day"])) == ["2026-01-01", "2026-01-01", "2026-01-02"]
    assert sorted(read["shop"]) == ["\0missing", "café = 1", "north"]


def test_a_column_of_a_file_is_taken_before_its_folder(tmp_path: Path) -> None:
    _write(tmp_path / "day=1" / "a.parquet", id=["a"], day=["x"], y=[1.0])
    assert scan_table(tmp_path).collect()["day"].to_list() == ["x"]
    assert columns_of(tmp_path) == ["id", "day", "y"]


@pytest.mark.parametrize("log", ["_delta_log", ".hoodie"])
def test_a_folder_that_keeps_deleted_rows_is_refused(log: str, tmp_path: Path) -> None:
    _write(tmp_path / "a.parquet", id=["a"], y=[1.0])
    (tmp_path / log).mkdir()
    for read in (columns_of, scan_table):
        with pytest.raises(DataError, match="keeps rows that were deleted"):
            read(tmp_path)


def test_types_that_hold_each_other_become_one(tmp_path: Path) -> None:
    big = 2**62 + 1
    _write(
        tmp_path / "a.parquet",
        id=pa.array([1], pa.int32()),
        n=pa.array([1], pa.int32()),
        u=pa.array([big], pa.int64()),
        t=pa.array(["x"]),
        e=pa.nulls(1),
        at=pa.array([date(2026, 1, 1)]),
        d=pa.array([Decimal("1.5")], pa.decimal128(9, 2)),
    )
    _write(
        tmp_path / "b.parquet",
        u=pa.array([big], pa.uint64()),
        t=pa.array(["x"]).dictionary_encode(),
        e=["y"],
        at=pa.array([datetime(2026, 1, 2, 3)], pa.timestamp("us")),
        d=[2.25],
        n=[2.5],
        id=pa.array([2], pa.decimal128(38, 0)),
    )
    events = read_events(tmp_path, "id", labels=["n"])[0]
    assert events.select("key", "label").rows() == [("1", 1.0), ("2", 2.5)]
    assert read_events(tmp_path, "u", labels=["d"])[0]["key"].to_list() == [str(big)] * 2
    for day, key in (("2026-01-01", "1"), ("2026-01-02", "2")):
        assert read_events(tmp_path, "id", day=("at", day))[0]["key"].to_list() == [key]
    read = _features(tmp_path)
    assert read["n"] == [1.0, 2.5]
    assert read["t"] == ["x", "x"]
    assert read["d"] == [1.5, 2.25]
    assert read["e"] == ["\0missing", "y"]


def test_a_column_that_came_later_is_missing_in_features_and_refused_in_labels(
    tmp_path: Path,
) -> None:
    _write(tmp_path / "a.parquet", id=["a"], y=[1.0])
    _write(tmp_path / "b.parquet", id=["b"], y=[2.0], z=[3.0])
    assert _features(tmp_path) == {"y": [1.0, 2.0], "z": [None, 3.0]}
    assert read_events(tmp_path, "id", labels=["y"])[0]["label"].to_list() == [1.0, 2.0]
    with pytest.raises(DataError, match=r"a\.parquet has no column 'z', which other files"):
        read_events(tmp_path, "id", labels=["z"])


def test_a_type_that_no_other_holds_stops_only_who_wants_it_and_names_file_and_column(
    tmp_path: Path,
) -> None:
    moment = [datetime(2026, 1, 1)]  # of which only one says in which zone
    at, elsewhere = pa.array(moment), pa.array(moment, pa.timestamp("us", "UTC"))
    _write(tmp_path / "a.parquet", id=["a"], y=[1.0], z=[1], s=[{"a": 1}], at=at)
    _write(
        tmp_path / "b.parquet", id=["b"], y=[2.0], z=["73571"], s=[{"a": 1, "b": 2}], at=elsewhere
    )
    assert read_events(tmp_path, "id", labels=["y"])[0]["label"].to_list() == [1.0, 2.0]
    with pytest.raises(DataError, match=r"'at' has type Datetime.* in a\.parquet and Datetime"):
        read_events(tmp_path, "id", day=("at", "2026-01-01"))
    both = r"'z' has type Int64 in a\.parquet and String in b\.parquet"
    with pytest.raises(DataError, match=both) as raised:
        read_events(tmp_path, "id", labels=["z"])
    assert "73571" not in str(raised.value)
    with pytest.raises(DataError, match=both):
        _features(tmp_path, Stated(ignored=("s", "at")))
    assert _features(tmp_path, Stated(ignored=("s", "z", "at"))) == {"y": [1.0, 2.0]}


def test_the_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    _write(tmp_path / "a.parquet", id=["a"], y=[1.0])
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing more")
    for read in (columns_of, scan_table):
        with pytest.raises(DataError, match=r"b\.parquet cannot be read"):
            read(tmp_path)


@pytest.mark.parametrize("name", ["sales.csv.gz", "sales.csv", "sales.txt"])
def test_packed_features_are_called_so(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"id,y\na,1\n"))
    for read in (scan_table, read_table):
        with pytest.raises(DataError, match=r"is compressed \(gzip\); unpack it first"):
            read(tmp_path / name)


def test_keys_of_another_type_in_one_file_are_named_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    for name, ids in (("a", [1, 2]), ("b", [3.0, 4.0])):
        _write(folder / f"{name}.parquet", id=ids, y=[1.0, 2.0])
    said = "key column 'id' has type Float64; .*; it is Int64 in a.parquet and Float64 in b.parquet"
    with pytest.raises(DataError, match=said):
        check_type_of_key(folder, "id")
    with pytest.raises(DataError, match=said):
        read_events(folder, "id", labels=["y"])


def test_a_copy_of_what_is_not_read_as_it_is_can_be_read(tmp_path: Path) -> None:
    _write(
        tmp_path / "a.parquet",
        id=["a", "b"],
        wide=pa.array([1, 2], pa.decimal256(76, 38)),
        kind=pa.array(["u", "v"]).dictionary_encode(),
        some=[[1], [2]],
        y=[1.5, 2.5],
    )
    stated = Stated(ignored=("wide", "some"))
    found = FeatureFile(tmp_path / "a.parquet").to_parquet(tmp_path / "b.parquet", stated, "id")
    copy = pl.read_parquet(tmp_path / "b.parquet")
    assert found.schema["kind"].read(copy["kind"]).to_list() == ["u", "v"]
    assert copy["y"].to_list() == [1.5, 2.5]
    with pytest.raises(DataError, match=r"'wide' has type Decimal.*, of more than 38 digits"):
        found.schema["wide"].read(copy["wide"])
