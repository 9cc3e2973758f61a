"""Several labels of one event in one message: the same rules as for one, and one budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.audit.certificate.evidence import facts, read_evidence
from labelveil.audit.certificate.manifest_checks import split_check
from labelveil.audit.certificate.rebuild import rebuilt_check
from labelveil.audit.certificate.run import certify
from labelveil.audit.verdict import Verdict
from labelveil.common.engine.local import InProcess
from labelveil.common.release.folder import MANIFEST_FILE
from labelveil.common.release.manifest import Manifest, manifest_digest
from labelveil.common.release.table import read_release
from labelveil.label_party.config import sections as config
from labelveil.label_party.queries.evaluation import Evaluation
from labelveil.label_party.server.run import running
from labelveil.label_party.store.release_store import Store, StoredRelease
from tests.effort import one_in
from tests.label_party import engines
from tests.label_party.conftest import EVENTS, Client, Party

Connect = Callable[..., Client]

TABLES = """
[[label]]
name = "returned"
kind = "binary"
[[label]]
name = "amount"
lower = 0
upper = 100
grid = "log"
points = 4
scale = 20
weight = 2.0
"""


def with_labels(party: Party, tables: str = TABLES) -> Party:
    """Two labels in place of one; half of the events have an amount, every third is returned."""
    path = party.folder / "label_party.toml"
    before, _, after = path.read_text().partition("[domain]")
    _, _, after = after.partition("[privacy]")
    after = after.replace('[randomizer]\n        name = "rr-on-bins"', "")
    path.write_text(f"{before}[privacy]{after}{tables}")
    keys = [f"event-{i}" for i in range(EVENTS)]
    amounts = [str(i % 100) if i % 2 else "" for i in range(EVENTS)]
    returned = [float(i % 3 == 0) for i in range(EVENTS)]
    party.write_labels({"key": keys, "amount": amounts, "returned": returned})
    return party


@pytest.fixture
def two(party: Party) -> Party:
    return with_labels(party)


def released(party: Party) -> Path:
    return Store(party.store).path("labels", "1")


@pytest.mark.parametrize("division", ["split", "joint", "auto"])
def test_a_message_of_two_labels_spends_one_epsilon_and_proves_it(
    two: Party, division: str
) -> None:
    result = two.release(privacy__division=division)
    assert result.code == 0, result
    manifest = read_release(released(two)).manifest
    assert [label.name for label in manifest.labels] == ["returned", "amount"]
    assert manifest.total_guarantee.within(two.config().privacy.charge)
    # from the integers alone: the worst ratio of any code for any two events, and the histograms
    ratio = np.prod([channel.ratio for channel in manifest.channels])
    assert ratio <= Fraction(np.e**1.0)
    audit = certify(released(two))
    assert not [check for check in audit.checks if check.verdict is Verdict.FAIL]
    by_name = {check.name: check for check in audit.checks}
    assert by_name["channel is a function of the noisy histogram"].verdict is Verdict.PASS
    assert by_name["split of ε"].verdict is Verdict.PASS
    # an ε of a histogram that no rule gives has room for a label
    data = json.loads((released(two) / MANIFEST_FILE).read_bytes())
    prior = next(prior for prior in data["priors"] if prior["noise"] == "discrete-laplace")
    spent = Fraction(prior["guarantee"]["epsilon"]) - Fraction(1234567, 10**10)
    data["privacy"]["total"]["epsilon"] = str(
        Fraction(data["privacy"]["total"]["epsilon"]) - Fraction(1234567, 10**10)
    )
    prior["guarantee"]["epsilon"], prior["scale"] = str(spent), str(2 / spent)
    other = Manifest.model_validate(data)
    other.check()
    evidence = replace(read_evidence(released(two)), manifest=other)
    assert split_check(evidence).verdict is Verdict.FAIL


@pytest.mark.slow
@pytest.mark.parametrize("division", ["split", "joint"])
def test_a_public_prior_of_two_labels_is_all_that_shapes_their_channels(
    two: Party, division: str
) -> None:
    (two.folder / "known.csv").write_text("amount,returned,weight\n0,1,3\n50,0,2\n99,1,1\n")
    result = two.release(privacy__division=division, prior__file='"known.csv"')
    assert result.code == 0, result
    evidence = read_evidence(released(two))
    manifest = evidence.manifest
    noises = {"joint": {"public"}, "split": {"public", "randomized-response"}}  # of two values
    assert {prior.noise for prior in manifest.priors} == noises[division]
    assert manifest.total_guarantee == manifest.labels_guarantee
    assert rebuilt_check(evidence).found.startswith("All ")
    shown = facts(manifest, "")
    assert shown["ε for the histogram"] == "0: a public prior takes its place"
    data = json.loads(manifest.to_bytes())
    prior = next(prior for prior in data["priors"] if prior["noise"] == "public")
    prior["noisy_counts"] = [*prior["noisy_counts"][1:], prior["noisy_counts"][0]]
    other = replace(evidence, manifest=Manifest.model_validate(data))
    assert rebuilt_check(other).verdict is Verdict.FAIL


def test_the_same_predictions_of_two_labels_are_two_questions(two: Party) -> None:
    settings = {"privacy__total_epsilon": 41, "evaluation__offered": True}
    settings |= {"evaluation__epsilon": 40, "evaluation__answers": 2}
    assert two.release(**settings).code == 0
    evaluation = Evaluation(two.config(**settings), Store(two.store))
    digest = manifest_digest((released(two) / MANIFEST_FILE).read_bytes())
    release = StoredRelease(released(two), digest)
    for _ in range(2):
        given = [
            evaluation.ask(release, label, np.ones(EVENTS)) for label in ("returned", "amount")
        ]
        assert [answer.number for answer in given] == [1, 2]


@pytest.mark.slow
def test_the_second_release_is_the_first(two: Party) -> None:
    assert two.release().code == 0
    before = (released(two) / MANIFEST_FILE).read_bytes()
    again = two.release()
    assert "already released" in again.out
    assert (released(two) / MANIFEST_FILE).read_bytes() == before
    assert "division was" in two.release(privacy__division="split").error


@pytest.mark.slow
def test_what_is_fetched_is_what_was_released(two: Party, connect: Connect) -> None:
    assert two.release().code == 0
    with running(two.config()) as address:
        described = connect(address).describe("labels")
    assert described.manifest == (released(two) / MANIFEST_FILE).read_bytes()
    Manifest.from_bytes(described.manifest)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (TABLES.replace("upper = 100\n", ""), ["upper is missing in table 2"]),
        (TABLES.replace('"amount"\n', '"amount"\ncolumn = "returned"\n'), ["'returned'", "column"]),
        (TABLES.replace('"amount"', '"returned"'), ["'returned'", "name"]),
        (TABLES.replace("lower = 0", "lower = 100"), ["lower=100", "[[label]]"]),
        (TABLES.replace("weight = 2.0", "weight = 0"), ["weight=0", "above 0", "table 2"]),
        (TABLES.replace("weight = 2.0", "weight = 0.1234567"), ["weight=0.1234567", "round it"]),
        (TABLES.replace('"binary"', '"binary"\ngrid = "step"\nstep = 1'), ["'step'", "'binary'"]),
        (TABLES + "[randomizer]\nloss = 'absolute'\n", ["[randomizer] loss", "[[label]]"]),
        (TABLES + "[data.options]\n", ["data.options"]),
        (TABLES.replace("weight = 2.0", "missing = 101"), ["missing=101", "amount"]),
        (
            TABLES.replace('kind = "binary"', 'kind = "category"'),
            ["lower is missing in table 1"],
        ),
        (TABLES + "[domain]\nlower = 0\nupper = 1\n", ["[domain]", "[[label]]"]),
        (TABLES + "[evaluation]\nlargest_loss = 9\n", ["largest_loss=9", "remove [evaluation]"]),
        (TABLES + '[[label]]\nname="x"\nkind="binary"\n' * 7, ["9 labels", "8"]),
    ],
)
def test_wrong_tables_are_one_line_and_nothing_is_spent(
    party: Party, tables: str, said: list[str]
) -> None:
    error = with_labels(party, tables).release().error
    assert all(word in error for word in said), error
    assert len(error.splitlines()) == 1


def test_a_product_that_is_too_large_is_refused_before_anything_is_spent(two: Party) -> None:
    path = two.folder / "label_party.toml"
    edges = list(range(301))
    fine = f"upper = 300\ngrid = 'edges'\nedges = {edges}"
    path.write_text(path.read_text().replace('upper = 100\ngrid = "log"', fine))
    error = two.release(privacy__division="joint").error
    assert "2 × 301 = 602 cells must be at most 400 cells" in error
    assert "split" in error
    assert len(error.splitlines()) == 1
    assert two.nothing_left()


@pytest.mark.slow
def test_a_label_that_nobody_has_is_named_beforehand(two: Party) -> None:
    labels = pl.read_csv(two.folder / "labels.csv").with_columns(amount=pl.lit(None, pl.Float64))
    two.write_labels(labels.to_dict(as_series=False))
    result = two.release()
    assert result.code == 0
    assert "label 'amount': only 0 of 200 events" in result.err
    found = json.loads(two.run("release", "--json", "--set=data.epoch=2").out)["found"]
    assert [one["unlabelled"] for one in found["labels"]] == [0, 200]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("several")
    engines.write_events(folder, rows=90_000)
    table = pl.read_parquet(folder / "labels.parquet")
    table.with_columns(kept=pl.col("who") % 2).write_parquet(folder / "labels.parquet")
    return folder


def settings(folder: Path, **changes: Any) -> config.LabelPartyConfig:
    """Labels ``y`` and ``kept``; duplicates are resolved for each."""
    one = engines.settings(folder, **changes).model_dump(exclude_unset=True)
    del one["domain"], one["data"]["label"], one["randomizer"]
    coarse = {"lower": 0, "upper": 100, "grid": "step", "step": 25}
    tables = [{"name": "y", **coarse}, {"name": "kept", "kind": "binary"}]
    return config.LabelPartyConfig.model_validate({**one, "label": tables})


@pytest.mark.slow
@pytest.mark.parametrize("division", one_in(2, ["joint", "split"]))
@pytest.mark.parametrize("unit", one_in(2, ["record", "user"]))
def test_the_bytes_do_not_depend_on_where_they_are_made(
    events: Path, tmp_path: Path, division: str, unit: str
) -> None:
    users: dict[str, Any] = {"privacy__user": "who", "privacy__max_records_per_user": 3}
    changes = {"privacy__unit": unit, **(users if unit == "user" else {})}
    chosen = settings(events, privacy__division=division, data__duplicates="last", **changes)
    one = engines.in_memory(tmp_path / "one", chosen)
    assert engines.with_engine(tmp_path / "other", chosen, InProcess()) == one
    assert len(one.tally.labels) == 2


@pytest.mark.slow
def test_labels_that_events_are_too_few_for_are_named(two: Party) -> None:
    assert "events are few" not in two.run("release", "--dry-run", "--epsilon=4").err
    few = two.run("release", "--dry-run", "--epsilon=0.1").err
    assert "events are few for epsilon=0.1: a model is predicted to gain" in few
    assert "% for 'returned' and" in few
    assert "% for 'amount' of what true labels would" in few
