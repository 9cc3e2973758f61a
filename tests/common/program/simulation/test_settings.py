"""A simulation's settings: every mistake is one line that names value, bound and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.config import checked
from common.errors import LabelveilError
from common.program.simulation import Settings

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


def test_the_missing_value_is_zero_where_it_can_be() -> None:
    assert Settings(**RIGHT).missing_value == 0
    assert Settings(**RIGHT | {"lower": 3.0}).missing_value == 3
    assert Settings(**RIGHT | {"missing": 7.0}).missing_value == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": -1.0}, "--epsilon=-1.0 must be"),
        ({"epsilon": float("nan")}, "--epsilon=nan must be"),
        ({"lower": 10.0}, "--lower 10 must be below --upper 10"),
        ({"upper": float("inf")}, "--upper=inf must be a finite number"),
        ({"holdout": 0.0}, "--holdout=0.0 must be a number above 0 and below 1"),
        ({"holdout": 1.0}, "--holdout=1.0 must be a number above 0 and below 1"),
        ({"seed": -1}, "--seed=-1 must be a whole number of at least 0"),
        ({"submit_population": True, "population": Path("p.csv")}, "exclude each other"),
        ({"feature_settings": ("labels_party.submit=true",)}, "use --submit-population"),
        ({"missing": 11.0}, "--missing 11 must lie in 0 … 10"),
        ({"randomizer": "none"}, "--randomizer='none' must be"),
        ({"loss": "hinge"}, "--loss='hinge' must be \"squared\""),
        ({"duplicates": "first"}, "--duplicates='first' must be \"refuse\""),
        ({"label_settings": ("privacy.epsilon=9",)}, "use --epsilon instead"),
        ({"feature_settings": ("training.seed=9",)}, "use --seed instead"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LabelveilError) as caught:
        checked(Settings, RIGHT | changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
