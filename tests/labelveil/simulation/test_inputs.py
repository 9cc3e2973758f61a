"""What either party is given, and what scoring takes for the truth."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from labelveil.common.errors import ConfigError, DataError
from labelveil.simulation.inputs import read_inputs
from tests.labelveil.simulation.conftest import TABLE


def test_the_features_party_never_sees_labels_or_ignored_columns(small: Any) -> None:
    inputs = read_inputs(small(key="id", ignore=("leak",)))
    assert inputs.features.columns == ["id", "x"]
    assert inputs.labels.columns == ["id", "y"]


def test_several_labels_are_withheld_and_completed_each_by_itself(
    small: Any, tmp_path: Path
) -> None:
    table = pl.DataFrame({"id": ["a", "b"], "x": [1, 2], "y": [3.0, None], "z": [True, False]})
    table.write_parquet(tmp_path / "all.parquet")
    inputs = read_inputs(small(key="id", label=["y:2:8", "z:0:1"], lower=None, upper=None))
    assert inputs.features.columns == ["id", "x"]
    assert inputs.labels.columns == ["id", "y", "z"]
    assert inputs.truth.rows() == [("a", 3.0, 1.0), ("b", 2.0, 0.0)]


def test_a_submitted_population_is_the_features_in_their_order(small: Any, tmp_path: Path) -> None:
    listed = pl.DataFrame({"id": ["d", "z", "c", "a"], "x": [1, 2, 3, 4]})
    listed.write_parquet(tmp_path / "features.parquet")
    features = {"features": tmp_path / "features.parquet", "submit_population": True}
    inputs = read_inputs(small(key="id", missing=5.0, **features))
    assert inputs.population is None
    assert inputs.truth.rows() == [("d", 5.0), ("z", 5.0), ("c", 10.0), ("a", 1.0)]


@pytest.mark.parametrize(
    ("ids", "others"),
    [
        (["d", "a"], ""),  # labels of other events are nobody's in a simulation
        (["d", "z", "y", "a"], "2 events of the features are not among the labels"),
        (["d", "a", "d"], "1 rows of the features repeat an event"),
    ],
)
def test_events_without_a_label_of_their_own_are_noticed(
    small: Any, tmp_path: Path, ids: list[str], others: str
) -> None:
    pl.DataFrame({"id": ids, "x": range(len(ids))}).write_parquet(tmp_path / "features.parquet")
    assert read_inputs(small(key="id", features=tmp_path / "features.parquet")).others == others


def test_one_file_without_a_key_is_numbered(small: Any, tmp_path: Path) -> None:
    TABLE.rename({"x": "event"}).write_parquet(tmp_path / "all.parquet")
    inputs = read_inputs(small())
    assert inputs.key == "event_"
    assert inputs.labels["event_"].to_list() == inputs.features["event_"].to_list()


def test_the_truth_is_completed_and_clipped(small: Any) -> None:
    truth = read_inputs(small(key="id", missing=5.0)).truth
    assert dict(truth.iter_rows()) == {"a": 1.0, "b": 5.0, "c": 10.0, "d": 5.0}


def test_an_infinite_label_is_a_missing_one(small: Any, tmp_path: Path) -> None:
    """Of the truth as of the labels party, which counts it as missing."""
    labels = [math.inf, -math.inf, math.nan, None, 7.0]
    table = pl.DataFrame({"id": list("abcde"), "x": range(5), "y": labels})
    table.write_parquet(tmp_path / "all.parquet")
    truth = read_inputs(small(key="id", missing=5.0)).truth
    assert truth["label"].to_list() == [5.0, 5.0, 5.0, 5.0, 7.0]


def test_the_truth_covers_the_population(small: Any, tmp_path: Path) -> None:
    pl.DataFrame({"id": ["e", "a"]}).write_csv(tmp_path / "population.csv")
    inputs = read_inputs(small(key="id", population=tmp_path / "population.csv"))
    assert dict(inputs.truth.iter_rows()) == {"e": 0.0, "a": 1.0}


@pytest.mark.parametrize(
    ("rule", "expected"), [("missing", 0.0), ("sum", 4.0), ("mean", 2.0), ("last", 3.0)]
)
def test_several_labels_of_one_key_follow_the_rule(
    small: Any, tmp_path: Path, rule: str, expected: float
) -> None:
    pl.DataFrame({"id": [7, 7, 7], "y": [1.0, 3.0, None]}).write_parquet(tmp_path / "l.parquet")
    pl.DataFrame({"id": [7], "x": [1]}).write_parquet(tmp_path / "f.parquet")
    files = {"labels": tmp_path / "l.parquet", "features": tmp_path / "f.parquet", "key": "id"}
    assert read_inputs(small(**files, duplicates=rule)).truth["label"].to_list() == [expected]
    with pytest.raises(DataError, match=r"2 rows of .* repeat a key"):
        read_inputs(small(**files))


def test_keys_of_a_csv_file_are_text(small: Any, tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("id,y,x\n007,1,2\n7,2,3\n")
    csv = {"labels": tmp_path / "all.csv", "features": tmp_path / "all.csv", "key": "id"}
    assert read_inputs(small(**csv)).truth["key"].to_list() == ["007", "7"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": Path("absent.csv")}, "absent.csv is not a file"),
        ({"key": "nope"}, "has no column 'nope'; its columns are id, y, x, leak"),
        ({"key": "id", "label": "nope"}, "has no column 'nope'"),
        ({"key": "id", "ignore": ("nope",)}, "has no column 'nope'"),
        ({"key": "y"}, "--key and --label both name column 'y'"),
        ({"key": "x", "label": "id"}, "column 'id': not a number: 4 (at 1, 2, 3, 4); correct it"),
        ({"key": "id", "ignore": ("x", "leak")}, "has no feature columns"),
    ],
)
def test_unusable_inputs_are_refused(small: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_inputs(small(**changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_label_that_is_no_number_is_named_with_its_line(small: Any, tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("id,y,x\na,1,2\nb,,3\nc, 4 ,3\nd,12 EUR,3\ne,9x,3\n")
    csv = {"labels": tmp_path / "all.csv", "features": tmp_path / "all.csv", "key": "id"}
    with pytest.raises(DataError, match=r"all.csv: column 'y': not a number: 2 \(at 5, 6\); corr"):
        read_inputs(small(**csv))


def test_labels_are_read_as_the_labels_party_reads_them(small: Any, tmp_path: Path) -> None:
    """Decimal commas, and what stands for a missing label, in a column that is text to Polars."""
    (tmp_path / "all.csv").write_text("id;y;x\na;1,5;2\nb;n/a;3\nc; 4 ;3\n")
    csv = {"labels": tmp_path / "all.csv", "features": tmp_path / "all.csv", "key": "id"}
    inputs = read_inputs(small(**csv, missing=5.0))
    assert inputs.labels["y"].to_list() == [1.5, None, 4.0]
    assert inputs.truth["label"].to_list() == [1.5, 5.0, 4.0]


def test_two_files_need_a_key(small: Any, tmp_path: Path) -> None:
    TABLE.write_parquet(tmp_path / "other.parquet")
    with pytest.raises(DataError, match="--key is missing"):
        read_inputs(small(features=tmp_path / "other.parquet"))


def test_a_damaged_file_is_one_line(small: Any, tmp_path: Path) -> None:
    (tmp_path / "all.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match=r"all\.parquet cannot be read") as caught:
        read_inputs(small())
    assert "\n" not in str(caught.value)


def test_strata_stand_beside_the_events_that_the_labels_party_gets(
    small: Any, tmp_path: Path
) -> None:
    places = pl.DataFrame(
        {"id": ["a", "b", "c", "d"], "x": [1, 2, 3, 4], "at": ["u", None, "v", "u"]}
    )
    places.write_parquet(tmp_path / "features.parquet")
    chosen = {"features": tmp_path / "features.parquet", "key": "id", "strata": "at"}
    inputs = read_inputs(small(**chosen))
    assert inputs.strata == ("u", "v")
    assert inputs.labels["at"].to_list() == ["u", None, "v", "u"]
    places.select(id=places["id"].reverse()).write_parquet(tmp_path / "population.parquet")
    inputs = read_inputs(small(**chosen, population=tmp_path / "population.parquet"))
    assert inputs.population is not None
    assert inputs.population["at"].to_list() == ["u", "v", None, "u"]
    assert inputs.labels.columns == ["id", "y"]
    with pytest.raises(DataError, match="has no column 'town'"):
        read_inputs(small(**chosen | {"strata": "town"}))


@pytest.mark.parametrize("name", ["all.csv", "all.CSV"])
def test_what_columns_mean_can_be_said_to_a_simulation(
    small: Any, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    lines = [f'e{i},{i % 7},"{1 + i % 9},234",0{i % 5},{i}' for i in range(40)]
    path.write_text("\n".join(["id,y,spent,size,note", *lines]))
    csv = {"features": path, "labels": path, "key": "id"}
    with pytest.raises(DataError, match=rf"^{re.escape(str(path))}: column 'spent' can be read in"):
        read_inputs(small(**csv))
    said = {"spent": "number 1,234.5", "size": "category", "note": "ignore"}
    assert read_inputs(small(**csv, columns=said)).columns == said
    with pytest.raises(ConfigError, match=r"columns\.spent='nmber' must be number"):
        read_inputs(small(**csv, columns={"spent": "nmber"}))
    with pytest.raises(DataError, match="has no column 'spnt'"):
        read_inputs(small(**csv, columns={"spnt": "number"}))
    assert read_inputs(small(key="id", columns={"x": "category"})).columns == {"x": "category"}


def test_strata_are_beside_labels_whose_keys_stand_in_another_order(
    small: Any, tmp_path: Path
) -> None:
    """By canonical keys; of a repeated event the first row counts, and others know of none."""
    labels = pl.DataFrame({"id": ["c", "a", "z", "b"], "y": [1.0, 2.0, 3.0, 4.0]})
    labels.write_parquet(tmp_path / "labels.parquet")
    features = pl.DataFrame(
        {"id": ["a", "b", "c", "a"], "x": [1, 2, 3, 4], "at": ["u", "v", "w", "q"]}
    )
    features.write_parquet(tmp_path / "features.parquet")
    files = {name: tmp_path / f"{name}.parquet" for name in ("labels", "features")}
    inputs = read_inputs(small(**files, key="id", strata="at"))
    assert inputs.labels.rows() == [
        ("c", 1.0, "w"), ("a", 2.0, "u"), ("z", 3.0, None), ("b", 4.0, "v"),
    ]  # fmt: skip
    assert inputs.strata == ("q", "u", "v", "w")


def test_files_that_lack_the_key_or_repeat_it_are_named(small: Any, tmp_path: Path) -> None:
    population = tmp_path / "population.parquet"
    pl.DataFrame({"other": ["a"]}).write_parquet(population)
    with pytest.raises(DataError, match=r"population\.parquet has no column 'id'"):
        read_inputs(small(key="id", population=population))
    pl.DataFrame({"id": ["a", "a"]}).write_parquet(population)
    with pytest.raises(DataError, match=r"population\.parquet lists an event twice"):
        read_inputs(small(key="id", population=population))
    twice = pl.DataFrame({"id": ["a", "b", "a"], "x": [1, 2, 3]})
    twice.write_parquet(tmp_path / "features.parquet")
    features = {"features": tmp_path / "features.parquet", "submit_population": True}
    with pytest.raises(DataError, match=r"features\.parquet lists an event twice"):
        read_inputs(small(key="id", **features))
    table = pl.DataFrame({"id": ["a"], "key": [1.0], "y": [1.0], "x": [2]})
    table.write_parquet(tmp_path / "all.parquet")
    both = {"label": ["key:0:1", "y:0:1"], "lower": None, "upper": None}
    with pytest.raises(DataError, match="a label of several cannot be called 'key'"):
        read_inputs(small(key="id", **both))


def test_cells_of_features_keep_their_text(small: Any, tmp_path: Path) -> None:
    """What they mean the features party finds from all of them: a code may begin with zeros."""
    path = tmp_path / "all.csv"
    path.write_text("\n".join(["id,y,zip", *(f"e{at},{at % 3},0{at % 5}12" for at in range(40))]))
    inputs = read_inputs(small(labels=path, features=path, key="id"))
    assert inputs.features["zip"].dtype == pl.String
    assert inputs.features["zip"][0] == "0012"
    assert set(inputs.columns) == {"zip"}


@pytest.mark.parametrize(
    ("ends", "binary"), [((0, 1), True), ((0, 2), False), ((1, 2), True), ((0.5, 1.5), False)]
)
def test_labels_of_two_values_are_whole_and_one_apart(
    small: Any, tmp_path: Path, ends: tuple[float, float], binary: bool
) -> None:
    pl.DataFrame({"id": ["a", "b"], "x": [1, 2], "y": [0, 1]}).write_parquet(
        tmp_path / "all.parquet"
    )
    settings = small(key="id", lower=ends[0], upper=ends[1])
    (label,) = settings.label_columns
    assert read_inputs(settings).binary(label) is binary
