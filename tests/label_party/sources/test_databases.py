"""Labels from SQLite and from a real PostgreSQL server: typed like files, of one moment."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import DataError
from labelveil.label_party.commands.init import select
from labelveil.label_party.events.epoch import Rows
from labelveil.label_party.events.open import open_events
from labelveil.label_party.sources import databases
from labelveil.label_party.sources.databases import Query, snapshot
from tests.effort import one_in
from tests.label_party.conftest import EVENTS, Party, Result
from tests.label_party.postgres import Postgres
from tests.label_party.release.test_several import with_labels
from tests.label_party.sources.conftest import Database
from tests.label_party.sources.reading import PLANTED, read_events, read_query


@pytest.mark.slow
def test_a_query_reads_as_the_same_table_in_a_file(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id BIGINT, name TEXT, y NUMERIC(10, 2), z INTEGER)")
    database.execute(
        "INSERT INTO t VALUES (7, '007', 1.25, 3), (8, 'é', NULL, NULL), (9, ' x', -0.1, 0)"
    )
    frame = pl.DataFrame(
        {"id": [7, 8, 9], "name": ["007", "é", " x"], "y": [1.25, None, -0.1], "z": [3, None, 0]}
    )
    frame.write_parquet(tmp_path / "t.parquet")
    query = database.query("SELECT * FROM t ORDER BY id")
    assert query.columns == ["id", "name", "y", "z"]
    for key in ("id", "name"):
        for label in ("y", "z"):
            read = read_events(query, key, labels=[label], user="name")[0]
            there = read_events(tmp_path / "t.parquet", key, labels=[label], user="name")[0]
            assert read.equals(there)


def test_rows_come_in_pieces_whatever_each_holds(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "CHUNK_ROWS", 2)
    database.execute("CREATE TABLE t (id INTEGER, y NUMERIC)")
    database.execute(
        "INSERT INTO t VALUES (1, NULL), (2, NULL), (3, 4), (4, 2.5), (5, NULL), (6, 7), (7, 0)"
    )
    read, _ = read_events(database.query("SELECT id, y FROM t ORDER BY id"), "id", labels=["y"])
    assert read["key"].to_list() == [str(i) for i in range(1, 8)]
    assert read["label"].to_list() == [None, None, 4.0, 2.5, None, 7.0, 0.0]


def test_no_rows_and_no_labels_are_no_error(database: Database) -> None:
    database.execute("CREATE TABLE t (id INTEGER, y INTEGER)")
    query = database.query("SELECT id, y FROM t")
    assert read_events(query, "id", labels=["y"])[0].height == 0


def test_postgres_declares_types_and_sqlite_none(database: Database) -> None:
    types = {"a": "integer", "b": "numeric(9)", "c": "numeric(9, 2)", "d": "text", "e": "boolean"}
    columns = ", ".join(f"{name} {kind}" for name, kind in types.items())
    database.execute(f"CREATE TABLE t ({columns})")
    query = database.query("SELECT * FROM t")
    declared = {name: query.declared(name) for name in (*types, "f")}
    if query.address.startswith("sqlite"):
        assert set(declared.values()) == {None}
        return
    assert declared == {
        "a": ("int4", True), "b": ("numeric(9,0)", True), "c": ("numeric(9,2)", False),
        "d": ("text", False), "e": ("bool", True), "f": None,
    }  # fmt: skip


def test_a_result_is_not_held_at_once(database: Database) -> None:
    """The first rows of a result that fits into no memory come at once."""
    database.execute("CREATE TABLE t (id INTEGER)")
    database.execute("INSERT INTO t VALUES " + ", ".join(f"({i})" for i in range(1000)))
    query = database.query("SELECT a.id FROM t AS a, t AS b, t AS c, t AS d")
    with snapshot():
        rows = databases._connection(query).rows(query, ["id"])
        assert len(next(rows)) == databases.CHUNK_ROWS


def test_labels_and_population_are_of_one_moment(database: Database) -> None:
    database.execute("CREATE TABLE t (id INTEGER)")
    database.execute("INSERT INTO t VALUES (1), (2)")
    query = database.query("SELECT id FROM t")
    with snapshot():
        before = read_query(query, ["id"])
        database.execute("DELETE FROM t WHERE id = 1")
        database.execute("INSERT INTO t VALUES (3)")
        assert read_query(query, ["id"]).equals(before)
    assert sorted(read_query(query, ["id"])["id"]) == ["2", "3"]


@pytest.mark.parametrize(
    ("key", "value", "names", "number"),
    [
        (2, 2.5, "2", 2.5),
        ("2", "2.5", "2", 2.5),
        ("2", PLANTED + "x", "2", None),
        ("2", b"\x07", "2", None),
        ("2", float("inf"), "2", None),
        (2, (1 << 63) - 1, "2", float(1 << 63)),
        (b"2", 3, None, None),
        (None, 3, None, None),
        ("", 3, None, None),
    ],
)
def test_sqlite_values_of_any_type_change_their_own_row_alone(
    key: object, value: object, names: str | None, number: float | None, tmp_path: Path
) -> None:
    path = tmp_path / "mixed.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (id, y)")
        rows = [(1, 1), (key, value), ("b", "0.5"), ("c", None)]
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
    connection.close()
    query = Query(f"sqlite:///{path}", "SELECT id, y FROM t")
    events, odd = read_events(query, "id", labels=["y"])
    others = [("1", 1.0), ("b", 0.5), ("c", None)]
    own = [] if names is None else [(names, number)]
    assert events.select("key", "label").rows() == [others[0], *own, *others[1:]]
    assert {place for one in odd for place in one.places} <= {2}
    assert bool(odd) == (names is None or number is None)
    assert PLANTED not in str([*map(str, odd)])


def test_text_of_sqlite_that_is_no_utf8_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "bytes.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (id TEXT, y TEXT)")
        connection.execute("INSERT INTO t VALUES ('a', '1'), (CAST(X'ff' AS TEXT), '2')")
        connection.execute("INSERT INTO t VALUES ('c', CAST(X'31ff' AS TEXT))")
    connection.close()
    query = Query(f"sqlite:///{path}", "SELECT id, y FROM t")
    events, odd = read_events(query, "id", labels=["y"])
    assert events.select("key", "label").rows() == [("a", 1.0), ("c", None)]
    assert [one.places for one in odd if one.reason == "neither text nor a number"] == [(2,), (3,)]


def test_postgres_reads_its_own_types(server: Postgres, tmp_path: Path) -> None:
    passfile = server.passfile(tmp_path / "pgpass")
    uuid = "6f1f0b2e-0c3c-4b77-9a35-0f5d2c9f0c11"

    def read(key: str, label: str) -> pl.DataFrame:
        sql = f"SELECT {key} AS id, {label} AS y"
        return read_events(Query(server.address, sql, passfile), "id", labels=["y"])[0]

    assert read(f"'{uuid}'::uuid", "true")["key"].to_list() == [uuid]
    assert read("7::smallint", "'NaN'::float8")["label"].to_list() == [None]
    assert read("'7'::varchar", "0.1::numeric")["label"].to_list() == [0.1]
    assert read("1", "now()")["label"].to_list() == [None]
    assert read("1", "'inf'::float8")["label"].to_list() == [None]


def days_of(source: Query, column: str) -> list[str]:
    return Rows(source, "id", day=(column, "")).days()


LEGAL = {
    "'infinity'::timestamp": None,
    "'-infinity'::date": None,
    "'0044-03-15 BC'::date": None,
    "'12024-06-01'::date": None,
    "'10000-01-01 00:00:00+00'::timestamptz": None,
    "'24:00:00'::time": None,
    "'24:00:00+15:59'::timetz": None,
    "daterange('2024-01-01', 'infinity')": None,
    "'{[infinity,)}'::tsmultirange": None,
    "ARRAY['infinity'::date]": None,
    "ROW('infinity'::date)": None,
    "'178000000 years'::interval": None,
    r"'\x31ff'::bytea": None,
    "'{\"a\": 1e400}'::jsonb": None,
    "'10.0.0.300'::text": None,
    "'Infinity'::numeric": None,
    "'-Infinity'::float4": None,
    "1e-320::float8": 1e-320,
    "0.1::float8 + 0.2": 0.1 + 0.2,
    "repeat('9', 400)::numeric": None,
    "true": 1.0,
}
"""Values that PostgreSQL stores without a word, and what they are as labels."""


@pytest.mark.parametrize("value", one_in(4, LEGAL))
def test_no_legal_value_of_postgres_refuses_other_rows(
    server: Postgres, tmp_path: Path, value: str
) -> None:
    """As a label, as a further column, as the day, and as the key: it speaks for its own row."""
    query = f"SELECT id, CASE WHEN id = 'b' THEN {value} END AS v, id <> 'b' AS y FROM"
    query += " (VALUES ('a'), ('b'), ('c')) AS t (id) ORDER BY id"
    source = Query(server.address, query, server.passfile(tmp_path / "pgpass"))
    events, _ = read_events(source, "id", labels=["v"])
    assert events["key"].to_list() == ["a", "b", "c"]
    assert events["label"].to_list() == [None, LEGAL[value], None]
    unread, _ = read_events(source, "id", labels=["y"])
    assert unread["label"].to_list() == [1.0, 0.0, 1.0]
    assert days_of(source, "v") == []
    named, _ = read_events(source, "v", labels=["y"])
    assert named["label"].to_list() == [0.0]


def test_a_column_that_nobody_wants_is_not_computed(server: Postgres, tmp_path: Path) -> None:
    sql = "SELECT n::text AS id, 2 * n AS y, 1 / (n - 2) AS other FROM generate_series(1, 3) AS n;"
    source = Query(server.address, sql, server.passfile(tmp_path / "pgpass"))
    assert source.columns == ["id", "y", "other"]
    assert read_events(source, "id", labels=["y"])[0]["label"].to_list() == [2.0, 4.0, 6.0]


def test_days_are_read_however_the_login_would_have_them(server: Postgres, tmp_path: Path) -> None:
    passfile = server.passfile(tmp_path / "pgpass")
    address = f"{server.address}&options=-c%20datestyle%3DGerman%20-c%20timezone%3DEtc/GMT-14"
    sql = "SELECT 1 AS id, '2024-06-01 12:00+00'::timestamptz AS at, '2024-06-01'::date AS day"
    source = Query(address, sql, passfile)
    assert (days_of(source, "day"), days_of(source, "at")) == (["2024-06-01"], ["2024-06-02"])


@pytest.mark.parametrize(
    ("encoding", "good", "bad"),
    [("SQL_ASCII", r"\xC3\xA9", r"\xff"), ("WIN1252", r"\xE9", r"\x81")],
)
def test_text_of_postgres_that_is_no_text_is_missing(
    server: Postgres, tmp_path: Path, encoding: str, good: str, bad: str
) -> None:  # fmt: skip
    psycopg = pytest.importorskip("psycopg")
    passfile = server.passfile(tmp_path / "pgpass")
    with psycopg.connect(server.address, passfile=str(passfile), autocommit=True) as writer:
        writer.execute("DROP DATABASE IF EXISTS bytes")
        writer.execute(f"CREATE DATABASE bytes ENCODING '{encoding}' TEMPLATE template0")
    rows = f"(E'{good}', '1'), (E'{bad}', '2'), ('c', E'3{bad}')"
    sql = f"SELECT id, y FROM (VALUES {rows}) AS t (id, y)"
    address = server.address.replace("/postgres", "/bytes")
    events, odd = read_events(Query(address, sql, passfile), "id", labels=["y"])
    assert events.select("key", "label").rows() == [("é", 1.0), ("c", None)]
    assert {place for one in odd for place in one.places} == {2, 3}
    named = Query(address, f'SELECT id AS "é", y FROM (VALUES {rows}) AS t (id, y)', passfile)
    if encoding == "SQL_ASCII":  # it has no letter é, and no word on what its bytes are
        with pytest.raises(DataError, match="refused the query"):
            read_events(named, "é", labels=["y"])
    else:
        assert read_events(named, "é", labels=["y"])[0].rows() == events.rows()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_release_from_a_database(
    party: Party, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The same population, labels and all, as from files."""
    assert party.release().code == 0
    tables = {name: pl.read_csv(party.folder / f"{name}.csv") for name in ("labels", "population")}
    if kind == "sqlite":
        connection: Any = sqlite3.connect(party.folder / "e.db")
        address, mark, more = "sqlite:///e.db", "?", {}
    else:
        psycopg = pytest.importorskip("psycopg")
        server: Postgres = request.getfixturevalue("server")
        passfile = server.passfile(tmp_path / "pgpass")
        connection = psycopg.connect(server.address, passfile=str(passfile))
        address, mark = server.address, "%s"
        more = {"data__credentials_file": passfile}
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE events (key TEXT)")
    cursor.execute("CREATE TABLE sales (key TEXT, amount DOUBLE PRECISION)")
    cursor.executemany(
        f"INSERT INTO events VALUES ({mark})", tables["population"].select("key").rows()
    )
    cursor.executemany(
        f"INSERT INTO sales VALUES ({mark}, {mark})", tables["labels"].select("key", "label").rows()
    )
    connection.commit()
    connection.close()
    done = party.release(
        data__labels=address,
        data__labels_query="SELECT key, amount AS label FROM sales",
        data__population=address,
        data__population_query="SELECT key FROM events",
        data__epoch="2",
        **more,
    )
    assert done.code == 0, done
    one, two = (
        json.loads((party.store / "releases" / "labels" / epoch / "manifest.json").read_text())
        for epoch in ("1", "2")
    )
    assert one["population"] == two["population"]
    assert one["population"]["rows"] == EVENTS


@pytest.mark.slow
def test_a_database_has_a_column_for_each_label(party: Party, database: Database) -> None:
    with_labels(party)
    table = pl.read_csv(party.folder / "labels.csv", null_values="")
    rows = table.select("key", "amount", pl.col("returned").cast(int)).rows()
    values = ", ".join(f"('{key}', {amount or 'NULL'}, {back})" for key, amount, back in rows)
    database.execute("CREATE TABLE sales (id TEXT, amount DOUBLE PRECISION, back INTEGER)")
    database.execute(f"INSERT INTO sales VALUES {values}")
    query = database.query("SELECT id AS key, amount, back AS returned FROM sales")
    stored = {"data__labels": query.address, "data__labels_query": query.sql}
    if query.credentials_file is not None:
        stored |= {"data__credentials_file": str(query.credentials_file)}
    read = []
    for source in ({}, stored):
        with open_events(party.config(**source), quiet=True) as found:
            keys, labels = (
                np.concatenate(part) for part in zip(*found.keys_and_labels(), strict=True)
            )
        read.append((keys.tolist(), labels.tolist()))
    assert read[0] == read[1]
    assert np.shape(read[0][1]) == (EVENTS, 2)
    less = {**stored, "data__labels_query": query.sql.replace(", back AS returned", "")}
    assert "returned" in party.release(**less).error
    assert party.nothing_left()
    assert party.release(**stored, privacy__division="split").code == 0


GUIDE = Path("docs/how-to/databases.md")


@pytest.mark.slow
def test_the_guide_works_with_both(
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_cli: Callable[..., Result],
) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    database.execute("CREATE TABLE orders (click_id TEXT, amount NUMERIC(10, 2), returned BOOLEAN)")
    database.execute("CREATE TABLE landings (click_id TEXT)")
    keys = [f"c{number}" for number in range(500)]
    orders = ", ".join(
        f"('{key}', {place % 50}.25, {place % 2 == 0})" for place, key in enumerate(keys[::2])
    )
    database.execute(f"INSERT INTO orders VALUES {orders}")
    database.execute("INSERT INTO landings VALUES " + ", ".join(f"('{key}')" for key in keys))
    query = database.query("SELECT 1")
    if query.credentials_file is not None:
        monkeypatch.setenv("PGPASSFILE", str(query.credentials_file))
    monkeypatch.chdir(tmp_path)
    block = text.split("```text\n")[1].split("```")[0].replace("\\\n", " ")
    address, said = "postgresql://reader@db.example.com/shop", []
    for line in block.splitlines():
        program, *words = shlex.split(line.removeprefix("$ "))
        if program == "label-party":
            done = run_cli(*(query.address if word == address else word for word in words))
            assert done.code == 0, done
            said.append(done.out)
    made, found, released = said
    kind = "binary" if address[:10] == query.address[:10] else "amount"
    assert f"label 'returned': {kind}" in made
    assert "label 'amount': amount" in made
    assert "500 events" in found
    assert "250 (given 0)" in found
    assert "privacy" in released


def test_names_of_columns_and_tables_are_quoted(database: Database) -> None:
    database.execute('CREATE TABLE "the order" ("a ""b""" TEXT, "y;" INTEGER)')
    database.execute("""INSERT INTO "the order" VALUES ('k', 7)""")
    columns = ['a "b"', "y;"]
    read = read_query(database.query(select(columns, "the order")), columns)
    assert read.rows() == [("k", "7")]
    schema = "main" if isinstance(database.execute("SELECT 1"), sqlite3.Cursor) else "public"
    assert select(["y"], f"{schema}.t") == f'SELECT t."y" FROM "{schema}"."t" AS t'
    database.execute("CREATE TABLE u (y INTEGER)")
    with pytest.raises(DataError, match=r"no such column: 't\.z'"):
        read_query(database.query(select(["z"], f"{schema}.u")), ["z"])
