"""Every warning before a purchase: given where it belongs, and not one step before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labelveil.common.randomizers.grid import Grid, RoundingEffect
from labelveil.label_party.events.completion import Rules, complete_part
from labelveil.label_party.events.intention import Intention, Spread
from labelveil.label_party.events.tally import LabelTally, Tally
from labelveil.label_party.sources.anomalies import anomaly
from labelveil.label_party.sources.tables import KEY, LABEL, PLACE

USUAL = Tally(
    rows=1000,
    left_out=50,
    merged=10,
    label_rows=170,
    most_rows=4,
    labels=(LabelTally(unlabelled=900, outside=5, smallest=0.0, largest=9.0),),
)

NAMES = {"amount": 0}
SPARSE = {"unlabelled": 990, "left_out": 0, "outside": 0}


def usual(changes: dict[str, float]) -> Tally:
    """The usual tally, but for some numbers of it or of its label."""
    (label,) = USUAL.labels
    known = {name: value for name, value in changes.items() if hasattr(label, name)}
    changed = replace(label, **known)  # type: ignore[arg-type]
    others = {name: value for name, value in changes.items() if name not in known}
    return replace(USUAL, labels=(changed,), **others)  # type: ignore[arg-type]


def warnings_of(tally: Tally, labels: Mapping[str, int], **others: Any) -> list[str]:
    return Intention((), SimpleNamespace(tally=tally), labels, **others).warnings()


def coarse(grid: Grid, moved: RoundingEffect) -> list[str]:
    """What is said where placing the labels on a grid does that."""
    events = SimpleNamespace(tally=USUAL, rounding_effects=lambda grids: [moved])
    plan = SimpleNamespace(grids=[grid], strata=None)
    said = Intention((), events, NAMES, plan).warnings()
    sums = SimpleNamespace(question=SimpleNamespace(lattice=SimpleNamespace(grid=grid)))
    assert Intention((), events, NAMES, sums=sums).warnings() == said  # codes or sums, all the same
    return said


def test_nothing_is_said_of_usual_labels() -> None:
    assert warnings_of(USUAL, NAMES, spreads=(Spread("product", 1000, 100, 60),)) == []


@pytest.mark.parametrize(
    ("odd", "still_usual", "said"),
    [
        ({**SPARSE, "unlabelled": 1000}, SPARSE, "only 0 of 1,000 events (0.00%) have a label"),
        ({**SPARSE, "unlabelled": 991}, SPARSE, "only 9 of 1,000 events (0.90%) have a label"),
        ({"largest": 0.0}, {"largest": 0.1}, "all 1,000 events have the same label, 0"),
        ({"outside": 6}, {"outside": 5}, "6 of 100 labels (6.00%) lie outside"),
        ({"left_out": 101}, {"left_out": 100}, "101 of 201 keys of labels (50.25%)"),
        ({"most_rows": 12}, {"most_rows": 11}, "12 of 170 rows of labels (7.06%)"),
    ],
)
def test_each_warning(odd: dict[str, float], still_usual: dict[str, float], said: str) -> None:
    (line,) = warnings_of(usual(odd), NAMES)
    assert said in line
    assert warnings_of(usual(still_usual), NAMES) == []


def test_a_coarse_grid_is_warned_of() -> None:
    labels = np.linspace(0, 1, 101)
    for grid, warned in ((Grid.from_step(0, 1, 1), True), (Grid.from_step(0, 1, 0.2), False)):
        assert bool(coarse(grid, grid.rounding_effect(labels))) == warned
    assert coarse(Grid.from_step(0, 1, 1), RoundingEffect(9, 9, 9, 4, 5, 5)) == [
        "the grid has 2 points, 1 apart; 9 of 9 labels lie between, which adds 180.0% to their"
        " variance; choose a finer one"
    ]


def test_labels_do_not_matter_where_categories_alone_are_released() -> None:
    odd = usual({"unlabelled": 991, "left_out": 0, "largest": 0.0})
    assert len(warnings_of(odd, NAMES)) == 3
    assert warnings_of(odd, {}) == []


def test_a_label_of_several_is_named() -> None:
    (bad,) = usual(SPARSE | {"unlabelled": 1000}).labels
    (line,) = warnings_of(replace(USUAL, labels=(*USUAL.labels, bad)), {"amount": 0, "returned": 1})
    assert line.startswith("label 'returned': only 0 of 1,000 events")
    both = {"amount": 0, "returned": 0}
    grid = Grid.from_step(0, 1, 1)
    events = SimpleNamespace(
        tally=USUAL,
        rounding_effects=lambda grids: [
            RoundingEffect(9, 9, 9, 0, 5, 5),
            RoundingEffect(9, 9, 9, 4, 5, 5),
        ],
        explained=lambda strata: [0.0, 1.0],
    )
    plan = SimpleNamespace(grids=[grid, grid], strata=object())
    said = Intention((), events, both, plan).warnings()
    assert [line.partition(" has ")[0] for line in said] == [
        "label 'returned': the grid",
        "label 'returned': the strata tell 100% of its variance, and both parties know them: is"
        " their column made from labels?",
    ]


@pytest.mark.parametrize(
    ("listed", "most", "said"),
    [(0, 0, "only 0 of 1,000"), (9, 5, "only 9 of 1,000"), (100, 100, "all 100 listed values")],
)
def test_categories_that_tell_nothing(listed: int, most: int, said: str) -> None:
    (line,) = warnings_of(USUAL, NAMES, spreads=(Spread("product", 1000, listed, most),))
    assert said in line
    assert warnings_of(USUAL, NAMES, spreads=(Spread("product", 1000, 10, 9),)) == []


def test_a_spread_counts_what_is_listed() -> None:
    codes = np.array([-1, 0, 0, 1, 2, 2])  # 2: on no list
    assert Spread.from_codes("product", codes, 2) == Spread("product", 6, 3, 2)


def test_what_public_facts_say_comes_last() -> None:
    said = warnings_of(usual({"outside": 6}), NAMES, too_few="few events")
    assert said[1] == "few events"


def test_ranges_of_keys_add_up_to_what_all_keys_give() -> None:
    keys = np.array([b"a", b"b", b"b", b"c", b"d", b"d", b"d"], dtype="S16")
    labels, places = np.array([1.0, 2.0, 3.0, -9.0, 4.0, np.nan, 5.0]), np.arange(2, 9)
    listed = np.array([b"a", b"b", b"d", b"e"], dtype="S16")

    def tally(low: bytes, high: bytes) -> Tally:
        some, named = (keys >= low) & (keys < high), (listed >= low) & (listed < high)
        rows = {KEY: keys[some], LABEL: labels[some, None], PLACE: places[some]}
        return complete_part(rows, listed[named], Rules((0.0,), ((0.0, 4.0),), "sum"))[2]

    whole = tally(b"a", b"z")
    assert tally(b"a", b"c") + tally(b"c", b"z") == whole
    assert tally(b"a", b"c") + tally(b"c", b"d") + tally(b"d", b"z") == whole  # none of c is listed
    assert whole == Tally(
        rows=4,
        left_out=1,
        merged=2,
        label_rows=7,
        most_rows=3,
        labels=(LabelTally(unlabelled=1, outside=2, smallest=0.0, largest=9.0),),
    )


def test_a_tally_is_written_with_its_oddities_as_lists() -> None:
    tally = Tally(rows=3, odd=anomaly("label", "is no number", (7, 4), 2))
    written = json.loads(json.dumps(tally.to_json()))
    entry = {"column": "label", "reason": "is no number", "count": 2, "places": [4, 7]}
    assert tally.to_json() == written
    assert (written["odd"], written["odd_population"]) == ([entry], [])


def test_what_is_odd_about_either_source_is_said_first_and_of_which_one() -> None:
    odd = replace(
        usual({"outside": 6}),
        odd=anomaly("amount", "is no number", (7, 4), 2) + anomaly("day", "no date", (9,), 1),
        odd_population=anomaly("user", "no user", (3,), 1),
    )
    first, second, third, last = warnings_of(odd, NAMES)
    assert first == "labels, column 'amount': is no number: 2 (at 4, 7)"
    assert second == "labels, column 'day': no date: 1 (at 9)"
    assert third == "population, column 'user': no user: 1 (at 3)"
    assert "6 of 100 labels" in last


def test_keys_beyond_the_population_are_usual_in_rounds() -> None:
    """A round is about some of the events; the labels' own rows are checked all the same."""
    beyond = usual({"left_out": 101, "label_rows": 1000, "most_rows": 51})
    assert len(warnings_of(beyond, NAMES)) == 2
    (line,) = warnings_of(beyond, NAMES, in_rounds=True)
    assert "51 of 1,000 rows of labels (5.10%) have one and the same key" in line
    fewer = usual({"left_out": 101, "label_rows": 1000, "most_rows": 50})
    assert warnings_of(fewer, NAMES, in_rounds=True) == []


def test_strata_that_give_a_label_away_are_told_with_its_name() -> None:
    shares = [0.9, 0.904]
    events = SimpleNamespace(
        tally=replace(USUAL, labels=USUAL.labels * 2),
        rounding_effects=lambda grids: [RoundingEffect()] * 2,
        explained=lambda strata: shares if strata == "strata" else [],
    )
    grids = [Grid.from_step(0, 1, 0.2)] * 2
    names = {"amount": 0, "returned": 1}
    plan = SimpleNamespace(grids=grids, strata="strata")
    (line,) = Intention((), events, names, plan).warnings()
    assert line == (
        "label 'returned': the strata tell 90% of its variance, and both parties know them: is"
        " their column made from labels?"
    )
    plan = SimpleNamespace(grids=grids, strata=None)
    assert Intention((), events, names, plan).warnings() == []
