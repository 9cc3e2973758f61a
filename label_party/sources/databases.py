"""Rows of SQLite and PostgreSQL: streamed, read-only, all of one moment.

No message holds what a driver says: drivers repeat addresses, rows and statements. Of that only its
kind is told, in our words, and a name if the query itself has it: an error is one line with the
query, the column or table, the cause and what to do
(:mod:`labelveil.label_party.sources.refusals`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID

import polars as pl

from labelveil.common.errors import ConfigError, DataError, LabelveilError, not_none
from labelveil.common.extras import install_command
from labelveil.label_party.sources.anomalies import LINE, NOTHING, Anomalies, anomaly_of
from labelveil.label_party.sources.refusals import (
    explain_login,
    explain_postgres,
    explain_sqlite,
)
from labelveil.label_party.sources.remote_source import RemoteSource, check_private

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

CHUNK_ROWS = 50_000
_CONNECT_SECONDS = 15
_WHOLE = "bool", "int2", "int4", "int8"
_READING = {
    *(sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ),
    *(sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE),
}


@dataclass(frozen=True)
class Query(RemoteSource):
    """A query to a database; named by an address without credentials."""

    address: str
    sql: str
    credentials_file: Path | None = None
    of: str = "labels"  # what is read by it: the setting in [data]

    def __str__(self) -> str:
        return self.address

    def refused(self, why: str) -> DataError:
        """An error about it: which query, of what address, and why."""
        return DataError(f"{self.of} query of {self}: {why}")

    @property
    def columns(self) -> list[str]:
        with snapshot():
            return _connection(self).columns(self)

    def declared(self, column: str) -> tuple[str, bool] | None:
        """PostgreSQL's type; SQLite's are the values' own, whatever their column's."""
        with snapshot():
            found = {str(one[0]): one for one in _connection(self).described(self)}.get(column)
        kind = getattr(found, "type_display", None)
        if found is None or kind is None:
            return None
        return kind, kind in _WHOLE or (kind.startswith("numeric") and found.scale == 0)

    def chunks(self, names: Sequence[str]) -> Iterator[tuple[pl.DataFrame, Anomalies]]:
        """Its rows, ``CHUNK_ROWS`` at a time, in the database's order.

        Every value is made text by itself, as it would stand in a CSV file: PostgreSQL's as the
        server writes it, with times in ISO 8601, and SQLite's by its own type, whatever its
        column's. What is neither text nor a number there, or not of its encoding, is missing.

        ``DataError`` if the database refuses the query. It may do so because of one row, in which a
        cast or a function of the query fails: a query must be written so that none can.
        """
        with snapshot():
            start = 1
            for rows in _connection(self).rows(self, names):
                places = pl.int_range(start, start + len(rows), eager=True).alias(LINE)
                columns, odd = [], NOTHING
                for at, name in enumerate(names):
                    values = [row[at] for row in rows]
                    texts = pl.Series(name, [_text(value) for value in values], dtype=pl.String)
                    untaken = texts.is_null() & pl.Series([value is not None for value in values])
                    odd += anomaly_of(name, "neither text nor a number", untaken, places)
                    columns.append(texts)
                yield pl.DataFrame([*columns, places]), odd
                start += len(rows)


@dataclass(frozen=True)
class Connection:
    """One read-only transaction."""

    cursor: Callable[[], AbstractContextManager[Any]]  # a new one
    # what is executed to read some of a query's columns; it may return further ones
    narrowed: Callable[[str, Sequence[str]], Any]
    explain: Callable[[Exception, str, str], str]  # why the driver refused a query

    def columns(self, query: Query) -> list[str]:
        """Return the names of the query's columns."""
        return [str(column[0]) for column in self.described(query)]

    def described(self, query: Query) -> Sequence[Any]:
        """What the driver says of the query's columns."""
        with _translating_errors(query, self.explain), self.cursor() as cursor:
            cursor.execute(query.sql)
            if cursor.description is None:
                raise query.refused(
                    f"it returns no rows; it must be one SELECT: set [data] {query.of}_query"
                )
            return list(cursor.description)

    def rows(self, query: Query, names: Sequence[str]) -> Iterator[list[tuple[Any, ...]]]:
        """Yield these columns of the query's rows, at most ``CHUNK_ROWS`` at a time."""
        with _translating_errors(query, self.explain), self.cursor() as cursor:
            cursor.execute(self.narrowed(query.sql, names))
            there = [str(column[0]) for column in cursor.description]
            at = [there.index(name) for name in names]
            while rows := cursor.fetchmany(CHUNK_ROWS):
                yield [tuple(row[place] for place in at) for row in rows]


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


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, str | int | float | Decimal | UUID | date) else None


def _connection(query: Query) -> Connection:
    connections, stack = not_none(_open.get())
    key = (query.address, query.credentials_file)
    if key not in connections:
        make = _sqlite if urlsplit(query.address).scheme == "sqlite" else _postgres
        connections[key] = stack.enter_context(make(query))
    return connections[key]


@contextmanager
def _sqlite(query: Query) -> Iterator[Connection]:
    parts = urlsplit(query.address)
    path = Path(unquote(parts.netloc + parts.path).removeprefix("/"))
    if not path.is_file():
        raise query.refused(
            f"{path} does not exist; write sqlite:///relative.db or sqlite:////absolute.db"
        )
    with _translating_errors(query, explain_sqlite):
        address = f"file:{quote(str(path))}?mode=ro"
        database = sqlite3.connect(address, uri=True, isolation_level=None, timeout=10.0)
    try:
        with _translating_errors(query, explain_sqlite):
            database.execute("BEGIN")
            database.set_authorizer(_authorize)
        database.text_factory = _decoded
        yield Connection(
            lambda: nullcontext(database.cursor()),
            lambda sql, names: sql,
            explain_sqlite,
        )
    finally:
        database.close()


def _authorize(action: int, first: str | None, second: str | None, *where: str | None) -> int:
    """Let a query read tables of its own file, and nothing else: no ATTACH, PRAGMA or writing."""
    loads = action == sqlite3.SQLITE_FUNCTION and second == "load_extension"
    return sqlite3.SQLITE_DENY if loads or action not in _READING else sqlite3.SQLITE_OK


def _decoded(text: bytes, codec: str = "utf-8") -> str | bytes:
    """Leave what is not of its encoding as bytes, which are no text."""
    try:
        return text.decode(codec)
    except UnicodeDecodeError:
        return text


@contextmanager
def _translating_errors(
    query: Query, explain: Callable[[Exception, str, str], str]
) -> Iterator[None]:
    """Put what a driver raises, whatever it is, in words of ours: its own may show a row."""
    try:
        yield
    except LabelveilError:
        raise
    except Exception as error:  # among them UnicodeError: letters that a server has none of
        raise query.refused(explain(error, query.sql, query.of)) from None


@contextmanager
def _postgres(query: Query) -> Iterator[Connection]:
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise ConfigError(f"PostgreSQL needs psycopg; {install_command('postgres')}") from error
    options: dict[str, Any] = {}
    if query.credentials_file is not None:
        check_private(query.credentials_file)
        options["passfile"] = str(query.credentials_file)
    if "connect_timeout=" not in query.address:
        options["connect_timeout"] = _CONNECT_SECONDS
    try:
        connection = psycopg.connect(query.address, **options)
    except Exception as error:  # whatever a driver raises may show a password
        raise query.refused(explain_login(error)) from None
    with connection:
        with _translating_errors(query, explain_postgres):
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            for setting in _POSTGRES_WRITES:  # the first is the moment that everything is read at
                connection.execute(f"SET LOCAL {setting}")
            _load_as_text(connection)
        names = (f"rows_{number}" for number in count())
        # a named cursor stays in the server: the whole result is never in this process's driver
        yield Connection(lambda: connection.cursor(name=next(names)), _narrowed, explain_postgres)


_POSTGRES_WRITES = "datestyle TO ISO", "intervalstyle TO postgres", "extra_float_digits TO 3"
"""How a server writes values, whatever it and the login are set to."""


def _load_as_text(connection: psycopg.Connection[Any]) -> None:
    """Take every value as the server writes it: there are legal ones that Python has none for.

    Of them, the driver's own loaders raise on times without an end, before Christ, of years of five
    digits and at 24:00, which would refuse all other rows, too. So would a server that is to
    translate a text into an encoding that lacks a letter of it.
    """
    from psycopg.adapt import Buffer, Loader

    stored = connection.info.parameter_status("server_encoding")
    connection.execute(f"SET LOCAL client_encoding TO {stored}")
    codec = "utf-8" if stored == "SQL_ASCII" else connection.info.encoding

    class AsWritten(Loader):
        def load(self, data: Buffer) -> str | bytes:
            return _decoded(bytes(data), codec)

    class TrueOrFalse(Loader):  # as SQL writes them; the server sends their first letters
        def load(self, data: Buffer) -> str:
            return "true" if bytes(data) == b"t" else "false"

    for kind in connection.adapters.types:
        for number in filter(None, (kind.oid, kind.array_oid)):
            connection.adapters.register_loader(number, AsWritten)
    connection.adapters.register_loader(0, AsWritten)  # of any other type
    connection.adapters.register_loader("bool", TrueOrFalse)


def _narrowed(query: str, names: Sequence[str]) -> Composed:
    """A query of some columns of another's, whose order a server keeps where nothing asks for more.

    What the others would take to compute, and could fail at, is left out.
    """
    from psycopg.sql import SQL, Identifier

    columns, alone = SQL(", ").join(map(Identifier, names)), query.rstrip().removesuffix(";")
    return SQL("SELECT {} FROM (\n{}\n) AS rows").format(columns, SQL(alone))
