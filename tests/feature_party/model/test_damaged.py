"""A damaged model is one line: whatever stands in its files, or nothing at all."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError, LabelveilError
from feature_party.config import FeaturePartyConfig
from feature_party.model.model import MODEL_FILE, WEIGHTS_FILE
from feature_party.model.several_labels import LabelModels
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
    folder = tmp_path_factory.mktemp("whole")
    world = build_world(folder, rows=200)
    settings: dict[str, Any] = {
        "data": {"features": world.features, "key": "event"},
        "keys": {"secret_file": world.secret_file},
        "training": {"ensemble": 2, "epochs": 1, "hidden": [4]},
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
        b'"labelveil-model/1"',
        b'{"format": "labelveil-models/1", "labels": []}',
        b'{"format": "labelveil-models/1", "labels": 7}',
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
    assert "is damaged (EOFError" in refusal("predict", *arguments)


def mutated(tmp_path: Path, whole: Files, seed: int, cases: int) -> None:
    chance = random.Random(seed)
    for case in range(cases):
        name = FILES[case % 3]
        change = mutate_bytes if name == WEIGHTS else mutate_json
        folder = write(tmp_path, whole | {name: change(chance, whole[name])})
        try:
            LabelModels.load(folder)
        except LabelveilError as error:
            refusal_in_a_line(error)


def test_any_other_damage_is_one_line_too(tmp_path: Path, whole: Files) -> None:
    assert json.loads(whole[OF_LABEL])["format"] == "labelveil-model/1"
    mutated(tmp_path, whole, 1, 30)


@pytest.mark.slow
def test_hundreds_of_damages_are_one_line(tmp_path: Path, whole: Files) -> None:
    mutated(tmp_path, whole, 2, effort(300, 5000))
