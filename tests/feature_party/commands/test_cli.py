"""The command line: the whole path in one process, and one line for every mistake."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from labelveil.common.arrays import Floats
from labelveil.common.config import load_config
from labelveil.common.config.template import commented_toml
from labelveil.common.errors import DataError
from labelveil.common.randomizers.denoising import denoise_histogram
from labelveil.common.release.manifest import checked_manifest
from labelveil.feature_party.commands.cli import app
from labelveil.feature_party.config.sections import FeaturePartyConfig
from tests.feature_party.commands.stand_ins import refusal
from tests.feature_party.servers import Behaviour, certificates, serving
from tests.feature_party.worlds import World, build_world

SMALL = ["--ensemble", "2", "--epochs", "2", "--set", "training.hidden=[8]"]


def invoke(*arguments: str) -> str:
    """Run a command that must succeed."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def data(world: World) -> list[str]:
    secret = ["--secret-file", str(world.secret_file)]
    return ["--features", str(world.features), "--key", "event", *secret]


def test_init_writes_a_file_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "feature_party.toml"
    assert "wrote" in invoke("init", "--config", str(path))
    loaded = load_config(FeaturePartyConfig, path)
    # what the comments call the default is the default
    assert loaded.training == FeaturePartyConfig().training
    assert loaded.output == FeaturePartyConfig().output
    assert "exists already" in refusal("init", "--config", str(path))
    path.write_text("")
    invoke("init", "--config", str(path), "--force", "--key", "click")
    assert path.read_text().startswith("# Configuration of the features party")
    assert load_config(FeaturePartyConfig, path).key == "click"


def test_files_that_init_wrote_before_still_load() -> None:
    loaded = load_config(FeaturePartyConfig, Path(__file__).with_name("feature_party-0.1.0.toml"))
    fresh = tomllib.loads(commented_toml(FeaturePartyConfig, ""))
    fresh["training"]["validation"] = 0.1  # auto since
    assert loaded == load_config(FeaturePartyConfig, None, fresh)


def test_run_does_everything(
    world: World, data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = certificates(tmp_path / "certificates")
    smoothed = []

    def smooth(*arguments: Any, **named: Any) -> Floats:
        smoothed.append(arguments)
        return denoise_histogram(*arguments, **named)

    monkeypatch.setattr("labelveil.common.randomizers.prior.denoise_histogram", smooth)
    checked_manifest.cache_clear()
    with serving(world, Behaviour(), files) as address:
        output = invoke(
            *("run", "--address", address, "--data-set", "sales", *data, *SMALL, "--epochs", "8"),
            *("--true-labels", str(world.truth), "--true-label", "amount"),
            *("--set", "training.objective=likelihood"),
            *("--set", f"labels_party.ca={files.authority}"),
            *("--set", f"labels_party.certificate={files.feature_party_certificate}"),
            *("--set", f"labels_party.private_key={files.feature_party_key}"),
        )
    assert "1,500 events match, of 1,500 in the features and 1,500 in the release" in output
    assert "true test MSE" in output
    assert len(smoothed) == 1  # the release's histogram, however many stages ask for it
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["epsilon"] == 4.5
    assert metrics["epsilon_prior"] + metrics["epsilon_labels"] == pytest.approx(4.5)
    assert (metrics["rows"], metrics["outputs"], metrics["matched"]) == (1500, 16, 1500)
    assert metrics["randomizer"] == "randomized-thresholds"
    assert metrics["objective"] == "likelihood"
    assert metrics["estimated_mse_low"] < metrics["estimated_mse"] < metrics["estimated_mse_high"]
    assert metrics["estimated_mse_method"] == "model-assisted"
    assert 0 < metrics["test_mse"] < metrics["constant_mse"]
    assert set(metrics["timings"]) == {"fetch", "join", "train", "predict", "evaluate", "report"}
    predictions = pl.read_parquet(tmp_path / "predictions.parquet")
    said = ["prediction", "mean", "median", "lower", "upper"]
    assert predictions.columns == ["event", *said, "held_out"]
    assert predictions["held_out"].sum() == metrics["holdout_rows"] == 300
    assert "<html" in (tmp_path / "report.html").read_text()[:200].lower()


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_run_submits_first_if_configured(
    data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world = build_world(tmp_path / "world", rows=600, keyed=False)
    files = certificates(tmp_path / "certificates")
    behaviour = Behaviour()
    with serving(world, behaviour, files) as address:
        output = invoke(
            *("run", "--address", address, "--data-set", "sales", "--epoch", "one", *data, *SMALL),
            *("--features", str(world.features), "--set", "labels_party.submit=true"),
            *("--set", "training.learner=linear"),
            *("--set", f"labels_party.ca={files.authority}"),
            *("--set", f"labels_party.certificate={files.feature_party_certificate}"),
            *("--set", f"labels_party.private_key={files.feature_party_key}"),
        )
    digest = world.release.manifest.population.digest
    assert f"600 keys as the population of 'sales', epoch 'one': stored; SHA-256 {digest}" in output
    assert "600 events match, of 600 in the features and 600 in the release" in output
    assert [hashlib.sha256(keys).hexdigest() for _, keys in behaviour.submitted] == [digest]


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_stages_one_by_one(
    world: World, data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    release = ["--release", str(world.directory)]
    assert "head gaussian" in invoke("train", *release, *data, *SMALL, "--head", "gaussian")
    assert "estimated test MSE" in invoke("evaluate", *release, *data)
    assert "estimated test MSE" not in invoke("evaluate", *release, *data, "--quiet")
    # by the same rows in another order it would be scored on events that it was trained on
    pl.read_parquet(world.features).reverse().write_parquet("reversed.parquet")
    with pytest.raises(DataError, match=r"reversed.parquet are not those, in their order, that"):
        invoke("evaluate", *release, *data, "--features", "reversed.parquet")
    assert invoke("predict", *data[:4], "-q") == ""
    said = ["--above", "[0.5, 3]", "--quantiles", "[0.25]"]
    predicted = json.loads(invoke("predict", *data[:4], *said, "--quiet", "--json"))
    drift = predicted.pop("drift")
    assert predicted == {"rows": 1500, "predictions": "predictions.parquet"}
    assert [column["column"] for column in drift] == ["x", "income", "shop"]
    assert not any(column["matters"] for column in drift)
    predictions = pl.read_parquet("predictions.parquet")
    assert predictions.columns[-3:] == ["quantile_0.25", "above_0.5", "above_3"]
    assert (predictions["above_0.5"] >= predictions["above_3"]).all()
    assert "above=4 must be a label in 0 … 4" in refusal("predict", *data[:4], "--above", "[4]")
    truth = ["--true-labels", str(world.truth), "--true-label", "amount"]
    reference = ["--objective", "true", "--model", "reference"]
    trained = json.loads(
        invoke("train", *release, *data, *SMALL, *reference, *truth, "--quiet", "--json")
    )
    assert (trained["objective"], trained["matched"], trained["model"]) == (
        "true",
        1500,
        "reference",
    )
    invoke("evaluate", *release, *data, "--quiet", "--model", "reference", *truth)
    assert json.loads(Path("metrics.json").read_text())["objective"] == "true"
    wrong_seed = ["--set", "training.seed=9", "--quiet"]
    assert "trained with seed=0, not 9" in refusal("evaluate", *release, *data, *wrong_seed)


@pytest.mark.slow
def test_where_a_model_is_right_is_on_the_terminal_and_in_the_metrics(
    world: World, data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--release", str(world.directory), *data]
    invoke("train", *given, *SMALL, "--head", "gaussian", "--epochs", "8")
    shown = invoke("evaluate", *given, "--by", "shop", "--by", "x")
    for heading in ("by prediction, in tenths:", "by shop:", "by x:"):
        assert heading in shown
    assert shown.count("  shop ") == 6
    assert "per unit predicted (95%: " in shown
    assert "the model's own intervals of 50% hold " in shown
    shown = invoke("evaluate", *given, "--quiet", "--by", "shop", "--json")
    metrics = json.loads(shown[shown.index("{") :])  # after the warnings
    assert metrics["verdict"] == "better"
    assert len(metrics["tenths"]) == 10
    assert list(metrics["segments"]) == ["shop"]
    assert [one["name"] for one in metrics["segments"]["shop"]] != []
    assert sum(one["events"] for one in metrics["segments"]["shop"]) == metrics["scored_rows"]
    assert list(metrics["interval_coverage"]) == ["0.5", "0.8", "0.95"]
    assert set(metrics["importance"]) == {"x", "income", "shop"}
    assert json.loads(Path("metrics.json").read_text())["tenths"] == metrics["tenths"]
    assert "by='price' is no column" in refusal("evaluate", *given, "--quiet", "--by", "price")


def test_every_mistake_is_one_line(
    world: World, data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    release = ["--release", str(world.directory)]
    cases = {
        ("train", "--config", "nowhere.toml"): "does not exist",
        ("train", *release): "no features file is configured",
        ("train", *release, *data[:2]): "no key column is configured",
        ("train", *release, *data[:4]): "no key secret is configured",
        ("submit", *data, "--set", "labels_party.ca=x"): "epoch is empty",
        ("submit", *data[:4]): "no key secret is configured",
        ("submit", *data, "--key", "click"): "no key column 'click'",
        ("submit", *data, "--key", "shop"): "repeat a key that occurred before",
        ("train", *data): "not a complete release",
        ("train", *release, *data, "--key", "click"): "no key column 'click'",
        ("train", *release, *data, "--head", "normal"): 'must be "auto", "softmax"',
        ("train", *release, *data, "--set", "training.heads=1"): "not a known setting",
        ("train", *release, *data, "--set", "training.seed"): "must look like",
        ("train", *release, *data, "--ensemble", "0"): "ensemble=0 must be",
        ("train", *release, *data, "--device", "abacus"): "device='abacus'",
        ("train", *release, *data, "--objective", "true"): "true labels are needed",
        ("train", *release, *data, "--true-label", "y"): "needs --true-labels FILE",
        ("evaluate", *release, *data): "holds no trained model",
        ("evaluate", *release, *data, "--nonprivate", "./model"): "folder of the model itself",
        ("evaluate", *release, *data, "--nonprivate=a", "--nonprivate-metrics=b"): "give one",
        ("evaluate", *release, *data, "--wait"): "ended before a line came",
        ("predict", *data[:4]): "holds no trained model",
        ("fetch", "--address", "localhost:1"): "ca is missing",
    }
    for arguments, message in cases.items():
        assert message in refusal(*arguments), arguments
    assert not Path("model").exists()


@pytest.mark.slow
def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner;"
        "from labelveil.feature_party.commands.cli import app;"
        "print(CliRunner().invoke(app, ['run', '--help']).output);"
        "sys.exit('torch' in sys.modules or 'polars' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Examples: feature-party run" in done.stdout


def test_the_module_runs_and_fails_in_one_line(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "labelveil.feature_party", "train", "--config", "nowhere.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: nowhere.toml does not exist")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("address", "right"),
    [
        ("http://labels.example.com:50051", False),
        ("labels.example.com", False),
        ("0.0.0.0:50051", False),
        ("[::]:50051", False),
        ("localhost:0", False),
        ("localhost:99999", False),
        ("localhost:5005x", False),
        ("", False),
        ("localhost:50051", True),
        ("10.0.0.7:1", True),
        ("[::1]:65535", True),
        ("labels_party.internal:443", True),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, right: bool, tmp_path: Path) -> None:
    arguments = ["init", "--config", str(tmp_path / "f.toml"), "--address", address]
    if right:
        invoke(*arguments)
        return
    assert refusal(*arguments) == (
        f"address={address!r} must be HOST:PORT of one machine, such as"
        " labels.example.com:50051; set [labels_party] address"
    )
    assert not list(tmp_path.iterdir())


def test_no_file_at_all_is_explained(
    data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "feature_party.toml, which feature-party init writes" in refusal("fetch")
    assert "is not a complete release: fetch it" in refusal("train", *data)
