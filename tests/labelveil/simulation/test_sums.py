"""`simulate --ask groups`: sums over groups from a file to a report, and who decides on them."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import labelveil as lv
from labelveil.commands.cli import main
from labelveil.common.errors import DataError, LabelveilError
from labelveil.common.mechanisms.group_sums import NO_GROUP
from labelveil.feature_party.groups.saved import load_trained
from labelveil.simulation import Settings, run_simulation
from labelveil.simulation.inputs import read_inputs
from labelveil.simulation.settings import GROUPS
from tests.commands import RunCommand
from tests.labelveil.simulation.test_settings import RIGHT

pytest.importorskip("torch", reason="the features party needs torch")

ROWS = 2500
LINE = {"rounds": "0.4,0.6", "nonprivate": False, "ask": GROUPS}


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """A label that a line and a category tell well; some events have none, and key and order of
    labels are their own."""
    rng = np.random.default_rng(5)
    x, kind = rng.normal(size=ROWS), rng.integers(0, 2, ROWS)
    label = np.clip(50 + 14 * x + 10 * kind + rng.normal(0, 4, ROWS), 0, 100)
    table = pl.DataFrame(
        {"id": [f"e{i}" for i in range(ROWS)], "x": x, "kind": np.array(["a", "b"])[kind]}
    )
    table.write_parquet(tmp_path / "features.parquet")
    labels = table.select("id").with_columns(y=label)[50:]
    labels[::-1].write_parquet(tmp_path / "labels.parquet")
    return tmp_path


def settings_of(events: Path, **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "labels": events / "labels.parquet", "features": events / "features.parquet",
        "key": "id", "label": "y", "lower": 0, "upper": 100, "epsilon": 1, "missing": 50,
        "out": events / "out", "quiet": True,
    }  # fmt: skip
    return Settings(**given | LINE | changes)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_sums_teach_a_model_that_true_labels_score(events: Path, run_command: RunCommand) -> None:
    files = ["--labels", events / "labels.parquet", "--features", events / "features.parquet"]
    given = ["--key", "id", "--label", "y", "--lower", 0, "--upper", 100, "--missing", 50]
    asked = ["--ask", "groups", "--rounds", "0.4,0.6", "--no-nonprivate", "--out", events / "out"]
    done = run_command(main, "simulate", *files, *given, *asked, "--epsilon", 4, "--json")
    metrics = json.loads(done.out)
    assert metrics["rows"] == ROWS
    assert metrics["training_rows"] + metrics["holdout_rows"] == ROWS
    # each is kept with a probability of a fifth: six deviations
    assert metrics["holdout_rows"] == pytest.approx(ROWS // 5, abs=6 * (ROWS * 0.16) ** 0.5)
    assert sum(asked["events"] for asked in metrics["rounds"]) == metrics["training_rows"]
    assert metrics["rounds"][0]["offsets"] == 1
    assert metrics["rounds"][1]["offsets"] > 1
    # the model that is left predicts what is written
    saved = load_trained(events / "out" / "model")
    assert [*saved.by_label] == ["y"]
    again = saved.predict(pl.read_parquet(events / "features.parquet"))["prediction"]
    written = pl.read_parquet(events / "out" / "predictions.parquet")["prediction"]
    assert again.to_numpy() == pytest.approx(written.to_numpy(), rel=1e-9)
    # the error that is stated is that of the predictions that are written
    predicted = pl.read_parquet(events / "out" / "predictions.parquet")
    assert predicted["id"].to_list() == [f"e{i}" for i in range(ROWS)]
    features = pl.read_parquet(events / "features.parquet")
    both = features.join(pl.read_parquet(events / "labels.parquet"), on="id", how="left")
    truth, held = both["y"].fill_null(50).to_numpy(), predicted["held_out"].to_numpy()
    errors = (predicted["prediction"].to_numpy() - truth)[held]
    assert np.mean(errors**2) == pytest.approx(metrics["test_mse"], rel=1e-9)
    mean = truth[~held].mean()
    assert np.mean((truth[held] - mean) ** 2) == pytest.approx(metrics["constant_mse"], rel=1e-9)
    # noise of 16 and the 50 events without a label are left of 350
    assert metrics["test_mse"] < 0.35 * metrics["constant_mse"]
    assert metrics["columns_matter"] is True
    assert 0 < metrics["estimated_r2_low"] < metrics["estimated_r2"] <= metrics["estimated_r2_high"]
    assert metrics["verdict"] == "better"
    # what was sent proves itself, from the first round to the score
    certificate = run_command(
        main, "audit", "certificate", str(events / "out" / "release"), "--out", events / "audit"
    )
    assert "0 fail" in certificate.out
    page = (events / "out" / "report.html").read_text()
    assert "What was asked" in page
    assert "Only a simulation can tell this" in page


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_what_is_held_out_is_asked_nothing_and_all_else_once(events: Path) -> None:
    given = read_inputs(settings_of(events)).truth
    pl.DataFrame({"id": given["key"], "y": given["label"]}).write_parquet(events / "labels.parquet")
    (events / "ideal.json").write_text('{"test_mse": 2.5, "test_mae": 1.5}')
    settings = settings_of(events, epsilon=0.5, ask="auto", rounds="auto", nonprivate=True)
    outcome = run_simulation(settings, lambda: events / "ideal.json")
    decision = outcome.metrics["decision"]
    assert "sums over groups in three rounds, as they tell 5.1 times as much" in decision
    assert outcome.release is None
    asked = [len(answer.question) for answer in outcome.sums]
    assert sum(asked) == ROWS - outcome.metrics["holdout_rows"] == outcome.metrics["training_rows"]
    for answer in outcome.sums:
        assert answer.guarantee.exact_epsilon == Fraction(1, 2)
        assert not (answer.question.groups == NO_GROUP).any()
    assert outcome.metrics["nonprivate_mse"] == 2.5
    assert "told from sums alone" in repr(outcome)


def test_too_few_to_score_are_refused_before_anything_is_asked(events: Path) -> None:
    with pytest.raises(DataError, match=r"--holdout 0\.007 keeps 18 of 2,500 events, and 20"):
        run_simulation(settings_of(events, holdout=0.007))
    assert not (events / "out").exists()


def test_a_page_is_written_where_labels_are_all_alike_and_nothing_is_told(tmp_path: Path) -> None:
    sums = pytest.importorskip("labelveil.feature_party.report.sums")
    question = lv.ask_groups(pl.DataFrame({"x": range(40)}), epsilon=1, lower=0, upper=9)
    answer = lv.group_sums(np.full(40, 3.0), question, epsilon=1)
    metrics = {
        "epsilon": 1.0, "holdout_rows": 40, "question_bits": 1.0, "columns_matter": False,
        "rounds": [{"events": 40, "groups": 1, "offsets": 1, "question_bits": 0.0}],
        "verdict": "cannot tell", "test_mse": 2.0, "constant_mse": 0.0, "warnings": [],
        "estimated_r2": -np.inf, "estimated_r2_low": -np.inf, "estimated_r2_high": 1.0,
    }  # fmt: skip
    page = sums.SumsReport("pay", "sales", question.lattice, [answer], metrics)
    sums.write_sums_report(tmp_path / "report.html", page)
    text = (tmp_path / "report.html").read_text()
    assert "nothing was learned about pay that beats its average" in text
    assert "Better than a constant: cannot tell." in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"population": Path("p.csv")}, "--ask groups and --population p.csv exclude each other"),
        ({"strata": "country"}, "--ask groups and --strata country exclude"),
        ({"randomizer": "laplace"}, "--ask groups and --randomizer laplace exclude"),
        ({"loss": "absolute"}, "--ask groups and --loss absolute exclude"),
        ({"head": "gaussian"}, "--ask groups and --head gaussian exclude"),
        ({"objective": "raw"}, "--ask groups and --objective raw exclude"),
        ({"label_settings": ["domain.grid=auto"]}, "--ask groups and --set-label exclude"),
        (
            {"label": ["y:0:1", "z:0:1"], "lower": None, "upper": None},
            "--ask groups and several --label (2) exclude",
        ),
    ],
)
def test_what_sums_know_nothing_of_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LabelveilError) as caught:
        Settings(**RIGHT | {"randomizer": "auto", "ask": GROUPS} | changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "rows", "ask", "rounds"),
    [
        ({"epsilon": 1e-300}, 20_000, "groups", 3),
        ({"epsilon": 0.5}, 20_000, "groups", 5),
        ({"epsilon": 0.5}, 1_000_000, "groups", 5),
        ({"epsilon": 0.7}, 4_000, "groups", 3),
        ({"epsilon": 0.75}, 20_000, "codes", 3),
        # codes of few events are worth few labels
        ({"epsilon": 0.75}, 4_000, "groups", 3),
        ({"epsilon": 1}, 9_150, "groups", 5),
        ({"epsilon": 1}, 9_250, "codes", 3),
        ({"epsilon": 1.05}, 4_000, "groups", 5),
        ({"epsilon": 1.06}, 4_000, "codes", 3),
        # codes of fewer events have no rounds
        ({"epsilon": 1.2}, 3_999, "groups", 5),
        ({"epsilon": 1.25}, 3_999, "codes", 1),
        ({"epsilon": 40}, 3_999, "codes", 1),
        ({"epsilon": 0.5, "feature_settings": ["training.trees=3"]}, 20_000, "codes", 3),
        ({"epsilon": 0.5, "ask": "codes"}, 20_000, "codes", 3),
        ({"epsilon": 0.5, "ask": "codes"}, 3_999, "codes", 1),
        # of 97 events 19 would tell how good a model of sums is
        ({"epsilon": 0.5}, 98, "groups", 3),
        ({"epsilon": 0.5}, 97, "codes", 1),
        # a code that is asked around a prediction tells hardly more
        ({"epsilon": 4.5}, 4_000, "codes", 3),
        ({"epsilon": 4.6}, 1_000_000, "codes", 1),
    ],
)
def test_what_to_ask_follows_from_events_and_epsilon(
    changes: dict[str, Any],
    rows: int,
    ask: str,
    rounds: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    decided = Settings(**RIGHT | {"randomizer": "auto"} | changes).decided(rows)
    assert decided.ask == ask
    assert (len(decided.shares) or 1) == rounds
    count = {1: "one", 3: "three", 5: "five"}[rounds]
    of = "sums over groups" if ask == "groups" else "codes"
    said = f"{of} in {count} rounds, as" if rounds > 1 else "one message, as"
    decision = decided.decision_facts["decision"]
    assert " ".join(capfd.readouterr().err.split()) == decision
    assert decision.startswith(said)
    assert ("--rounds 1 sends one message" in decision) == (rounds > 1)
