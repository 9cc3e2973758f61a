"""What a database refuses is one line with its cause, and shows no secret and no value of a row."""

from __future__ import annotations

import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from labelveil.common.errors import ConfigError, DataError, printable
from labelveil.label_party.sources.databases import Query, _authorize
from tests.effort import one_in
from tests.label_party.conftest import Result
from tests.label_party.postgres import PASSWORD, Postgres
from tests.label_party.sources.conftest import Database
from tests.label_party.sources.reading import PLANTED, read_events, read_query


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


def test_a_query_computes_what_it_likes_but_loads_no_code(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    sqlite3.connect(path).close()
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3)"
    query = Query(f"sqlite:///{path}", f"{numbers} SELECT upper('e' || i) AS id FROM n")
    assert read_events(query, "id")[0]["key"].to_list() == ["E1", "E2", "E3"]
    # SQLite itself would refuse that, too, as long as nobody lets it
    assert _authorize(sqlite3.SQLITE_FUNCTION, None, "load_extension") == sqlite3.SQLITE_DENY


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
