"""A damaged model is one line: whatever stands in its files, or nothing at all."""

from __future__ import annotations

import json
import pickle
import random
import resource
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import polars as pl
import pytest
import torch

from labelveil.common.errors import DataError, LabelveilError
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.model.model import MODEL_FILE, WEIGHTS_FILE
from labelveil.feature_party.model.several_labels import LabelModels
from tests.common.release.fuzzed import mutate_bytes, mutate_json
from tests.common.release.fuzzed import refusal as refusal_in_a_line
from tests.effort import effort
from tests.feature_party.commands.test_cli import refusal
from tests.feature_party.learn import prepare, train
from tests.feature_party.worlds import build_world

Files = dict[str, bytes]
OF_LABEL, WEIGHTS = f"amount/{MODEL_FILE}", f"amount/{WEIGHTS_FILE}"
FILES = (MODEL_FILE, OF_LABEL, WEIGHTS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return trained(tmp_path_factory.mktemp("whole"), "networks")


@pytest.fixture(scope="module")
def of_trees(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return trained(tmp_path_factory.mktemp("trees"), "trees")


def trained(folder: Path, learner: str) -> Files:
    world = build_world(folder, rows=200)
    settings: dict[str, Any] = {
        "data": {"features": world.features, "key": "event"},
        "keys": {"secret_file": world.secret_file},
        "training": {"ensemble": 2, "epochs": 1, "hidden": [4], "learner": learner},
    }
    config = FeaturePartyConfig.model_validate(settings)
    model = train(prepare(world.directory, world.features, config), config)
    LabelModels({"amount": model}).save(folder / "model")
    return {name: (folder / "model" / name).read_bytes() for name in FILES}


def write(folder: Path, files: Files) -> Path:
    (folder / "amount").mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"[]",
        b"{}",
        b'"labelveil-model/3"',
        b'{"format": "labelveil-models/1", "labels": []}',
        b'{"format": "labelveil-models/1", "labels": 7}',
        b'{"format": "labelveil-models/1", "labels": [{"name": "a", "folder": "../model/amount"}]}',
        b"[" * 100_000,
        b"\xff\xfe",
        b"PK\x03\x04",
        pickle.dumps({"a": 1}),
        pickle.dumps([Path]),
    ],
)
def test_other_bytes_are_one_line(tmp_path: Path, whole: Files, name: str, content: bytes) -> None:
    folder = write(tmp_path / "model", whole | {name: content})
    with pytest.raises(DataError, match=r"is damaged|has format 'labelveil-models/1'") as caught:
        LabelModels.load(folder)
    assert "\n" not in str(caught.value)
    (folder / name).unlink()
    with pytest.raises(DataError, match=r"is damaged|no trained model"):
        LabelModels.load(folder)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_cut_off_is_one_line(
    tmp_path: Path, whole: Files, name: str, share: float
) -> None:
    kept = min(int(share * len(whole[name])), len(whole[name]) - 2)  # the last is a line feed
    folder = write(tmp_path, whole | {name: whole[name][:kept]})
    with pytest.raises(DataError, match="is damaged"):
        LabelModels.load(folder)


def test_the_command_ends_in_one_line(tmp_path: Path, whole: Files) -> None:
    """Not in a traceback, and not as if somebody had pressed a key."""
    folder = write(tmp_path / "model", whole | {WEIGHTS: b""})
    arguments = ["--model", str(folder), "--features", str(tmp_path / "x.csv"), "--key", "event"]
    assert "is damaged (BadZipFile" in refusal("predict", *arguments)


def mutated(tmp_path: Path, files: Files, seed: int, cases: int) -> None:
    """Damage is found when a model is loaded: what is loaded predicts."""
    features = pl.DataFrame(
        {"x": [0.5, None], "income": [1, -(10**9)], "shop": ["shop 1", "another"]}
    )
    chance = random.Random(seed)
    for case in range(cases):
        name = FILES[case % 3]
        change = mutate_bytes if name == WEIGHTS else mutate_json
        folder = write(tmp_path, files | {name: change(chance, files[name])})
        try:
            models = LabelModels.load(folder)
        except LabelveilError as error:
            refusal_in_a_line(error)
        else:
            asked = {"interval": 0.9, "quantiles": [0.5]} if models.has_distributions else {}
            assert models.predict(features, **asked).height == 2


def test_any_other_damage_is_one_line_too(tmp_path: Path, whole: Files, of_trees: Files) -> None:
    assert json.loads(whole[OF_LABEL])["format"] == "labelveil-model/3"
    mutated(tmp_path, whole, 1, 30)
    mutated(tmp_path, of_trees, 2, 30)


@pytest.mark.slow
def test_hundreds_of_damages_are_one_line(tmp_path: Path, whole: Files, of_trees: Files) -> None:
    mutated(tmp_path, whole, 3, effort(150, 5000))
    mutated(tmp_path, of_trees, 4, effort(150, 5000))


def refused(tmp_path: Path, files: Files) -> str:
    """Why a model is refused, for less than a second's and 200 MB's worth."""
    folder = write(tmp_path, files)
    before = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(DataError, match="is damaged") as caught:
        LabelModels.load(folder)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
    assert after.ru_maxrss - before.ru_maxrss < 200 << 10
    refusal_in_a_line(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "shape",
    [
        {"hidden": [128_000_000]},
        {"members": 10**9},
        {"outputs": 1 << 40},
        {"numeric": 10**8},
        {"cardinalities": [10**9]},
        {"hidden": [0]},
        {"hidden": []},
        {"members": 0},
        {"members": -2},
    ],
)
def test_a_shape_of_other_weights_takes_no_memory(
    tmp_path: Path, whole: Files, shape: dict[str, Any]
) -> None:
    data = json.loads(whole[OF_LABEL])
    data["experts"][0]["shape"] |= shape
    assert "weights for a shape" in refused(tmp_path, whole | {OF_LABEL: json.dumps(data).encode()})


@pytest.mark.parametrize("shape", [{"depth": 1 << 40}, {"depth": -1}, {"nodes": 10**9}])
def test_trees_of_another_shape_are_refused(
    tmp_path: Path, of_trees: Files, shape: dict[str, int]
) -> None:
    data = json.loads(of_trees[OF_LABEL])
    data["experts"][0]["shape"] |= shape
    refused(tmp_path, of_trees | {OF_LABEL: json.dumps(data).encode()})


@pytest.mark.parametrize("name", ["branches", "roots", "asked"])
@pytest.mark.parametrize("place", [-1, 1 << 20])
def test_a_node_that_leads_nowhere_is_refused(
    tmp_path: Path, of_trees: Files, name: str, place: int
) -> None:
    """Rows that never pass it would not show it."""
    states = torch.load(BytesIO(of_trees[WEIGHTS]), weights_only=True)
    states[0][name].view(-1)[-1] = place
    assert "is none" in refused(tmp_path, of_trees | {WEIGHTS: saved(states)})


def test_a_node_of_two_trees_is_refused(tmp_path: Path, of_trees: Files) -> None:
    """It would be no leaf's bit."""
    states = torch.load(BytesIO(of_trees[WEIGHTS]), weights_only=True)
    roots = states[0]["roots"].view(-1)
    roots[-1] = roots[0]
    assert "make no trees" in refused(tmp_path, of_trees | {WEIGHTS: saved(states)})


def saved(states: Any) -> bytes:
    buffer = BytesIO()
    torch.save(states, buffer)
    return buffer.getvalue()


def test_a_vocabulary_longer_than_its_weights_is_refused(tmp_path: Path, whole: Files) -> None:
    """Only its last words would have shown it."""
    data = json.loads(whole[OF_LABEL])
    data["encoder"]["categorical"][0]["vocabulary"].append("one more")
    refused(tmp_path, whole | {OF_LABEL: json.dumps(data).encode()})
    data["encoder"]["categorical"][0]["vocabulary"][-2:] = ["twice"] * 2
    refused(tmp_path, whole | {OF_LABEL: json.dumps(data).encode()})


def test_without_networks_or_finite_predictions_it_is_refused(tmp_path: Path, whole: Files) -> None:
    data = json.loads(whole[OF_LABEL])
    none = {OF_LABEL: json.dumps({**data, "experts": []}).encode(), WEIGHTS: saved([])}
    assert "no networks or trees" in refused(tmp_path, whole | none)
    data["experts"][0]["weight"] = float("nan")
    assert "it predicts nan" in refused(tmp_path, whole | {OF_LABEL: json.dumps(data).encode()})


def test_few_rows_stand_for_no_number_of_probabilities(tmp_path: Path, whole: Files) -> None:
    data = json.loads(whole[OF_LABEL])
    many = 40_000
    each, share = [float(place) for place in range(many)], [1 / many] * many
    data["problem"] |= {"grid": each, "prior": share, "row_of": [0] * many}
    data["problem"] |= {"rows": [share], "outputs": each}
    assert "probabilities" in refused(tmp_path, whole | {OF_LABEL: json.dumps(data).encode()})


def test_weights_that_are_not_in_the_file_are_refused(tmp_path: Path, whole: Files) -> None:
    states = torch.load(BytesIO(whole[WEIGHTS]), weights_only=True)
    states[0]["weights.0"] = torch.zeros(1).expand(1 << 20, 1 << 10, 1 << 10)
    assert "not all there" in refused(tmp_path, whole | {WEIGHTS: saved(states)})
    # compressed
    buffer = BytesIO()
    with ZipFile(BytesIO(whole[WEIGHTS])) as kept, ZipFile(buffer, "w", ZIP_DEFLATED) as packed:
        for info in kept.infolist():
            data = kept.read(info)
            packed.writestr(info.filename, data + bytes(0 if len(data) < 300 else 16 << 20))
    assert "claim to hold" in refused(tmp_path, whole | {WEIGHTS: buffer.getvalue()})
    # made by what takes memory for a number
    states = [{"a": bytearray(100)}]
    assert "not made by" in refused(tmp_path, whole | {WEIGHTS: saved(states)})
