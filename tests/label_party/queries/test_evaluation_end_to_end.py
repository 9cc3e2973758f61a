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
from common.security.pilot_certificates import Credentials
from feature_party.client import questions
from feature_party.commands.cli import app
from feature_party.config import FeaturePartyConfig
from feature_party.pipeline import stages
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


def test_the_labels_party_scores_the_held_out_events(
    party: Party, features: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert party.release(privacy__total_epsilon=40).code == 0
    # with an estimate that is nowhere near
    monkeypatch.setattr(stages, "ask", lambda *given: questions.ask(*given[:-1], 90.0))
    offered = party.config(
        evaluation__offered="true",
        evaluation__epsilon=30,
        evaluation__answers=2,
        evaluation__tolerance=0,
        privacy__total_epsilon=40,
    )
    with running(offered) as address:
        features = [*features, f"--set=labels_party.address={address}"]
        for command in ("fetch", "train", "predict"):
            invoke(command, *features)
        said = invoke("evaluate", "--ask", "squared", *features)
        first = json.loads(Path("metrics.json").read_text())
        assert invoke("evaluate", "--ask", "squared", *features) == said
    assert "labels party: squared loss" in said
    assert first["asked_from_true_labels"]
    assert first["asked_answers_left"] == 1
    scale = (first["asked_high"] - first["asked_value"]) / math.log(20)
    # beyond 21 scales the noise lies once in a billion
    assert abs(first["asked_value"] - _true_loss(party.folder)) < 21 * scale < 8
    with running(party.config()) as address, pytest.raises(LabelveilError, match="without --ask"):
        invoke("evaluate", "--ask", "squared", *features, f"--set=labels_party.address={address}")


def _true_loss(folder: Path) -> float:
    """Of the held-out events, from files that only this test has together."""
    predicted = pl.read_parquet(folder / "predictions.parquet")
    number = predicted["key"].str.strip_prefix("event-").cast(pl.Int64).to_numpy()
    matched = np.flatnonzero(number < EVENTS)
    training = FeaturePartyConfig().training
    held = matched[split_holdout(matched.size, training.holdout, training.seed)[1]]
    truth = np.where(number[held] % 2 == 0, number[held] % 10, 0)
    points = np.clip(predicted["prediction"].to_numpy()[held], 0, 10)
    return float(np.mean((points - truth) ** 2))
