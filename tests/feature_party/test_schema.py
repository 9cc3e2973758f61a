"""One meaning for each column: found from all cells, and the same in every file from then on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelveil.common.errors import ConfigError, DataError
from labelveil.common.table_cells import MISSING_WORDS
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.schema import (
    MISSING,
    ColumnMeaning,
    Schema,
    Stated,
    canonical_text,
    numbers_rows,
)
from labelveil.feature_party.schema_search import SchemaSearch, find_schema
from labelveil.feature_party.tables import FeatureFile
from tests.effort import effort


def meaning(cells: Iterable[object], name: str = "x", stated: Stated | None = None) -> str:
    table = pl.DataFrame({name: pl.Series(name, list(cells), strict=False)})
    found = find_schema([table], len(table), stated or Stated(), typed=False)
    return str(found.schema[name])


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (["1", "2", "-3"], "number"),
        (["1.5", "2", "1e3", " 7 ", "+.5"], "number 1234.5"),
        (["1,234", "999", "12,345.5"], "number 1,234.5"),
        (["1,234", "999", "1,234,567"], "number 1,234.5"),
        (["1,5", "2", "1.234,25"], "number 1.234,5"),
        (["0,125", "1,250"], "number 1.234,5"),  # a group of thousands does not begin with 0
        (["1.234", "2.500"], "number 1234.5"),
        (["1 234,5", "7", "1 000"], "number 1 234,5"),
        (["1\u202f234.5", "7"], "number 1 234.5"),
        (["1'234.50", "7"], "number 1'234.5"),
        (["2024-01-31", "2024-1-1"], "date %Y-%m-%d"),
        (["2024-01-31T10:00:00Z", "2024-02-01 11:30"], "date %Y-%m-%d %H:%M"),
        (["31/01/2024", "01/02/2024"], "date %d/%m/%Y"),
        (["01/31/2024", "01/02/2024"], "date %m/%d/%Y"),
        (["31.1.24"] * 3, "date %d.%m.%y"),
        (["12:30", "23:59:59.5"], "time"),
        (["true", "False", "TRUE"], "true/false"),
        (["red", "blue"], "category"),
        (["01234", "98101"], "category"),  # a code: 01234 is not 1234
        (["07", "12"], "number"),  # an hour or a month
        (["12345678901234567", "2"], "category"),  # floating point would not tell them apart
        ([], "category"),
        (["NA", "null", ""], "category"),
        ([date(2024, 1, 1)], "date %Y-%m-%d"),
        ([datetime(2024, 1, 1, 2)], "date %Y-%m-%d %H:%M"),
        ([time(12)], "time"),
        ([True, None], "true/false"),
        ([1, 2], "number"),
        ([1.5, None], "number"),
    ],
)
def test_all_cells_decide_what_a_column_means(cells: Sequence[object], wanted: str) -> None:
    assert meaning(cells) == wanted
    words = sorted(word for word in MISSING_WORDS if word) if wanted != "category" else []
    if cells and isinstance(cells[0], str):
        assert meaning([*cells, *words, *(word.upper() for word in words)]) == wanted
    table = pl.DataFrame({"x": pl.Series(list(cells), strict=False)})
    parts = [table[i : i + 1] for i in range(len(table))] or [table]
    assert str(find_schema(parts, len(table), typed=False).schema["x"]) == wanted


def test_any_number_is_a_category_of_its_own_text() -> None:
    numbers = pl.Series([17850.0, 2.5, float("nan"), None, float("-inf"), 1e30])
    texts = canonical_text(numbers).to_list()
    assert texts[:4] == ["17850", "2.5", MISSING, MISSING]
    assert [float(text) for text in texts[4:]] == [-np.inf, 1e30]


def test_names_are_no_numbers() -> None:
    text = pl.DataFrame({"x": ["5", "17850"]})
    assert str(find_schema([text], 2).schema["x"]) == "category of numbers"  # a typed table's
    assert str(find_schema([text], 2, typed=False).schema["x"]) == "number"
    assert meaning(["5", "17850"], "CustomerID") == "category of numbers"
    assert meaning([5, 17850], "CustomerID") == "category of numbers"
    assert meaning([5.0, 17850.0, None], "CustomerID") == "category of numbers"
    assert meaning([5.5, 17850.0], "CustomerID") == "number"
    assert meaning(["5", "17850"], "CustomerID", Stated(numeric=("CustomerID",))) == "number"


@pytest.mark.parametrize("bad", ["x", "1;5", "12/2024", "1,5"])
def test_one_cell_in_a_hundred_may_contradict_wherever_it_stands(bad: str) -> None:
    for place, cut in ((0, 1), (0, 100), (150, 100), (150, 151), (299, 299)):
        cells = [f"{i}.5" for i in range(300)]
        cells[place] = bad
        table = pl.DataFrame({"x": cells})
        found = find_schema([table[:cut], table[cut:]], 300)
        assert str(found.schema["x"]) == "number 1234.5"
        assert f"1 cells are none, the first in row {place + 1}," in dict(found.lines)["x"]
    cells = [bad] * 4 + [f"{i}.5" for i in range(300)]
    if bad == "1,5":  # a number all the same
        with pytest.raises(DataError, match="numbers that are written in several ways"):
            meaning(cells)
    else:
        assert meaning(cells) == "category"


def test_what_is_missing_is_told() -> None:
    cells = ["NULL"] * 5 + ["n/a"] + [""] * 3 + [f"{i}.5" for i in range(50)]
    found = find_schema([pl.DataFrame({"x": cells})], len(cells))
    assert dict(found.lines)["x"] == "number 1234.5; 6 cells missing: 'NULL', 'n/a'"
    assert meaning(["NA", "DE", "FR", "None"]) == "category"  # Namibia


@pytest.mark.parametrize(
    ("cells", "lines"),
    [
        (["7,890", "999"], ("number 1,234.5", "number 1.234,5")),
        (["01/02/2026", "03/04/2026"], ("date %d/%m/%Y", "date %m/%d/%Y")),
        (["01-02-2026 10:00"] * 2, ("date %d-%m-%Y %H:%M", "date %m-%d-%Y %H:%M")),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused_with_the_line_to_write(
    cells: list[str], lines: tuple[str, str]
) -> None:
    with pytest.raises(DataError) as caught:
        meaning(cells)
    said = str(caught.value)
    assert "\n" not in said
    assert cells[0] not in said  # a cell is nobody's business
    for line in lines:
        assert f"'x' = '{line}'" in said
        assert meaning(cells, stated=Stated.from_settings({"x": line})) == line
    assert meaning(cells, stated=Stated(ignored=("x",))) in lines


@pytest.mark.parametrize(
    ("cells", "what", "kept"),
    [
        (["1,5", "2.5", "2.5"], "number", [None, 2.5, 2.5]),
        (["1.234,5", "7", "1,234.5", "2,500.25"], "number", [None, 7.0, 1234.5, 2500.25]),
        (["31/12/2025"] * 2 + ["12/31/2025"], "date", [date(2025, 12, 31)] * 2 + [None]),
        (["2025-12-31", "31.12.2025", "2026-01-01"], "date", None),
        (["2025-12-31 10:00:00"] * 2 + ["31.12.2025 10:00"], "date", None),
    ],
)
def test_no_way_of_writing_is_chosen_where_none_fits(
    cells: list[str], what: str, kept: list[object] | None
) -> None:
    many = cells * 50
    table = pl.DataFrame({"x": many})
    for batches in ([table], [table[:70], table[70:]]):
        with pytest.raises(DataError) as caught:
            find_schema(batches, len(many), typed=False)
        said = str(caught.value)
        assert f"'x' holds {what}s that are written in several ways" in said
        assert f"'x' = '{what}'" in said
        assert "'x' = 'category'" in said
        assert not any(cell in said for cell in cells)
    assert meaning(many, stated=Stated.from_settings({"x": "category"})) == "category"
    assert meaning(many, stated=Stated(ignored=("x",))) == "category"
    stated = find_schema([table], len(many), Stated.from_settings({"x": what}), typed=False)
    if kept is not None:
        assert stated.schema["x"].read(table["x"]).to_list() == kept * 50
    assert " cells are none, the first in row" in stated.lines[0][1]
    # what names things is no number and no date, whatever looks like one here and there
    assert meaning([*cells, "red"] * 50) == "category"


def test_a_column_without_doubt_decides_for_the_others() -> None:
    def pair(other: list[str]) -> str:
        table = pl.DataFrame({"x": ["1,234", "999"], "y": other})
        return str(find_schema([table], 2).schema["x"])

    assert pair(["0,5", "1,25"]) == "number 1.234,5"
    assert pair(["1,234,567", "5"]) == "number 1,234.5"
    assert pair(["0.5", "7"]) == "number 1,234.5"
    table = pl.DataFrame({"x": ["1.234", "2.500"], "y": ["0,5", "1,25"]})
    assert str(find_schema([table], 2).schema["x"]) == "number 1.234,5"
    days = pl.DataFrame({"x": ["01/02/2026"] * 2, "y": ["31/12/2025", "01/01/2026"]})
    assert str(find_schema([days], 2).schema["x"]) == "date %d/%m/%Y"


def test_lines_are_read_as_they_are_written() -> None:
    for line in ("number", "number 1,234.5", "date", "date %d/%m/%Y %H:%M", "true/false", "time"):
        for words in ("", "; missing: -999, x y"):
            assert str(ColumnMeaning.parse("x", line + words)) == line + words
    assert ColumnMeaning.parse("x", "category of numbers").codes
    for wrong in ("numbers", "number 12", "date %H", "", "text"):
        with pytest.raises(ConfigError, match=r"columns\.x=.* must be number"):
            ColumnMeaning.parse("x", wrong)
    with pytest.raises(ConfigError, match="two things"):
        Stated.from_settings({"x": "number"}, categorical=["x"])
    with pytest.raises(DataError, match="none of its 2 cells"):
        meaning(["a", "b"], stated=Stated.from_settings({"x": "number"}))


def test_stated_words_are_missing() -> None:
    stated = Stated.from_settings({"x": "number; missing: -999, gone"})
    table = pl.DataFrame({"x": ["-999", "gone", "5"]})
    found = find_schema([table], 3, stated).schema["x"]
    assert found.read(table["x"]).to_list() == [None, None, 5.0]
    assert found.absent(table["x"]).to_list() == [True, True, False]
    for kind in (pl.Int64, pl.Float32, pl.Decimal(9, 2)):  # as a warehouse has the same column
        typed = pl.Series("x", [-999, None, 5], dtype=kind)
        assert found.read(typed).to_list() == [None, None, 5.0]
        assert found.absent(typed).to_list() == [True, True, False]
    code = ColumnMeaning.parse("x", "category of numbers; missing: -999")
    assert code.read(pl.Series([-999, 5])).to_list() == ["\0missing", "5"]


def test_a_text_means_the_same_in_every_file(tmp_path: Path) -> None:
    rows = 400
    columns = {
        "zip": ["01234", "98101"] * (rows // 2),
        "size": ["1.50", "2.25", "10", "3"] * (rows // 4),
        "price": ["1,234", "999", "12.5", "NULL"] * (rows // 4),
        "day": ["31/12/2025", "01/02/2026"] * (rows // 2),
        "yes": ["true", "false"] * (rows // 2),
    }
    train = pl.DataFrame(columns)
    stated = Stated.from_settings({}, categorical=["size"])
    encoder = Encoder.fit(train, stated=stated)
    kept = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert kept == encoder
    whole = encoder.encode(train)
    for index in range(4):  # one row by itself says what it said among others
        one = kept.encode(train[index : index + 1])
        np.testing.assert_array_equal(one.numeric[0], whole.numeric[index])
        np.testing.assert_array_equal(one.categories[0], whole.categories[index])
    # the same values, typed
    typed = pl.DataFrame(
        {
            "zip": columns["zip"],
            "size": columns["size"],
            "price": [1234.0, 999.0, 12.5, None] * (rows // 4),
            "day": [date(2025, 12, 31), date(2026, 2, 1)] * (rows // 2),
            "yes": [True, False] * (rows // 2),
        }
    )
    np.testing.assert_array_equal(kept.encode(typed).numeric, whole.numeric)
    np.testing.assert_array_equal(kept.encode(typed).categories, whole.categories)


def test_a_files_columns_are_found_in_batches(tmp_path: Path) -> None:
    rows = 200_000
    table = pl.DataFrame(
        {"key": range(rows), "late": ["1"] * (rows - 1) + ["0.5"], "typed": np.arange(rows) / 2}
    )
    table.write_parquet(tmp_path / "a.parquet")
    found = FeatureFile(tmp_path / "a.parquet").find_schema(without="key")
    assert [str(column) for column in found.schema.columns] == ["number 1234.5", "number"]
    with pytest.raises(ConfigError, match="names the column 'none'"):
        FeatureFile(tmp_path / "a.parquet").find_schema(Stated(numeric=("none",)))


@given(st.lists(st.text(max_size=12), min_size=1, max_size=30))
def test_any_cells_have_a_meaning_and_can_be_read_by_it(cells: list[str]) -> None:
    table = pl.DataFrame({"x": cells})
    try:
        schema: Schema = find_schema([table], len(cells)).schema
    except DataError:  # in two ways
        return
    read = schema["x"].read(table["x"])
    assert len(read) == len(cells)
    if schema["x"].kind != "category":
        there = ~schema["x"].absent(table["x"])
        assert read.filter(there).is_null().mean() <= 0.01  # type: ignore[operator]


def test_an_index_that_pandas_wrote_has_no_name_and_is_read(tmp_path: Path) -> None:
    table = pl.DataFrame({"x": [i / 2 for i in range(300)]}).to_pandas()
    table.to_csv(tmp_path / "features.csv")
    file = FeatureFile(tmp_path / "features.csv")
    found = file.find_schema()
    assert [str(column) for column in found.schema.columns] == ["number", "number 1234.5"]
    (batch,) = file.batches(["x", ""])
    assert batch.columns == ["x", ""]
    assert batch[""].to_list() == [str(i) for i in range(300)]
    encoder = Encoder.fit(batch, schema=found.schema)
    assert dict(encoder.left_out) == {"": "numbers the rows"}


_ODD = (
    *("", "NA", " 5", "007", "0123", "+5", "-0", "1.5", "1.50", "5.", ".5", "1e3", "1e400", "inf"),
    *("1_000", "0x10", "1,234", "1.234", "1 234,5", "1234567890123456", "12345678901234567.5"),
    *(
        "2024-01-31",
        "2024-02-30",
        "2024-01-31 10:00",
        "2024-01-31 24:00:00",
        "31/12/2025",
        "12:30",
        "true",
        "x",
        "-999",
    ),
)
_USUAL = (
    ("1", "22", "-3"),
    ("1.5", "2", ".25"),
    ("2024-01-31", "2023-12-1"),
    ("2024-01-31 10:00",),
    ("2024-01-31 10:00:05", "2024-02-29T23:59:59.5Z"),
)


@st.composite
def _columns(draw: st.DrawFn) -> list[str]:
    cells = list(draw(st.sampled_from(_USUAL)) * 120)
    for cell in draw(st.lists(st.sampled_from(_ODD), max_size=3)):
        cells[draw(st.integers(0, 119))] = cell
    return cells[:120]


@pytest.mark.slow
@settings(max_examples=effort(6, 300))
@given(
    st.lists(_columns(), min_size=1, max_size=3),
    st.sampled_from(
        [
            Stated(),
            Stated.from_settings({"x0": "number; missing: -999, 1"}),
            Stated(numeric=("x0",)),
        ]
    ),
)
def test_what_a_join_keeps_says_what_the_cells_do(
    tmp_path_factory: pytest.TempPathFactory, columns: list[list[str]], stated: Stated
) -> None:
    folder = tmp_path_factory.mktemp("kept")
    table = pl.DataFrame({"key": map(str, range(120))}).with_columns(
        pl.Series(f"x{place}", cells) for place, cells in enumerate(columns)
    )
    table.write_csv(folder / "features.csv")
    cells = table.with_columns(cs.string().replace("", None))  # as CSV has it
    found = []
    for rows in (1 << 16, 7):  # all types are right at once, or not before the last batch
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FeatureFile.batches, "__defaults__", (rows,))
            try:
                kept = FeatureFile(folder / "features.csv").to_parquet(
                    folder / "kept.parquet", stated, without="key"
                )
            except DataError as error:
                path = folder / "features.csv"
                with pytest.raises(DataError, match=re.escape(str(error))):
                    find_schema([cells.drop("key")], 120, stated, typed=False, path=path)
                return
        found.append(kept.schema)
        written = pl.read_parquet(folder / "kept.parquet")
        assert written["key"].equals(table["key"])
        for meaning in kept.schema.columns:
            one, other = cells[meaning.name], written[meaning.name]
            values = meaning.read(one)
            assert meaning.read(other).equals(values)
            assert meaning.unread(other, meaning.read(other)) == meaning.unread(one, values)
            assert numbers_rows(one, values, meaning) == numbers_rows(other, values, meaning)
    assert found == [find_schema([cells.drop("key")], 120, stated, typed=False).schema] * 2


def test_plain_numbers_and_days_of_a_csv_file_are_kept_as_such(tmp_path: Path) -> None:
    lines = ["key,whole,part,gap,day,moment,zip,late"]
    lines += [
        f"k{i},{i * 7},{i / 4},,2024-01-{1 + i % 9},2024-01-02 10:00,0{i:04},{i}" for i in range(99)
    ]
    lines += ["k99,5, 2.5 ,NA,2024-01-01,2024-01-02 11:30,01234,0.5"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    FeatureFile(tmp_path / "a.csv").to_parquet(tmp_path / "kept.parquet", without="key")
    kinds = dict(pl.read_parquet_schema(tmp_path / "kept.parquet"))
    assert kinds == {
        "key": pl.String,
        "whole": pl.Int64,
        "part": pl.Float64,
        "gap": pl.String,
        "day": pl.Date,
        "moment": pl.Datetime("us"),
        "zip": pl.String,
        "late": pl.Float64,
    }


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 30)).map(
                lambda moment: (f"{moment:%H:%M:%S}", moment.replace(microsecond=0))
            ),
            st.sampled_from(["25:00:00", "1:02", "12:30:99", "12:3:4"]).map(
                lambda text: (text, None)
            ),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([" ", "T"]),
    st.sampled_from(["", ".250", "Z", "+02:00"]),
    st.sampled_from(["", " "]),
    st.booleans(),
)
def test_moments_are_read_alike_however_many_are_usual(
    moments: list[tuple[str, datetime | None]], mark: str, rest: str, space: str, mixed: bool
) -> None:
    """Cells as programs write them are read at once, others one way or the other by their parts."""
    texts = [
        f"{space}{moment or datetime(2026, 1, 31):%Y-%m-%d}"
        + (" " if mixed and place % 2 else mark)
        + clock
        + rest
        for place, (clock, moment) in enumerate(moments)
    ]
    column = ColumnMeaning("x", "date", "%Y-%m-%d %H:%M")
    together = column.read(pl.Series(texts)).to_list()
    assert together == [column.read(pl.Series([text]))[0] for text in texts]
    for text, value, (_, moment) in zip(texts, together, moments, strict=True):
        if moment is not None:
            assert value == moment, text


def test_a_table_of_parquet_is_read_until_its_columns_are_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 400
    table = pl.DataFrame({"town": [f"town{i % 7}" for i in range(rows)], "x": range(rows)})
    table.write_parquet(tmp_path / "a.parquet")
    table.write_csv(tmp_path / "a.csv")
    taken: list[int] = []
    add = SchemaSearch.add

    def counted(search: SchemaSearch, batch: pl.DataFrame) -> pl.DataFrame:
        taken.append(batch.height)
        return add(search, batch)

    monkeypatch.setattr(FeatureFile.batches, "__defaults__", (50,))
    monkeypatch.setattr(SchemaSearch, "add", counted)
    found = [FeatureFile(tmp_path / f"a.{suffix}").find_schema() for suffix in ("parquet", "csv")]
    assert [str(c) for c in found[0].schema.columns] == ["category", "number"]
    assert found[0].schema == found[1].schema
    # what is no word of a number or a date 50 times is none at all; CSV may have an odd line below
    assert taken[:2] == [0, 50]
    assert sum(taken[2:]) == rows


def test_true_and_false_are_no_other_number_and_no_number_is_true() -> None:
    flags = ColumnMeaning("x", "true/false")
    assert flags.read(pl.Series(["true", "FALSE", "1", "0", "7", "0.5"])).to_list() == [
        *(1.0, 0.0, 1.0, 0.0),
        *(None, None),
    ]
    for typed in ([True, False, None], [1, 0, 7], [1.0, 0.0, 0.5]):  # MySQL's TINYINT(1), too
        assert flags.read(pl.Series(typed)).to_list() == [1.0, 0.0, None]
    assert meaning(["true"] * 200 + ["1", "0"]) == "true/false"  # of which none is odd
    odd = pl.DataFrame({"x": ["true"] * 300 + ["7"]})
    assert "1 cells are none, the first in row 301," in find_schema([odd], 301).lines[0][1]
    assert (
        find_schema([pl.DataFrame({"x": ["true"] * 300 + ["1"]})], 301).lines[0][1] == "true/false"
    )
    number = ColumnMeaning("x", "number")
    assert number.read(pl.Series(["true"])).to_list() == [None]
    with pytest.raises(DataError, match="'x' has type Boolean here, and is to hold a number"):
        number.read(pl.Series([True]))


def test_what_is_said_of_a_typed_column_may_be_wrong_before_there_is_a_model() -> None:
    with pytest.raises(
        DataError, match=r"type Int64 here, and is to hold a date.* \[data.columns\]"
    ):
        Encoder.fit(pl.DataFrame({"x": range(300)}), stated=Stated.from_settings({"x": "date"}))


def test_rows_of_what_is_odd_are_counted_without_what_is_missing() -> None:
    cells = ["NA", " ", "x"] + [f"{i}.5" for i in range(300)]
    found = find_schema([pl.DataFrame({"x": cells})], len(cells))
    assert "1 cells are none, the first in row 3," in found.lines[0][1]


@pytest.mark.parametrize("rows", [0, 5])
def test_a_quotation_mark_that_is_not_closed_is_no_empty_table(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,x\n" + "a,1\n" * rows + 'b,"5\nc,4\n')
    with pytest.raises(DataError, match=rf'a cell in line {rows + 2} has a " that is not closed'):
        FeatureFile(path).find_schema()
