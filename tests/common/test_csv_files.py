"""Tests for CSV as the world writes it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from labelveil.common.csv_files import (
    Dialect,
    find_dialect,
    propose_dialect,
    read_table,
    scan_csv,
    unreadable,
)
from labelveil.common.errors import DataError


@pytest.mark.parametrize(
    ("text", "encoding", "expected"),
    [
        ("key,amount,town\na,1.5,Köln\n", "utf-8", Dialect()),
        ("key,amount,town\na,1.5,Köln\n", "utf-8-sig", Dialect()),
        ("key\tamount\ttown\na\t1.5\tKöln\n", "utf-8", Dialect("\t")),
        ("key;amount;town\na;1.5;Köln\n", "utf-8", Dialect(";")),
        ("key;amount;town\r\na;1,5;Köln\r\n", "utf-8", Dialect(";", True)),
        ('key;amount;town\na;"1,5";Köln\n', "utf-8", Dialect(";", True)),
        ("key;amount;town\na;1,5;Köln €\n", "cp1252", Dialect(";", True, "cp1252")),
        ("key;amount;town\nb;2.5;Köln\na;1,5;Köln\n", "utf-8", Dialect(";")),  # not to be guessed
        ('"a;b;c;d",amount,town\na,1.5,Köln\n', "latin-1", Dialect(",", False, "cp1252")),
    ],
)
def test_the_dialect_is_found(
    text: str, encoding: str, expected: Dialect, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sales.csv"
    path.write_bytes(text.encode(encoding))
    assert find_dialect(path) == expected
    table = scan_csv(path).collect()
    assert table["town"].to_list()[-1].startswith("Köln")
    if expected.decimal_comma or expected.separator != ";":
        assert table["amount"].to_list() == [1.5]
    usual = expected in (Dialect(), Dialect("\t"))
    assert capfd.readouterr().err == ("" if usual else f"{path}: {expected}\n")  # said once


def test_a_file_that_is_called_tsv_has_tabs(tmp_path: Path) -> None:
    path = tmp_path / "sales.tsv"
    path.write_text("shop, town, country\tamount\na, b, c\t1\n")
    assert find_dialect(path) == Dialect("\t")


def test_what_follows_the_first_megabyte_counts_for_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_bytes(b"town\n" + b"Bonn\n" * 300_000 + "Köln\n".encode("latin-1"))
    assert find_dialect(path).encoding == "cp1252"
    assert scan_csv(path).collect()["town"][-1] == "Köln"


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        ("key,town\na,Köln\n".encode("utf-16"), "UTF-8"),
        (b"key\n\0\n", "UTF-8"),
        (b"k\n\x81\n", "UTF-8"),
        (b"key,town\ra,Bonn\r", r"line feeds \(LF\)"),  # as old Macs wrote it
    ],
)
def test_what_is_no_text_is_one_line(data: bytes, remedy: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"^\S*bad\.csv .*; save it (as|with) {remedy}$"):
        scan_csv(path)


def test_a_changed_file_is_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "sales.csv"
    path.write_text("a,b\n1,2\n")
    assert find_dialect(path).separator == ","
    path.write_text("a;b\n1;2\n3;4\n")
    assert find_dialect(path).separator == ";"
    assert scan_csv(path).collect().equals(pl.DataFrame({"a": [1, 3], "b": [2, 4]}))


ROWS = "".join(f"a{i};{i},5;Köln\n" for i in range(30))


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
@pytest.mark.parametrize(
    "odd",
    [b"", b"b;1.5;K\xf6ln\n", "b;1.5;Köln\n".encode(), b"\0;\x81;,,,,\n", b'"\n\n', b"\xff\xfe"],
)
@pytest.mark.parametrize("at", [0, 1])
def test_no_row_decides_what_is_proposed(
    encoding: str, odd: bytes, at: int, tmp_path: Path
) -> None:
    path = tmp_path / "sales.csv"
    rows = [ROWS.encode(encoding), odd]
    path.write_bytes(b"key;amount;town\n" + b"".join(rows[::-1] if at == 0 else rows))
    assert propose_dialect(path) == Dialect(";", True, encoding)


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_line_with_too_many_cells_is_named(separator: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = ["key,x", *(f'k{i},"a\nb"' for i in range(5)), "k9,1,2", "k10,1,2,3"]
    path.write_text("\n".join(rows).replace(",", separator))
    with pytest.raises(
        DataError, match=r"t\.csv cannot be read: line 12 has 3 cells, and the header 2"
    ):
        read_table(path)


def test_another_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    pl.DataFrame({"key": ["a"]}).write_ipc(path)
    with pytest.raises(DataError, match=r"is an Arrow \(Feather\) file; save it as Parquet"):
        read_table(path)


def test_what_no_reader_takes_keeps_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key,x\n" + "a" * 200_000 + ",1\n")  # longer than a cell of csv may be
    assert str(unreadable(path, OSError("damaged"))) == f"{path} cannot be read: damaged"


@pytest.mark.parametrize(
    ("text", "line"),
    [('a,"1\nb,2\n', 2), ('a,1\nb,"2\n', 3), ('a,1\nb,"2"3\nc,4\n', 3), ('a,"1\nb,2\nc,"3"\n', 2)],
)
def test_a_quotation_mark_that_is_not_closed_is_named_by_its_line_alone(
    tmp_path: Path, text: str, line: int
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key,x\n" + text)
    with pytest.raises(pl.exceptions.PolarsError) as caught:
        scan_csv(path, infer_schema=False).collect()
    said = (
        f'{path} cannot be read: a cell in line {line} has a " that is not closed, or not doubled'
    )
    assert str(unreadable(path, caught.value)) == said


def test_a_header_names_each_column_once(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key,x,x\na,1,2\n")
    with pytest.raises(DataError, match=r"t\.csv has 2 columns 'x'; name each once"):
        scan_csv(path)
    path.write_text("key,x,x_duplicated_0,,\na,1,2,,\n")  # empty columns of a spreadsheet's
    assert scan_csv(path).collect_schema().names()[:3] == ["key", "x", "x_duplicated_0"]


def test_a_dialect_in_words() -> None:
    assert str(Dialect()) == "separator comma"
    assert str(Dialect("\t")) == "separator tab"
    assert str(Dialect(";", True)) == "separator semicolon, decimal comma"
    said = "separator bar, encoding Windows-1252 (Latin-1)"
    assert str(Dialect("|", False, "cp1252")) == said
