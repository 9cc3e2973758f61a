"""Parts of a query that a line of arithmetic checks: bins, counts, budgets, warnings, documents."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import ConfigError, DataError, ReleaseError
from labelveil.common.mechanisms.selection.leaders import Leaders, StableLeaders
from labelveil.common.mechanisms.synthesis import (
    ConcentratedBudget,
    Domain,
    Marginals,
    PureBudget,
    SelectMeasureProject,
)
from labelveil.label_party.config.privacy import PrivacySection
from labelveil.label_party.events.columns import NONE
from labelveil.label_party.events.intention import Spread
from labelveil.label_party.queries import synthetic_table, top_k
from labelveil.label_party.queries.evaluation import (
    EvaluationSession,
    Unsure,
    question_name,
    shown_questions,
)
from labelveil.label_party.queries.synthetic_table import (
    TableRequest,
    label_edges,
    named_lists,
    records,
)
from labelveil.label_party.queries.top_k import TopKRequest, checked_delta, document_bytes
from tests.label_party.conftest import Party

PRIVACY = {"epsilon": 1.0, "total_delta": 1e-5}
USERS = {"unit": "user", "user": "who", "max_records_per_user": 4}


def events(codes: dict[str, list[int]] | None = None, labels: list[float] | None = None) -> Any:
    """Events that have been read, as far as a query looks at them."""
    rows = len(labels or next(iter((codes or {"": []}).values())))
    return SimpleNamespace(
        codes=lambda name: np.array((codes or {})[name]),
        labels=lambda index: np.array(labels),
        rows=rows,
    )


def request(**facts: Any) -> TopKRequest:
    usual = {"by": "product", "k": 2, "most": 20, "categories": Path("c.txt"), "user": None}
    return TopKRequest(**{**usual, **facts})


def test_a_user_has_one_vote_in_a_category_and_is_counted_once() -> None:
    rng = np.random.default_rng(3)
    items = rng.integers(-1, 6, 400)
    items[items == -1] = NONE
    users = rng.integers(0, 60, 400)
    users[::17] = NONE
    users[users > 50] += 1 << 62  # hashes are of 63 bits
    found = top_k._counts("p", "who", 5, events({"p": items.tolist(), "who": users.tolist()}))
    pairs = {(u, i) for u, i in zip(users, items, strict=True) if u != NONE and 0 <= i < 5}
    assert found.tolist() == [sum(item == n for _, item in pairs) for n in range(5)]
    alone = top_k._counts("p", None, 5, events({"p": items.tolist()}))
    assert alone.tolist() == [int(np.count_nonzero(items == n)) for n in range(5)]


def test_whose_vote_it_is_follows_from_whose_privacy_is_protected() -> None:
    record, user = PrivacySection(**PRIVACY), PrivacySection(**PRIVACY, **USERS)
    assert top_k._user(record, request()) is None
    assert top_k._user(record, request(user="person")) == "person"
    assert top_k._user(user, request()) == "who"
    assert top_k._user(user, request(user="who")) == "who"
    with pytest.raises(ConfigError, match="user='person' must be 'who', whose privacy"):
        top_k._user(user, request(user="person"))
    for privacy, asked in ((record, request(user="product")), (user, request(by="who"))):
        with pytest.raises(ConfigError, match="must be another column than --by"):
            top_k._user(privacy, asked)
    assert [column.public for column in top_k._columns("p", "who", pl.Series(["a"]))] == [
        False,
        True,
    ]


def test_a_delta_has_room_in_the_total_exactly() -> None:
    privacy = PrivacySection(**PRIVACY)
    assert checked_delta(privacy, 1e-5) == Fraction(1, 10**5)
    assert checked_delta(privacy, 1e-9) == Fraction(1, 10**9)
    for delta in (0.0, 1.01e-5, -1e-9):
        with pytest.raises(ConfigError, match=f"delta={delta:g} must be above 0 and at most"):
            checked_delta(privacy, delta)


def test_a_mechanism_has_the_budget_that_is_configured() -> None:
    user = PrivacySection(**PRIVACY, **USERS)
    noisy, stable = (
        top_k._mechanism(user, request()),
        top_k._mechanism(user, request(delta=1e-6, k=None, most=7)),
    )
    assert isinstance(noisy, Leaders)
    assert (noisy.epsilon, noisy.k, noisy.most, noisy.unit, noisy.votes) == (1, 2, 20, "user", 4)
    assert isinstance(stable, StableLeaders)
    assert (stable.epsilon, stable.delta, stable.most, stable.unit) == (
        1,
        Fraction(1, 10**6),
        7,
        "user",
    )
    both = top_k._mechanism(user, request(delta=1e-6, stable_share=0.3))
    assert isinstance(both, StableLeaders)
    assert (both.k, both.share) == (2, Fraction(3, 10))
    usual = top_k._mechanism(user, request(delta=1e-6))
    assert isinstance(usual, StableLeaders)
    assert usual.share == Fraction(1, 10)


def test_few_events_are_those_that_noise_covers() -> None:
    leaders = Leaders(Fraction(1, 2), 2, 20)
    # half of ε for two names, half for their counts: each count moves by 1, two of them by 2
    margin = 2 / 0.25 * math.log(20)
    assert top_k._too_few(leaders, math.ceil(margin * 5), 5) is None
    said = top_k._too_few(leaders, math.floor(margin * 5), 5)
    events = math.floor(margin * 5)
    assert said == (
        f"{events:,} events are few for epsilon=0.5: noise of ± {margin:,.0f} (95%) is more than"
        f" the {events / 5:,.3g} events of an average category"
    )
    # where counts decide, of at most as many as there are categories but one
    adaptive = Leaders(Fraction(1, 2), None, 20)
    choice, _, scale = adaptive.split(4)
    assert scale == 4 / ((Fraction(1, 2) - choice) / 2)
    least = float(scale) * math.log(20) * 5
    assert top_k._too_few(adaptive, math.ceil(least), 5) is None
    assert top_k._too_few(adaptive, math.floor(least), 5) is not None
    # and of no more than are asked for
    few = Leaders(Fraction(1, 2), None, 3)
    least = float(few.split(3)[2]) * math.log(20) * 5
    assert top_k._too_few(few, math.ceil(least), 5) is None
    assert top_k._too_few(few, math.floor(least), 5) is not None
    stable = StableLeaders(Fraction(1), Fraction(1, 10**6), 20)
    gap = stable.gap_needed(0.05)
    assert top_k._too_few(stable, gap, 5) is None
    assert top_k._too_few(stable, gap - 1, 5) == (
        f"{gap - 1:,} events are few for epsilon=1 and delta=1e-06: a set is shown (95%) before a"
        f" gap of {gap:,} or more"
    )
    some = StableLeaders(Fraction(1), Fraction(1, 10**6), 20, k=3)
    assert top_k._too_few(some, 1, 5) is None  # k are named whatever the gap


def test_what_is_asked_of_leaders_is_a_term_each() -> None:
    categories, privacy = pl.Series(["a", "b"]), PrivacySection(**PRIVACY)
    asked = top_k._meaning(privacy, request(), categories)
    assert {name: asked[name] for name in asked if name != "categories"} == {
        "by": "product",
        "k": 2,
        "most": None,
        "epsilon": "1",
        "user": None,
        "delta": None,
        "stable_share": None,
    }
    other = top_k._meaning(
        PrivacySection(**PRIVACY | {"epsilon": 0.3}, **USERS),
        request(k=None, most=7, delta=1e-6),
        pl.Series(["a", "c"]),
    )
    assert other["categories"] != asked["categories"]
    assert {name: other[name] for name in other if name != "categories"} == {
        "by": "product",
        "k": None,
        "most": 7,
        "epsilon": "3/10",
        "user": "who",
        "delta": "1/1000000",
        "stable_share": None,
    }
    share = top_k._meaning(privacy, request(delta=1e-6, stable_share=0.3), categories)
    assert share["stable_share"] == "3/10"
    assert top_k._meaning(privacy, request(delta=1e-6), categories)["stable_share"] == "1/10"
    assert top_k._meaning(privacy, request(stable_share=0.3), categories)["stable_share"] is None


def test_a_document_says_what_it_is_in_one_line_of_sorted_json(party: Party) -> None:
    data = party.config(data__data_set="sales", data__epoch="7").data
    text = document_bytes(data, "some/1", b="ü", a=[1]).decode()
    software = json.loads(text)["software"]
    assert software.startswith("labelveil/")
    assert text == (
        f'{{"a":[1],"b":"ü","data_set":"sales","epoch":"7","format":"some/1","software":"{software}"}}'
    )


def test_a_record_is_in_the_bin_that_its_label_begins() -> None:
    lists = {"product": ["hats", "shoes", "(other)"]}
    edges, labels = (0.0, 2.0, 5.0, 10.0), [-1, 0, 1.999, 2, 4.99, 5, 9.99, 10, 11]
    codes = [0, 1, NONE, 0, 1, NONE, 0, 1, 0]
    asked = TableRequest((("product", Path("p.txt")),), edges, 2)
    found = synthetic_table._records(events({"product": codes}, labels), asked, lists)
    assert found.tolist() == [
        [0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 2], [0, 2], [1, 2], [0, 2],
    ]  # fmt: skip


def test_released_cells_become_records() -> None:
    document = {
        "categories": [
            {"column": "product", "values": ["hats", "shoes"]},
            {"column": "country", "values": ["CH", "DE", "(other)"]},
        ],
        "edges": [0.0, 2.5, 10.0],
        "label": "amount",
        "cells": [[0, 2, 1, 2], [1, 0, 0, 1]],
    }
    assert records(document).rows() == [
        ("hats", "(other)", 2.5, 10.0),
        ("hats", "(other)", 2.5, 10.0),
        ("shoes", "CH", 0.0, 2.5),
    ]
    assert records(document).columns == ["product", "country", "amount_from", "amount_to"]


def test_bins_are_those_given_or_equally_wide() -> None:
    assert label_edges((0.0, 10.0), 4, None) == (0.0, 2.5, 5.0, 7.5, 10.0)
    assert label_edges((0.0, 10.0), 4, [0.0, 1.0, 10.0]) == (0.0, 1.0, 10.0)
    for edges, said in (([0.0, 9.0], "run from 0 to 9"), ([1.0, 10.0], "run from 1 to 10")):
        with pytest.raises(
            ConfigError, match=f"edges {said} but must run from lower=0 to upper=10"
        ):
            label_edges((0.0, 10.0), 4, edges)
    assert named_lists(["a=b=c", "d=e"]) == (("a", Path("b=c")), ("d", Path("e")))
    for option in ("a", "a=", "=b"):
        with pytest.raises(ConfigError, match=f"--column '{option}' must be NAME=FILE"):
            named_lists([option])


def test_lists_end_with_other_and_have_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("hats\nshoes\n")
    place = tmp_path / "p.txt"

    def lists(*names: str, taken: tuple[str, ...] = ("key", "label")) -> dict[str, list[str]]:
        asked = TableRequest(tuple((name, place) for name in names), (0.0, 1.0), 2)
        return synthetic_table._lists(asked, taken)

    expected = ["hats", "shoes", "(other)"]
    assert lists("a", "b") == {"a": expected, "b": expected}
    for names in (("a", "a"), ("key",), ("a", "label")):
        with pytest.raises(ConfigError, match="must be named once, and be neither label nor key"):
            lists(*names)
    with pytest.raises(ConfigError, match="at least one category column"):
        lists()
    place.write_text("hats\n(other)\n")
    with pytest.raises(DataError, match=r"lists '\(other\)', which stands for what is not"):
        lists("a")
    columns = synthetic_table._columns({"a": expected})
    assert [(column.name, column.public) for column in columns] == [("a", True)]
    values = columns[0].values
    assert values is not None
    assert [*values] == ["hats", "shoes"]


def test_a_table_of_users_divides_what_all_of_ones_records_spend() -> None:
    record, user = PrivacySection(**PRIVACY), PrivacySection(**PRIVACY, **USERS)
    plain = TableRequest((), (0.0, 1.0), 2)
    assert synthetic_table._budget(record, plain) == PureBudget(Fraction(1))
    assert synthetic_table._budget(user, plain) == PureBudget(Fraction(1, 4))
    gauss = TableRequest((), (0.0, 1.0), 2, delta=1e-6)
    one, many = (synthetic_table._budget(each, gauss) for each in (record, user))
    assert isinstance(one, ConcentratedBudget)
    assert isinstance(many, ConcentratedBudget)
    # ρ + 2 √(ρ ln 1/δ) = ε has the root (√(L + ε) - √L)², which the exact conversion is above
    log = math.log(1e6)
    root = (math.sqrt(log + 1) - math.sqrt(log)) ** 2
    assert root <= float(one.total) < 1.6 * root
    assert float(many.total) == pytest.approx(float(one.total) / 16, rel=1e-6)
    assert many.total <= one.total / 16
    three = PrivacySection(**PRIVACY, **USERS | {"max_records_per_user": 3})
    assert synthetic_table._budget(three, gauss).total <= one.total / 9  # no fraction of 2**40
    smaller = synthetic_table._budget(record, TableRequest((), (0.0, 1.0), 2, delta=1e-7))
    assert float(smaller.total) < float(one.total)


def test_what_is_asked_of_a_table_is_a_term_each(party: Party) -> None:
    config = party.config(privacy__epsilon=0.25, data__missing=3)
    lists = {"product": ["hats", "(other)"]}
    asked = TableRequest((("product", Path("p.txt")),), (0.0, 2.0, 10.0), 1, delta=1e-6)
    meaning = synthetic_table._meaning(config, asked, lists)
    digests = meaning.pop("columns")
    assert digests.keys() == {"product"}
    assert meaning == {
        "label": "label",
        "missing": 3,
        "edges": [0.0, 2.0, 10.0],
        "order": 1,
        "epsilon": "1/4",
        "delta": 1e-6,
    }
    other = synthetic_table._meaning(config, asked, {"product": ["shoes", "(other)"]})
    assert other["columns"] != digests


def test_a_tables_delta_is_a_term_that_was_sold(party: Party) -> None:
    party.write_labels({"key": ["event-0", "event-1"], "label": [1, 2], "kind": ["a", "b"]})
    (party.folder / "kinds").write_text("a\nb\n")
    asked = ("synthesize", "--column=kind=kinds", "--bins=2", "--order=9", "--quiet")
    total = "--set=privacy.total_delta=1e-5"
    assert party.run(*asked, total, "--delta=1e-6").code == 0
    assert "delta was 1e-06 and is 1e-07 now" in party.run(*asked, total, "--delta=1e-7").error
    assert "delta was 1e-06 and is null now" in party.run(*asked, total).error


def test_few_events_of_a_table_are_those_that_noise_covers() -> None:
    domain = Domain(("a", "b"), (3, 8))
    mechanism = SelectMeasureProject(Marginals.up_to(domain, 2), PureBudget(Fraction(1, 10)))
    deviation = math.sqrt(mechanism.budget.variance(mechanism.single))
    few = math.floor(deviation * 8)
    assert synthetic_table._too_few(mechanism, few + 1) is None
    assert synthetic_table._too_few(mechanism, few) == (
        f"{few:,} events are few for this budget: noise of standard deviation {deviation:,.0f} is"
        f" more than the {few / 8:,.3g} events of an average value"
    )


def test_a_spread_counts_events_of_the_list_alone() -> None:
    codes = np.array([0, 2, 2, 3, 1, 2, NONE, -5, 3])
    assert Spread.from_codes("a", codes, 3) == Spread("a", 9, 5, 3)
    assert Spread.from_codes("a", np.array([NONE, NONE]), 3) == Spread("a", 2, 0, 0)


def test_a_session_is_read_back_as_it_was_written() -> None:
    labels = np.array([[1.5, 10.0], [-2.0, 13.0], [0.0, 0.1]])  # 10 is a line's end in a byte
    kept = EvaluationSession(bytes(range(32)), labels)
    again = EvaluationSession.from_bytes(kept.to_bytes())
    assert again.key == kept.key
    np.testing.assert_array_equal(again.labels, labels)
    line, _, rest = kept.to_bytes().partition(b"\n")
    assert json.loads(line) == {
        "format": "labelveil-evaluation/1",
        "key": bytes(range(32)).hex(),
        "labels": 2,
    }
    assert rest == labels.astype("<f8").tobytes()


def test_a_question_is_named_by_all_that_is_asked() -> None:
    named = {
        question_name(release, kind, np.array(values))
        for release in ("00" * 32, "01" * 32)
        for kind in (b"gain squared", b"gain absolute")
        for values in ([1.0, 2.0], [2.0, 1.0], [1.0, 2.0 + 1e-15])
    }
    assert len(named) == 12
    assert all(len(name) == 64 for name in named)


def test_a_torn_line_was_not_shown(tmp_path: Path) -> None:
    log = tmp_path / "answered.log"
    assert shown_questions(log) == set()
    whole = ["a" * 64, "b" * 64]
    log.write_text("\n" + "\n".join(whole) + "\n" + "c" * 63)
    assert shown_questions(log) == set(whole)
    log.write_text("d" * 65 + "\n" + "\n".join(whole))
    assert shown_questions(log) == set(whole)
    for damaged in (b"\xff" * 65, None):
        log.unlink()
        log.write_bytes(damaged) if damaged else log.mkdir()
        with pytest.raises(ReleaseError, match=r"cannot be read; restore it from a backup$"):
            shown_questions(log)
    assert str(Unsure(0.75, 0.5)).startswith("the answer could be off by 0.75, more than the 0.5")
