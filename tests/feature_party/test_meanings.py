"""What cells mean, in words and numbers that were written down by hand."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from labelveil.common.errors import ConfigError, DataError
from labelveil.feature_party import tables
from labelveil.feature_party.schema import (
    MISSING,
    ColumnMeaning,
    Found,
    Schema,
    Stated,
    canonical_text,
    numbers_rows,
)
from labelveil.feature_party.schema_search import SchemaSearch, find_schema, undecided
from labelveil.feature_party.tables import (
    FeatureFile,
    check_key,
    check_type_of_key,
    collect_table,
    file_of,
    is_parquet,
    is_streamed,
    plain_files,
    record_batches,
    rows_of,
)


def found(cells: list[Any], name: str = "x", *, typed: bool = False, **stated: Any) -> str:
    """What one column of text, or of a type, is taken for."""
    series = pl.Series(name, cells)
    given = Stated.from_settings(**{"columns": {}, **stated})
    (line,) = find_schema([series.to_frame()], len(cells), given, typed=typed).lines
    assert line[0] == name
    return line[1]


@pytest.mark.parametrize(
    ("cell", "meaning", "value"),
    [
        ("1,234.5", "number 1,234.5", 1234.5), ("-1,234,567", "number 1,234.5", -1234567.0),
        ("1,23", "number 1,234.5", None), ("12", "number 1,234.5", 12.0),
        ("1.234,5", "number 1.234,5", 1234.5), ("+1.234", "number 1.234,5", 1234.0),
        ("1 234.5", "number 1 234.5", 1234.5), ("1\u202f234,5", "number 1 234,5", 1234.5),
        ("1'234.5", "number 1'234.5", 1234.5), ("1’234", "number 1'234.5", 1234.0),
        ("1e3", "number", 1000.0), ("1e3", "number 1.234,5", None),
        ("1e3", "number 1,234.5", 1000.0),  # as programs write it, where points are decimal
        ("inf", "number", None), ("nan", "number", None), ("", "number", None),
        (" 7 ", "number", 7.0), ("NA", "number", None), ("-", "number; missing: -", None),
        ("10:30", "time", 37800.0), ("1:02:03", "time", 3723.0), ("10:30:59.25", "time", 37859.0),
        ("10.30", "time", None), ("true", "true/false", 1.0), ("FALSE", "true/false", 0.0),
        ("1", "true/false", 1.0), ("2", "true/false", None),
        ("17850.0", "category of numbers", "17850"), ("17850", "category of numbers", "17850"),
        ("C1", "category of numbers", "C1"), ("", "category of numbers", MISSING),
        ("NA", "category", "NA"), ("", "category", MISSING),
        ("x", "category; missing: x, y", MISSING),
        ("31/12/2025", "date %d/%m/%Y", date(2025, 12, 31)),
        ("12/31/25", "date %m/%d/%y", date(2025, 12, 31)),
        ("31.12.2025", "date %d/%m/%Y", None), ("3 Feb 2025", "date %d %b %Y", date(2025, 2, 3)),
        ("Feb 3, 2025", "date %b %d, %Y", date(2025, 2, 3)),
        ("31/12/2025 23:59", "date %d/%m/%Y %H:%M", datetime(2025, 12, 31, 23, 59)),
        ("31/12/2025 01:02:03", "date %d/%m/%Y %H:%M", datetime(2025, 12, 31, 1, 2, 3)),
        ("31/12/2025", "date %d/%m/%Y %H:%M", datetime(2025, 12, 31)),
        ("2025-12-31T01:02:03.5Z", "date", datetime(2025, 12, 31, 1, 2, 3)),
        ("2025-2-30", "date", None),
    ],
)  # fmt: skip
def test_a_cell_has_this_value(cell: str, meaning: str, value: object) -> None:
    column = ColumnMeaning.parse("x", meaning)
    assert str(column) == meaning
    read = column.read(pl.Series([cell]))
    assert read.name == ""
    assert read.to_list() == [value]
    # the same among others, most of them alike
    assert column.read(pl.Series([cell] * 50))[17] == value


@pytest.mark.parametrize(
    ("cells", "meaning", "values"),
    [
        ([True, None], "true/false", [1.0, None]),
        ([0, 1, 2], "true/false", [0.0, 1.0, None]),
        ([time(1, 2, 3)], "time", [3723.0]),
        ([timedelta(minutes=2)], "number", [120.0]),
        ([date(2025, 1, 2)], "date", [date(2025, 1, 2)]),
        ([datetime(2025, 1, 2, 3)], "date", [datetime(2025, 1, 2, 3)]),
        ([1.5, 9.0, None], "number; missing: 9, x", [1.5, None, None]),
        ([1.0, 2.5, float("nan"), None], "category", ["1", "2.5", MISSING, MISSING]),
        ([None, None], "category", [MISSING, MISSING]),
        ([None], "date", [None]),
        ([7], "number", [7.0]),
    ],
)
def test_a_typed_cell_has_this_value(cells: list[Any], meaning: str, values: list[Any]) -> None:
    read = ColumnMeaning.parse("x", meaning).read(pl.Series(cells))
    assert read.to_list() == pytest.approx(values) if meaning == "time" else values


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_durations_are_seconds(unit: Any) -> None:
    column = pl.Series([timedelta(seconds=90)]).cast(pl.Duration(unit))
    assert ColumnMeaning("x", "number").read(column).to_list() == [90.0]


@pytest.mark.parametrize(
    ("cells", "meaning"),
    [
        ([1.5], "date"), ([date(2025, 1, 1)], "number"), ([True], "number"), ([1], "time"),
        ([timedelta(1)], "date"),
    ],
)  # fmt: skip
def test_another_type_than_that_of_the_training_is_refused(cells: list[Any], meaning: str) -> None:
    column = ColumnMeaning.parse("x", meaning)
    with pytest.raises(
        DataError, match=f"column 'x' has type .* here, and is to hold a {column.kind}"
    ):
        column.read(pl.Series(cells))


@pytest.mark.parametrize("cells", [[[1]], [b"x"]])
def test_what_cannot_be_a_feature_is_named(cells: list[Any]) -> None:
    with pytest.raises(DataError, match="cannot be a feature; leave it out, or list it in"):
        ColumnMeaning("x", "category").read(pl.Series(cells))
    assert found(cells) == "other"


@pytest.mark.parametrize(
    ("meaning", "cells", "missing", "odd"),
    [
        ("number", ["1", "", "NA", "x", None], 3, 1),
        ("number; missing: x", ["1", "", "NA", "x", "y"], 3, 1),
        ("category", ["a", "", "NA", None], 2, 0),
        ("category; missing: NA", ["a", "", "NA", None], 3, 0),
        ("number; missing: -1", [1.0, -1.0, float("nan"), None], 3, 0),
        ("true/false", [0, 1, 2, None], 1, 1),
    ],
)
def test_missing_cells_are_counted_apart_from_odd_ones(
    meaning: str, cells: list[Any], missing: int, odd: int
) -> None:
    column, series = ColumnMeaning.parse("x", meaning), pl.Series(cells)
    assert column.unread(series, column.read(series)) == (missing, odd)


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        (["1", "2"], "number"),
        (["1.5", "2"], "number 1234.5"),
        (["012", "13"], "category"),
        (["1234567890123456", "1"], "category"),
        (["123456789012345", "1"], "number"),
        (["1,234.5", "2"], "number 1,234.5"),
        (["a", "b"], "category"),
        (["", "NA"], "category"),
        (["true", "False", "n/a"], "true/false; 1 cells missing: 'n/a'"),
        (["10:30"], "time"),
        (["2025-01-31"], "date %Y-%m-%d"),
        (["2025-01-31 10:30:00"], "date %Y-%m-%d %H:%M"),
        (["31/12/2025 10:30", "01/02/2025 00:00"], "date %d/%m/%Y %H:%M"),
        (["1.5"] * 99 + ["x"], "number 1234.5; 1 cells are none, the first in row 100, and count as"
                               " missing"),
        (["1.5"] * 98 + ["x"], "category"),
        (["", "x", *["1.5"] * 200, "y", "NA", "NA", "-"], None),
    ],
)  # fmt: skip
def test_a_column_of_text_is_taken_for(cells: list[str], line: str | None) -> None:
    if line is None:
        line = (
            "number 1234.5; 3 cells missing: 'NA', '-'; 2 cells are none, the first in row 2, and"
            " count as missing"
        )
    assert found(cells) == line


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        ([True], "true/false"), ([date(2025, 1, 1)], "date %Y-%m-%d"),
        ([datetime(2025, 1, 1)], "date %Y-%m-%d %H:%M"), ([time(1)], "time"),
        ([timedelta(1)], "number"), ([None], "category"), ([1.5], "number"),
    ],
)  # fmt: skip
def test_a_column_of_a_type_is_taken_for(cells: list[Any], line: str) -> None:
    assert found(cells, typed=True) == line


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("id", True), ("customer_id", True), ("customer id", True), ("CustomerID", True),
        ("customerId", True), ("zip", True), ("post-code", True), ("sku", True), ("uuid", True),
        ("ids", True), ("width", False), ("idle", False), ("paid", False), ("zipper", False),
        ("CODE", False), ("recode", True), ("code_of_it", False),
    ],
)  # fmt: skip
def test_numbers_of_a_name_like_this_are_names(name: str, names: bool) -> None:
    line = "category of numbers" if names else "number"
    for cells in ([1, 2, 3], [1.0, 2.0, None], ["1", "2"]):
        assert found(cells, name, typed=not isinstance(cells[0], str)) == line
    assert found([1.5, 2.0], name, typed=True) == "number"
    assert found([1, 2], name, typed=True, numeric=[name]) == "number"
    # whoever writes whole numbers as text in a table of types names something
    assert found(["1", "2"], name, typed=True) == "category of numbers"


def test_what_can_be_read_in_two_ways_is_decided_by_other_columns() -> None:
    """Cells of other columns that leave no doubt decide, or nothing does."""

    def meanings(**columns: list[str]) -> dict[str, str]:
        table = pl.DataFrame(columns)
        schema = find_schema([table], table.height, typed=False).schema
        return {column.name: str(column) for column in schema.columns}

    two = ["1,234", "2,345"]
    assert meanings(x=two, y=["1,234.5", "2"])["x"] == "number 1,234.5"
    assert meanings(x=two, y=["1.234,5", "2"])["x"] == "number 1.234,5"
    days, others = ["01/02/2025", "03/04/2025"], ["1", "2"]
    assert meanings(x=days, y=["31/12/2025", "1/1/2025"])["x"] == "date %d/%m/%Y"
    assert meanings(x=days, y=["12/31/2025", "1/1/2025"])["x"] == "date %m/%d/%Y"
    for contradiction in (
        {"x": two, "y": ["1,234.5", "2"], "z": ["1.234,5", "2"]},
        {"x": days, "y": ["31/12/2025", "1/1/2025"], "z": ["12/31/2025", "1/1/2025"]},
        {"x": two, "y": others}, {"x": days, "y": others},
    ):  # fmt: skip
        with pytest.raises(DataError, match=r"column 'x' can be read in two ways, from row 1 on"):
            meanings(**contradiction)
    # a point is decimal unless a comma is
    assert meanings(x=["1.234", "2.345"])["x"] == "number 1234.5"
    assert meanings(x=["1.234", "2.345"], y=["1.234,5", "2"])["x"] == "number 1.234,5"
    assert meanings(x=["1.234"] * 2, y=["1.234,5", "2"], z=["1.5", "2"])["x"] == "number 1234.5"


def test_what_is_refused_says_where_and_what_to_write() -> None:
    with pytest.raises(DataError) as caught:
        found(["", "7", "1,234", "2,345"])
    assert str(caught.value) == (
        "column 'x' can be read in two ways, from row 3 on, and no cell of it decides; write one of"
        " them in [data.columns], in columns= of Python, or in --columns of simulate: 'x' ="
        " 'number 1,234.5' or 'x' = 'number 1.234,5'"
    )
    mixed = ["5", *["31/12/2025"] * 50, *["12/31/2025"] * 50]
    with pytest.raises(DataError) as caught:
        found(mixed)
    assert "column 'x' holds dates that are written in several ways, from row 2 on" in str(
        caught.value
    )
    assert "none of these fits 99% of its 101 cells" in str(caught.value)
    assert "'x' = 'date' takes the way of most" in str(caught.value)
    for stated, said in (
        (
            {"columns": {"x": "number"}},
            "'x' is said to hold a number, and none of its 2 cells",
        ),
        (
            {"numeric": ["x"]},
            "'x' is listed in .data. numeric, and none of its 2 cells is",
        ),
    ):
        with pytest.raises(DataError, match=said):
            found(["a", "", "b"], **stated)
    search = SchemaSearch(2, path=Path("table.csv"), typed=False)
    search.add(pl.DataFrame({"x": ["1,234", "2,345"]}))
    with pytest.raises(DataError, match=r"^table.csv: column 'x' can be read"):
        search.found()


def test_what_is_said_of_a_column_holds_whatever_its_cells_are() -> None:
    cells = ["1.5", "x", "y"]
    assert found(cells, columns={"x": "number"}).startswith("number 1234.5; 2 cells are none, the")
    assert found(cells, numeric=["x"]).startswith("number 1234.5; 2 cells are none, the first in")
    assert found(["1", "2"], categorical=["x"]) == "category"
    assert found(["1,5", "2,5"], columns={"x": "number 1.234,5"}) == "number 1.234,5"
    assert found(["", "-"], columns={"x": "number; missing: -"}) == (
        "number; missing: -; 1 cells missing: '-'"
    )
    assert found(["a", "-"], ignored=["x"]) == "category"


def test_contradictions_of_what_is_said_are_named() -> None:
    for lists in (
        {"columns": {}, "numeric": ["x", "y"], "categorical": ["y"]},
        {"columns": {"y": "number"}, "numeric": ["y"]},
        {"columns": {"y": "number"}, "categorical": ["y"]},
    ):
        with pytest.raises(ConfigError, match="column 'y' is said to be two things in"):
            Stated.from_settings(**lists)  # type: ignore[arg-type]
    stated = Stated.from_settings({"a": "number", "b": " ignore "}, ["c"], ["d"], ["e"])
    assert stated.ignored == ("e", "b")
    assert [str(meaning) for meaning in stated.given] == ["number", "category"]
    assert stated.facts() == [[("a", "number"), ("d", "category")], ["c"], ["b", "e"]]
    stated.check(["a", "c", "d"])
    for lacking in ("a", "c", "d"):
        with pytest.raises(ConfigError, match=f"names the column '{lacking}', which the features"):
            stated.check([name for name in "acd" if name != lacking])


def test_columns_are_shown_with_what_became_of_them() -> None:
    schema = Schema((ColumnMeaning("a", "number"), ColumnMeaning("", "time")))
    lines = Found(schema, (("a", "number"), ("", "time"), ("c", "category"))).describe(["c"])
    assert lines == ["a: number", "the column without a name: time", "c: ignored"]
    assert schema["a"].kind == "number"
    assert schema.meaning("b") == ColumnMeaning("b", "category")


@pytest.mark.parametrize("text", ["numbers", "number 1.5", "date %d", "time x", "category x", ""])
def test_what_is_no_meaning_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"columns\.x=.* must be number, number 1234\.5, number"):
        ColumnMeaning.parse("x", text)


def test_texts_of_numbers_are_one_whatever_wrote_them() -> None:
    floats = pl.Series([17850.0, -3.0, 0.5, 2.0**53, 1e300, float("inf"), float("nan"), None])
    assert canonical_text(floats).to_list()[:3] == ["17850", "-3", "0.5"]
    assert canonical_text(floats).to_list()[6:] == [MISSING, MISSING]
    assert canonical_text(pl.Series([2.0**53 - 1])).to_list() == ["9007199254740991"]
    assert canonical_text(pl.Series([2.0**53])).to_list() != ["9007199254740992"]
    assert canonical_text(pl.Series([5, None])).to_list() == ["5", MISSING]
    assert canonical_text(pl.Series(["a", None])).to_list() == ["a", MISSING]


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (list(range(100)), True), (list(range(99)), False), ([*range(99), 98], False),
        ([2 * i for i in range(100)], True), ([*range(99), 199], True), ([*range(99), 200], False),
        ([float(i) for i in range(100)], False), ([str(i) for i in range(100)], True),
        ([*map(str, range(99)), "x"], False),
    ],
)  # fmt: skip
def test_whole_numbers_of_which_no_two_are_alike_number_the_rows(
    cells: list[Any], numbers: bool
) -> None:
    series, meaning = pl.Series(cells), ColumnMeaning("x", "number")
    assert numbers_rows(series, meaning.read(series), meaning) == numbers


def test_cells_decide_of_text_and_of_numbers_that_may_be_names() -> None:
    table = pl.DataFrame(
        {"a": ["x"], "id": [1.0], "b": [1.0], "n_id": [1], "d": [date(2025, 1, 1)]}
    )
    assert undecided(table) == ["a", "id"]
    assert undecided(table, Stated.from_settings({"a": "category"})) == ["id"]
    search = SchemaSearch(3)
    search.add(pl.DataFrame({"id": [1.0, 2.0]}))
    assert not search.is_settled
    search.add(pl.DataFrame({"id": [1.5]}))
    assert search.is_settled
    assert str(search.found().schema["id"]) == "number"


def test_files_are_known_by_their_names(tmp_path: Path) -> None:
    assert [is_parquet(Path(name)) for name in ("a.parquet", "a.PQ", "a.csv")] == [
        True,
        True,
        False,
    ]
    assert is_parquet(tmp_path)
    assert file_of(Path("in/r.html"), "") == Path("in/r.html")
    assert file_of(Path("in/r.html"), "shoes") == Path("in/r-shoes.html")
    with pytest.raises(DataError, match=r"does not exist; name a CSV or Parquet file"):
        tables.table_files(tmp_path / "none.csv")
    (tmp_path / "a.csv").write_text("id,x\n1,2\n")
    assert plain_files(tmp_path / "a.csv") is None
    assert tables.table_files(tmp_path / "a.csv") == [tmp_path / "a.csv"]


def test_a_parquet_file_is_read_in_batches_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pl.DataFrame({"a": range(10), "b": range(10, 20), "": range(20, 30)})
    table.write_parquet(path)
    assert rows_of(path) == 10
    parts = list(record_batches(path, ["b", "a"], 4))
    assert [part.num_rows for part in parts] == [4, 4, 2]
    assert parts[0].schema.names == ["b", "a"]
    assert [part.schema.names for part in record_batches(path, ["", "a"], 20)] == [["", "a"]]
    file = FeatureFile(path)
    assert (file.rows, file.files) == (10, [path])
    batches = list(file.batches(["", "b"], 4))
    assert [batch.height for batch in batches] == [4, 4, 2]
    assert pl.concat(batches).equals(table.select("", "b"))
    path.write_bytes(b"PAR1")
    for read in (lambda: rows_of(path), lambda: list(FeatureFile(path).batches(["a"]))):
        with pytest.raises(DataError, match=r"t\.parquet"):
            read()


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Enum(["a", "", "7", "-"])])
def test_cells_of_any_type_of_text_are_missing_alike(kind: Any) -> None:
    column = pl.Series(["a", "", None, "7", "-", "a"], dtype=kind)
    for meaning, nothing in (
        (ColumnMeaning("x", "category"), (2, 0)),
        (ColumnMeaning("x", "category", missing=("7",)), (3, 0)),
        (ColumnMeaning("x", "number"), (3, 2)),
    ):
        assert meaning.unread(column, meaning.read(column)) == nothing


def test_what_is_found_from_cells_is_a_line_of_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,x,y\ne1,1.5,a\ne2,2,b\n")
    file = FeatureFile(path)
    assert file.found_in_cells(without="id") == {"x": "number 1234.5", "y": "category"}
    assert [column.name for column in file.find_schema(without="id").schema.columns] == ["x", "y"]
    with pytest.raises(ConfigError, match="names the column 'z', which the features do not have"):
        file.find_schema(Stated.from_settings({"z": "number"}))
    copy = tmp_path / "copy.parquet"
    assert file.to_parquet(copy, without="id").schema == file.find_schema(without="id").schema
    assert pl.read_parquet(copy).to_dict(as_series=False) == {
        "id": ["e1", "e2"], "x": [1.5, 2.0], "y": ["a", "b"],
    }  # fmt: skip
    typed = tmp_path / "typed.parquet"
    pl.DataFrame({"id": ["e1"], "x": [1.5]}).write_parquet(typed)
    again = FeatureFile(typed).to_parquet(tmp_path / "again.parquet", without="id")
    assert [str(column) for column in again.schema.columns] == ["number"]
    assert pl.read_parquet(tmp_path / "again.parquet").equals(pl.read_parquet(typed))
    (tmp_path / "empty.csv").write_text("id,x\n")
    assert FeatureFile(tmp_path / "empty.csv").rows == 0


def test_tables_are_streamed_where_memory_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    pl.DataFrame({"id": ["a", "b"], "x": [1, 2], "y": [1, 2]}).write_parquet(path)
    # six values of 150 bytes, and of each row of a release 120, in six tenths of the memory
    for rows, pages, streamed in ((0, 15, False), (0, 14.99, True), (5, 25, False), (6, 25, True)):
        sizes = {"SC_PAGE_SIZE": 100, "SC_PHYS_PAGES": pages}
        monkeypatch.setattr("os.sysconf", sizes.__getitem__)
        assert is_streamed(path, "id", "auto", rows) == streamed
        assert is_streamed(path, "id", "never", rows) is False
        assert is_streamed(path, "id", str(tmp_path), rows) is True
    with pytest.raises(DataError, match=r"no key column 'key'; set .* to one of: id, x, y"):
        is_streamed(path, "key", "auto", 0)


def test_tables_of_any_kind_are_taken(tmp_path: Path) -> None:
    table = pl.DataFrame({"x": [1, 2]})
    table.write_parquet(tmp_path / "t.parquet")
    for form in (table, table.lazy(), table.to_arrow(), table.to_pandas(), tmp_path / "t.parquet"):
        assert collect_table(form).to_dict(as_series=False) == {"x": [1, 2]}
    frame = table.to_pandas()
    wrong = frame.assign(y=[1, "a"])
    with pytest.raises(DataError, match="column 'y' of type object holds no numbers, texts, dates"):
        collect_table(wrong)
    twice = frame.assign(y=0).set_axis(["x", "x"], axis=1)
    with pytest.raises(DataError, match="the table has 2 columns 'x'; name each once"):
        collect_table(twice)
    with pytest.raises(DataError, match="a table of type list must be pandas', Polars' or Arrow's"):
        collect_table([1])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="column 'x' of type Object holds no numbers"):
        collect_table(pl.DataFrame({"x": pl.Series([object()], dtype=pl.Object)}))
    assert isinstance(table.to_arrow(), pa.Table)


def test_keys_are_there_and_of_a_type_that_can_be_hashed(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pl.DataFrame({"id": ["a"], "x": [1.5]})
    table.write_parquet(path)
    check_key(table.lazy(), "id")
    check_type_of_key(path, "id")
    with pytest.raises(DataError, match="keys must be text, whole numbers or UUIDs"):
        check_type_of_key(path, "x")
    table.with_columns(id=pl.lit(None)).write_parquet(path)
    check_type_of_key(path, "id")  # of no key at all something else is said


def test_what_later_cells_say_is_true_of_the_first_ones_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of numbers that turns out to have decimals is written anew, and no row twice."""
    path, whole = tmp_path / "t.csv", FeatureFile.batches
    path.write_text("id,x,day\na,3,2025-01-01\nb,4,2025-01-02\nc,0.5,2025-01-03 10:00:00\n")
    monkeypatch.setattr(FeatureFile, "batches", lambda self, names: whole(self, names, 1))
    found = FeatureFile(path).to_parquet(tmp_path / "t.parquet", without="id")
    assert [str(column) for column in found.schema.columns] == [
        "number 1234.5", "date %Y-%m-%d %H:%M",
    ]  # fmt: skip
    assert pl.read_parquet(tmp_path / "t.parquet").to_dict(as_series=False) == {
        "id": ["a", "b", "c"],
        "x": [3.0, 4.0, 0.5],
        "day": [datetime(2025, 1, 1), datetime(2025, 1, 2), datetime(2025, 1, 3, 10)],
    }


def test_errors_about_cells_name_the_file_that_they_are_in(tmp_path: Path) -> None:
    path, copy = tmp_path / "t.csv", tmp_path / "copy.parquet"
    path.write_text('id,x\na,"1,234"\nb,"2,345"\n')
    for read in (
        lambda: FeatureFile(path).find_schema(),
        lambda: FeatureFile(path).to_parquet(copy),
    ):
        with pytest.raises(DataError, match=rf"^{path}: column 'x' can be read in two ways"):
            read()
    pl.read_csv(path, infer_schema=False).write_parquet(copy)
    with pytest.raises(DataError, match=rf"^{path}: column 'x' can be read in two ways"):
        FeatureFile(copy, copy_of=path).find_schema()


def test_what_is_said_of_dates_takes_the_way_of_most() -> None:
    mixed = [*["31/12/2025"] * 60, *["12/31/2025"] * 40]
    line = found(mixed, columns={"x": "date"})
    assert line.startswith("date %d/%m/%Y; 40 cells are none, the first in row 61, and count as")
