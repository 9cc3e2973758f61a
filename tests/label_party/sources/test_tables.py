"""Reading labels and populations: what is read, what is refused, and what an error never says."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import polars as pl
import pytest

from labelveil.common.csv_files import Dialect
from labelveil.common.errors import DataError
from labelveil.label_party.events.epoch import Rows
from tests.effort import one_in
from tests.label_party.conftest import Party
from tests.label_party.sources.reading import read_events

PLANTED = "73571.25"


def test_csv_and_parquet_read_alike(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": [7, 8, 9], "y": [1.5, None, float("nan")]})
    frame.write_csv(tmp_path / "a.csv")
    frame.write_parquet(tmp_path / "a.parquet")
    files = [tmp_path / f"a.{kind}" for kind in ("csv", "parquet")]
    read = [read_events(path, "id", labels=["y"])[0] for path in files]
    assert [frame["place"].to_list() for frame in read] == [[2, 3, 4], [1, 2, 3]]  # lines, rows
    assert read[0].drop("place").equals(read[1].drop("place"))
    assert read[0]["key"].to_list() == ["7", "8", "9"]
    assert read[0]["label"].to_list() == [1.5, None, None]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("1.5", 1.5),
        ("True", 1),
        ("FALSE", 0),
        ("1e3", 1000),
        ("", None),
        ("NA", None),
        ("yes", None),
        ("1,5", None),
        ("1,234,567", None),
        ("inf", None),
        ("-Infinity", None),
        ("1e999", None),
    ],
)
def test_a_label_is_a_finite_number_or_missing_whatever_the_others_are(
    label: str, expected: float | None, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    for others in (["2.5", "0"], ["2,5", "1,234"], ["no", "yes"]):
        values = [others[0], label, others[1]]
        path.write_text("id;y\n" + "".join(f"{i};{text}\n" for i, text in enumerate(values)))
        events, odd = read_events(path, "id", labels=["y"], dialect=Dialect(";"))
        assert events["key"].to_list() == ["0", "1", "2"]
        assert events["label"][1] == expected
        is_odd = expected is None and label not in ("", "NA")
        assert any(3 in one.places for one in odd) == is_odd


def test_csv_keys_are_text_as_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,y\n007,1\n7,2\n")
    assert read_events(tmp_path / "a.csv", "id")[0]["key"].to_list() == ["007", "7"]


@pytest.mark.parametrize("word", ["", "NaN", "nan", "NULL", "NA", "n/a", "None", " "])
def test_words_for_a_missing_label(tmp_path: Path, word: str) -> None:
    (tmp_path / "a.csv").write_text(f"id,y\n1, 2.5 \n2,{word}\n")
    events, odd = read_events(tmp_path / "a.csv", "id", labels=["y"])
    assert events["label"].to_list() == [2.5, None]
    assert not odd


def _garbage(path: Path, good: pl.DataFrame) -> None:
    good.write_parquet(path)
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4)
    path.write_bytes(data)


def _truncated(path: Path, good: pl.DataFrame) -> None:
    good.write_parquet(path)
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        (lambda path, good: None, ["does not exist", "[data] labels"]),
        (lambda path, good: path.mkdir(), ["has no Parquet files"]),
        (lambda path, good: path.write_bytes(b""), ["is empty"]),
        (lambda path, good: path.write_bytes(b"key,label\n1,2\n"), ["not a Parquet file"]),
        (lambda path, good: os.mkfifo(path), ["is a pipe or a device", "write it to a file"]),
        (_garbage, ["cannot be read", "damaged"]),
        (_truncated, ["cannot be read", "damaged"]),
    ],
    ids=["absent", "folder", "empty", "csv", "pipe", "garbage", "truncated"],
)
def test_an_unreadable_file_is_one_line(party: Party, spoil: object, parts: list[str]) -> None:
    path = party.folder / "spoiled.parquet"
    assert callable(spoil)
    spoil(path, pl.DataFrame({"key": ["a", "b"] * 500, "label": [1.0, 2.0] * 500}))
    error = party.release(data__labels=path).error
    for part in parts:
        assert part in error
    assert party.nothing_left()


@pytest.mark.parametrize("workers", one_in(2, [1, 2]))
def test_a_release_takes_its_labels_from_a_partition_by_day(party: Party, workers: int) -> None:
    """Files that are not alike are one table in memory, and in slices of workers."""
    table = pl.read_csv(party.folder / "labels.csv")
    half = table.height // 2
    for day, rows in (
        ("2026-01-01", table[:half]),
        ("2026-01-02", table[half:].cast({"label": int})),
    ):
        (party.folder / "sales" / f"day={day}").mkdir(parents=True)
        rows.write_parquet(party.folder / "sales" / f"day={day}" / "part-0.parquet")
    done = party.release(data__labels=party.folder / "sales", engine__workers=workers)
    assert done.code == 0, done
    events = read_events(party.folder / "sales", "key", labels=["label"])[0]
    expected = read_events(party.folder / "labels.csv", "key", labels=["label"])[0]
    assert events.drop("place").equals(expected.drop("place"))


@pytest.mark.parametrize("name", ["sales.csv.gz", "sales.csv", "sales.parquet"])
def test_a_packed_file_is_called_so(party: Party, name: str) -> None:
    path = party.folder / name
    path.write_bytes(gzip.compress(b"key,label\na,1\n"))
    error = party.release(data__labels=path).error
    assert f"{name} is compressed (gzip); unpack it first" in error
    assert party.nothing_left()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("key,value\na,1\n", ["no column 'label'", "key, value"]),
        ("id,label\na,1\n", ["no column 'key'", "id, label"]),
    ],
    ids=["label", "key"],
)
def test_unusable_labels_are_one_line_that_shows_no_label(
    party: Party, text: str | bytes, parts: list[str]
) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    (party.folder / "labels.csv").write_bytes(data)
    party.write_population({"key": ["a", "b"]})
    error = party.release().error
    for part in parts:
        assert part in error
    assert PLANTED not in error
    assert party.nothing_left()


def test_a_source_of_another_kind_is_told_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    pl.DataFrame({"id": ["a"]}).write_ipc(path)
    with pytest.raises(DataError, match=r"is an Arrow \(Feather\) file"):
        read_events(path, "id")
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(DataError, match="cannot be read: Too many levels"):
        read_events(path, "id")


def test_labels_that_are_written_as_categories_are_read(tmp_path: Path) -> None:
    labels = pl.Series(["1.5", "none", "2"], dtype=pl.Categorical)
    pl.DataFrame({"id": ["a", "b", "c"], "y": labels}).write_parquet(tmp_path / "a.parquet")
    read, _ = read_events(tmp_path / "a.parquet", "id", labels=["y"])
    assert read["label"].to_list() == [1.5, None, 2.0]


def test_labels_of_another_type_are_refused(tmp_path: Path) -> None:
    pl.DataFrame({"id": ["a"], "y": [[1.0]]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="type List"):
        read_events(tmp_path / "a.parquet", "id", labels=["y"])


def test_keys_of_another_type_are_refused(tmp_path: Path) -> None:
    pl.DataFrame({"id": [1.5], "y": [1.0]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="text, whole numbers or UUIDs"):
        read_events(tmp_path / "a.parquet", "id", labels=["y"])


@pytest.mark.parametrize("kind", [pl.Date, pl.Datetime("ms"), pl.Datetime("us"), pl.Datetime("ns")])
def test_a_time_out_of_all_calendars_is_no_day_and_takes_no_other_along(
    tmp_path: Path, kind: pl.DataType
) -> None:
    bits = 32 if kind == pl.Date else 64
    far = pl.Series([0, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]).cast(getattr(pl, f"Int{bits}"))
    rows = pl.DataFrame({"id": ["a", "b", "c"], "y": [1.0, 2.0, 3.0], "at": far.cast(kind)})
    rows.write_parquet(tmp_path / "a.parquet")
    day = ("at", "1970-01-01")
    read, _ = read_events(tmp_path / "a.parquet", "id", labels=["y"], day=day, others=["at"])
    assert read["key"].to_list() == ["a"]
    assert "1970-01-01" in Rows(tmp_path / "a.parquet", "id", day=day).days()


@pytest.mark.parametrize("values", [[b"2024-06-01", b"\xff"], [["x"], []]], ids=["bytes", "lists"])
def test_days_and_categories_have_a_type_or_are_refused_by_it(
    tmp_path: Path, values: list[object]
) -> None:
    """Bytes would be text in one row and none in another."""
    frame = pl.DataFrame({"id": ["a", "b"], "y": [1.0, 2.0], "kind": values})
    for rows in (frame.head(1), frame):
        rows.write_parquet(tmp_path / "a.parquet")
        for asked in ({"others": ["kind"]}, {"day": ("kind", "2024-06-01")}):
            with pytest.raises(DataError, match="column 'kind' has type"):
                read_events(tmp_path / "a.parquet", "id", labels=["y"], **asked)  # type: ignore[arg-type]


def test_a_file_whose_rows_all_lack_keys_names_no_event(tmp_path: Path) -> None:
    """Writers call such a column's type null; one row with a key would make it text."""
    pl.DataFrame({"id": [None], "y": [1.0]}).write_parquet(tmp_path / "a.parquet")
    read, odd = read_events(tmp_path / "a.parquet", "id", labels=["y"])
    assert read.is_empty()
    assert odd
