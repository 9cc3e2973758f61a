"""``feature-party evaluate --ask``: from a file of features to a loss on labels it never sees."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from common.errors import LabelveilError
from common.release.manifest import Manifest
from common.security.pilot_certificates import Credentials
from feature_party.commands.cli import app
from feature_party.config import FeaturePartyConfig
from feature_party.training.holdout import split_holdout
from label_party.server.run import running
from tests.label_party.conftest import EVENTS, Party


@pytest.fixture
def features(party: Party, client_identity: Credentials) -> list[str]:
    """Arguments of a features party whose features come in another order, some unknown."""
    folder = party.folder
    (folder / "client.pem").write_bytes(client_identity.certificate_pem)
    (folder / "client.key").write_bytes(client_identity.key_pem)
    (folder / "client.key").chmod(0o600)
    order = np.argsort([i * 7919 % 1009 for i in range(EVENTS + 20)], kind="stable")
    rows = {"key": [f"event-{i}" for i in order], "x": [float(i % 10) for i in order]}
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
        "training.hidden": "[4]",
    }
    return ["--quiet", *(f"--set={name}={value}" for name, value in settings.items())]


def invoke(command: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, [command, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_labels_party_compares_the_held_out_events(party: Party, features: list[str]) -> None:
    assert party.release(privacy__total_epsilon=40).code == 0
    offered = {
        "evaluation__offered": "true",
        "evaluation__epsilon": 30,
        "evaluation__answers": 2,
        "privacy__total_epsilon": 40,
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


def _true_gain(folder: Path, largest: float) -> float:
    """Of the held-out events, from files that only this test has together."""
    predicted = pl.read_parquet(folder / "predictions.parquet")
    number = predicted["key"].str.strip_prefix("event-").cast(pl.Int64).to_numpy()
    matched = np.flatnonzero(number < EVENTS)
    training = FeaturePartyConfig().training
    held = matched[split_holdout(matched.size, training.holdout, training.seed)[1]]
    truth = np.where(number[held] % 2 == 0, number[held] % 10, 0)
    points = np.clip(predicted["prediction"].to_numpy()[held], 0, 10)
    manifest = Manifest.from_bytes((folder / "release" / "manifest.json").read_bytes())
    constant = manifest.noisy_prior @ np.asarray(manifest.label.grid)
    differences = (constant - truth) ** 2 - (points - truth) ** 2
    return float(np.mean(np.clip(differences, -largest, largest)))
