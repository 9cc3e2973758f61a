"""One budget for all labels of an event, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError, PrivacyError
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.guarantees import PureDP
from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.cells import Cells
from labelveil.common.randomizers.design.joint import JOINT, Targets
from labelveil.common.randomizers.design.optimal_design import decoding_values
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message import private_labels
from labelveil.common.randomizers.message.division import (
    at_knots,
    cell_grids,
    divide,
    joint_channel,
    split_channels,
)
from labelveil.common.randomizers.message.plan import plan_message
from labelveil.common.randomizers.message.private_labels import (
    PrivateEvents,
    randomize,
    randomize_events,
)
from labelveil.common.randomizers.message.terms import Division, LabelTerms, check_terms
from tests.effort import one_in
from tests.statistics import mean_fits

RETURNED = LabelTerms("returned", 0, 1, Grid.from_edges([0.0, 1.0]), values=True)
AMOUNT = LabelTerms("amount", 0, 30, Grid.from_count(0, 30, 7))
TERMS = [RETURNED, AMOUNT]


def events(rows: int = 5000) -> Floats:
    """Amounts that fall off, returned the likelier the larger."""
    words = seeded_entropy(11)
    one, two = (words.words(name, 0, rows) / 2.0**64 for name in ("one", "two"))
    amount = np.minimum(-8 * np.log(one), 30)
    return np.column_stack([two < 0.1 + amount / 60, amount]).astype(np.float64)


def sent(
    labels: Floats,
    terms: Sequence[LabelTerms],
    epsilon: float,
    seed: int,
    division: Division = "auto",
    records: int = 1,
) -> PrivateEvents:
    plan = plan_message(terms, len(labels), epsilon, division=division, records=records)
    return randomize(labels, plan, seeded_entropy(seed))


@pytest.mark.slow
@pytest.mark.parametrize("division", ["auto", "split", "joint"])
@pytest.mark.parametrize("group", one_in(2, [1, 3], first=1))
def test_the_message_spends_what_its_integers_say_and_no_more(
    division: Division, group: int
) -> None:
    made = sent(events(), TERMS, 1.5, 1, division, group).message
    spent = sum((prior.exact_epsilon for _, prior in made.histograms), Fraction(0)) + group * sum(
        Fraction(channel.epsilon) for channel in made.codebook.channels
    )
    assert made.guarantee.exact_epsilon == spent <= Fraction(1.5)
    assert spent > Fraction(1.4)
    names = [name for name, _ in made.randomizers]
    assert (JOINT in names) == (division != "split")


@pytest.mark.slow
def test_a_joint_channel_bounds_a_change_of_all_labels_at_once() -> None:
    made = sent(events(), TERMS, 1.0, 1, "joint").message
    (channel,) = made.codebook.channels
    ((group, prior),) = made.histograms
    rows = channel.weights
    worst = max(
        Fraction(rows[a][z], rows[b][z])
        for z in range(channel.outputs.size)
        for a in (0, len(rows) - 1)
        for b in range(len(rows))
    )
    assert group.labels == (0, 1)
    assert worst <= exp_lower_bound(1 - prior.exact_epsilon)


@pytest.mark.slow
@pytest.mark.parametrize("terms", TERMS, ids=lambda label: label.name)
def test_one_label_is_sent_alike_however_it_is_divided(terms: LabelTerms) -> None:
    labels = events(2000)[:, [TERMS.index(terms)]]
    auto, split = (sent(labels, [terms], 1.0, 4, division) for division in ("auto", "split"))
    assert np.array_equal(auto.codes, split.codes)
    assert auto.message.codebook.channels[0].rows == split.message.codebook.channels[0].rows
    assert auto.guarantee == split.guarantee


@pytest.mark.parametrize(
    "division", ["split", "joint", pytest.param("auto", marks=pytest.mark.slow)]
)
def test_codes_decode_to_the_labels_that_were_sent(division: Division) -> None:
    """And not to the same labels moved by a sixth of a deviation: the test could fail."""
    labels = events()
    events_sent = sent(labels, TERMS, 4.0, 2, division)
    book = events_sent.message.codebook
    columns = book.split(events_sent.codes)
    for j, name in enumerate(book.names):
        column = book.column_of(name)
        group, channel = book.groups[column], book.channels[column]
        inputs = group.cells.points[:, group.labels.index(j)]
        weights = np.full(inputs.size, 1 / inputs.size)
        values = decoding_values(channel.probabilities, inputs, weights)
        decoded = values[columns[:, column]]
        assert mean_fits(decoded - labels[:, j], 0.0)
        assert not mean_fits(decoded - labels[:, j] + 0.4 * decoded.std(), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 6.0])
@pytest.mark.parametrize("kind", ["correlated", "independent"])
def test_the_division_is_the_one_that_is_predicted_to_lose_less(epsilon: float, kind: str) -> None:
    cells = Cells((RETURNED.own_grid(0, 1), Grid.from_count(0, 30, 7)))
    places = cells.indices(np.arange(len(cells)))
    prior = np.exp(-places[:, 1] / 2 - (places[:, 0] - places[:, 1] / 6) ** 2 * 4)
    if kind == "independent":
        prior = np.exp(-places[:, 1] / 2 - places[:, 0])
    prior /= prior.sum()
    chosen = divide(TERMS, cells, prior, epsilon, 5000)
    targets = Targets.for_cells(cells, prior, ["squared"] * 2, [1.0, 1.0], 5000)
    both = [make(TERMS, cells, prior, epsilon, 5000) for make in (joint_channel, split_channels)]
    lost = [targets.lost(at_knots(targets, cells, one)) for one in (chosen, *both)]
    assert lost[0] == min(lost[1:])
    assert all(
        sum(Fraction(one.channel.epsilon) for _, one in channels) <= Fraction(epsilon)
        for channels in both
    )


@pytest.mark.slow
def test_what_needs_no_prior_is_not_counted() -> None:
    labels = events()
    asked = [
        [group.labels for group in plan_message(TERMS, 5000, 1.0, division=division).groups]
        for division in ("auto", "split")
    ]
    assert asked == [[(0, 1)], [(1,)]]
    split = sent(labels, TERMS, 1.0, 0, "split").message
    (_, told), (_, counted) = split.histograms
    assert told.code_noise
    assert told.exact_epsilon == 0
    assert split.guarantee == PureDP.of(
        sum(
            (Fraction(channel.epsilon) for channel in split.codebook.channels),
            counted.exact_epsilon,
        )
    )


def test_cells_are_few_enough_and_chosen_grids_stay() -> None:
    for rows, epsilon in ((1000, 0.1), (20_000, 1.0), (10**7, 4.0)):
        grids = cell_grids([RETURNED, LabelTerms("amount", 0, 30)], rows, epsilon)
        assert grids is not None
        assert len(grids[0]) * len(grids[1]) <= 400
        assert grids[1] == Grid.from_step(0, 30, 1)  # one point for each integer
        two = cell_grids([LabelTerms("a", 0, 1e4), LabelTerms("b", -1, 1)], rows, epsilon)
        assert two is not None
        assert 144 * 0.7 <= len(two[0]) * len(two[1]) <= 400
    chosen = LabelTerms("b", 0, 9, Grid.from_count(0, 9, 37))
    found = cell_grids([RETURNED, chosen], 10_000, 1.0)
    assert found is not None
    assert found[1] == chosen.grid


@pytest.mark.slow
def test_what_has_no_joint_channel_is_split_or_refused() -> None:
    amounts = [LabelTerms(name, 0, 900.5) for name in "abc"]
    assert cell_grids(amounts, 10_000, 1.0) is None
    labels = np.zeros((50, 3))
    made = sent(labels, amounts, 1.0, 0).message
    assert len(made.codebook.channels) == 3
    assert made.codebook.outputs <= 65_536
    with pytest.raises(ConfigError, match="division = 'split'"):
        sent(labels, amounts, 1.0, 0, "joint")
    given = [replace(amounts[0], grid=Grid.from_count(0, 900.5, 51)), *amounts[1:]]
    with pytest.raises(ConfigError, match="51 × 8 × 8 = 3,264 cells must be at most 400"):
        sent(labels, given, 1.0, 0, "joint")
    with pytest.raises(ConfigError, match="'a' is there twice"):
        sent(labels, [AMOUNT, amounts[0], amounts[0]], 1.0, 0)
    with pytest.raises(ConfigError, match="9 labels"):
        sent(labels, [RETURNED] * 9, 1.0, 0)


def test_no_label_of_several_names_a_randomizer() -> None:
    named = replace(AMOUNT, randomizer="rr-on-bins")
    with pytest.raises(ConfigError, match=r"'amount' is one of 2.*leave 'rr-on-bins'"):
        sent(events(50), [RETURNED, named], 1.0, 0)


def test_a_message_is_about_one_to_eight_labels() -> None:
    for count in (0, 9):
        terms = [replace(RETURNED, name=f"label{number}") for number in range(count)]
        with pytest.raises(ConfigError, match=f"{count} labels must be 1 … 8"):
            check_terms(terms)
    check_terms(terms[:1])
    check_terms(terms[:8])


def test_what_was_spent_before_is_taken_off_the_labels_and_leaves_some() -> None:
    plan = plan_message([LabelTerms("y", 0.0, 30.0, whole=True)], 5000, 1.0)
    (share,) = plan.channels
    (left,) = plan.after(share.epsilon - Fraction(1, 10**9)).channels
    assert left.epsilon == Fraction(1, 10**9)
    assert plan.after(Fraction(0)).channels == plan.channels
    for spent in (share.epsilon, share.epsilon + 1, Fraction(-1, 10**9)):
        with pytest.raises(PrivacyError, match="which leaves nothing for the labels"):
            plan.after(spent)


def test_a_record_gets_the_largest_float_within_its_share() -> None:
    for epsilon, records in product((0.1, 0.7, 1.0, 3.3), range(1, 12)):
        plan = plan_message([AMOUNT], 5000, epsilon, records=records)
        (share,), ((group, budget),) = plan.channels, plan.budgets
        assert group == share.group
        assert Fraction(budget) <= share.epsilon / records < Fraction(np.nextafter(budget, 9))


@pytest.mark.parametrize(
    ("name", "loss", "options", "explained"),
    [
        ("rr-on-bins", "absolute", {}, None),
        ("rr-on-bins", "poisson", {"outputs": [0.5, 9.0]}, None),
        ("auto", "absolute", {}, None),
        ("auto", "squared", {}, 0.7),
    ],
)
def test_all_that_is_said_of_a_label_reaches_its_channel(
    name: str, loss: str, options: dict[str, Any], explained: float | None
) -> None:
    grid, rows = Grid.from_edges([0.0, 1.0, 2.0, 4.0, 7.0, 12.0]), 700
    terms = LabelTerms(
        "y", 0, 12, grid, randomizer=name, loss=loss, options=options, explained=explained
    )
    plan = plan_message([terms], rows, 1.5)
    released = plan.release([np.array([300, 150, 120, 60, 50, 20])], seeded_entropy(3))
    ((group, channel, _, _),) = plan.build(released).sent
    if explained is not None:
        options = {"explained": explained}
    asked = {
        "labels": grid.points, "prior": released.laws[group], "epsilon": plan.budgets[0][1],
        "loss": loss, "rows": rows, **options,
    }  # fmt: skip
    alone = build_randomizer(name, **asked)
    assert np.array_equal(channel.weights, alone.channel.weights)
    assert np.array_equal(channel.outputs, alone.channel.outputs)
    usual = {name: each for name, each in asked.items() if name not in ("loss", "explained")}
    other = build_randomizer(name, **usual).channel
    assert not (
        other.outputs.size == alone.channel.outputs.size
        and np.array_equal(other.outputs, alone.channel.outputs)
        and np.array_equal(other.weights, alone.channel.weights)
    )


def test_what_a_notebook_says_of_several_labels_is_what_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned: list[Any] = []
    monkeypatch.setattr(private_labels, "randomize", lambda *given: planned.append(given))
    returned, amount = events(301).T
    table = {"other": amount, "amount": amount, "returned": returned}
    bounds = {"returned": (0.0, 1.0), "amount": (0.0, 30.0)}

    def shares(**said: Any) -> list[float]:
        randomize_events(table, bounds, epsilon=1.5, division="split", **said)
        labels, plan, _, strata = planned[-1]
        assert np.array_equal(labels, np.column_stack([returned, amount]))
        assert [label.name for label in plan.terms] == [*bounds]
        assert strata is None
        return [float(share.epsilon) for share in plan.channels]

    even, heavy, light = shares(), shares(weights={"amount": 40}), shares(weights={"amount": 0.1})
    assert even == shares(weights={"amount": 1.0, "returned": 1.0})
    assert light[1] < heavy[1]
    assert light[0] > heavy[0]
    assert light[1] <= even[1] <= heavy[1]
    public = np.array(["b", "a", "c"])[np.arange(301) % 3]
    randomize_events(table, bounds, epsilon=1.5, division="joint", strata=public)
    _, plan, _, strata = planned[-1]
    assert [share.group.labels for share in plan.channels] == [(0, 1)]
    assert plan.strata is not None
    assert np.array_equal(strata, plan.strata.of_value[np.unique(public, return_inverse=True)[1]])
    assert len({*strata.tolist()}) > 1
    with pytest.raises(DataError, match="there is no label 'none'"):
        randomize_events(table, {"none": (0, 1)}, epsilon=1)
    with pytest.raises(DataError, match=r"'amount' of shape \(0,\) must be one column"):
        randomize_events({"amount": []}, {"amount": (0, 1)}, epsilon=1)
