"""A label that a query selects twice is found by the query's text, and what is none is not."""

from __future__ import annotations

import pytest

from labelveil.label_party.sources.query_columns import gives_away, made_of, tables_of

TWICE = [
    "SELECT id AS key, amount AS label, amount AS band FROM sales",
    "SELECT id key, amount label, CAST(amount AS TEXT) band FROM sales",
    'SELECT id AS key, s."amount" AS label, AMOUNT::int > 10 AS band FROM sales s',
    "select key, label, band from (select id as key, amount as label,"
    " case when amount > 5 then 'a' else 'b' end as band from sales) x",
    "WITH t AS (SELECT id AS key, amount AS label, round(amount) AS band FROM sales)"
    " SELECT key, label, band FROM t",
    "SELECT id AS key, amount + fee AS label, amount * 2 + fee AS band FROM sales",
    "SELECT id AS key, [amount] AS label, `amount` AS band FROM sales /* country AS band, */ -- x",
    "SELECT DISTINCT id AS key, (SELECT amount) AS label, amount AS band FROM sales",
    "SELECT id AS key, date AS label, substr(date, 1, 7) AS band FROM sales",
    "SELECT id AS key, label, upper(label) AS band FROM sales UNION SELECT 1, 2, 3",
]
NOT = [
    "SELECT id AS key, amount AS label, country AS band FROM sales",
    "SELECT clicks.id AS key, COUNT(sales.id) AS label, clicks.id AS band"
    " FROM clicks LEFT JOIN sales ON sales.id = clicks.id GROUP BY clicks.id",
    "SELECT id AS key, sold_at - clicked_at AS label, date(clicked_at) AS band FROM sales",
    "SELECT id AS key, amount - fee AS label, fee AS band FROM sales",
    "SELECT id AS key, 'amount' AS label, 'amount' AS band FROM sales",
    "SELECT id AS key, COUNT(*) AS label, country AS band FROM sales GROUP BY 1, 3",
    "SELECT id AS key, max(amount, 1) AS label, max(country) AS band FROM sales",
    "SELECT id AS key, amount AS label, 'amount, amount' AS band FROM sales",
    "SELECT * FROM sales",
    "",
    "SELECT",
    "SELECT ((((",
    'SELECT "',
]


@pytest.mark.parametrize("query", TWICE)
def test_a_label_under_another_name_is_found(query: str) -> None:
    label = made_of(query, "label")
    assert gives_away(label, made_of(query, "band"))
    assert not gives_away(label, made_of(query, "key"))


def test_so_is_one_beside_all_columns() -> None:
    query = "SELECT *, amount AS band FROM sales"
    assert gives_away(made_of(query, "amount"), made_of(query, "band"))


@pytest.mark.parametrize("query", NOT)
def test_another_column_is_none(query: str) -> None:
    assert not gives_away(made_of(query, "label"), made_of(query, "band"))


def test_names_that_stand_for_each_other_end() -> None:
    query = "SELECT a AS b, b AS a FROM (SELECT b AS a, a AS b FROM t)"
    assert made_of(query, "a")


def test_tables_are_those_that_are_read() -> None:
    query = 'SELECT a FROM shop."Sales" s JOIN other o ON 1 = 1 JOIN (SELECT 1 FROM third) t'
    assert tables_of(query) == {"sales", "other", "third"}
