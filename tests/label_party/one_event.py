"""Data sets that differ in the rows of one event, in every way in which rows can differ."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from tests.label_party.conftest import Party

Cells = tuple[Any, ...]
"""Key, label, kind, day and a column that nobody reads."""

NAMES = ("key", "label", "kind", "day", "note")
DAYS = ("2024-06-01", "2024-06-02", "2024-06-03")
KINDS = ("café", "tea", "milk")
VICTIMS = [f"victim-{i}" for i in range(80)]
STEADY = [*(f"event-{i}" for i in range(36)), "über-1", "über-2", "1e3", "0007"]
EVENTS = [*STEADY[:18], *VICTIMS, *STEADY[18:]]
"""What both parties know: those whose rows differ, and others, whose rows stay."""
AT = 11
"""Rows of others before those that differ."""


def others() -> list[Cells]:
    """Rows that stay: some odd themselves, so that a rule for a whole column can go either way."""
    rows: list[Cells] = []
    for i, key in enumerate(STEADY):
        if i % 5:
            label = ("", "2,5", "1.5", "true", "abc")[i] if i < 5 else str(i % 11)
            rows.append((key, label, KINDS[i % 3], DAYS[i % 3], "señor"))
    return [*rows, ("event-9", "4", "tea", DAYS[0], ""), ("stranger", "4", "tea", DAYS[0], "")]


@dataclass(frozen=True)
class Variant:
    """What one event's rows may be."""

    name: str
    rows: Sequence[bytes] | Sequence[Cells]  # of a CSV file the lines' bytes, else cells


def cells(key: Any, label: Any, kind: Any = "", day: Any = DAYS[0], note: Any = "") -> Cells:
    return key, label, kind, day, note


def nothing(key: str) -> Variant:
    """A row without a label or a category, which is as good as no row at all."""
    return Variant("an empty label", [cells(key, "")])


_UNREADABLE = {
    "text": "abc",
    "infinite": "inf",
    "minus infinity": "-Infinity",
    "NaN": "NaN",
    "beyond floats": "1e999",
    "decimal comma": "1,5",
    "both marks": "1.234,5",
    "thousands": "1,234,567",
    "hexadecimal": "0x10",
    "underscored": "1_000",
    "two numbers": "1 2",
    "a sentence": "5 of 10",
    "a date": "2024-06-01",
    "NUL": "\0" + "5",
    "a formula": "=5",
    "percent": "5%",
    "a currency": "€5",
    "long": "9" * 50_000,
    "spaces": "   ",
}
"""Labels that are none."""


def _several(key: str) -> Iterator[Variant]:
    yield Variant("absent", [])
    yield Variant("twice", [cells(key, "3", "tea"), cells(key, "8", "milk")])
    yield Variant("twice alike", [cells(key, "3", "tea")] * 2)
    yield Variant("a thousand times", [cells(key, "3", "tea")] * 1000)
    yield Variant("twice, once odd", [cells(key, "abc", "tea"), cells(key, "8", "milk")])


def unlabelled_texts(key: str) -> Iterator[Variant]:
    """Variants that leave the event without label and category; any format's."""
    yield from _several(key)
    for name, label in _UNREADABLE.items():
        yield Variant(name, [cells(key, label)])
    yield Variant(
        "another's notes", [cells(key, "", note='é"; DROP TABLE'), cells(key, "", note="\u2028")]
    )
    yield Variant("an unlisted category", [cells(key, "", "sofa")])


def unlabelled_lines(name: str) -> Iterator[Variant]:
    """Variants of lines of a CSV file that leave the event without label and category."""
    key = name.encode()
    lines: dict[str, list[bytes]] = {
        "undecodable label": [key + b",\xff5,,2024-06-01,"],
        "undecodable category": [key + b",,caf\xe9,2024-06-01,"],
        "undecodable note": [key + b",,,2024-06-01,se\xf1or"],
        "UTF-16": [key + b",,,2024-06-01,\xff\xfe5\x00"],
        "only a key": [key],
        "too few cells": [key + b",5"],
        "too many cells": [key + b",5,tea,2024-06-01,x,9,9,9"],
        "very many cells": [key + b",5" * 5000],
        "an open quote": [key + b',"5,tea,2024-06-01,x'],
        "an open quote at the end": [key + b',5,tea,2024-06-01,"x'],
        "a quote within": [key + b',,,2024-06-01,a"b'],
        "text after a quote": [key + b',,,2024-06-01,"a"b'],
        "escaped quotes": [key + b',,,2024-06-01,"a""b"'],
        "a quoted comma": [key + b',,,2024-06-01,"a,b"'],
        "two lines in quotes": [key + b',5,tea,2024-06-01,"a', b'b"'],
        "a lone return": [key + b",,,2024-06-01,a\rb"],
        "a return and a line": [key + b",,,2024-06-01,a\r"],
        "semicolons": [key + b";5;tea;2024-06-01;x"],
        "tabs": [key + b"\t5\ttea\t2024-06-01\tx"],
        "a long note": [key + b",,,2024-06-01," + b"x" * 300_000],
        "an empty line": [b"", key + b",,,2024-06-01,", b""],
        "nothing but NUL": [key + b",,,2024-06-01,", b"\0" * 1000],
        "only commas": [key + b",,,2024-06-01,", b",,,,"],
        "no key": [b",5,tea,2024-06-01,"],
        "only quotes": [b'"' * 7, key + b",,,2024-06-01,"],
        "a header again": [",".join(NAMES).encode(), key + b",,,2024-06-01,"],
        "a comment": [b"# nothing", key + b",,,2024-06-01,"],
        "the file's own end": [key + b",,,2024-06-01,\x1a"],
        "a mark of order": [b"\xef\xbb\xbf", key + b",,,2024-06-01,"],
    }
    for what, rows in lines.items():
        yield Variant(what, rows)


def unlabelled_values(key: str) -> Iterator[Variant]:
    """Variants of rows of SQLite, whose cells have types of their own."""
    for name, label in {
        "bytes": b"\xff\x00",
        "bytes of a number": b"5",
        "infinite float": float("inf"),
        "NULL": None,
    }.items():
        yield Variant(f"label {name}", [cells(key, label, None)])
    yield Variant(
        "text that is none", [cells(key, Raw(b"\xff5"), Raw(b"caf\xe9"), note=Raw(b"\xe9"))]
    )
    yield Variant("a note of numbers", [cells(key, "", note=5), cells(key, "", note=5.5)])


def labelled(key: str) -> Iterator[Variant]:
    """Variants that may give the event any label and category, and do to nobody else's."""
    for label in ("0", "10", "2.5", "1e1", " 7 ", "+4", "true", "-99", "1e300", "007", "5."):
        yield Variant(f"label {label!r}", [cells(key, label, "tea")])
    yield Variant("a category", [cells(key, "", "café")])
    yield Variant("two days", [cells(key, "3", "tea", DAYS[0]), cells(key, "8", "milk", DAYS[1])])
    for day in ("", "yesterday", "2024-13-01", "2024-06-01T10:00", DAYS[2], "0000-00-00", "9" * 99):
        yield Variant(f"day {day[:12]!r}", [cells(key, "9", "milk", day)])
    for other in (f" {key} ", f"\ufeff{key}", f"{key}\u200b", key.upper(), "", "\0"):
        yield Variant(f"key {other!r}", [cells(other, "9", "milk")])


def labelled_lines(name: str) -> Iterator[Variant]:
    """The same of lines of CSV files."""
    key = name.encode()
    for what, line in {
        "quoted key": b'"' + key + b'","9","milk","2024-06-01",""',
        "half a key": b'"' + key + b",9,milk,2024-06-01,",
        "undecodable key": key + b"\xff,9,milk,2024-06-01,",
        "nearly another's": b"\xfcber-1,9,milk,2024-06-01,",
        "replaced": "\ufffdber-1,9,milk,2024-06-01,".encode(),
        "quotes in a key": key[:3] + b'"' + key[3:] + b",9,milk,2024-06-01,",
    }.items():
        yield Variant(what, [line])


class Raw(bytes):
    """Text in SQLite that is not UTF-8."""


def csv_line(row: bytes | Cells) -> bytes:
    """A line, quoted where it must be."""
    if isinstance(row, bytes):
        return row
    return b",".join(_csv_cell("" if cell is None else str(cell)) for cell in row)


def _csv_cell(text: str) -> bytes:
    quoted = '"' + text.replace('"', '""') + '"'
    return (quoted if any(mark in text for mark in ',"\n\r') else text).encode()


FRONTS = "fronts "
"""In a source's name, before the columns that stand behind the key and in front of all others:
``person``, ``country``, ``day``."""
COUNTRIES = ("DE", "FR", "IT")
TAILS = {
    "nothing": b",,",
    "a cell more": b"1,0,,",
    "an open quote": b'"5,tea,x',
    "an open quote at the end": b'5,tea,"x',
    "all in quotes": b'"5,tea,x"',
    "a cell less": b"5,tea",
    "a single cell": b"5",
    "an empty cell": b"",
    "many cells": b"5" + b",5" * 5000,
    "text behind quotes": b'"5"x,,',
    "a quote": b'",,',
    "only quotes": b'"""""',
    "bytes that are no text": b"\xff,\xff,\xff",
    "NUL": b"\0,\0,\0",
    "text": b"abc,sofa,",
    "a return": b",,\r",
    "returns": b"\r,\r,\r\r",
    "other separators": b"5;tea;x",
    "long": b",,%s" % (b"x" * 300_000),
    "too long": b"5,tea,%s" % (b"x" * (1 << 20)),
    "another's user": b"0,user-1,FR,2024-06-02,5,tea,x",
    "another's line in quotes": b'5,"event-2,user-2,IT,2024-06-03,5,tea,x',
}
"""What may follow in a line, without being a label or a category."""


def front(key: str, columns: Sequence[str]) -> bytes:
    """What a file says of an event in front of its label."""
    number = int(hashlib.sha256(key.encode()).hexdigest()[:8], 16)
    said = {
        "person": f"user-{number % 20}",
        "country": COUNTRIES[number % 3],
        "day": DAYS[number % 3],
    }
    return ",".join((key, *(said[column] for column in columns))).encode()


def tails(source: str, of: Sequence[bytes]) -> Variant:
    """A row of each event, with one tail after the other."""
    columns = source.removeprefix(FRONTS).split()
    rows = [front(key, columns) + b"," + of[i % len(of)] for i, key in enumerate(VICTIMS)]
    return Variant("tails", rows)


def write_fronts(
    path: Path, columns: Sequence[str], rows: Sequence[bytes | Cells], ends: bool
) -> None:
    lines: list[bytes] = [",".join(("key", *columns, "label", "kind", "note")).encode()]
    for row in rows:
        if isinstance(row, bytes):
            lines.append(row)
            continue
        key, label, kind, _, note = row
        lines.append(front(key, columns) + b"," + csv_line((label, kind, note)))
    path.write_bytes(b"\n".join(lines) + b"\n" * ends)


def together(of: Callable[[str], Iterator[Variant]]) -> Variant:
    """Every variant at once, each of another event's rows: a chain of neighbours."""
    rows: list[Any] = []
    for i, key in enumerate(VICTIMS):
        chosen = next(islice(of(key), i, None), nothing(key))
        rows += chosen.rows
    return Variant("all at once", rows)


def write_csv(path: Path, rows: Sequence[bytes | Cells], ends: bool) -> None:
    lines = [",".join(NAMES).encode(), *map(csv_line, rows)]
    path.write_bytes(b"\n".join(lines) + b"\n" * ends)


def write_parquet(path: Path, rows: Sequence[bytes | Cells]) -> None:
    frame = pl.DataFrame(rows, schema=dict.fromkeys(NAMES, pl.String), orient="row")
    frame.write_parquet(path, row_group_size=7)


def write_sqlite(path: Path, rows: Sequence[bytes | Cells]) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE sales (key, label, kind, day, note)")
        for row in rows:
            places = ",".join("CAST(? AS TEXT)" if isinstance(c, Raw) else "?" for c in row)
            plain = [bytes(c) if isinstance(c, Raw) else c for c in row]
            database.execute(f"INSERT INTO sales VALUES ({places})", plain)
    database.close()


def write(party: Party, source: str, variant: Variant, at: int = AT) -> dict[str, Any]:
    """Write the labels in a format, so many rows of others first; return what reads them."""
    folder, rows = party.folder, [*others()]
    ends = at < len(rows)  # the very last line may be without its end
    rows[at:at] = variant.rows  # type: ignore[arg-type]
    if source.startswith(FRONTS):
        write_fronts(folder / "rows.csv", source.removeprefix(FRONTS).split(), rows, ends)
        return {"data__labels": "rows.csv"}
    if source == "csv":
        write_csv(folder / "rows.csv", rows, ends)
        return {"data__labels": "rows.csv"}
    if source == "parquet":
        write_parquet(folder / "rows.parquet", rows)
        return {"data__labels": "rows.parquet"}
    write_sqlite(folder / "rows.db", rows)
    query = json.dumps("SELECT * FROM sales ORDER BY rowid")
    return {"data__labels": "sqlite:///rows.db", "data__labels_query": query}
