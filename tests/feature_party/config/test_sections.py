"""What a configuration says together: which folders follow from it, and what contradicts itself."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from labelveil.common.config.load import checked
from labelveil.common.errors import ConfigError
from labelveil.feature_party.config.sections import FeaturePartyConfig, TrueLabels

ASKED: dict[str, Any] = {"submit": True, "epoch": "day"}
SUMS = {"epsilon": 0.5, "lower": 0.0, "upper": 4.0}
SHOES, HATS = {"name": "shoes", "data_set": "a"}, {"data_set": "hats"}


def configured(**values: Any) -> FeaturePartyConfig:
    return checked(FeaturePartyConfig, values)


def rounds_of(*shares: float, **values: Any) -> FeaturePartyConfig:
    return configured(**{"labels_party": ASKED, "rounds": {"shares": list(shares)}, **values})


def present(folder: Path, name: str = "manifest.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"labels_party": {"epoch": "a", "epochs": ["b"]}}, "epoch='a' has no effect beside"),
        ({"labels_party": {"epochs": ["a", "b", "a"]}}, "names one twice"),
        ({"labels_party": {"name": "two words"}}, "name='two words' must be a name of up to 64"),
        ({"labels_party": {"address": "h:65536"}}, "address='h:65536'"),
        ({"labels_party": {"address": "h:0"}}, "address='h:0'"),
        ({"rounds": {"shares": [0.5, 0.4]}}, r"shares=\[0.5, 0.4\] are 0.9 of the events"),
        ({"rounds": {"shares": [0.5, 0.5 + 2e-9]}}, "set .rounds. shares to numbers whose sum"),
        ({"rounds": {"strata": 33}}, "strata=33"),
        ({"labels_party": {"submit": True}, "rounds": {"shares": [1.0]}}, "set submit and epoch"),
        ({"labels_party": {"epoch": "a"}, "rounds": {"shares": [1.0]}}, "set submit and epoch"),
        ({"groups": SUMS, "labels_party": {"submit": True}}, "set submit and epoch"),
        ({"labels_party": [SHOES, {"name": "x"}, {}]}, "3 has neither name nor data_set"),
        ({"labels_party": [SHOES, {"data_set": "two words"}]}, "data_set='two words' must be"),
        ({"labels_party": [{**SHOES, "submit": True}, HATS]}, "submit of 'shoes' is for one"),
        ({"labels_party": [SHOES, {**HATS, "name": "shoes"}]}, "two .* are called 'shoes'; set"),
        ({"labels_party": [HATS, {**SHOES, "name": "hats"}]}, "two .* are called 'hats'; set"),
        ({"labels_party": [{**SHOES, "name": "hats"}, HATS]}, "two .* are called 'hats'; set"),
        ({"labels_party": [SHOES, {**SHOES, "name": "x"}]}, "'a' of localhost:50051 stands in two"),
        ({"labels_party": [HATS, SHOES, {"data_set": "shoes"}]}, "two .* are called 'shoes'"),
        ({"data": {"columns": {"x": "numbers"}}}, "columns.x='numbers' must be number"),
        ({"data": {"columns": {"x": "date"}, "numeric": ["x"]}}, "x"),
    ],
)
def test_what_contradicts_itself_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configured(**values)


def test_what_looks_like_a_contradiction_and_is_none_is_taken() -> None:
    assert configured(labels_party={"name": ""}).several is False
    assert configured(labels_party={"address": "h:65535", "epochs": ["a", "b"]}).several is False
    assert configured(rounds={"shares": [0.15, 0.25, 0.6]}, labels_party=ASKED).rounds.shares
    assert configured(rounds={"shares": [0.1] * 3 + [0.7 + 5e-10]}, labels_party=ASKED).rounds
    both = [{**SHOES, "name": "x", "address": "b:1"}, SHOES]  # one data set, of two addresses
    assert configured(labels_party=both).several
    assert configured(training={"holdout": 0}, release={"parquet": True}, rounds={"shares": []})


def test_sums_are_asked_for_in_five_rounds_unless_others_are_set() -> None:
    sums = configured(groups=SUMS, labels_party=ASKED)
    assert sums.round_shares == [0.15, 0.15, 0.2, 0.2, 0.3]
    assert sums.score_folder.name == "day-6"
    assert rounds_of(0.4, 0.6, groups=SUMS).round_shares == [0.4, 0.6]
    assert rounds_of(1.0).round_shares == [1.0]
    assert configured(labels_party=ASKED).round_shares == []


@pytest.mark.parametrize("given", [*product([True, False], repeat=3)])
def test_sums_need_all_three_or_none(given: tuple[bool, ...]) -> None:
    values = {
        name: value for (name, value), there in zip(SUMS.items(), given, strict=True) if there
    }
    if 0 < len(values) < 3:
        with pytest.raises(ConfigError, match="belong together"):
            rounds_of(1.0, groups=values)
    else:
        assert rounds_of(1.0, groups=values).groups.configured == (len(values) == 3)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"training": {"holdout": 0}}, "keeps no events to tell how good a model of sums is"),
        ({"release": {"parquet": True}}, "releases of sums have none"),
    ],
)
def test_models_of_sums_are_scored_by_events_of_their_own(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        rounds_of(1.0, groups=SUMS, **values)
    assert rounds_of(1.0, **values)


@pytest.mark.parametrize(
    ("lower", "upper", "span"), [(1, 1, 0), (2, 1, 0), (-1e308, 1e308, 0), (-3, -1.5, 1.5)]
)
def test_labels_that_are_summed_have_bounds_apart(lower: float, upper: float, span: float) -> None:
    values = {"groups": {"epsilon": 1, "lower": lower, "upper": upper}}
    if span:
        assert rounds_of(1.0, **values).groups.span == span
        return
    with pytest.raises(ConfigError, match=r"must be below upper=.*, both finite"):
        rounds_of(1.0, **values)


def test_folders_follow_from_names_where_there_are_several() -> None:
    two = configured(labels_party=[SHOES, HATS], release={"directory": "in"})
    assert two.several
    assert [party.called for party in two.labels_party] == ["shoes", "hats"]
    assert [two.folder_of(party) for party in two.labels_party] == [
        Path("in/shoes"),
        Path("in/hats"),
    ]
    with pytest.raises(ConfigError, match="one labels party, and 2 are configured"):
        _ = two.only_labels_party
    one = configured(labels_party=SHOES, release={"directory": "in"})
    assert one.only_labels_party.called == "shoes"
    assert one.folder_of(one.only_labels_party) == Path("in")


def test_releases_are_of_the_epochs_named_or_the_one_or_all_within(tmp_path: Path) -> None:
    release = {"directory": tmp_path}
    named = configured(labels_party={"epochs": ["b", "a"]}, release=release)
    assert named.release_folders == [tmp_path / "b", tmp_path / "a"]  # in their order
    alone = configured(release=release)
    assert alone.release_folders == [tmp_path]
    within = [present(tmp_path / name) for name in ("2", "1")]
    present(tmp_path / "3", "other.json")
    assert alone.release_folders == sorted(within)
    assert alone.releases == [(alone.labels_party[0], each) for each in sorted(within)]
    present(tmp_path)
    assert alone.release_folders == [tmp_path]  # its own manifest comes first


def test_a_score_is_no_release_to_learn_from(tmp_path: Path) -> None:
    config = rounds_of(0.5, 0.5, release={"directory": tmp_path})
    for number in (1, 2, 3):
        assert config.round_folder(number) == present(tmp_path / f"day-{number}")
    assert config.score_folder == tmp_path / "day-3"
    assert config.release_folders == [tmp_path / "day-1", tmp_path / "day-2"]


def test_rounds_that_were_submitted_are_counted_without_the_score(tmp_path: Path) -> None:
    config = rounds_of(0.5, 0.3, 0.2, release={"directory": tmp_path})
    with pytest.raises(ConfigError, match="no round has been submitted yet"):
        _ = config.rounds_submitted
    present(tmp_path / "day-4", "population.keys")
    with pytest.raises(ConfigError, match="no round has been submitted yet"):
        _ = config.rounds_submitted
    for number in (1, 2, 3):
        present(tmp_path / f"day-{number}", "population.keys")
        assert config.rounds_submitted == number


def test_a_configuration_of_rounds_names_their_epochs_and_the_score_that_is_there(
    tmp_path: Path,
) -> None:
    config = rounds_of(0.4, 0.6, release={"directory": tmp_path}, data={"min_match": 0.8})
    first, both = config.through(1), config.through(2)
    assert first.only_labels_party.epochs == ["day-1"]
    assert both.only_labels_party.epochs == ["day-1", "day-2"]
    assert {first.only_labels_party.epoch, both.only_labels_party.epoch} == {""}
    assert both.round_folder(2) == config.round_folder(2)  # named after the epochs by then
    # of the events that are still to be asked about nothing is found
    assert (first.data.min_match, both.data.min_match) == (0.0, 0.8)
    assert config.through(2, scored=True).only_labels_party.epochs == ["day-1", "day-2"]
    present(config.score_folder, "population.keys")
    assert config.through(2).only_labels_party.epochs == ["day-1", "day-2"]
    assert config.through(1, scored=True).only_labels_party.epochs == ["day-1", "day-3"]


def test_events_that_no_round_asks_about_need_no_counterpart() -> None:
    data, training = {"min_match": 0.8}, {"holdout": 0.25}
    assert configured(data=data, training=training).least_match == 0.8
    # of a quarter that is held out, the first round asks about two fifths
    held = rounds_of(0.4, 0.6, data=data, training=training)
    assert held.least_match == pytest.approx(0.8 * (1 - 0.25 * 0.6))


def test_a_labels_partys_own_secret_comes_before_that_of_all() -> None:
    keys = {"secret_file": "all.key", "old_secret_files": ["old.key"]}
    config = configured(labels_party=[{**SHOES, "secret_file": "own.key"}, HATS], keys=keys)
    shoes, hats = config.labels_party
    assert config.secrets_of(shoes) == [Path("own.key"), Path("old.key")]
    assert config.secrets_of(hats) == [Path("all.key"), Path("old.key")]
    none = configured()
    with pytest.raises(ConfigError, match=r"no key secret is configured; set \[keys\] secret_file"):
        none.secret_of(none.labels_party[0])
    for what in ("features", "key"):
        with pytest.raises(ConfigError, match=rf"set \[data\] {what} or pass --{what}"):
            getattr(none, what)
    data = configured(data={"features": "f.csv", "key": "id"})
    assert (data.features, data.key) == (Path("f.csv"), "id")


def test_true_labels_name_their_column_only_beside_their_file() -> None:
    with pytest.raises(ConfigError, match="--true-label COLUMN needs --true-labels FILE"):
        checked(TrueLabels, {"true_label": "y"})
    both = checked(TrueLabels, {"true_label": "y", "true_labels": "t.csv"})
    assert (both.true_label, both.true_labels) == ("y", Path("t.csv"))
    assert checked(TrueLabels, {"true_labels": "t.csv"}).true_label is None
    assert checked(TrueLabels, {}).true_labels is None


@pytest.mark.parametrize(
    ("section", "name", "taken", "refused"),
    [
        ("data", "pieces", ["auto", 0, 256], [-1, 257]),
        ("data", "min_match", [0, 1], [-0.01, 1.01]),
        ("join", "shard_rows", ["auto", 100], [99]),
        ("training", "ensemble", ["auto", 1, 64], [0, 65]),
        ("training", "epochs", ["auto", 1], [0]),
        ("training", "batch_size", ["auto", 1], [0]),
        ("training", "learning_rate", [1e-9, 1], [0, 1.01]),
        ("training", "weight_decay", ["auto", 0, 100], [-0.1, 100.1]),
        ("training", "hidden", [[1], [8192, 2]], [[], [0], [8193]]),
        ("training", "dropout", [0, 0.99], [-0.1, 1]),
        ("training", "holdout", [0, 0.99], [-0.1, 1]),
        ("training", "validation", ["auto", 0.5, 1e-9], [0, 0.51]),
        ("training", "patience", [1], [0]),
        ("training", "seed", [0], [-1]),
        ("training", "shards", ["auto", "never", "x"], [""]),
        ("training", "shard_rows", ["auto", 100], [99]),
        ("training", "head", ["auto", "gaussian"], ["normal"]),
        ("training", "learner", ["auto", "linear"], ["forest"]),
        ("training", "objective", ["auto", "likelihood"], ["loss"]),
        ("output", "interval", [0.01, 0.99], [0, 1]),
        ("output", "quantiles", [[], [0.01, 0.99]], [[0], [1]]),
        ("labels_party", "timeout", [1e-3, 3600], [0, 3601]),
        ("labels_party", "wait", [0, 604_800], [-1, 604_801]),
        ("labels_party", "max_rows", [1], [0]),
        ("labels_party", "deadline", [1e-3], [0]),
        ("rounds", "strata", [1, 32], [0, 33]),
    ],
)
def test_values_are_taken_up_to_their_bounds(
    section: str, name: str, taken: list[Any], refused: list[Any]
) -> None:
    for value in taken:
        found = configured(**{section: {name: value}})
        found = found.only_labels_party if section == "labels_party" else getattr(found, section)
        assert getattr(found, name) == value
    for value in refused:
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}=.* must be "):
            configured(**{section: {name: value}})
