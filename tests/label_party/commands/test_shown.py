"""What commands print, every line of it: an operator decides by numbers that stand there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from labelveil.common.guarantees import PureDP, guarantee_from_json
from labelveil.common.randomizers.design.assessment import Assessment
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.stated_message import StatedMessage
from labelveil.label_party.commands.plan import _json, print_divisions, print_plan
from labelveil.label_party.commands.release import epoch_line
from labelveil.label_party.commands.synthesize import _lines as table_lines
from labelveil.label_party.commands.top_k import margin, print_top_k
from labelveil.label_party.release.plan import Plan, PlanRow
from labelveil.label_party.release.plan_divisions import DivisionPlan, DivisionRow
from labelveil.label_party.release.prior_knowledge import PriorKnowledge
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import EVENTS, Party
from tests.label_party.store.ledgers import reserve


def masked(text: str) -> str:
    """Digests and times as D and T; no spaces at ends of lines."""
    text = re.sub(r"\b[0-9a-f]{64}\b|\b[0-9a-f]{8}(?= *$)", "D", text, flags=re.MULTILINE)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\+00:00)?", "T", text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def pairs(lines: Iterable[str]) -> dict[str, str]:
    """Lines of a name, spaces and a value."""
    cut = (re.split(r"  +", line.strip(), maxsplit=1) for line in lines)
    return {each[0]: each[1] for each in cut if len(each) == 2}


def write_users(party: Party) -> None:
    """Each of five users has 40 events; a key outside the population, and one in two rows."""
    keys = [f"event-{i}" for i in range(EVENTS)]
    party.write_population({"key": keys, "who": [f"u{i % 5}" for i in range(EVENTS)]})
    rows = [(f"event-{i}", i % 13) for i in range(0, EVENTS, 2)]
    rows += [("event-0", 5), ("elsewhere", 1), ("elsewhere too", 1)]
    party.write_labels({"key": [key for key, _ in rows], "label": [value for _, value in rows]})


USERS = {"privacy__unit": "user", "privacy__user": "who", "privacy__max_records_per_user": 8}


def test_a_release_is_said_in_full_and_so_is_that_it_was_made(party: Party) -> None:
    write_users(party)
    made = party.release(data__duplicates="sum", **USERS)
    guarantee = "(replace-label, per user)"
    whole = f"""\
data set              labels, epoch 1
events                200
  without a label     100 (given 0)
  outside the domain  15 (clipped)
  labels left out     2 (keys outside the population)
  keys merged         1
  over a user's limit 160
randomizer            rr-on-bins, squared loss
grid                  4 points, 2 outputs
privacy               ε = 1 {guarantee}
  histogram           ε = 0.141421
  labels              ε = 0.858579
budget left           ε = 2 of ε = 3
digest                D
next: label-party serve"""
    assert masked(made.out) == whole
    expected = whole.splitlines()
    again = party.release(data__duplicates="sum", **USERS)
    assert masked(again.out).splitlines() == [
        "already released: data set 'labels', epoch '1'; serving the same bytes, nothing spent",
        *(line for line in expected[:2] + expected[7:]),
    ]
    assert again.out.splitlines()[-2] == made.out.splitlines()[-2]


@pytest.mark.slow
def test_what_a_dry_run_says_is_what_is_then_found(party: Party) -> None:
    write_users(party)
    settings = {"data__duplicates": "last", "privacy__epsilon": 0.75, "data__missing": 2}
    arguments = party.arguments(**settings)
    planned = masked(party.run("release", "--dry-run", "--yes", *arguments).out)
    expected = """\
data set              labels, epoch 1
labels                labels.csv: 103 rows
population            population.csv: 200 events
  without a label     100 (given 2)
  outside the domain  15 (clipped)
"""
    assert planned.startswith(expected)
    found = pairs(planned.splitlines())
    assert found["grid"].startswith("4 points; ")
    most = re.fullmatch(r"at most ([\d,]+) bytes, of 8,388,608", found["manifest"])
    assert most is not None
    rest = {
        "labels left out": "2",
        "keys merged": "1",
        "day": "all",
        "duplicates": "last",
        "engine": "in memory",
        "account": "labels",
        "cap": "ε = 3 (replace-label, per record), recorded by this charge",
        "spent": "nothing",
        "charge": "ε = 0.75 (replace-label, per record) for labels",
        "left afterwards": "ε = 2.25",
        "would write": "label_store/releases/labels/1",
    }
    assert {name: found[name] for name in rest} == rest
    made = json.loads(party.run("release", "--json", "--quiet", *arguments).out)
    path = party.store / "releases" / "labels" / "1" / "manifest.json"
    assert path.stat().st_size < int(most[1].replace(",", ""))
    manifest = Manifest.from_bytes(path.read_bytes())
    of = {"kind": "pure", "adjacency": "replace-label", "unit": "record"}
    assert made == {
        "data_set": "labels",
        "epoch": "1",
        "existed": False,
        "total": {**of, "epsilon": "3"},
        "left": {**of, "epsilon": "9/4"},
        "digest": made["digest"],
        "taken_back": 0,
        "events": EVENTS,
        "found": made["found"],
        "randomizer": "rr-on-bins",
        "strata": 0,
        "loss": "squared",
        "outputs": 2,
        "sums": 0,
        "question_bits": 0.0,
        "guarantee": {**of, "epsilon": "3/4"},
        "prior_paid": True,
    }
    assert guarantee_from_json(made["guarantee"]) == manifest.total_guarantee
    counted = {"rows": 200, "left_out": 2, "merged": 1, "over_limit": 0, "label_rows": 103}
    counted |= {"unlabelled": 100, "outside": 15, "smallest": 0.0, "largest": 12.0}
    assert {name: made["found"][name] for name in counted} == counted
    after = pairs(masked(party.run("release", "--dry-run", "--epoch=2").out).splitlines())
    assert after["cap"] == "ε = 3 (replace-label, per record)"
    assert (after["spent"], after["left afterwards"]) == ("ε = 0.75", "ε = 1.25")


def test_what_a_dead_process_left_is_said_to_be_taken_back(party: Party) -> None:
    store, privacy = Store(party.store), party.config().privacy
    store.create()
    with store.open_ledger() as ledger:
        for epoch in ("8", "9"):
            reserve(ledger, "labels", epoch, privacy.charge, privacy.limit)
    assert pairs(party.release().out.splitlines())["taken back"].startswith("2 unfinished release")
    assert "taken back" not in party.release(data__epoch="2").out


def test_the_ledger_says_who_spent_what_and_what_became_of_it(party: Party) -> None:
    for epoch in ("1", "2"):
        assert party.release(data__epoch=epoch, privacy__epsilon=0.5).code == 0
    raised = party.run("budget", "raise", "--to=5", "--delta=1e-6", "--reason=a second year")
    assert raised.out == (
        "account labels may now spend ε = 5, δ = 1e-06 (replace-label, per record) in all\n"
        "next: set [privacy] total_epsilon = 5; until then 3 holds\n"
    )
    done = party.run("withdraw", "2", "--reason=  wrong\n unit ", "--yes")
    assert (
        masked(done.out)
        == """\
withdrawn: data set labels, epoch 2: wrong unit
it stays spent: ε = 0.5 (replace-label, per record)
the latest release is epoch 1 now
next: label-party backup, so that a restored ledger knows it, too"""
    )
    kept = party.run("backup", "--to=kept.tar")
    size = (party.folder / "kept.tar").stat().st_size
    assert kept.out == f"wrote kept.tar: 2 releases, {size:,} bytes\n"
    told = party.run("withdraw", "1", "--reason=too", "--yes", "--json")
    assert json.loads(told.out)["latest"] is None
    again = masked(party.run("withdraw", "1", "--reason=more", "--yes").out)
    assert again.splitlines()[0] == "withdrawn already, T: data set labels, epoch 1: too"
    assert again.splitlines()[2] == "no release of this data set is left to serve"
    restored = party.run("restore", "kept.tar", "--store=other", "--nothing-since")
    assert masked(restored.out) == (
        "restored the backup of T: 2 releases\nwithdrawn, as before: labels/2"
    )
    shown = masked(party.run("budget", "--store=other").out)
    who = json.loads(party.run("budget", "--json").out)[0]["charges"][0]["who"]
    shown = shown.replace(who, "W")
    table = re.sub(r" +", " ", shown)
    assert [line.strip() for line in table.splitlines() if line.strip("─ ")] == [
        "account labels: budget ε = 3 (replace-label, per record)",
        "raised to ε = 5, δ = 1e-06 (replace-label, per record) T by W: a second year",
        "data set epoch for spent state who when (UTC) release",
        "labels 1 labels ε = 0.5 committed W T D",
        "labels 2 labels ε = 0.5 withdrawn W T D",
        "labels, epoch 2, withdrawn T by W: wrong unit",
        "spent ε = 1, left ε = 2 for a further release",
        "restored T by W from the backup of T, stating: nothing since",
    ]
    lost = party.run("restore", "kept.tar", "--store=third", "--lost=3=0.25", "--json")
    assert json.loads(lost.out)["releases"] == 2
    said = party.run("budget", "--store=third").out
    assert "spent ε = 1.25, left ε = 1.75" in said
    assert said.splitlines()[-1].endswith("stating: lost 3 labels")
    assert re.search(r"labels +3 +labels +ε = 0.25 +lost ", said)


def told(**facts: Any) -> Any:
    return SimpleNamespace(**facts)


def epoch_of(**facts: Any) -> Any:
    """An outcome of a watch, as far as its line tells of it."""
    usual = {
        "epoch": "d7",
        "population": told(rows=12_345),
        "sums": None,
        "questioned": False,
        "priors": [told(public=False, decoded=False), told(public=False, decoded=False)],
        "strata": [],
        "drift": None,
        "prior_paid": False,
        "labels_guarantee": told(epsilon=0.87654321),
        "prior_guarantee": told(epsilon=0.125),
        "test_guarantee": None,
    }
    left, manifest = PureDP.of(Fraction(5, 4)), told(**{**usual, **facts})
    manifest.prior_source = vars(StatedMessage)["prior_source"].fget(manifest)
    return told(manifest=manifest, payment=told(left=left))


def drift(*, drifted: bool, state: Any = None, tested: bool = True) -> Any:
    session = None if state is None else told(state=state)
    test = told(session=session) if tested else None
    return told(in_force=told(epoch="d3"), test=test, drifted=drifted)


HITS = {"hits": [2, 5], "terms": {"hits": 9}}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"prior_paid": True}, "a prior of its own; ε = 0.125 (prior) + 0.8765 (labels)"),
        (
            {
                "prior_paid": True,
                "test_guarantee": told(epsilon=0.03),
                "drift": drift(drifted=True),
            },
            "drifted from d3: a new prior; ε = 0.03 (test) + 0.125 (prior) + 0.8765 (labels)",
        ),
        (
            {"test_guarantee": told(epsilon=0.03), "drift": drift(drifted=False)},
            "prior of d3; ε = 0.03 (test) + 0.8765 (labels)",
        ),
        (
            {"drift": drift(drifted=False, state=HITS)},
            "prior of d3, 2 of 9 hits; ε = 0.8765 (labels)",
        ),
        (
            {"drift": drift(drifted=True, state=HITS)},
            "drifted from d3: a new prior, 2 of 9 hits; ε = 0.8765 (labels)",
        ),
        (
            {"drift": drift(drifted=False, tested=False)},
            "prior of d3, no test: all hits are spent; ε = 0.8765 (labels)",
        ),
        ({"sums": told(groups=4321)}, "4,321 sums over groups; ε = 0.8765 (labels)"),
        ({"questioned": True, "strata": [1, 2, 3]}, "asked in 3 strata; ε = 0.8765 (labels)"),
        (
            {"priors": [told(public=False, decoded=True), told(public=True, decoded=False)]},
            "a public prior; ε = 0.8765 (labels)",
        ),
        (
            {"priors": [told(public=False, decoded=True)] * 2},
            "no prior needed; ε = 0.8765 (labels)",
        ),
        (
            {"priors": [told(public=False, decoded=True), told(public=False, decoded=False)]},
            "a prior of its own; ε = 0.8765 (labels)",
        ),
    ],
)
def test_an_epoch_of_a_watch_is_one_line(facts: dict[str, Any], said: str) -> None:
    assert epoch_line(epoch_of(**facts)) == f"d7: 12,345 events, {said}; left ε = 1.25"


def candidate(name: str, *, auto: bool, bias: float = 1e-12) -> PlanRow:
    facts = (name, 0.9, 12, 20.123456, bias, 0.0456, 91.25, 12.3456789)
    return PlanRow(1.5, 0.0625, 0.9375, Assessment(*facts), auto)


def one_label(**facts: Any) -> Plan:
    rows = [candidate("two-point", auto=False, bias=2.345), candidate("optimal-design", auto=True)]
    usual = {"rows": rows, "knowledge": PriorKnowledge((), 2000, "a guess"), "loss": "squared"}
    usual |= {"unfit": {"staircase": "no"}, "constant_error": 16.0, "true_label_error": 10.5}
    return Plan(**{**usual, "explained": 0.25, **facts})


def test_a_plan_of_one_label_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(one_label(), 1234, ["Grid as configured: 4 points."])
    table, notes = capsys.readouterr().out.split("\n\n")
    assert table.splitlines() == [
        "ε = 1.5: prior 0.0625, labels 0.938",
        " randomizer            outputs label error    bias  worth  effective  predicted",
        " two-point                  12       20.12     2.3  4.56%         91     12.346",
        "*optimal-design             12       20.12       0  4.56%         91     12.346",
    ]
    said = " ".join(notes.split())
    # half-width: 2 · 1.95996 · √(0.25 · 20.123456 / 16 / 2000) = 0.0491…
    for part in (
        "2,000 events, squared loss, over a guess.",
        "A constant prediction would have 16, a model trained on true labels 10.5, if the features"
        " explain 25% of the label's variance",
        "with features: ± 0.049 at ε = 1.5. Of a heavy tail",
        "not for this grid: staircase: no",
        "Grid as configured: 4 points. The release as configured has a manifest of at most 1,234"
        " bytes; clients accept 8,388,608.",
    ):
        assert part in said
    assert max(map(len, notes.splitlines())) <= 80
    print_plan(one_label(loss="absolute", unfit={}), 1, [])
    said = capsys.readouterr().out
    assert "R²" not in said
    assert "not for this grid" not in said


def test_a_plan_of_several_labels_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    terms = [LabelTerms("paid", 0.0, 1.0), LabelTerms("a long name of an amount", 0.0, 400.0)]
    rows = [
        DivisionRow(0.5, "joint", 0.0625, [0.4375], [0.2345678, 45.25]),
        DivisionRow(0.5, "split", 0.125, [0.1, 0.2], [0.25, 44.0], auto=True),
    ]
    knowledge = PriorKnowledge((), 2000, "a guess")
    compared = DivisionPlan(rows, terms, knowledge, 0.25, [0.3, 60.0], [0.2, 40.0])
    print_divisions(compared, 1234, ["Grid of paid: 2 points."])
    table, notes = capsys.readouterr().out.split("\n\n")
    assert table.splitlines() == [
        "ε       division    ε prior          paid a long name o",
        "0.5     joint        0.0625       0.23457         45.25",
        "0.5   * split         0.125          0.25            44",
        "        constant                      0.3            60",
        "        true labels                   0.2            40",
    ]
    said = " ".join(notes.split())
    for part in (
        "each label, 2,000 events, over a guess. Features explain 25% of the variances",
        "derived: if paid only says whether a long name of an amount is above 0, leave it out",
        "Grid of paid: 2 points. The release as configured has a manifest of at most 1,234 bytes",
    ):
        assert part in said
    told = _json(compared)
    assert [row["division"] for row in told["candidates"]] == ["joint", "split"]
    assert (told["labels"], told["derived"]) == (["paid", terms[1].name], compared.derived)
    above = [terms[0], LabelTerms("from one on", 1.0, 9.0)]
    assert replace(compared, terms=above).derived is None
    # (constant - error) / (constant - true labels)
    assert compared.gains(rows[1]) == pytest.approx({"paid": 0.5, terms[1].name: 0.8})


def bought(document: dict[str, Any], *, existed: bool = False) -> Any:
    charge = told(digest="ab" * 32)
    left = PureDP.of(Fraction(1, 2))
    paid = told(existed=existed, left=left, charge=charge)
    return told(document=document, payment=paid)


PURE = {"kind": "pure", "adjacency": "replace-label", "unit": "user", "epsilon": "1/2"}


@pytest.mark.parametrize("existed", [False, True])
def test_leaders_are_shown_as_they_are(existed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    leaders = [
        {"category": "hats", "users": 100},
        {"category": "shoes", "users": 1500},
        {"category": "ties", "users": -7},
    ]
    document = {"k": 3, "candidates": 8, "by": "product", "noise": {"scale": "10/3"}}
    document |= {"leaders": leaders, "guarantee": PURE}
    # P(|Laplace(s)| > t) = e^(-t/s) = 5 % at t = s ln 20 = 9.98…
    assert margin(document) == 10
    print_top_k(bought(document, existed=existed), "users")
    said = capsys.readouterr().out
    assert said.startswith("already released: the same bytes, nothing spent\n") == existed
    assert "3 of 8 by product" in said
    lines = [re.findall(r"[^\s─-▐┃]+|█+", line) for line in said.splitlines()]
    assert [line for line in lines if line][existed + 1 :] == [
        ["product", "users,", "±", "10", "(95%)"],
        ["shoes", "1,500", "█" * 30],
        ["hats", "100", "█" * 2],
        ["ties", "-7"],
        ["privacy", "ε", "=", "0.5", "(replace-label,", "per", "user)"],
        ["budget", "left", "ε", "=", "0.5"],
        ["digest", "ab" * 32],
    ]


def test_a_set_without_counts_is_shown_as_names(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"k": 2, "candidates": 8, "by": "product", "noise": None, "guarantee": PURE}
    long = "".join(map(str, range(70)))
    leaders = [{"category": "hats"}, {"category": long}, {"category": "a\nb"}]
    print_top_k(bought({**document, "leaders": leaders}), "users")
    said = capsys.readouterr().out
    assert "hats" in said
    assert long in re.sub(r"[^0-9]", "", said)  # none is cut short
    assert r"a\nb" in said
    assert "users" not in said
    assert "█" not in said
    assert "no gap" not in said
    print_top_k(bought({**document, "leaders": []}), "users")
    assert "no gap between counts is wide enough to show who is in front" in capsys.readouterr().out


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("delta", [None, 1e-6])
def test_a_synthetic_table_says_its_noise_and_its_price(existed: bool, delta: float | None) -> None:
    document = {
        "categories": [{"column": "product"}, {"column": "country"}],
        "label": "amount",
        "records": 3000,
        "cells": [0] * 1200,
        "measurements": [
            {"columns": ["product"], "variance": 1600.0},
            {"columns": ["amount"], "variance": 2500.0},
            {"columns": ["product", "amount"], "variance": 1e6},
        ],
        "guarantee": PURE,
        "requested": {"epsilon": 0.5, "delta": delta},
    }
    lines = [*table_lines(bought(document, existed=existed))]
    assert lines == ["already released: the same bytes, nothing spent"] * existed + [
        "records       3,000 in 1,200 cells",
        "columns       product, country, amount",
        "measured      3 noisy tables of counts",
        "noise         standard deviation 50 on counts of one column",
        f"privacy       ε = 0.5{', δ = 1e-06' if delta else ''} (replace-label, per user)",
        "budget left   ε = 0.5",
        f"digest        {'ab' * 32}",
    ]
