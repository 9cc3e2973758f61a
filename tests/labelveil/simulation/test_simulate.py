"""The whole path: two parties, one message, a model, a report; and what a failure leaves."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import psutil
import pytest

import labelveil as lv
from labelveil.audit.canaries.inference import audit_inference
from labelveil.audit.settings import RunFiles
from labelveil.children import FEATURE_PROGRAM
from labelveil.common.errors import DataError, LabelveilError, not_none
from labelveil.common.release.table import read_release
from labelveil.runs import write_events
from labelveil.simulation import Settings, run_simulation
from labelveil.simulation.processes import Party, StageFailed, run_party
from tests.statistics import deviations

pytest.importorskip("torch", reason="the features party needs torch")

ROWS = 1500
QUICK = (
    *("training.ensemble=1", "training.epochs=3", "training.checkpoint=false"),
    "training.learner=networks",
)


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    generator = np.random.default_rng(11)
    x = generator.normal(size=ROWS)
    group = generator.integers(0, 3, ROWS)
    label = np.clip(np.round(5 + 2.5 * x + group + generator.normal(0, 0.5, ROWS)), 0, 12)
    return pl.DataFrame(
        {
            "id": [f"e{i}" for i in range(ROWS)],
            "x": x,
            "group": [f"g{g}" for g in group],
            "leak": label * 2,
            "y": label,
        }
    )


@pytest.fixture(scope="module")
def data(table: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "all.parquet"
    table.write_parquet(path)
    return path


def _settings(data: Path, out: Path, **changes: Any) -> Settings:
    fields: dict[str, Any] = {
        "labels": data,
        "features": data,
        "key": "id",
        "label": "y",
        "lower": 0.0,
        "upper": 12.0,
        "epsilon": 3.0,
        "out": out,
        "ignore": ("leak",),
        "randomizer": "rr-on-bins",
        "head": "softmax",
        "feature_settings": QUICK,
    }
    return Settings(**fields | changes)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("run")
    outcome = run_simulation(_settings(data, out, nonprivate=False))
    assert "<iframe srcdoc=" in outcome._repr_html_()
    return out, outcome.metrics


def _children() -> list[str]:
    lines = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # ended, and perhaps not waited for yet
            lines.append(" ".join(child.cmdline()))
    return [line for line in lines if "tests.faults" not in line]  # other tests' own helper


@pytest.mark.slow
def test_every_documented_file_is_there(run: tuple[Path, dict[str, Any]]) -> None:
    out, metrics = run
    assert json.loads((out / "metrics.json").read_text()) == metrics
    for name in (
        "epsilon", "epsilon_prior", "epsilon_labels", "randomizer", "objective", "head", "rows",
        "outputs", "label_mse", "test_mse", "test_mae", "constant_mse", "estimated_mse",
        "estimated_mse_low", "estimated_mse_high", "verdict", "estimated_r2", "estimated_r2_low",
        "estimated_r2_high", "assumption_free_r2", "assumption_free_r2_low",
        "assumption_free_r2_high", "assumption_free_mse", "test_r2", "matched", "timings",
    ):  # fmt: skip
        assert metrics[name] is not None, name
    assert metrics["rows"] == metrics["matched"] == ROWS
    assert metrics["decision"] == "one message, as nothing is asked beside --randomizer rr-on-bins"
    assert metrics["holdout_rows"] == ROWS // 5
    assert metrics["test_mse"] < 1.1 * metrics["constant_mse"]
    assert {"release", "features_party", "score"} <= set(metrics["timings"])
    assert "true labels" in (out / "report.html").read_text("utf-8")
    assert (out / "model" / "model.json").is_file()


@pytest.mark.slow
def test_the_release_is_whole_and_private(run: tuple[Path, dict[str, Any]]) -> None:
    out, metrics = run
    release = read_release(out / "release")
    assert release.labels.height == ROWS
    total = release.manifest.prior_guarantee.compose(release.manifest.labels_guarantee)
    assert total.epsilon <= 3.0
    assert metrics["epsilon_prior"] + metrics["epsilon_labels"] == pytest.approx(3, abs=1e-6)


@pytest.mark.slow
def test_label_noise_agrees_with_the_randomizers_own_word(
    run: tuple[Path, dict[str, Any]], table: pl.DataFrame
) -> None:
    channel = read_release(run[0] / "release").manifest.channel
    labels = table["y"].to_numpy().astype(int)
    losses = (channel.outputs[None, :] - channel.inputs[:, None]) ** 2
    by_label = (channel.probabilities * losses).sum(axis=1)
    spread = (channel.probabilities * losses**2).sum(axis=1) - by_label**2
    error = np.sqrt(spread[labels].sum()) / ROWS
    assert abs(run[1]["label_mse"] - by_label[labels].mean()) < deviations() * error


@pytest.mark.slow
def test_predictions_cover_all_events(
    run: tuple[Path, dict[str, Any]], table: pl.DataFrame
) -> None:
    predictions = pl.read_parquet(run[0] / "predictions.parquet")
    assert predictions["id"].to_list() == table["id"].to_list()
    assert predictions["prediction"].is_finite().all()


@pytest.mark.slow
def test_the_features_party_had_no_labels(run: tuple[Path, dict[str, Any]]) -> None:
    features = pl.read_parquet(run[0] / "feature_party" / "features.parquet")
    assert features.columns == ["id", "x", "group"]
    log = (run[0] / "logs" / "feature_party-run.log").read_text()
    assert "true" not in log


def _evaluated_once(out: Path) -> bool:
    """Whether two processes imported torch, and one of them evaluated and drew the report."""
    logs = {log.name: log.read_text("utf-8") for log in (out / "logs").glob("feature_party-*")}
    said = {name: text.count("estimated test MSE") for name, text in logs.items()}
    return said == {"feature_party-run.log": 0, "feature_party-evaluate.log": 1}


@pytest.mark.slow
def test_a_run_is_evaluated_once(run: tuple[Path, dict[str, Any]]) -> None:
    assert _evaluated_once(run[0])
    parts = {name.partition(".")[2] for name in run[1]["timings"] if "." in name}
    assert parts == {"fetch", "join", "train", "predict", "evaluate", "report"}


@pytest.mark.slow
def test_nobody_is_left_running(run: tuple[Path, dict[str, Any]]) -> None:
    assert not [line for line in _children() if "_party" in line]


@pytest.mark.slow
def test_a_failing_labels_party_is_told_in_its_own_words(data: Path, tmp_path: Path) -> None:
    settings = _settings(data, tmp_path / "out", label_settings=("privacy.prior_share=7",))
    with pytest.raises(StageFailed, match=r"^label-party serve: .*prior_share=7 must be"):
        run_simulation(settings)
    assert not (tmp_path / "out" / "metrics.json").exists()


@pytest.mark.slow
def test_a_failing_features_party_ends_the_server(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def begin(party: Party, module: str, arguments: Sequence[str], *rest: Any, **more: Any) -> None:
        begun.append(arguments[0])
        initialise(party, module, arguments, *rest, **more)

    initialise = Party.__init__
    monkeypatch.setattr(Party, "__init__", begin)
    settings = _settings(data, tmp_path / "out", feature_settings=("training.hidden=[0]",))
    with pytest.raises(StageFailed, match=r"^feature-party run: .*\[training\] hidden"):
        run_simulation(settings)
    assert not [line for line in _children() if "_party" in line]
    # the features party loads what it needs while the release is built
    assert begun == ["serve", "run", "release"]


@pytest.mark.slow
def test_a_failing_release_ends_the_features_party(data: Path, tmp_path: Path) -> None:
    settings = _settings(data, tmp_path / "out", label_settings=("keys.secret_file=nowhere",))
    with pytest.raises(StageFailed, match=r"^label-party release: .*nowhere"):
        run_simulation(settings)
    assert not [line for line in _children() if "_party" in line]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nobody_behind(
    data: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "labelveil", "simulate"]
    command += ["--labels", str(data), "--features", str(data), "--label", "y", "--key", "id"]
    command += ["--lower", "0", "--upper", "12", "--epsilon", "3", "--out", str(out)]
    command += ["--randomizer", "rr-on-bins", "--rounds", "1"]
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(root)}, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    # The second line says that the release is built: the server and the client come next.
    for _ in range(2):
        assert process.stderr.readline().startswith("✓")
    watched = psutil.Process(process.pid)
    port_file = out / "label_party" / "port"
    while not port_file.exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"ended early with exit code {process.wait(0.05)}")
    children = watched.children(recursive=True)
    assert children
    process.send_signal(number)
    _, printed = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "Traceback" not in printed
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_two_labels_have_figures_and_a_page_each(table: pl.DataFrame, tmp_path: Path) -> None:
    both = table.with_columns(high=(pl.col("y") > 6).cast(pl.Int64))
    settings = {"label": ["y:0:12", "high:0:1"], "lower": None, "upper": None}
    both.write_parquet(tmp_path / "all.parquet")
    outcome = run_simulation(
        _settings(
            tmp_path / "all.parquet",
            tmp_path / "out",
            **settings,
            randomizer="auto",
            head="auto",
            feature_settings=[*QUICK, "training.learner=linear"],
        )
    )
    assert [one.name for one in not_none(outcome.release).manifest.labels] == ["y", "high"]
    assert outcome.metrics["epsilon"] == 3
    for one in outcome.metrics["labels"]:
        assert one["test_r2"] > 0.2
        assert (tmp_path / "out" / f"report-{one['name']}.html").is_file()
        assert one["name"] in repr(outcome)
        assert one["nonprivate_mse"] > 0  # by networks: no other learner takes true labels
    columns = pl.read_parquet(tmp_path / "out" / "predictions.parquet").columns
    assert {"y", "y_median", "high", "high_probability"} <= {*columns}
    audit = audit_inference(RunFiles().in_folder(tmp_path / "out"))
    assert audit.passed
    assert [one.name for one in audit.checks][-2:] == [
        "label inference from the model",
        "positive control",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_networks_on_true_labels_are_trained_beside_the_run(data: Path, tmp_path: Path) -> None:
    outcome = run_simulation(_settings(data, tmp_path))
    assert _evaluated_once(tmp_path)  # who trains them scores the run, too
    # and would have learned the same by itself
    shutil.rmtree(tmp_path / "nonprivate")
    truth = ["--true-labels", str(tmp_path / "truth" / "labels.parquet"), "--true-key", "key"]
    truth += ["--true-label", "label", "--nonprivate", "../nonprivate"]
    sets = [part for each in QUICK for part in ("--set", each)]
    command = ["evaluate", *truth, *sets, "--config", "feature_party.toml"]
    run_party(FEATURE_PROGRAM, command, tmp_path / "feature_party", tmp_path / "again.log")
    again = json.loads((tmp_path / "feature_party" / "metrics.json").read_text("utf-8"))
    assert outcome.metrics["nonprivate_mse"] == again["nonprivate_mse"]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_one_line_in_a_notebook(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    generator = np.random.default_rng(3)
    x = generator.normal(size=600)
    table = pd.DataFrame({"x": x, "bought": (generator.random(600) < 0.5 + 0.2 * np.tanh(x))})
    outcome = lv.simulate(
        table,
        label="bought",
        epsilon=4,
        out=tmp_path / "run",
        quiet=True,
        feature_settings=QUICK,
    )
    assert 0 < outcome.metrics["nonprivate_mse"] < 0.3  # of a coin it is a quarter
    assert outcome.metrics["epsilon_prior"] == 0
    assert not_none(outcome.release).manifest.label.grid == [0, 1]
    assert 0 < outcome.metrics["test_log_loss"] < 1
    assert "all for labels" in repr(outcome)
    page = outcome._repr_html_()
    assert "randomized-response" in page
    assert "<iframe srcdoc=" in page


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"label": "z"}, "must be one of"),
        ({"epsilon": -1}, "epsilon"),
        ({"key": "no"}, "no column"),
        ({"ignore": ["record"]}, "column 'list' of .*, which cannot be a feature; leave it out"),
        ({"columns": {"list": "ignore"}}, "column 'record' of .* cannot be a feature; leave it"),
    ],
)
def test_a_call_that_is_refused_leaves_no_folder(
    temporary: Path, settings: dict[str, Any], line: str
) -> None:
    odd = {"list": [[1], []] * 40, "record": [{"a": 1}, {"a": 2}] * 40}
    table = pl.DataFrame({"y": [0, 1] * 40, "x": [0.5, 1.0] * 40, **odd})
    with pytest.raises(LabelveilError, match=line):
        lv.simulate(table, **{"label": "y", "epsilon": 1, "quiet": True, **settings})
    assert not any(temporary.iterdir())


SIMULATING = """
import tempfile, polars as pl, labelveil as lv
from pathlib import Path

table = pl.DataFrame({"y": [0.0, 1.0, 7.5] * 100, "x": [0.5, 1.0, 3.0] * 100})
run = lv.simulate(table, label="y", epsilon=4, quiet=True, feature_settings=%r)
assert "<html" in run.report.read_text("utf-8")
assert "ε" in repr(run) and "iframe" in run._repr_html_()
assert run.release.labels.height == 300
left = [path for path in Path(tempfile.gettempdir()).rglob("*") if path.is_file()]
assert {path.suffix for path in left} == {".html"}, left
"""


@pytest.mark.slow
def test_a_table_without_a_folder_leaves_a_report_and_with_the_process_nothing(
    temporary: Path,
) -> None:
    subprocess.run(
        [sys.executable, "-c", SIMULATING % (QUICK,)],
        env={**os.environ, "TMPDIR": str(temporary)},
        check=True,
    )
    assert not any(temporary.iterdir())


def test_bounds_of_a_table_are_rounded_outwards(tmp_path: Path) -> None:
    for values, lower, upper in (([326, 18823.5], 0, 19_000), ([0, 1], 0, 1), ([-3.14, 7], -4, 7)):
        table = pl.DataFrame({"y": values, "x": [0, 1]}, strict=False)
        found = write_events(table, tmp_path / "events.parquet", {"label": "y", "out": "out"})
        assert (found["lower"], found["upper"]) == pytest.approx((lower, upper))
    for label, line in (("z", "must be one of the columns y, x"), ("x", "all labels are 0")):
        same = pl.DataFrame({"y": [1, 2], "x": [0, 0]})
        with pytest.raises(DataError, match=line):
            write_events(same, tmp_path / "events.parquet", {"label": label})
    given = {"label": "x", "lower": 0.0, "upper": 9.0}  # nothing is read off the labels, then
    found = write_events(same, tmp_path / "events.parquet", given)
    assert (found["lower"], found["upper"]) == (0.0, 9.0)
    for one, ends in (({"lower": 0.0}, (0.0, 2.0)), ({"upper": 9.0}, (1.0, 9.0))):
        found = write_events(same, tmp_path / "events.parquet", {"label": "y", **one})
        assert (found["lower"], found["upper"]) == ends
    each = {"label": ["y", "w"], "out": "out"}  # of several, each has its own
    found = write_events(same.with_columns(w=pl.Series([5.0, 7.0])), tmp_path / "events", each)
    assert found["label"] == ["y:1.0:2.0", "w:5.0:7.0"]
    assert not {"lower", "upper"} & found.keys()


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([1, "secret7"] * 20, dtype=object),
        pd.Series([object()] * 40),
        pd.Series([10**30, 1] * 20, dtype=object),
        pd.Series(pd.arrays.SparseArray([0, 1] * 20)),
        pd.Series(np.arange(40, dtype=np.longdouble)),
        pd.Series(np.arange(40) + 1j),
        pl.Series([{1}, {2}] * 20, dtype=pl.Object),
    ],
    ids=["mixed", "things", "huge", "sparse", "longdouble", "complex", "objects"],
)
def test_a_column_that_cannot_be_read_is_named(tmp_path: Path, column: Any) -> None:
    """By every door that takes a table, and no cell of it is shown."""
    frame = pl.DataFrame if isinstance(column, pl.Series) else pd.DataFrame
    line = r"column 'odd' of type [\w\[\], ]+ holds no numbers, texts, dates or categories of one"
    for labels in (column, range(40)):
        others = {"odd": column, "x": range(40), "y": labels}
        with pytest.raises(DataError, match=line) as caught:
            write_events(frame(others), tmp_path / "events.parquet", {"label": "y"})
        assert "secret" not in str(caught.value)
    codes = lv.randomize_labels(np.arange(40) % 2, lower=0, upper=1, epsilon=1)
    with pytest.raises(DataError, match=line):
        lv.LabelDPRegressor().fit(frame({"odd": column}), codes)


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"y": [0, 1]}, "a table of type dict must be pandas', Polars' or Arrow's"),
        (pd.DataFrame([[0, 1]], columns=["y", "y"]), "the table has 2 columns 'y'; name each once"),
        (pd.DataFrame({"y": []}), "label column 'y' has no label"),
        (pd.DataFrame({"y": [np.nan, np.inf]}), "label column 'y' has no label"),
    ],
)
def test_what_is_no_table_of_labels_is_refused(tmp_path: Path, table: Any, line: str) -> None:
    with pytest.raises(DataError, match=line):
        write_events(table, tmp_path / "events.parquet", {"label": "y"})


def test_any_table_is_written_alike(table: pl.DataFrame, tmp_path: Path) -> None:
    """An infinite label is a missing one: it widens no bounds."""
    path, settings = tmp_path / "events.parquet", {"label": "y", "out": "out"}
    wanted = write_events(table, path, settings)
    for same in (table.lazy(), table.to_arrow(), table.to_pandas()):
        assert write_events(same, path, settings) == wanted
        assert pl.read_parquet(path).equals(table)
    beyond = pl.concat([table, table[:1].with_columns(y=pl.lit(math.inf))])
    assert write_events(beyond, path, settings) == wanted


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_constant_label_has_no_r2() -> None:
    table = pd.DataFrame({"y": [0.1] * 400, "x": np.random.default_rng(0).normal(size=400)})
    quick = ["training.learner=linear", "training.ensemble=1", "training.checkpoint=false"]
    outcome = lv.simulate(
        table, label="y", lower=0, upper=1, epsilon=1, feature_settings=quick, quiet=True
    )
    assert outcome.metrics["constant_mse"] == 0
    assert outcome.metrics["test_mse"] < 0.3
    assert "test_r2" not in outcome.metrics
    assert "constant" in repr(outcome)
