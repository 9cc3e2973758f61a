"""The ways in which several labels can share one ε, compared before anything is spent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.randomizers.base import Randomizer
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.design.assessment import Assessment, Assessor
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.codebooks import check_outputs
from labelveil.common.randomizers.message.terms import Division
from labelveil.common.security.new_keys import write_secret
from labelveil.label_party.commands.plan import print_divisions
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.release.plan_divisions import DivisionPlan, plan_divisions
from labelveil.label_party.release.prior_knowledge import (
    KnownLabels,
    PriorKnowledge,
    from_domain,
    from_manifest,
)
from tests.commands import Result
from tests.effort import one_in

RETURNED = {"name": "returned", "kind": "binary"}
AMOUNT = {"name": "amount", "lower": 0, "upper": 60, "grid": "step", "step": 5}


def configured(*labels: dict[str, object]) -> LabelPartyConfig:
    sections = {"data": {"labels": "none.csv"}, "privacy": {"epsilon": 1.0}, "label": [*labels]}
    return LabelPartyConfig.model_validate(sections)


@pytest.fixture(scope="module")
def plan() -> DivisionPlan:
    return plan_divisions(configured(RETURNED, AMOUNT), from_domain(20_000), [2.0, 0.5])


@pytest.mark.slow
def test_every_division_is_judged_and_spends_no_more_than_epsilon(plan: DivisionPlan) -> None:
    assert [(row.epsilon, row.division) for row in plan.rows] == [
        (epsilon, name) for epsilon in (0.5, 2.0) for name in ("joint", "separate", "split")
    ]
    for row in plan.rows:
        assert len(row.epsilon_labels) == (1 if row.division == "joint" else 2)
        assert row.epsilon_prior + sum(row.epsilon_labels) <= row.epsilon * (1 + 1e-12)
        bounds = zip(
            plan.true_label_errors, row.predicted_errors, plan.constant_errors, strict=True
        )
        assert all(truth < error < constant for truth, error, constant in bounds)


@pytest.mark.slow
def test_labels_of_all_records_of_a_user_are_paid_for() -> None:
    config = configured(RETURNED, AMOUNT)
    user = config.privacy.model_copy(update={"unit": "user", "max_records_per_user": 3})
    config = config.model_copy(update={"privacy": user})
    rows = plan_divisions(config, from_domain(20_000), [2.0]).rows
    ways: list[Division] = ["joint", "separate", "split"]
    taken = {way: [row.division for row in rows if row.taken_by(way)] for way in ways}
    assert taken == {way: [row.division for row in rows if row.division == way] for way in ways}
    assert [row.auto for row in rows if row.taken_by("auto")] == [True]
    for row in rows:
        spent = row.epsilon_prior + sum(row.epsilon_labels)
        assert spent == pytest.approx(row.epsilon, rel=1e-6)
        assert spent <= row.epsilon * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "given", [{}, {"prior_share": 0.01}, {"unit": "user", "max_records_per_user": 3}]
)
@pytest.mark.parametrize("way", one_in(2, ["separate", "split"]))
def test_what_is_judged_is_what_a_release_would_spend(way: Division, given: dict[str, Any]) -> None:
    config = configured(RETURNED, AMOUNT)
    privacy = config.privacy.model_copy(update={"division": way} | given)
    config = config.model_copy(update={"privacy": privacy})
    (row,) = [
        row
        for row in plan_divisions(config, from_domain(20_000), [1.0]).rows
        if row.division == way
    ]
    plan = config.plan_message(20_000)
    paid = sum(float(share.epsilon) for share in plan.histograms)  # of all records of a unit
    assert row.epsilon_prior == pytest.approx(paid, rel=1e-9)
    assert 0 < row.epsilon_prior < 0.5
    channels = [float(share.epsilon) for share in plan.channels]
    assert sum(row.epsilon_labels) == pytest.approx(sum(channels), rel=1e-6)


@pytest.mark.slow
def test_ways_over_cells_are_left_out_if_that_is_asked_for() -> None:
    config, known = configured(RETURNED, AMOUNT), from_domain(20_000)
    rows = plan_divisions(config, known, [2.0, 0.5], over_cells=False).rows
    assert [(row.epsilon, row.division, row.auto) for row in rows] == [
        (0.5, "split", True), (2.0, "split", True),
    ]  # fmt: skip


@pytest.mark.slow
def test_one_channel_is_predicted_to_beat_one_a_label(plan: DivisionPlan) -> None:
    """Even for labels that are taken to be independent, for it asks about one of them at a time."""
    by_name = {(row.epsilon, row.division): row for row in plan.rows}
    for epsilon in (0.5, 2.0):
        joint, separate = by_name[epsilon, "joint"], by_name[epsilon, "separate"]
        assert joint.auto
        assert not separate.auto
        pairs = zip(joint.predicted_errors, separate.predicted_errors, strict=True)
        assert all(one < other for one, other in pairs)
    more, less = by_name[2.0, "joint"], by_name[0.5, "joint"]
    assert more.predicted_errors < less.predicted_errors


def test_labels_of_too_many_cells_are_split() -> None:
    three = [{"name": name, "lower": 0, "upper": 900.5} for name in "abc"]
    (row,) = plan_divisions(configured(*three), from_domain(5000), [1.0]).rows
    assert (row.division, row.auto) == ("split", True)


def test_what_is_split_is_designed_with_the_knots_that_a_message_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    amounts = [{"name": name, "lower": 0, "upper": 900.5} for name in "abcd"]
    found: list[Randomizer] = []

    def assess(self: Assessor, built: Randomizer) -> Assessment:
        found.append(built)
        return right(self, built)

    right = Assessor.assess
    monkeypatch.setattr(Assessor, "assess", assess)
    plan_divisions(configured(*amounts), from_domain(5000), [1.0])
    check_outputs([one.channel.outputs.size for one in found])
    assert len(found) == 4


@pytest.mark.slow
def test_it_is_printed_with_what_may_be_left_out(
    plan: DivisionPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    print_divisions(plan, 0, [])
    shown = capsys.readouterr().out
    assert "leave it out" in shown
    assert shown.count("joint") >= 2
    assert max(map(len, shown.splitlines())) <= 80
    amount = configured(AMOUNT).terms[0]
    assert DivisionPlan([], [amount, amount], from_domain(9), 0.3, [], []).derived is None


@pytest.mark.slow
def test_gains_are_shares_of_what_true_labels_would(plan: DivisionPlan) -> None:
    for row in plan.rows:
        gains = plan.gains(row)
        assert [*gains] == ["returned", "amount"]
        assert all(0 < gain < 1 for gain in gains.values())


def test_a_prior_over_cells_is_that_of_its_parts_whatever_their_order() -> None:
    words = np.arange(1.0, 7.0) ** 2
    grids = tuple(Grid.from_count(0, 1, points) for points in (2, 3, 4))
    together = KnownLabels((2, 0), Cells((Grid.from_count(0, 1, 3), grids[0])).points, words)
    alone = KnownLabels((1,), np.array([[0.0], [0.75], [9.0]]), np.array([1.0, 2.0, 1.0]))
    known = PriorKnowledge((together, alone), 100, "a test")
    every = known.over(Group((0, 1, 2), Cells(grids))).reshape(2, 3, 4)
    assert every.sum() == pytest.approx(1)
    np.testing.assert_allclose(every.sum(axis=(0, 2)), [0.25, 0.25, 0.5])  # 0.75 lies between two
    first = np.array([1 + 9 + 25, 4 + 16 + 36]) / 91
    np.testing.assert_allclose(every.sum(axis=(1, 2)), first)
    for label, grid in enumerate(grids):
        others = tuple(j for j in range(3) if j != label)
        own = known.over(Group((label,), Cells((grid,))))
        np.testing.assert_allclose(own, every.sum(axis=others))
    pair = known.over(Group((0, 2), Cells((grids[0], grids[2]))))
    np.testing.assert_allclose(pair, every.sum(axis=1).ravel())
    assert not np.allclose(pair.reshape(2, 4), np.outer(first, every.sum(axis=(0, 1))))


CONFIG = """
[data]
labels = "labels.csv"
key = "id"
data_set = "orders"
[[label]]
name = "amount"
lower = 0
upper = 20
grid = "step"
step = 2
[[label]]
name = "returned"
lower = 0
upper = 1
[privacy]
epsilon = 16
[keys]
secret_file = "join.key"
"""


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    amounts = [float(i * i % 21) for i in range(900)]
    table = pl.DataFrame({"id": range(900), "amount": amounts})
    table.with_columns(returned=(pl.col("id") % 10 == 0).cast(pl.Float64)).write_csv(
        tmp_path / "labels.csv"
    )
    write_secret(tmp_path / "join.key")
    (tmp_path / "label_party.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("division", one_in(2, ["joint", "split"]))
def test_the_prior_of_a_release_is_by_names(
    orders: Path, run_cli: Callable[..., Result], division: str
) -> None:
    """Whatever the order in which they are named, and of those alone."""
    assert run_cli("release", "--set", f"privacy.division={division}").code == 0
    grids = {"amount": Grid.from_step(0, 20, 2), "returned": Grid.from_edges([0, 1])}

    def known(*names: str) -> np.ndarray:
        cells = Cells(tuple(grids[name] for name in names))
        found = from_manifest(orders / "label_store/releases/orders/1", [*names])
        return found.over(Group(tuple(range(len(names))), cells)).reshape(cells.shape)

    both = known("amount", "returned")
    np.testing.assert_allclose(known("returned", "amount"), both.T)
    np.testing.assert_allclose(known("amount"), both.sum(axis=1))
    np.testing.assert_allclose(known("returned"), both.sum(axis=0))
    assert known("returned")[1] < 0.22  # 0.09 ± 0.03


@pytest.mark.slow
@pytest.mark.parametrize("division", one_in(2, ["joint", "split"]))
def test_the_priors_of_a_release_are_planned_with(
    orders: Path, run_cli: Callable[..., Result], division: str
) -> None:
    assert run_cli("release", "--set", f"privacy.division={division}").code == 0
    picture = orders / "plan.png"
    done = run_cli(
        *("plan", "--epsilons", "1", "--prior-release", "label_store/releases/orders/1"),
        *("--plot", str(picture), "--json"),
    )
    assert done.code == 0, done
    stated = json.loads(done.out)
    assert stated["prior"] == "the released prior of 'orders', epoch '1'"
    assert stated["events"] == 900
    assert not stated["leaks"]
    # 0.09 ± 0.03, by the histogram's noise; of a uniform one it is a quarter
    assert stated["constant_errors"][1] < 0.22
    assert picture.read_bytes().startswith(b"\x89PNG")
    # whose grid was asked for; and a plan for one of the labels takes what is known of that one
    manifest = json.loads((orders / "label_store/releases/orders/1/manifest.json").read_bytes())
    assert {label["name"]: label["asked"] for label in manifest["labels"]} == {
        "amount": True, "returned": False,
    }  # fmt: skip
    head, _, returned = CONFIG.split("[[label]]")
    (orders / "label_party.toml").write_text(head + "[[label]]" + returned)
    done = run_cli(
        *("plan", "--epsilons", "1", "--prior-release", "label_store/releases/orders/1", "--json")
    )
    assert done.code == 0, done
    assert json.loads(done.out)["constant_error"] == pytest.approx(stated["constant_errors"][1])


@pytest.mark.slow
def test_a_given_prior_and_raw_labels_are_of_all_labels(
    orders: Path, run_cli: Callable[..., Result]
) -> None:
    guess = orders / "guess.csv"
    guess.write_text("returned,amount,weight\n0,2,9\n1,20,1\n")
    done = run_cli("plan", "--epsilons", "1", "--prior-file", str(guess), "--json", "--rows", "900")
    assert done.code == 0, done
    constants = json.loads(done.out)["constant_errors"]
    np.testing.assert_allclose(constants, [0.09 * 18**2, 0.09], rtol=0.01)
    done = run_cli("plan", "--epsilons", "1", "--raw-labels")
    assert done.code == 0, done
    assert "computed from the raw labels" in " ".join(done.err.split())
    assert "900 events, over the raw labels" in " ".join(done.out.split())
    guess.write_text("returned,weight\n0,2\n")
    refused = run_cli("plan", "--prior-file", str(guess)).error
    assert "has no column amount; it needs amount, returned and weight" in refused
