"""Rows of SQLite and PostgreSQL: streamed, read-only, all of one moment.

No message holds what a driver says: drivers repeat addresses, rows and statements. Errors name the
class of the refusal, PostgreSQL's with its SQLSTATE.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID

import polars as pl

from common.errors import ConfigError, DataError, present
from label_party.sources.addresses import Query, check_private

CHUNK_ROWS = 50_000
_CONNECT_SECONDS = 15


class Connection(Protocol):
    """One read-only transaction."""

    def columns(self, query: Query) -> list[str]:
        """Return the names of the query's columns."""
        ...

    def rows(self, query: Query) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the query's rows, at most ``CHUNK_ROWS`` at a time."""
        ...


_Key = tuple[str, Path | None]
_open: ContextVar[tuple[dict[_Key, Connection], ExitStack] | None] = ContextVar(
    "open", default=None
)


@contextmanager
def snapshot() -> Iterator[None]:
    """Let every read within see the databases as they were at one moment each.

    Labels and population then belong together, however long reading takes. Nested, the outer one
    counts.
    """
    if _open.get() is not None:
        yield
        return
    with ExitStack() as connections:
        token = _open.set(({}, connections))
        try:
            yield
        finally:
            _open.reset(token)


def columns_of_query(query: Query) -> list[str]:
    """Return the names of a query's columns."""
    with snapshot():
        return _connection(query).columns(query)


def read_query(query: Query, names: Sequence[str]) -> pl.DataFrame:
    """Return some columns of a query's rows, in the order in which the database gave them.

    Numbers of any precision become integers or float64, UUIDs text; what is left has Polars' own
    types, and is judged as a file's columns are.

    Raises
    ------
    DataError
        If the database refuses, or a column holds values of several types.
    """
    frames = list(query_parts(query, names))
    if not frames:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
    try:
        return pl.concat(frames, how="vertical_relaxed")
    except pl.exceptions.PolarsError:
        raise _several_types(query, ", ".join(names)) from None


def query_parts(query: Query, names: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Yield what :func:`read_query` returns, ``CHUNK_ROWS`` rows at a time."""
    with snapshot():
        connection = _connection(query)
        present = connection.columns(query)
        at = [present.index(name) for name in names]
        for rows in connection.rows(query):
            yield pl.DataFrame(
                [
                    _series(query, name, [row[position] for row in rows])
                    for name, position in zip(names, at, strict=True)
                ]
            )


def _series(query: Query, name: str, values: list[Any]) -> pl.Series:
    plain = [
        float(value) if isinstance(value, Decimal) else str(value) if isinstance(value, UUID)
        else value
        for value in values
    ]  # fmt: skip
    kinds = {type(value) for value in plain} - {type(None)}
    if kinds == {int, float}:
        plain = [None if value is None else float(value) for value in plain]
    try:
        return pl.Series(name, plain, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        raise _several_types(query, name) from None


def _several_types(query: Query, name: str) -> DataError:
    return DataError(
        f"{query}: column {name!r} holds values of several types, or beyond 64 bits; cast it in the"
        " query"
    )


def _connection(query: Query) -> Connection:
    connections, stack = present(_open.get())
    key = (query.address, query.credentials_file)
    if key not in connections:
        make = _sqlite if query.scheme == "sqlite" else _postgres
        connections[key] = stack.enter_context(make(query))
    return connections[key]


class _SQLite:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def columns(self, query: Query) -> list[str]:
        with _translating_sqlite_errors(query):
            return _names(query, self._database.execute(query.sql).description)

    def rows(self, query: Query) -> Iterator[list[tuple[Any, ...]]]:
        with _translating_sqlite_errors(query):
            cursor = self._database.execute(query.sql)
            while rows := cursor.fetchmany(CHUNK_ROWS):
                yield rows


@contextmanager
def _sqlite(query: Query) -> Iterator[Connection]:
    parts = urlsplit(query.address)
    path = Path(unquote(parts.netloc + parts.path).removeprefix("/"))
    if not path.is_file():
        raise DataError(
            f"{query}: {path} does not exist; write sqlite:///relative.db or sqlite:////absolute.db"
        )
    with _translating_sqlite_errors(query):
        address = f"file:{quote(str(path))}?mode=ro"
        database = sqlite3.connect(address, uri=True, isolation_level=None, timeout=10.0)
    try:
        with _translating_sqlite_errors(query):
            database.execute("PRAGMA query_only = ON")
            database.execute("BEGIN")
        yield _SQLite(database)
    finally:
        database.close()


@contextmanager
def _translating_sqlite_errors(query: Query) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        kind = getattr(error, "sqlite_errorname", None) or type(error).__name__
        raise DataError(
            f"{query}: SQLite refused to read ({kind}); check the file and the query in [data]"
        ) from None


class _Postgres:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def columns(self, query: Query) -> list[str]:
        with _translating_postgres_errors(query), self._connection.cursor(name="columns") as cursor:
            cursor.execute(query.sql)
            return _names(query, cursor.description)

    def rows(self, query: Query) -> Iterator[list[tuple[Any, ...]]]:
        # a named cursor stays in the server: the whole result is never in this process's driver
        with _translating_postgres_errors(query), self._connection.cursor(name="rows") as cursor:
            cursor.execute(query.sql)
            while rows := cursor.fetchmany(CHUNK_ROWS):
                yield rows


@contextmanager
def _postgres(query: Query) -> Iterator[Connection]:
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise ConfigError("PostgreSQL needs psycopg; install labelveil[postgres]") from error
    options: dict[str, Any] = {}
    if query.credentials_file is not None:
        check_private(query.credentials_file)
        options["passfile"] = str(query.credentials_file)
    if "connect_timeout=" not in query.address:
        options["connect_timeout"] = _CONNECT_SECONDS
    try:
        connection = psycopg.connect(query.address, **options)
    except psycopg.Error as error:
        state = f" (SQLSTATE {error.sqlstate})" if error.sqlstate else ""
        raise DataError(
            f"{query}: PostgreSQL cannot be reached or refused the login{state}; check the address,"
            " and the credentials in PGPASSFILE, PGSERVICE or [data] credentials_file"
        ) from None
    closing: AbstractContextManager[Any] = connection
    with closing:
        with _translating_postgres_errors(query):
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT 1")  # the moment that everything is read at
        yield _Postgres(connection)


@contextmanager
def _translating_postgres_errors(query: Query) -> Iterator[None]:
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        state = f", SQLSTATE {error.sqlstate}" if error.sqlstate else ""
        raise DataError(
            f"{query}: PostgreSQL refused the query ({type(error).__name__}{state}); it must be one"
            " SELECT that this login may read; set [data] labels_query and population_query"
        ) from None


def _names(query: Query, description: Sequence[Any] | None) -> list[str]:
    if description is None:
        raise DataError(f"{query}: the query returns no rows; it must be one SELECT")
    return [str(column[0]) for column in description]
