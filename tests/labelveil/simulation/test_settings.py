"""A simulation's settings: every mistake is one line that names value, bound and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labelveil.common.config import checked
from labelveil.common.errors import ConfigError, DataError, LabelveilError
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
    below = {"lower": -3.0, "upper": -1.0}
    for changes, missing in (
        ({}, 0), ({"lower": 3.0}, 3), ({"missing": 7.0}, 7), (below, -3), (below | {"upper": 0}, 0),
    ):  # fmt: skip
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
        ({"upper": None}, "--upper is missing: a public bound of y"),
        (WITHIN | {"label": ["y:0:1", "z"]}, "--label z needs bounds of its own among several"),
        (WITHIN | {"label": ["y:0:1", "z:0:x"]}, "which are numbers: COLUMN:LOWER:UPPER"),
        (WITHIN | {"label": ["y:0:1", "y:0:2"]}, "--label y stands twice"),
        (
            WITHIN | {"label": "y:1:0"},
            "lower 1 must be below upper 0; the label domain of y is empty",
        ),
        (WITHIN | {"label": "y:0:inf"}, "lower 0 must be below upper inf"),
        *(
            ({"label": "y:0:1"} | no, "--label y:0:1 has its bounds; leave out --lower and --upper")
            for no in ({}, {"lower": None}, {"upper": None})
        ),
        *(
            ({"randomizer": "auto", "rounds": rounds}, f"--rounds {rounds} must be a number from 1")
            for rounds in ("0", "10", "1.5", "0.5,0.4", "0.5,0.6", "1,0", "1.5,-0.5", "a,b")
        ),
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


def test_what_scoring_depends_on_is_said_in_one_way() -> None:
    """Of either party, by the simulation's own options."""
    ours = {
        "data": "labels population key label missing duplicates features ignore",
        "domain": "lower upper", "privacy": "epsilon", "training": "objective head holdout seed",
    }  # fmt: skip
    flags = {f"{part}.{key}": f"--{key}" for part, keys in ours.items() for key in keys.split()}
    flags |= {
        "strata.column": "--strata", "labels_party.submit": "--submit-population",
        "randomizer.name": "--randomizer", "randomizer.loss": "--loss", "rounds.shares": "--rounds",
    }  # fmt: skip
    for name, flag in flags.items():
        for field in ("label_settings", "feature_settings"):
            with pytest.raises(ConfigError, match=f"'{name}=1': use {flag} instead"):
                checked(Settings, RIGHT | {field: (f"{name}=1",)})


@pytest.mark.parametrize(
    ("changes", "facts", "why"),
    [
        ({}, {"binary": True}, "labels of two values are best asked in one way"),
        ({"randomizer": "rr-on-bins"}, {}, "nothing is asked beside --randomizer rr-on-bins"),
        ({"population": Path("all.csv")}, {}, "nothing is asked beside --population all.csv"),
        ({"strata": "country"}, {}, "nothing is asked beside --strata country"),
        ({"loss": "absolute"}, {}, "nothing is asked beside --loss absolute"),
        ({"objective": "raw"}, {}, "nothing is asked beside --objective raw"),
        ({"head": "gaussian"}, {}, "nothing is asked beside --head gaussian"),
        ({"label_settings": ["privacy.prior_share=0.3"]}, {}, "is asked beside --set-label"),
        (WITHIN | {"label": ["y:0:1", "z:0:1"]}, {}, "asked beside several --label (2)"),
        ({}, {"others": "3 events are not among the labels"}, "3 events are not among the labels"),
    ],
)
@pytest.mark.parametrize("epsilon", [0.1, 4.0])
def test_one_message_is_sent_where_public_facts_say_that_nothing_can_be_asked(
    changes: dict[str, Any],
    facts: dict[str, Any],
    why: str,
    epsilon: float,
    capfd: pytest.CaptureFixture[str],
) -> None:
    chosen = Settings(**RIGHT | {"randomizer": "auto", "epsilon": epsilon} | changes)
    decided = chosen.decided(4_000, **facts)
    assert (decided.ask, decided.shares, decided.submitted) == ("codes", [], False)
    assert capfd.readouterr().err.startswith("one message, as ")
    assert why in decided.decision_facts["decision"]


def test_a_submitted_population_is_asked_about_whatever_the_labels_are_of() -> None:
    given = RIGHT | {"randomizer": "auto", "submit_population": True, "quiet": True}
    decided = Settings(**given).decided(20_000, others="3 events are not among the labels")
    assert decided.shares == [0.15, 0.25, 0.6]


def test_sums_that_are_asked_for_need_twenty_events_to_score(
    capfd: pytest.CaptureFixture[str],
) -> None:
    asked = Settings(**RIGHT | {"randomizer": "auto", "ask": "groups"})
    of_few, of_many = [0.25, 0.3, 0.45], [0.15, 0.15, 0.2, 0.2, 0.3]
    for epsilon, events in ((1.0, 4_000), (0.1, 40_000)):
        of_epsilon = asked.model_copy(update={"epsilon": epsilon})
        assert of_epsilon.decided(events, binary=True).shares == of_many
        assert of_epsilon.decided(events - 1, binary=True).shares == of_few
    assert not capfd.readouterr().err  # nothing was left open
    asked.check_kept(98)  # a fifth is 19.6
    with pytest.raises(
        DataError, match=r"--holdout 0\.2 keeps 19 of 97 events, and 20 are the few"
    ):
        asked.check_kept(97)
    Settings(**RIGHT).check_kept(1)


@pytest.mark.parametrize(("rounds", "count"), [("1", 0), ("3", 3), ("9", 9), ("0.1,0.2,0.7", 3)])
def test_rounds_that_are_named_are_of_codes(
    rounds: str, count: int, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = Settings(**RIGHT | {"randomizer": "auto", "epsilon": 0.1, "rounds": rounds})
    decided = chosen.decided(20_000)
    assert (decided.ask, len(decided.shares)) == ("codes", count)
    assert not decided.decision_facts
    assert not capfd.readouterr().err
