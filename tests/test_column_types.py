"""What the page of column types says, tried: files as warehouses write them, at both doors."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pandas as pd
import polars.selectors as cs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labelveil.children import child_command, child_environment
from labelveil.common.errors import DataError
from labelveil.common.parquet_files import periods
from labelveil.common.release.event_keys import canonical_keys
from labelveil.feature_party.schema import Stated
from labelveil.feature_party.tables import FeatureFile, collect_table, scan_table
from labelveil.label_party.sources.tables import declared_type
from tests.effort import one_in
from tests.label_party.sources.reading import read_events

PAGE = Path(__file__).parents[1] / "docs/how-to/column-types.md"
_ID = UUID("6F9619FF-8B86-D011-B42D-00CF4FC964FF")
_MOMENT = datetime(2026, 1, 31, 12, 30)
VALUES: dict[str, Any] = {
    "string": pa.array(["12"]),
    "large_string": pa.array(["12"], pa.large_string()),
    "dictionary of strings": pa.array(["12"]).dictionary_encode(),
    "bool": pa.array([True]),
    "int8": pa.array([12], pa.int8()),
    "int16": pa.array([12], pa.int16()),
    "int32": pa.array([12], pa.int32()),
    "int64": pa.array([12], pa.int64()),
    "uint64": pa.array([2**64 - 1], pa.uint64()),
    "float": pa.array([1.5], pa.float32()),
    "double": pa.array([1.5], pa.float64()),
    "decimal128(9, 2)": pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
    "decimal128(38, 0)": pa.array([Decimal(10**37)], pa.decimal128(38, 0)),
    "decimal128(38, 9)": pa.array([Decimal("1.50")], pa.decimal128(38, 9)),
    "decimal256(76, 38)": pa.array([Decimal("1.50")], pa.decimal256(76, 38)),
    "uuid": pa.array([_ID.bytes], pa.uuid()),
    "fixed_size_binary[16]": pa.array([_ID.bytes], pa.binary(16)),
    "binary of 16 bytes": pa.array([_ID.bytes], pa.binary()),
    "binary": pa.array([b"12"], pa.binary()),
    "date32": pa.array([date(2026, 1, 31)]),
    "timestamp[ms]": pa.array([_MOMENT], pa.timestamp("ms")),
    "timestamp[us]": pa.array([_MOMENT], pa.timestamp("us")),
    "timestamp[ns]": pa.array([_MOMENT], pa.timestamp("ns")),
    "timestamp[us, tz=UTC]": pa.array([_MOMENT.replace(tzinfo=UTC)], pa.timestamp("us", "UTC")),
    "timestamp as INT96": pa.array([_MOMENT], pa.timestamp("ns")),
    "time32[ms]": pa.array([time(12, 30)], pa.time32("ms")),
    "time64[us]": pa.array([time(12, 30)], pa.time64("us")),
    "time64[ns]": pa.array([time(12, 30)], pa.time64("ns")),
    "duration[s]": pa.array([timedelta(seconds=12)], pa.duration("s")),
    "duration[ms]": pa.array([timedelta(seconds=12)], pa.duration("ms")),
    "duration[us]": pa.array([timedelta(seconds=12)], pa.duration("us")),
    "duration[ns]": pa.array([timedelta(seconds=12)], pa.duration("ns")),
    "null": pa.nulls(1),
    "list": pa.array([[12]]),
    "struct": pa.array([{"a": 12}]),
    "map": pa.array([[("a", 12)]], pa.map_(pa.string(), pa.int64())),
}
"""A column of each type that the page names, of one cell."""


def _tables() -> list[list[list[str]]]:
    """The page's tables: rows of cells, without their headings."""
    found: list[list[list[str]]] = []
    inside = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        row = line.startswith("|")
        if row and not inside:
            found.append([])
        inside = row
        if row:
            cells = re.split(r"(?<!\\)\|", line.strip("|"))
            found[-1].append([cell.strip() for cell in cells])
    return [table[2:] for table in found]


def _said(read: Any) -> str:
    try:
        return str(read())
    except DataError as error:
        return "refused" if "column 'x' has type" in str(error) else str(error)


def _key(path: Path) -> str:
    keys = collect_table(scan_table(path).select(cs.by_name("x")))["x"]
    theirs = read_events(path, "x", labels=["id"])[0]["key"]
    if theirs.is_empty():  # a row of the labels party's that names no event
        with pytest.raises(DataError, match=r"missing values|are no UUID"):
            canonical_keys(keys)
        return "none"
    ours = canonical_keys(keys)
    assert ours.to_list() == theirs.to_list()  # or no event would match
    return f"`{theirs[0]}`"


def _label(path: Path) -> str:
    value = read_events(path, "id", labels=["x"])[0]["label"][0]
    return "missing" if value is None else f"`{value:g}`"


def _feature(path: Path) -> str:
    table = FeatureFile(path)
    meaning = table.find_schema(without="id").schema["x"]
    batch = next(table.batches(["x"]))
    value = meaning.read(batch["x"])[0]
    in_memory = meaning.read(collect_table(scan_table(path))["x"])[0]
    assert str(value) == str(in_memory)
    if value in (None, "\0missing"):
        return f"{meaning.kind}, missing"
    return (
        f"{meaning.kind} `{value:g}`" if isinstance(value, float) else f"{meaning.kind} `{value}`"
    )


TYPES, SYSTEMS = _tables() if PAGE.exists() else ([], [])


@pytest.mark.parametrize("row", one_in(3, TYPES), ids=lambda row: row[0].strip("`"))
def test_a_type_is_what_the_page_says_as_key_label_and_feature(
    row: list[str], tmp_path: Path
) -> None:
    name = row[0].strip("`")
    path = tmp_path / "table.parquet"
    only_arrow = name.startswith(("duration", "null"))
    for stored in (True,) if only_arrow else (True, False):  # warehouses do not describe it
        table = pa.table({"id": pa.array([1]), "x": VALUES[name], "y": pa.array([2.5])})
        pq.write_table(
            table,
            path,
            store_schema=stored,
            store_decimal_as_integer="decimal" in name and not stored,
            use_deprecated_int96_timestamps="INT96" in name,
        )
        said = [_said(lambda read=read: read(path)) for read in (_key, _label, _feature)]
        assert said == row[1:]
        # what cannot be read stops only whoever wants it
        assert read_events(path, "id", labels=["y"])[0]["label"].to_list() == [2.5]
        features = FeatureFile(path)
        found = features.find_schema(Stated(ignored=("x",)), without="id").schema
        batch = next(features.batches(["y"]))
        assert found["y"].read(batch["y"]).to_list() == [2.5]


def test_times_that_arrow_calls_seconds_are_refused_by_name_and_never_misread(
    tmp_path: Path,
) -> None:
    """Parquet has milliseconds, and Polars 1.44 takes them for seconds: 12:30 was no time."""
    table = pa.table({"id": [1], "x": pa.array([time(12, 30)], pa.time32("s")), "y": [2.5]})
    for folder in (tmp_path / "one.parquet", tmp_path / "folder"):
        path = folder if folder.suffix else folder / "a.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path)
        features = FeatureFile(folder)
        with pytest.raises(
            DataError, match=r"'x' has type time32\[s\], to be written as time32\[ms"
        ):
            features.find_schema(without="id").schema["x"].read(next(features.batches(["x"]))["x"])
        found = features.find_schema(Stated(ignored=("x",)), without="id").schema
        assert found["y"].read(next(features.batches(["y"]))["y"]).to_list() == [2.5]
    pq.write_table(table, tmp_path / "one.parquet", store_schema=False)
    assert _feature(tmp_path / "one.parquet") == "time `45000`"


def test_periods_of_pandas_are_refused_by_name_and_never_taken_for_their_numbers(
    tmp_path: Path,
) -> None:
    """March 2026 is stored as 674, and so is the 6th of November 1971."""
    months = pd.period_range("2026-03", periods=2, freq="M")
    frame = pd.DataFrame({"id": [1, 2], "x": months, "y": [2.5, 3.5]})
    remedy = r"column 'x' has type period\[M\], to be written as dates \(in pandas .dt.to_timestamp"
    for folder in (tmp_path / "one.parquet", tmp_path / "folder"):
        path = folder if folder.suffix else folder / "a.parquet"
        path.parent.mkdir(exist_ok=True)
        frame.to_parquet(path)
        for read in (_key, _label, _feature):
            with pytest.raises(DataError, match=remedy):
                read(folder)
        assert read_events(folder, "id", labels=["y"])[0]["label"].to_list() == [2.5, 3.5]
        found = FeatureFile(folder).find_schema(Stated(ignored=("x",)), without="id").schema
        batch = next(FeatureFile(folder).batches(["y"]))
        assert found["y"].read(batch["y"]).to_list() == [2.5, 3.5]
    named = frame.assign(x=months.astype("category"))
    for table in (frame, pa.Table.from_pandas(frame), named):
        with pytest.raises(DataError, match=remedy):
            collect_table(table)
    dates = collect_table(frame.assign(x=frame["x"].dt.to_timestamp()))["x"]
    assert [moment.date() for moment in dates] == [date(2026, 3, 1), date(2026, 4, 1)]


def test_a_name_that_two_columns_have_is_said_by_both_parties(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table([[1], [2.0], [3.0]], names=["id", "y", "y"]), path)
    said = r"table.parquet cannot be read: column with name 'y' has .*; rename all but one"
    with pytest.raises(DataError, match=said):
        read_events(path, "id", labels=["y"])
    with pytest.raises(DataError, match=said):
        declared_type(path, "y")
    with pytest.raises(DataError, match=said):
        FeatureFile(path).find_schema(without="id")


@pytest.mark.parametrize("described", ["", "{", "[]", '{"columns": [1]}', '{"columns": [{}]}'])
def test_a_description_that_is_none_of_pandas_names_no_periods(described: str) -> None:
    assert periods(described) == {}


def test_the_page_has_a_row_for_each_type_and_names_none_without() -> None:
    assert [row[0].strip("`") for row in TYPES] == list(VALUES)
    named = {name for _, _, cell in SYSTEMS for name in re.findall("`([^`]+)`", cell)}
    assert named <= {*VALUES}
    assert {system for system, *_ in SYSTEMS if system} == {
        *(
            "BigQuery",
            "Snowflake",
            "Databricks, Spark",
            "Redshift",
            "PostgreSQL",
            "MySQL",
            "SQLite",
        ),
    }


@pytest.mark.slow
def test_a_program_says_nothing_of_named_types_that_it_reads_as_they_are_stored(
    tmp_path: Path,
) -> None:
    """Polars warns of each, with a place in our code and advice for who programs."""
    text = pa.array(['{"a": 1}', "2"], pa.json_())
    pq.write_table(pa.table({"id": [1, 2], "x": text, "y": [1, 2]}), tmp_path / "table.parquet")
    asked = "--labels table.parquet --key id --label y --data-set d --lower 0 --upper 3 --epsilon 1"
    command = child_command("label_party", "init", *asked.split(), "--new-secret")
    done = subprocess.run(
        command, cwd=tmp_path, env=child_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "arning" not in done.stderr
