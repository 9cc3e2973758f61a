"""Both parties as processes, with mutual TLS between them, over a population that one submits."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from labelveil.children import FEATURE_PROGRAM, LABEL_PROGRAM
from labelveil.common.errors import ReleaseError
from labelveil.common.release.event_keys import read_secret
from labelveil.common.release.table import read_release
from labelveil.common.security.pilot_certificates import LABEL_PARTY
from labelveil.feature_party.client.submission import SubmittingClient, hash_population
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.simulation import Settings, run_simulation
from labelveil.simulation.inputs import read_inputs
from labelveil.simulation.processes import StageFailed, serving
from labelveil.simulation.workspace import Workspace, furnish
from tests.programs import fork_party

pytest.importorskip("torch", reason="the features party needs torch")

ROWS = 400


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Labels for two thirds of the features' events, and for others, in another order."""
    generator = np.random.default_rng(4)
    labelled = generator.permutation(np.arange(ROWS // 3, ROWS + 50))
    labels = pl.DataFrame(
        {"id": [f"e{i}" for i in labelled], "y": [float(i % 13) for i in labelled]}
    )
    features = pl.DataFrame(
        {"id": [f"e{i}" for i in range(ROWS)], "x": generator.normal(size=ROWS)}
    )
    labels.write_parquet(tmp_path / "labels.parquet")
    features.write_parquet(tmp_path / "features.parquet")
    return Settings(
        labels=tmp_path / "labels.parquet",
        features=tmp_path / "features.parquet",
        key="id",
        label="y",
        lower=0.0,
        upper=12.0,
        epsilon=40.0,
        out=tmp_path / "run",
        missing=6.0,
        randomizer="randomized-response",
        head="softmax",
        submit_population=True,
        label_settings=("domain.grid=step", "domain.step=1"),
        feature_settings=(
            "training.ensemble=1",
            "training.epochs=2",
            "training.hidden=[8]",
            "training.checkpoint=false",
        ),
        nonprivate=False,
    )


@pytest.mark.parametrize("submitted", [True, False])
def test_the_labels_party_is_told_of_the_population(settings: Settings, submitted: bool) -> None:
    if not submitted:
        given = {"submit_population": False, "population": settings.features}
        settings = settings.model_copy(update=given)
    workspace = Workspace(settings.out)
    workspace.claim(overwrite=False)
    furnish(workspace, read_inputs(settings), settings)
    written = tomllib.loads((workspace.label_party / "label_party.toml").read_text())
    wanted = "submitted" if submitted else "population.parquet"
    assert written["data"]["population"] == wanted
    assert (workspace.label_party / "population.parquet").exists() != submitted


@pytest.mark.slow
def test_submit_release_and_fetch_by_hand(settings: Settings, tmp_path: Path) -> None:
    """A server that started before there was anything to serve hands out the release."""
    workspace = Workspace(settings.out)
    workspace.claim(overwrite=False)
    inputs = read_inputs(settings)
    files = furnish(workspace, inputs, settings)
    ours, theirs = workspace.feature_party, workspace.label_party
    config = {"label_party": "label_party.toml", "feature_party": "feature_party.toml"}
    sets = [part for setting in settings.label_settings for part in ("--set", setting)]
    serve = ["serve", "--config", config["label_party"], *sets]
    serve += ["--port-file", str(workspace.port_file)]
    log = workspace.logs / "log"
    with serving(serve, theirs, workspace.logs / "serve.log", workspace.port_file) as port:
        connected = ["--config", config["feature_party"], "--address", f"127.0.0.1:{port}"]
        client = SubmittingClient(
            LabelsPartySection(
                address=f"127.0.0.1:{port}",
                server_name=LABEL_PARTY,
                ca=files.authority,
                certificate=files.feature_party_certificate,
                private_key=files.feature_party_key,
                data_set="labels",
                epoch="1",
            )
        )
        with pytest.raises(ReleaseError, match="has no release"):
            client.fetch(tmp_path / "fetched")
        with pytest.raises(StageFailed, match="no population has been submitted"):
            fork_party(LABEL_PROGRAM, ["release", *sets], theirs, log)
        fork_party(FEATURE_PROGRAM, ["submit", *connected], ours, log)
        assert f"{ROWS} keys as the population of 'labels', epoch '1': stored;" in log.read_text()
        fork_party(LABEL_PROGRAM, ["release", *sets], theirs, log)
        fork_party(FEATURE_PROGRAM, ["fetch", *connected], ours, log)
        secret = read_secret(files.join_secret)
        population = hash_population(inputs.features["id"], secret)
        assert client.submit(population) == "released already"
        with pytest.raises(ReleaseError, match="covers another population"):
            client.submit(hash_population(inputs.features["id"].reverse(), secret))
    release = read_release(workspace.release)
    assert release.manifest.population.digest == population.digest.hex()
    assert release.labels["key"].null_count() == ROWS
    # at this ε the labels are sent as they are, but for a chance of e^-30
    third = ROWS // 3
    assert release.labels["label"].to_list() == [
        6.0 if i < third else float(i % 13) for i in range(ROWS)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_simulation_over_a_submitted_population(settings: Settings) -> None:
    outcome = run_simulation(settings)
    assert outcome.metrics["rows"] == outcome.metrics["matched"] == ROWS
    assert outcome.metrics["label_mse"] == 0.0
    assert outcome.metrics["test_mse"] > 0
    assert {"submit", "release", "features_party"} <= outcome.metrics["timings"].keys()
    manifest = json.loads((settings.out / "release" / "manifest.json").read_text())
    assert manifest["population"]["keys"] == "submitted"
