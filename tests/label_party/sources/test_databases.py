"""Labels from SQLite and from a real PostgreSQL server: typed like files, of one moment."""

from __future__ import annotations

import json
import shlex
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import ConfigError, DataError, printable
from labelveil.label_party.commands.init import select
from labelveil.label_party.events.epoch import Rows
from labelveil.label_party.events.open import open_events
from labelveil.label_party.sources import databases
from labelveil.label_party.sources.databases import Query, snapshot
from tests.effort import one_in
from tests.label_party.conftest import EVENTS, Party, Result
from tests.label_party.postgres import PASSWORD, Postgres, started
from tests.label_party.release.test_several import with_labels
from tests.label_party.sources.reading import read_events

PLANTED = "73571.25"


def read_query(query: Query, names: list[str]) -> pl.DataFrame:
    return pl.concat(frame for frame, _ in query.chunks(names)).select(names)


@dataclass(frozen=True)
class Database:
    """A database to write to, and how it is read."""

    execute: Callable[[str], Any]
    query: Callable[[str], Query]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with started() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        path = tmp_path / "events.db"
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        yield Database(connection.execute, lambda sql: Query(f"sqlite:///{path}", sql))
        connection.close()
        return
    psycopg = pytest.importorskip("psycopg")
    server: Postgres = request.getfixturevalue("server")
    passfile = server.passfile(tmp_path / "pgpass")
    with psycopg.connect(server.address, passfile=str(passfile), autocommit=True) as writer:
        writer.execute("DROP SCHEMA public CASCADE")
        writer.execute("CREATE SCHEMA public")
        yield Database(writer.execute, lambda sql: Query(server.address, sql, passfile))


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
    "sql",
    [
        "DELETE FROM t",
        "INSERT INTO t VALUES (9) RETURNING id",
        "SELECT id FROM t; DELETE FROM t",
        "SELECT id FROM nothing",
        "SELECT",
    ],
)
def test_only_one_select_is_read(database: Database, sql: str) -> None:
    database.execute("CREATE TABLE t (id INTEGER)")
    database.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(DataError, match=r"refused|one SELECT"):
        read_events(database.query(sql), "id")
    assert read_query(database.query("SELECT id FROM t"), ["id"]).height == 1


def test_a_select_that_writes_is_refused(server: Postgres, tmp_path: Path) -> None:
    passfile = server.passfile(tmp_path / "pgpass")
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(server.address, passfile=str(passfile)) as writer:
        writer.execute("CREATE SEQUENCE written")
    sql = "SELECT nextval('written') AS id"
    with pytest.raises(DataError, match="SQLSTATE 25006"):
        read_events(Query(server.address, sql, passfile), "id")


def test_no_value_of_a_row_is_shown(database: Database) -> None:
    database.execute("CREATE TABLE t (id INTEGER, y TEXT)")
    database.execute(f"INSERT INTO t VALUES (1, '{PLANTED}x'), (2, '1')")
    assert read_events(database.query("SELECT id, y FROM t"), "id", labels=["y"])[1]
    for sql, label in (
        ("SELECT id, CAST(y AS numeric) + abs(-9223372036854775807 - 1) AS y FROM t", "y"),
        ("SELECT id, y FROM t", "other"),
    ):
        with pytest.raises(DataError) as caught:
            read_events(database.query(sql), "id", labels=[label])
        assert PLANTED not in str(caught.value)
        assert caught.value.__cause__ is None


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


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH DATABASE '{other}' AS other",
        "PRAGMA table_info(t)",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('{other}') AS id",
        "VACUUM INTO '{other}'",
        "CREATE TEMP TABLE u AS SELECT 1 AS id",
    ],
)
def test_a_query_reads_its_own_database_and_nothing_else(tmp_path: Path, sql: str) -> None:
    path, other = tmp_path / "a.db", tmp_path / "b.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (id)")
    connection.close()
    query = Query(f"sqlite:///{path}", sql.format(other=other))
    with pytest.raises(DataError, match=r"refused|one SELECT"):
        read_events(query, "id")
    assert not other.exists()


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


def test_credentials_are_never_shown(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = server.passfile(tmp_path / "wrong", "planted-secret")
    query = Query(server.address, "SELECT 1 AS id", wrong)
    with pytest.raises(DataError, match="wrong password, or no such user") as caught:
        read_events(query, "id")
    assert "planted" not in str(caught.value)
    assert caught.value.__suppress_context__
    open_to_all = server.passfile(tmp_path / "open")
    open_to_all.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600") as refused:
        read_events(Query(server.address, "SELECT 1 AS id", open_to_all), "id")
    assert PASSWORD not in str(refused.value)
    # the environment, as libpq reads it
    monkeypatch.setenv("PGPASSFILE", str(server.passfile(tmp_path / "good")))
    read, _ = read_events(Query(server.address, "SELECT 1 AS id"), "id")
    assert read["key"].to_list() == ["1"]


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


REFUSED = {
    "SELECT amuont FROM t": ["no such column: 'amuont'"],
    "SELECT id, <y z> FROM t": ["no such column: 'y z'"],
    "SELECT <a\x1b[2J> FROM t": ["no such column: 'a\\x1b[2J'"],
    "SELECT <a.b> FROM t": ["no such column: 'a.b'"],
    "SELECT id FROM ordrs": ["no such table", ": 'ordrs'"],
    "SELECT id FROM t, t AS u": ["several of its tables have such a column: 'id'"],
    "SELECT nofn(id) FROM t": ["no such function", ": 'nofn'"],
    "SELECT id FORM t": ["it is not SQL: 't'"],
    "SELECT (": ["it is not SQL"],
    "SELECT id FROM t; SELECT 1": ["one SELECT that only reads: set [data] population_query"],
    "DELETE FROM t": ["one SELECT that only reads"],
}
"""Queries that are refused, and what their lines must say."""


@pytest.mark.parametrize("sql", one_in(4, REFUSED))
def test_a_refused_query_is_named_with_its_cause(database: Database, sql: str) -> None:
    database.execute("CREATE TABLE t (id INTEGER, y TEXT)")
    query = database.query(sql)
    # in SQLite a name in double quotes that is no column's would be a text
    quote = "`" if query.address.startswith("sqlite") else '"'
    query = replace(query, sql=sql.translate({ord("<"): quote, ord(">"): quote}), of="population")
    with pytest.raises(DataError) as caught:
        _ = query.columns
    line = str(caught.value)
    for said in REFUSED[sql]:
        assert said in line
    assert line.startswith(f"population query of {query.address}: ")
    assert printable(line) == line
    assert "\n" not in line


def test_a_login_that_may_not_read_is_named_with_the_table(
    server: Postgres, tmp_path: Path
) -> None:
    psycopg = pytest.importorskip("psycopg")
    passfile = server.passfile(tmp_path / "pgpass")
    with psycopg.connect(server.address, passfile=str(passfile), autocommit=True) as writer:
        writer.execute("CREATE TABLE payroll (id TEXT)")
        writer.execute("CREATE ROLE reader LOGIN PASSWORD 'planted'")
        writer.execute("GRANT USAGE ON SCHEMA public TO reader")
    (tmp_path / "reader").write_text("*:*:*:reader:planted\n")
    (tmp_path / "reader").chmod(0o600)
    address = server.address.replace("owner@", "reader@")
    with pytest.raises(DataError, match="may not read it: 'payroll'") as caught:
        _ = Query(address, "SELECT id FROM payroll", tmp_path / "reader").columns
    assert "planted" not in str(caught.value)


def test_a_cell_that_a_function_makes_a_name_of_is_not_shown(
    server: Postgres, tmp_path: Path
) -> None:
    psycopg = pytest.importorskip("psycopg")
    passfile = server.passfile(tmp_path / "pgpass")
    with psycopg.connect(server.address, passfile=str(passfile), autocommit=True) as writer:
        writer.execute(
            "CREATE OR REPLACE FUNCTION leak (x TEXT) RETURNS INTEGER LANGUAGE plpgsql AS"
            " $$ BEGIN EXECUTE 'SELECT \"' || x || '\"'; RETURN 1; END $$"
        )
    query = Query(server.address, f"SELECT leak(v) AS id FROM (VALUES ('{PLANTED}')) AS t (v)")
    with pytest.raises(DataError, match=r"no such column \(UndefinedColumn") as caught:
        read_query(replace(query, credentials_file=passfile), ["id"])
    assert PLANTED not in str(caught.value)


@contextmanager
def answering(with_bytes: bytes) -> Iterator[int]:
    """A port whose every connection gets these bytes, and its end; of none, nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with suppress(OSError):
                while with_bytes:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(8)
                        connection.sendall(with_bytes)

        threading.Thread(target=answer, daemon=True).start()
        yield listening.getsockname()[1]


def test_every_cause_of_a_login_that_fails_has_its_own_line(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lines differ, each names the cause, and none shows what it was given to hide."""
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    right = server.passfile(tmp_path / "right")
    wrong = server.passfile(tmp_path / "wrong", "planted-secret")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        closed = listening.getsockname()[1]
    here = server.address
    with (
        answering(b"N") as without_tls,
        answering(b"HTTP/1.1 400\r\n") as web,
        answering(b"") as mute,
    ):
        causes = {
            "wrong password, or no such user": (here, wrong),
            "there is no password for this login": (here, None),
            "no such database": (here.replace("/postgres?", "/ssl-timeout?"), right),
            "nothing listens at this host": (f"postgresql://ssl@127.0.0.1:{closed}/role", None),
            "no server has a socket": (f"postgresql:///x?host={tmp_path}", None),
            "no machine of this name": ("postgresql://u@timeout.invalid/x", None),
            "does not answer in time": (
                f"postgresql://u@127.0.0.1:{mute}/x?connect_timeout=2", None
            ),
            "TLS was refused": (f"postgresql://u@127.0.0.1:{without_tls}/x?sslmode=require", None),
            "no PostgreSQL server": (f"postgresql://u@127.0.0.1:{web}/x", None),
            "no such service": (f"{here}&service=nope", None),
            "not understood": ("postgresql://u@127.0.0.1:99999/x", None),
            "target_session_attrs": (f"{here}&target_session_attrs=read-only", right),
        }  # fmt: skip
        lines = []
        for cause, (address, passfile) in causes.items():
            with pytest.raises(DataError, match="no connection to PostgreSQL") as caught:
                _ = Query(address, "SELECT 1 AS id", passfile, "population").columns
            line = str(caught.value)
            assert cause in line, line
            assert line.startswith(f"population query of {address}: ")
            assert "planted" not in line
            assert caught.value.__suppress_context__
            lines.append(line.partition("PostgreSQL: ")[2])
    assert len({line.partition(";")[0] for line in lines}) == len(causes)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("SSL error: certificate verify failed", "not signed by the authority in sslrootcert"),
        ('server certificate for "ssl" does not match host name "h"', "for another name"),
        ('root certificate file "/a" does not exist', "no authority is there"),
        (
            'FATAL: no pg_hba.conf entry for host "1.2.3.4", user "u", database "d"',
            "admits no such",
        ),
        ('FATAL:  role "connection refused" does not exist', "no such user"),
        ('FATAL: permission denied for database "d"', "may not use this database"),
        ("FATAL:  sorry, too many clients already", "no connection left"),
        ("FATAL:  the database system is starting up", "starting or stopping"),
        ("planted-secret in words that nobody knows", "cannot be reached (OperationalError)"),
    ],
)
def test_what_a_driver_says_of_a_login_is_told_in_our_words(
    said: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")
    failed = f'connection failed: connection to server at "ssl.example" (1.2.3.4) failed: {said}'

    def connect(*given: object, **options: object) -> None:
        raise psycopg.OperationalError(failed)

    monkeypatch.setattr(psycopg, "connect", connect)
    with pytest.raises(DataError) as caught:
        _ = Query("postgresql://u@ssl.example/x", "SELECT 1").columns
    assert f"no connection to PostgreSQL: {cause}" in str(caught.value) or cause in str(
        caught.value
    )
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("where", ["connect", "execute"])
@pytest.mark.parametrize("error", [RuntimeError, UnicodeError, OSError, KeyError])
def test_a_driver_that_raises_something_unknown_is_one_line_without_it(
    where: str, error: type[Exception], server: Postgres, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    psycopg = pytest.importorskip("psycopg")
    passfile = server.passfile(tmp_path / "pgpass")

    def raising(*given: object, **options: object) -> None:
        raise error(f"{PLANTED}\x1b[31m\n{PASSWORD}")

    monkeypatch.setattr(*(
        (psycopg, "connect", raising) if where == "connect"
        else (psycopg.ServerCursor, "execute", raising)
    ))  # fmt: skip
    with pytest.raises(DataError, match=error.__name__) as caught:
        _ = Query(server.address, "SELECT 1", passfile).columns
    assert not [
        planted for planted in (PLANTED, PASSWORD, "\x1b", "\n") if planted in str(caught.value)
    ]
    assert caught.value.__suppress_context__


def test_a_database_that_cannot_be_looked_at_writes_a_file_on_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("init", "--labels=sqlite:///no.db", "--table=t", "--label=y:0:1", "--epsilon=1")
    refused = run_cli(*given)
    assert "labels query of sqlite:///no.db: no.db does not exist" in refused.error
    assert not list(tmp_path.iterdir())
    done = run_cli(*given, "--unverified")
    last = done.out.splitlines()[-1]
    assert done.code == 0
    assert last.startswith("not verified: labels query of sqlite:///no.db: no.db does not exist")
    assert last.endswith("then run: label-party doctor")
    written = Path("label_party.toml").read_text()
    assert 'labels_query = "SELECT t.\\"key\\", t.\\"y\\" FROM \\"t\\" AS t"' in written
