"""A simulation's settings: every mistake is one line that names value, bound and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labelveil.common.config import checked
from labelveil.common.errors import LabelveilError
from labelveil.simulation import Settings
from labelveil.simulation.settings import LabelColumn

RIGHT: dict[str, Any] = {
    "labels": Path("labels.csv"),
    "features": Path("features.csv"),
    "label": "y",
    "lower": 0.0,
    "upper": 10.0,
    "epsilon": 1.0,
    "out": Path("out"),
    "randomizer": "rr-on-bins",
}
WITHIN = {"lower": None, "upper": None}  # bounds stand in --label


def test_the_missing_value_is_zero_where_it_can_be() -> None:
    for changes, missing in (({}, 0), ({"lower": 3.0}, 3), ({"missing": 7.0}, 7)):
        settings = Settings(**RIGHT | changes)
        assert settings.missing_value(settings.label_columns[0]) == missing


def test_several_labels_have_bounds_of_their_own() -> None:
    several = Settings(**RIGHT | WITHIN | {"label": ["y:0:10", "order: value:-5:2.5"]})
    assert several.label_columns == (LabelColumn("y", 0, 10), LabelColumn("order: value", -5, 2.5))
    assert Settings(**RIGHT | WITHIN | {"label": "y:0:3"}).label_columns == (
        LabelColumn("y", 0, 3),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": -1.0}, "--epsilon=-1.0 must be"),
        ({"epsilon": float("nan")}, "--epsilon=nan must be"),
        ({"lower": 10.0}, "--lower 10 must be below --upper 10"),
        ({"upper": float("inf")}, "--upper=inf must be a finite number"),
        ({"lower": None}, "--lower is missing: a public bound of y"),
        (WITHIN | {"label": ["y:0:1", "z"]}, "--label z needs bounds of its own among several"),
        (WITHIN | {"label": ["y:0:1", "z:0:x"]}, "which are numbers: COLUMN:LOWER:UPPER"),
        (WITHIN | {"label": ["y:0:1", "y:0:2"]}, "--label y stands twice"),
        (
            WITHIN | {"label": "y:1:0"},
            "lower 1 must be below upper 0; the label domain of y is empty",
        ),
        (WITHIN | {"label": "y:0:inf"}, "lower 0 must be below upper inf"),
        ({"label": "y:0:1"}, "--label y:0:1 has its bounds; leave out --lower and --upper"),
        ({"label": []}, "--label=[] must"),
        ({"holdout": 0.0}, "--holdout=0.0 must be a number above 0 and below 1"),
        ({"holdout": 1.0}, "--holdout=1.0 must be a number above 0 and below 1"),
        ({"seed": -1}, "--seed=-1 must be a whole number of at least 0"),
        ({"submit_population": True, "population": Path("p.csv")}, "exclude each other"),
        ({"feature_settings": ("labels_party.submit=true",)}, "use --submit-population"),
        ({"missing": 11.0}, "--missing 11 must lie in 0 … 10"),
        ({"randomizer": "none"}, "--randomizer='none' must be"),
        ({"loss": "hinge"}, "--loss='hinge' must be \"squared\""),
        ({"duplicates": "first"}, "--duplicates='first' must be \"missing\""),
        ({"label_settings": ("privacy.epsilon=9",)}, "use --epsilon instead"),
        ({"feature_settings": ("training.seed=9",)}, "use --seed instead"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LabelveilError) as caught:
        checked(Settings, RIGHT | changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "rows", "binary", "rounds"),
    [
        ({}, 4_000, False, 3),
        ({}, 3_999, False, 1),
        ({}, 4_000, True, 1),
        ({"randomizer": "rr-on-bins"}, 4_000, False, 1),
        ({"population": Path("all.csv")}, 4_000, False, 1),
        ({"strata": "country"}, 4_000, False, 1),
        (WITHIN | {"label": ["y:0:1", "z:0:1"]}, 4_000, False, 1),
    ],
)
def test_rounds_are_left_out_where_public_facts_say_that_they_do_not_pay(
    changes: dict[str, Any],
    rows: int,
    binary: bool,
    rounds: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    chosen = Settings(**RIGHT | {"randomizer": "auto", "rounds": "auto"} | changes)
    decided = chosen.decided(rows, binary)
    assert (len(decided.shares) or 1) == rounds
    assert ("one message, as" in capfd.readouterr().err) == (rounds == 1)
