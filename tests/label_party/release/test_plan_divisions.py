"""The ways in which several labels can share one ε, compared before anything is spent."""

from __future__ import annotations

import pytest

from common.randomizers.grid import Grid
from common.randomizers.several import LabelTerms
from label_party.commands.plan import print_divisions
from label_party.release.plan_divisions import DivisionPlan, plan_divisions

RETURNED = LabelTerms("returned", 0, 1, Grid.from_edges([0.0, 1.0]), values=True)
AMOUNT = LabelTerms("amount", 0, 60)


@pytest.fixture(scope="module")
def plan() -> DivisionPlan:
    return plan_divisions([RETURNED, AMOUNT], 20_000, [2.0, 0.5])


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
    three = [LabelTerms(name, 0, 900.5) for name in "abc"]
    (row,) = plan_divisions(three, 5000, [1.0]).rows
    assert (row.division, row.auto) == ("split", True)


def test_it_is_printed_with_what_may_be_left_out(
    plan: DivisionPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    print_divisions(plan, as_json=False)
    shown = capsys.readouterr().out
    assert "leave it out" in shown
    assert shown.count("joint") >= 2
    assert max(map(len, shown.splitlines())) <= 80
    assert DivisionPlan([], [AMOUNT, AMOUNT], 9, 0.3, [], []).derived is None


def test_gains_are_shares_of_what_true_labels_would(plan: DivisionPlan) -> None:
    for row in plan.rows:
        gains = plan.gains(row)
        assert [*gains] == ["returned", "amount"]
        assert all(0 < gain < 1 for gain in gains.values())
