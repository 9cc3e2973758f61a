"""``feature-party evaluate --ask``: from a file of features to a loss on labels it never sees."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from labelveil.common.arrays import Floats, Integers
from labelveil.common.errors import LabelveilError
from labelveil.common.release.manifest import Manifest
from labelveil.common.security.pilot_certificates import Credentials
from labelveil.feature_party.commands.cli import app
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.training.holdout import draw_holdout
from labelveil.label_party.server.run import running
from labelveil.label_party.store.entries import EVALUATION
from tests.label_party.conftest import EVENTS, Party
from tests.label_party.release.test_several import with_labels

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def features(party: Party, client_identity: Credentials) -> list[str]:
    """Arguments of a features party whose features come in another order, some unknown."""
    folder = party.folder
    (folder / "client.pem").write_bytes(client_identity.certificate_pem)
    (folder / "client.key").write_bytes(client_identity.key_pem)
    (folder / "client.key").chmod(0o600)
    order = np.argsort([i * 7919 % 1009 for i in range(EVENTS + 20)], kind="stable")
    rows = {
        "key": [f"event-{i}" for i in order],
        "x": [float(i % 10) for i in order],
        "z": [float(i % 3) for i in order],
    }
    pl.DataFrame(rows).write_csv(folder / "features.csv")
    settings = {
        "data.features": "features.csv",
        "data.key": "key",
        "keys.secret_file": "join.key",
        "labels_party.data_set": "labels",
        "labels_party.ca": "ca.pem",
        "labels_party.certificate": "client.pem",
        "labels_party.private_key": "client.key",
        "training.epochs": 2,
        "training.ensemble": 1,
        "training.learner": "networks",
        "training.hidden": "[4]",
    }
    return [f"--set={name}={value}" for name, value in settings.items()]


def invoke(command: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, [command, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_the_labels_party_compares_the_held_out_events(party: Party, features: list[str]) -> None:
    assert party.release(privacy__epsilon=0.25, privacy__total_epsilon=60).code == 0
    offered = {
        "evaluation__offered": "true",
        "evaluation__epsilon": 40,
        "evaluation__answers": 2,
        "privacy__total_epsilon": 60,
    }
    with running(party.config(**offered)) as address:
        features = [*features, f"--set=labels_party.address={address}"]
        for command in ("fetch", "train", "predict"):
            invoke(command, *features)
        said = invoke("evaluate", "--ask", "squared", *features)
        first = json.loads(Path("metrics.json").read_text())
        again = invoke("evaluate", "--ask", "squared", *features)
    answer = "labels party, from true labels: the squared error is"
    assert again.partition(answer)[2] == said.partition(answer)[2] != ""
    assert "standard error of" in said.partition(answer)[0]
    assert first["asked_answers_left"] == 1
    scale = (first["asked_gain_high"] - first["asked_gain"]) / math.log(20)
    assert first["asked_standard_error"] == pytest.approx(math.sqrt(2) * scale)
    # beyond 21 scales the noise lies once in a billion
    true = _true_gain(party.folder, first["asked_largest_loss"])
    assert abs(first["asked_gain"] - true) < 21 * scale < 8
    with running(party.config()) as address, pytest.raises(LabelveilError, match="without --ask"):
        invoke("evaluate", "--ask", "squared", *features, f"--set=labels_party.address={address}")
    vague = party.config(**offered, evaluation__tolerance=1e-6)
    with running(vague) as address, pytest.raises(LabelveilError, match="nothing was asked"):
        invoke("evaluate", "--ask", "squared", *features, f"--set=labels_party.address={address}")


@pytest.mark.slow
def test_each_label_of_several_is_asked_about_by_name(party: Party, features: list[str]) -> None:
    with_labels(party)
    offered = {
        "privacy__epsilon": 8,
        "privacy__division": "split",
        "privacy__total_epsilon": 60,
        "evaluation__offered": "true",
        "evaluation__epsilon": 40,
        "evaluation__answers": 2,
    }
    assert party.release(**offered).code == 0
    with running(party.config(**offered)) as address:
        # what two epochs of a network learn may be told well enough without a question
        learner = "--set=training.learner=trees"
        features = [*features, f"--set=labels_party.address={address}", learner]
        for command in ("fetch", "train", "predict"):
            invoke(command, *features)
        with pytest.raises(LabelveilError, match="'amount:1' must be one of returned:squared, "):
            invoke("evaluate", "--ask", "amount:1", *features)
        assert len(charges(party)) == 1
        said = invoke("evaluate", "--ask", "returned", "--ask", "amount:squared", *features)
    assert said.count("labels party, from true labels: the squared error is") == 2
    assert [charge["purpose"] for charge in charges(party)] == ["labels", EVALUATION]
    returned, amount = json.loads(Path("metrics.json").read_text())["labels"]
    assert [returned["asked_answers_left"], amount["asked_answers_left"]] == [1, 0]
    for found, truth in (
        (returned, lambda i: np.where(i % 3 == 0, 1.0, 0.0)),
        (amount, lambda i: np.where(i % 2 == 1, i % 100, 0.0)),
    ):
        scale = (found["asked_gain_high"] - found["asked_gain"]) / math.log(20)
        true = _true_gain(party.folder, found["asked_largest_loss"], truth, found["name"])
        assert abs(found["asked_gain"] - true) < 21 * scale


def charges(party: Party) -> list[dict[str, Any]]:
    (account,) = json.loads(party.run("budget", "--json").out)
    found: list[dict[str, Any]] = account["charges"]
    return found


def _true_gain(
    folder: Path,
    largest: float,
    label: Callable[[Integers], Floats] = lambda i: np.where(i % 2 == 0, i % 10, 0.0),
    name: str = "",
) -> float:
    """Of the held-out events, from files that only this test has together."""
    predicted = pl.read_parquet(folder / "predictions.parquet")
    number = predicted["key"].str.strip_prefix("event-").cast(pl.Int64).to_numpy()
    matched = np.flatnonzero(number < EVENTS)
    training = FeaturePartyConfig().training
    held = matched[draw_holdout(matched.size, training.holdout, training.seed)]
    truth = label(number[held])
    manifest = Manifest.from_bytes((folder / "release" / "manifest.json").read_bytes())
    grid, prior = manifest.message.marginal(name or manifest.label.name)
    points = np.clip(predicted[name or "prediction"].to_numpy()[held], grid[0], grid[-1])
    constant = prior @ grid
    differences = (constant - truth) ** 2 - (points - truth) ** 2
    return float(np.mean(np.clip(differences, -largest, largest)))
