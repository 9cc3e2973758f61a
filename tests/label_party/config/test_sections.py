"""What follows from settings: who pays, what a release means, where rows are read, what is refused.

Every rule stands here with what it refuses, and with the nearest thing that it lets through.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from labelveil.common.csv_files import Dialect
from labelveil.common.errors import ConfigError
from labelveil.common.guarantees import ApproximateDP, PureDP, Unit
from labelveil.label_party.config.sections import LabelPartyConfig, load
from labelveil.label_party.sources.databases import Query

ONE = {
    "data.labels": "labels.csv",
    "domain.lower": 0,
    "domain.upper": 10,
    "privacy.epsilon": 1,
}
USERS = {"privacy.unit": "user", "privacy.user": "who", "privacy.max_records_per_user": 3}
STRATA = {"strata.column": "country", "strata.values": "countries.txt"}
DATABASE = {"data.labels": "sqlite:///a.db", "data.labels_query": "SELECT key, label FROM t"}
AMOUNT = {"name": "amount", "lower": 0, "upper": 400}
PAID = {"name": "paid", "kind": "binary"}
TWO = [AMOUNT, PAID]


def made(settings: dict[str, Any]) -> LabelPartyConfig:
    """A configuration of one label, with some settings; None takes a default away."""
    given = {**ONE, **settings}
    return load(None, {name: value for name, value in given.items() if value is not None})


def several(labels: list[dict[str, Any]] | dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {"domain.lower": None, "domain.upper": None, "label": labels, **settings}


REFUSED: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    # what is refused, by which words, and what beside it is not
    ({"privacy.separate": True}, "separate=true needs a reason",
     {"privacy.separate": True, "privacy.separate_reason": "agreed"}),
    ({"privacy.separate": True, "privacy.separate_reason": "  "}, "separate=true needs a reason",
     {}),
    ({"privacy.separate_reason": "agreed"}, "a reason needs separate=true", {}),
    ({**USERS, "privacy.user": None}, "unit='user' needs to know whose event", USERS),
    ({**USERS, "privacy.max_records_per_user": None}, "unit='user' needs to know", USERS),
    ({**USERS, "privacy.epochs": "disjoint"}, "epochs='disjoint' must be 'additive'",
     {"privacy.epochs": "disjoint"}),
    ({"privacy.user": "who"}, "have no effect when unit='record'", USERS),
    ({"privacy.max_records_per_user": 1}, "have no effect when unit='record'", USERS),
    ({"privacy.epsilon": 1.2345678}, "6 significant digits", {"privacy.epsilon": 1.23456}),
    ({"privacy.prior_share": 0.12345678}, "6 significant digits", {"privacy.prior_share": 0.5}),
    ({"watch.hits": 2, "privacy.epochs": "disjoint"}, "hits has no effect when epochs='disjoint'",
     {"watch.hits": 2}),
    ({"watch.hits": 2, **STRATA}, "hits has no effect on several [[label]], [strata] or", STRATA),
    ({"watch.hits": 2, "prior.file": "p.csv"}, "hits has no effect on several",
     {"prior.file": "p.csv"}),
    (several(TWO, **{"watch.hits": 2}), "hits has no effect on several", several(TWO)),
    ({**STRATA, "randomizer.name": "rr-on-bins"}, "[strata] have channels designed", STRATA),
    ({**STRATA, "randomizer.options": {"points": 3}}, "with options {'points': 3} none", STRATA),
    ({**STRATA, "prior.file": "p.csv"}, "file='p.csv' says nothing of each of the [strata]",
     {**STRATA, "prior.file": "p.csv", "prior.corrected": True}),
    ({"prior.corrected": True}, "corrected=true has nothing to correct", {"prior.file": "p.csv"}),
    ({"strata.column": "country"}, "column='country' and values=None go together", STRATA),
    ({"strata.values": "c.txt"}, "column=None and values='c.txt' go together", STRATA),
    (several(TWO, **{"evaluation.largest_loss": 2.5}), "largest_loss=2.5 is in units of one label",
     {"evaluation.largest_loss": 2.5}),
    ({"rounds.questions": True}, "population='None' names the events",
     {"rounds.questions": True, "data.population": "submitted"}),
    (several(TWO, **{"rounds.questions": True, "data.population": "submitted"}),
     "there are several [[label]]", several(TWO, **{"data.population": "submitted"})),
    ({"rounds.questions": True, "data.population": "submitted", "randomizer.name": "laplace"},
     "randomizer='laplace' fits no stratum",
     {"data.population": "submitted", "randomizer.name": "laplace"}),
    ({**STRATA, "data.population": "submitted"}, "column='country' has no effect where", STRATA),
    ({**USERS, "data.population": "submitted"}, "and a submitted population does not say", USERS),
    ({"domain.lower": None, "domain.upper": None}, "domain is missing", {}),
    (several(TWO, **{"domain.lower": 0, "domain.upper": 1}), "[domain] has no effect beside",
     several(TWO)),
    (several(PAID, **{"data.label": "label"}), "[data] label has no effect", several(PAID)),
    (several(PAID, **{"data.missing": 0}), "[data] missing has no effect", several(PAID)),
    (several(PAID, **{"randomizer.loss": "absolute"}), "[randomizer] loss has no effect",
     several(PAID)),
    (several(TWO, **{"randomizer.name": "laplace"}), "[randomizer] name has no effect",
     several(AMOUNT, **{"randomizer.name": "laplace"})),
    (several(TWO, **{"randomizer.options": {"points": 8}}), "[randomizer] options has no effect",
     several(AMOUNT, **{"randomizer.options": {"points": 8}})),
    ({"server.client_san": ""}, "one exact DNS name or URI", {"server.client_san": "a.example"}),
    (several([{**AMOUNT, "name": f"a{n}"} for n in range(9)]), "9 labels are more than the 8",
     several([{**AMOUNT, "name": f"a{n}"} for n in range(8)])),
    (several([AMOUNT, AMOUNT]), "name='amount' is that of two labels", several([AMOUNT, PAID])),
    (several([AMOUNT, {**PAID, "column": "amount"}]), "column='amount' is that of two labels",
     several([AMOUNT, {**PAID, "column": "amounts"}])),
    ({"data.missing": 10.5}, "missing=10.5 must lie within the domain 0 … 10; set [data] missing",
     {"data.missing": 10}),
    ({"domain.lower": 2, "data.missing": 1.5}, "missing=1.5 must lie within the domain 2 … 10",
     {"domain.lower": 2, "data.missing": 2}),
    (several({**AMOUNT, "missing": 401}), "set [[label]] missing of 'amount'",
     several({**AMOUNT, "missing": 400})),
    (several({**AMOUNT, "kind": "category"}), "kind='category' needs all values",
     several({"name": "a", "kind": "category", "values": [1, 2, 4]})),
    (several({**PAID, "values": [0, 2]}), "kind='binary' is 0 or 1", several(PAID)),
    (several({**PAID, "grid": "whole"}), "grid='whole' is not for kind='binary'",
     several({**PAID, "grid": "values"})),
    (several({"name": "a", "kind": "category", "values": [1, 2], "grid": "log"}),
     "grid='log' is not for kind='category'",
     several({"name": "a", "kind": "category", "values": [1, 2], "grid": "auto"})),
    (several({**AMOUNT, "weight": 1.2345678}), "6 significant digits",
     several({**AMOUNT, "weight": 2})),
    ({"domain.lower": 10}, "lower=10 must be below upper=10", {"domain.lower": 9.5}),
    ({"domain.grid": "whole", "domain.upper": 9.5}, "have whole bounds, not 0 … 9.5",
     {"domain.grid": "whole", "domain.upper": 9}),
    ({"domain.grid": "whole", "domain.lower": 0.5}, "have whole bounds, not 0.5 … 10", {}),
    (several({**AMOUNT, "kind": "count", "lower": 0.5}), "have whole bounds, not 0.5 … 400",
     several({**AMOUNT, "kind": "count"})),
    ({"domain.grid": "log", "domain.points": 5}, "grid='log' needs scale; set [domain] scale",
     {"domain.grid": "log", "domain.points": 5, "domain.scale": 1}),
    ({"domain.grid": "log", "domain.scale": 5}, "grid='log' needs points",
     {"domain.grid": "log", "domain.points": 2, "domain.scale": 5}),
    ({"domain.grid": "values", "domain.values": [0, 5, 9]}, "values run from 0 to 9 but must run",
     {"domain.grid": "values", "domain.values": [0, 5, 10]}),
    ({"domain.grid": "edges", "domain.edges": [1, 10]}, "edges run from 1 to 10 but must run from"
     " lower=0 to upper=10; set [domain] edges", {"domain.grid": "edges", "domain.edges": [0, 10]}),
    ({"data.labels": "sqlite:///a.db"}, "needs a query that returns its columns", DATABASE),
    ({"data.labels_query": "SELECT 1"}, "labels_query has no effect where labels is no database",
     DATABASE),
    ({"data.population": "sqlite:///a.db"}, "population is a database and needs a query",
     {"data.population": "sqlite:///a.db", "data.population_query": "SELECT key FROM p"}),
    ({"data.population": "submitted", "data.population_query": "SELECT 1"},
     "population_query has no effect without a database", {"data.population": "submitted"}),
    ({"data.population_query": "SELECT 1"}, "population_query has no effect without", {}),
    *(({**DATABASE, f"data.labels_{name}": value},
       f"labels_{name} has no effect where labels is no file", {f"data.labels_{name}": value})
      for name, value in (("encoding", "cp1252"), ("separator", ";"), ("decimal", ","))),
    *(({"data.population": "submitted", f"data.population_{name}": value},
       f"population_{name} has no effect where population is no file",
       {"data.population": "p.csv", f"data.population_{name}": value})
      for name, value in (("encoding", "cp1252"), ("separator", ";"))),
    ({"server.clients": {"a.example": ["labels"]}, "server.data_sets": ["labels"]},
     "data_sets has no effect beside [server] clients", {"server.data_sets": ["labels"]}),
    *(({"server.listen": place}, "host:port with a port from 0 to 65535", {"server.listen": good})
      for place, good in ((":50051", "a:50051"), ("a:65536", "a:65535"), ("a:-1", "a:0"),
                          ("a", "[::1]:1"), ("a b:1", "a.b:1"), ("x@a:1", "x-a:1"))),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "words", "beside"), REFUSED)
def test_a_rule_refuses_what_it_says_and_nothing_beside_it(
    settings: dict[str, Any], words: str, beside: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as refused:
        made(settings)
    assert words in str(refused.value)
    made(beside)


ROLES = {"data.key": "[data] key", "data.date": "[data] date", "strata.column": "[strata] column"}


@pytest.mark.parametrize("role", [*ROLES, "privacy.user"])
def test_a_public_column_is_no_label_under_any_name(role: str) -> None:
    more = {"strata.column": STRATA, "privacy.user": USERS}.get(role, {})
    label = {**AMOUNT, "column": "total"}
    for name in ("amount", "total"):
        with pytest.raises(ConfigError) as refused:
            made(several(label, **{**more, role: name}))
        place = ROLES.get(role, "[privacy] user")
        assert f"{place} = '{name}' is public, and '{name}' is a label" in str(refused.value)
    made(several(label, **{**more, role: "other"}))


def test_a_public_column_is_not_made_of_the_label_in_the_tables_that_both_queries_read() -> None:
    queries = {
        "data.labels": "sqlite:///a.db",
        "data.labels_query": "SELECT id AS key, amount AS label FROM sales",
        "data.population": "sqlite:///a.db",
        "data.date": "day",
    }
    band = "SELECT id AS key, round(amount) AS day FROM {}"
    with pytest.raises(ConfigError, match=r"\[data\] date = 'day' is public, and the query makes"):
        made({**queries, "data.population_query": band.format("sales")})
    made({**queries, "data.population_query": band.format("clicks")})
    made({**queries, "data.population_query": "SELECT id AS key, sold AS day FROM sales"})
    alone = {"data.population": None, "data.population_query": None, **queries}
    alone |= {"data.labels_query": "SELECT id AS key, amount AS label, amount AS day FROM sales"}
    del alone["data.population"]
    with pytest.raises(ConfigError, match=r"\[data\] date = 'day' is public, and the query makes"):
        made(alone)
    made({**alone, "data.date": None})


def test_a_label_that_lacks_values_has_those_that_its_kind_says() -> None:
    config = made(
        several(
            [
                AMOUNT,
                {**PAID, "missing": 1, "weight": 2.5},
                {"name": "stars", "kind": "category", "values": [1, 2, 4], "loss": "absolute"},
                {"name": "visits", "kind": "count", "lower": -3, "upper": -1, "column": "n"},
            ]
        )
    )
    told = [
        (x.name, x.column, x.bounds, x.missing, x.loss, x.weight, x.grid) for x in config.labels
    ]
    assert told == [
        ("amount", "amount", (0, 400), 0, "squared", 1, "auto"),
        ("paid", "paid", (0, 1), 1, "squared", 2.5, "values"),
        ("stars", "stars", (1, 4), 1, "absolute", 1, "values"),
        ("visits", "n", (-3, -1), -3, "squared", 1, "auto"),
    ]
    grids = [None if x.fixed is None else x.fixed.points.tolist() for x in config.labels]
    assert grids == [None, [0, 1], [1, 2, 4], None]
    assert [x.whole for x in config.labels] == [False, False, False, True]
    terms = [(t.name, t.lower, t.upper, t.loss, t.weight, t.values, t.whole) for t in config.terms]
    assert terms == [
        ("amount", 0, 400, "squared", 1, False, False),
        ("paid", 0, 1, "squared", 2.5, True, False),
        ("stars", 1, 4, "absolute", 1, True, False),
        ("visits", -3, -1, "squared", 1, False, True),
    ]
    assert [config.place_of(name) for name in ("amount", "paid", "visits")] == [0, 1, 3]
    with pytest.raises(ConfigError, match="one of the labels amount, paid, stars, visits"):
        config.place_of(None)
    with pytest.raises(ConfigError, match="--label 'n' must be one of amount, paid, stars, visits"):
        config.place_of("n")
    assert made({}).place_of(None) == made({}).place_of("label") == 0
    assert made({"domain.lower": -5}).labels[0].missing == 0
    chosen = {"randomizer.name": "laplace", "randomizer.options": {"points": 64}}
    (terms_of_one,) = made(chosen).terms
    assert (terms_of_one.randomizer, terms_of_one.options) == ("laplace", {"points": 64})


@pytest.mark.parametrize(
    ("settings", "points"),
    [
        ({"grid": "step", "step": 2.5}, [0, 2.5, 5, 7.5, 10]),
        ({"grid": "edges", "edges": [0, 3, 10]}, [0, 3, 10]),
        ({"grid": "values", "values": [0, 1, 10]}, [0, 1, 10]),
        # lower + scale (e^(t ln(1 + range/scale)) - 1), t = 0, 1/2, 1: √11 - 1 = 2.3166…
        ({"grid": "log", "points": 3, "scale": 1}, [0, 11**0.5 - 1, 10]),
        ({"grid": "auto"}, None),
        ({"grid": "whole"}, None),
    ],
)
def test_points_are_those_that_are_asked_for(
    settings: dict[str, Any], points: list[float] | None
) -> None:
    (label,) = made({f"domain.{name}": value for name, value in settings.items()}).labels
    grid = label.fixed
    assert (grid is None) == (points is None)
    if grid is not None and points is not None:
        assert grid.points.tolist() == pytest.approx(points)


def test_who_pays_and_how_much_is_exact() -> None:
    assert made({}).account == "labels"
    assert made({"data.data_set": "sales"}).account == "sales"
    assert made({"data.data_set": "sales", "privacy.account": "shop"}).account == "shop"
    plain = made({"privacy.epsilon": 0.1}).privacy
    tenth, pure = Fraction(1, 10), PureDP.of(Fraction(1, 10), unit=Unit.RECORD)
    assert (plain.charge, plain.limit, plain.limit_is_stated, plain.group) == (pure, pure, False, 1)
    assert Fraction(plain.message_epsilon) <= tenth < Fraction(plain.message_epsilon + 1e-16)
    total = made({"privacy.total_epsilon": 0.3}).privacy
    assert total.limit == PureDP.of(Fraction(3, 10), unit=Unit.RECORD)
    assert total.limit_is_stated
    user = made({**USERS, "privacy.total_delta": 1e-6}).privacy
    assert user.limit == ApproximateDP.of(1, Fraction(1, 10**6), unit=Unit.USER)
    assert user.charge == PureDP.of(1, unit=Unit.USER)
    assert (user.limit_is_stated, user.group, user.privacy_unit) == (True, 3, Unit.USER)


def test_a_message_of_users_is_planned_for_all_that_one_may_have() -> None:
    one, users = made({}).plan_message(5000), made(USERS).plan_message(5000)
    assert (one.records, users.records) == (1, 3)
    half = made({}).plan_message(5000, 0.5)
    whole = [float(sum(each.epsilon for each in (*plan.histograms, *plan.channels)))
             for plan in (one, half)]  # fmt: skip
    assert whole == pytest.approx([1.0, 0.5])
    for share in (0.125, 0.25):
        plan = made({"privacy.prior_share": share}).plan_message(50)
        assert float(sum(each.epsilon for each in plan.histograms)) == pytest.approx(share)


CHANGES: dict[str, Any] = {
    # settings that say what a release is, and one other value of each
    "domain.lower": -1,
    "domain.upper": 11,
    "domain.grid": "whole",
    "data.label": "amount",
    "data.missing": 3,
    "randomizer.loss": "absolute",
    "randomizer.name": "laplace",
    "privacy.epsilon": 2,
    "privacy.prior_share": 0.25,
}
NO_CHANGES: dict[str, Any] = {
    "data.labels": "elsewhere.csv",
    "data.labels_separator": ";",
    "store.directory": "elsewhere",
    "server.listen": "a:1",
    "engine.workers": 3,
    "keys.secret_file": "elsewhere.key",
    "privacy.total_epsilon": 9,
    "privacy.total_delta": 0.25,
    "privacy.epochs": "disjoint",
    "privacy.account": "shop",
    "privacy.division": "split",
    "watch.interval": 5,
}


def test_what_a_release_means_changes_with_what_it_says_of_labels_alone() -> None:
    usual = json.dumps(made({}).request())
    for name, value in CHANGES.items():
        assert json.dumps(made({name: value}).request()) != usual, name
    for name, value in NO_CHANGES.items():
        assert json.dumps(made({name: value}).request()) == usual, name
    assert json.dumps(made(USERS).request()) != json.dumps(
        made({**USERS, "privacy.max_records_per_user": 2}).request()
    )
    assert "division" not in made(several(AMOUNT)).request()
    assert made(several(TWO)).request()["division"] == "auto"
    assert made(several(TWO, **{"privacy.division": "joint"})).request()["division"] == "joint"
    assert set(made({}).request()["privacy"]) == {
        *("epsilon", "unit", "user", "max_records_per_user")
    }
    assert made({}).request()["randomizer"] == {"name": "auto", "options": {}}


@pytest.mark.parametrize(
    ("settings", "tests"),
    [
        ({}, True),
        (STRATA, False),
        ({"prior.file": "p.csv"}, False),
        (several(TWO), False),
        (several(AMOUNT), True),
    ],
)
def test_drift_is_tested_of_one_label_with_a_paid_prior(
    settings: dict[str, Any], tests: bool
) -> None:
    assert made(settings).tests_drift == tests


def test_an_epoch_is_put_into_every_place_and_the_rest_stays() -> None:
    settings = {
        "data.labels": "{epoch}/sales-{epoch}.csv",
        "data.population": "s3://bucket/{epoch}.csv",
        "data.data_set": "sales",
    }
    config = made(settings)
    at = config.at("2024-06-02").data
    assert at.labels == Path("2024-06-02/sales-2024-06-02.csv")
    assert at.population == "s3://bucket/2024-06-02.csv"
    assert (at.epoch, at.data_set, config.data.epoch) == ("2024-06-02", "sales", "1")
    assert config.data.labels == Path("{epoch}/sales-{epoch}.csv")
    assert made({}).at("7").data.population is None
    assert made({"data.population": "submitted"}).at("7").data.submitted


def test_a_source_is_read_as_its_settings_say() -> None:
    data = made({"data.labels_encoding": "cp1252", "data.labels_decimal": ","}).data
    assert data.labels_dialect == Dialect(",", True, "cp1252")
    assert data.population_source is None
    assert not data.submitted
    tabs = made({"data.labels": "a.tsv", "data.population": "b.tsv.csv"}).data
    assert tabs.labels_dialect == Dialect("\t", False, "utf-8")
    assert tabs.population_dialect == Dialect("\t", False, "utf-8")
    assert tabs.population_source == Path("b.tsv.csv")
    told = {"data.population_separator": "|", "data.population_encoding": "cp1252"}
    both = {"data.labels_separator": ";", "data.labels_decimal": "."}
    data = made({"data.population": "b.csv", **told, **both}).data
    assert data.population_dialect == Dialect("|", False, "cp1252")
    assert data.labels_dialect == Dialect(";", False, "utf-8")
    place, secret = "postgresql://me@host/db", Path("secrets")
    queries = {
        "data.labels": place,
        "data.labels_query": "SELECT 1 AS key, 2 AS label",
        "data.population": place,
        "data.population_query": "SELECT 1 AS key",
        "data.credentials_file": str(secret),
    }
    data = made(queries).data
    assert data.labels_source == Query(place, queries["data.labels_query"], secret, "labels")
    assert data.population_source == Query(place, "SELECT 1 AS key", secret, "population")
    submitted = made({"data.population": "submitted"}).data
    assert submitted.submitted
    assert submitted.population_source is None


def test_who_may_fetch_what_is_what_is_listed() -> None:
    assert made({}).entitlements == {"feature-party": {"labels"}}
    assert made({"data.data_set": "sales"}).entitlements == {"feature-party": {"sales"}}
    named = made({"server.client_san": "a.example", "server.data_sets": ["x", "y"]})
    assert named.entitlements == {"a.example": {"x", "y"}}
    table = {"a.example": ["x"], "urn:b": ["y", "z"]}
    assert made({"server.clients": table}).entitlements == {"a.example": {"x"}, "urn:b": {"y", "z"}}
