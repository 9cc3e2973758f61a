"""Each kind of refusal has its cause, a name if the query has it, and a remedy of its own."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from labelveil.label_party.sources.anomalies import (
    NOTHING,
    Anomalies,
    Anomaly,
    anomaly,
    anomaly_of,
)
from labelveil.label_party.sources.refusals import (
    explain_login,
    explain_postgres,
    explain_sqlite,
)

QUERY = 'SELECT id AS key, amount AS label FROM shop.sales WHERE "Day" > 1'


class UndefinedColumn(Exception):
    """A driver's, as far as it is looked at."""

    def __init__(self, sqlstate: str, message: str = "") -> None:
        super().__init__(message)
        self.sqlstate, self.diag = sqlstate, SimpleNamespace(message_primary=message)


@pytest.mark.parametrize(
    ("state", "message", "cause", "remedy"),
    [
        ("42703", 'column "amount" does not exist', "there is no such column: 'amount'",
         "correct it in [data] labels_query, or in the flag that gave it"),
        ("42703", 'column "secret cell" does not exist', "there is no such column",
         "correct it in [data] labels_query"),
        ("42P01", 'relation "shop.sales" does not exist',
         "there is no such table, or this login does not see it: 'shop.sales'", "correct it in"),
        ("42P01", "Relation »shop.sales« existiert nicht",
         "there is no such table, or this login does not see it: 'shop.sales'", "correct it in"),
        ("42501", "permission denied for table sales", "this login may not read it: 'sales'",
         "have it given SELECT on tables, USAGE on schemas"),
        ("42702", 'column reference "day" is ambiguous',
         "several of its tables have such a column: 'day'", "write the table before it"),
        ("22P02", 'invalid input syntax for type integer: "73571"',
         "a cast or a function in it fails in some row", "write it so that none can"),
        ("53300", "too many", "the server is out of memory, disk or connections",
         "run it again later"),
        ("57014", "cancelled", "the server ended it, as after its statement_timeout",
         "raise that for this login"),
        ("57P01", "terminating", "the server is shutting down or starting", "run it again later"),
        ("25006", "cannot execute INSERT", "it would write", "it must be one SELECT that only"),
    ],
)  # fmt: skip
def test_postgres_is_explained_by_its_state(
    state: str, message: str, cause: str, remedy: str
) -> None:
    line = explain_postgres(UndefinedColumn(state, message), QUERY, "labels")
    assert line.startswith(
        f"PostgreSQL refused the query: {cause} (UndefinedColumn, SQLSTATE {state}); {remedy}"
    )


def test_what_postgres_has_no_state_for_is_told_by_its_kind() -> None:
    line = explain_postgres(ValueError("73571"), QUERY, "population")
    assert line == (
        "PostgreSQL refused the query (ValueError); it must be one SELECT that only reads: set"
        " [data] population_query"
    )
    unknown = explain_postgres(UndefinedColumn("XX999", "73571"), QUERY, "population")
    assert unknown.startswith("PostgreSQL refused the query (UndefinedColumn, SQLSTATE XX999); it")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT amuont FROM sales", "there is no such column: 'amuont' (SQLITE_ERROR); correct"),
        ("SELECT amount FROM sale", "there is no such table: 'sale' (SQLITE_ERROR); correct it"),
        ("SELECT f(amount) FROM sales", "there is no such function: 'f' (SQLITE_ERROR); correct"),
        ("SELECT id FROM sales, sales AS t", "several of its tables have such a column: 'id'"),
        ("SELEC id FROM sales", "it is not SQL: 'SELEC' (SQLITE_ERROR); it must be one SELECT"),
        ("SELECT 1; SELECT 2", "it is more than one statement (ProgrammingError); it must be one"),
    ],
)
def test_sqlite_is_explained_by_its_words(sql: str, said: str) -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE sales (id TEXT, amount REAL)")
    with pytest.raises(sqlite3.Error) as refused:
        database.execute(sql)
    line = explain_sqlite(refused.value, sql, "labels")
    assert line.startswith(f"SQLite refused to read: {said}")
    database.close()


def test_sqlite_of_an_unknown_kind_points_at_its_settings() -> None:
    line = explain_sqlite(sqlite3.OperationalError("73571"), QUERY, "population")
    assert line == (
        "SQLite refused to read (OperationalError); check [data] population and population_query"
    )


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ('password authentication failed for user "pg_hba.conf"', "wrong password, or no such"),
        ("fe_sendauth: no password supplied", "there is no password for this login"),
        ('database "role x does not exist" does not exist', "there is no such database"),
        ("FATAL: sorry, too many clients already", "the server has no connection left"),
        ("connection refused", "nothing listens at this host and port"),
        ("something else", "it cannot be reached (OSError)"),
    ],
)
def test_a_login_is_explained_whatever_names_are_in_it(message: str, cause: str) -> None:
    assert explain_login(OSError(message)).startswith(f"no connection to PostgreSQL: {cause}")


def test_anomalies_of_parts_are_counted_together_and_the_first_places_kept() -> None:
    one = anomaly("b", "odd", [30, 2, 9], 3) + anomaly("a", "odd", [7], 1)
    other = anomaly("b", "odd", [5, 1, 40, 3], 12) + anomaly("b", "even", [4], 1)
    assert [*(one + other)] == [
        Anomaly("a", "odd", 1, (7,)),
        Anomaly("b", "even", 1, (4,)),
        Anomaly("b", "odd", 15, (1, 2, 3, 5, 9)),
    ]
    assert one + other == other + one
    assert one + NOTHING == NOTHING + one == Anomalies(tuple(sorted(one, key=lambda x: x.column)))
    assert not anomaly("b", "odd", [1], 0)
    assert bool(one)


def test_an_anomaly_says_where_and_whether_there_are_more() -> None:
    assert str(Anomaly("label", "odd", 2, (3, 1234))) == "column 'label': odd: 2 (at 3, 1,234)"
    assert str(Anomaly("", "odd", 1234, (1, 2))) == "odd: 1,234 (at 1, 2, …)"
    (told,) = anomaly("label", "odd", range(9, 0, -1), 9).to_json()
    expected: dict[str, Any] = {"column": "label", "reason": "odd", "count": 9}
    assert told == expected | {"places": [1, 2, 3, 4, 5]}


def test_odd_rows_are_located_where_they_stand() -> None:
    places = pl.Series([11, 12, 13, 14, 15, 16, 17, 18])
    odd = pl.Series([True, False, True, True, True, True, True, False])
    (found,) = anomaly_of("label", "odd", odd, places)
    assert found == Anomaly("label", "odd", 6, (11, 13, 14, 15, 16))
    assert anomaly_of("label", "odd", pl.Series([False] * 8), places) == NOTHING
