"""Databases that tests read: SQLite, and a real PostgreSQL server."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labelveil.label_party.sources.databases import Query
from tests.label_party.postgres import Postgres, started


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
