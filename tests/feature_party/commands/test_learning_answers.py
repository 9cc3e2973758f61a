"""What ``train``, ``evaluate`` and ``run`` print and do, one stage after another."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from labelveil.feature_party.commands.cli import app
from tests.feature_party.commands.stand_ins import (
    GROUPS,
    MATCHES,
    PIPELINE,
    ROUNDS,
    All,
    Moved,
    OfSums,
    ThroughRounds,
    invoke,
    refusal,
    written,
)
from tests.feature_party.worlds import model_facts

pytestmark = pytest.mark.usefixtures("here")


class Learned:
    """The stages of a training: models of labels, of which one process says what came out."""

    def __init__(self, config: Any, quiet: bool, truth: Any = None) -> None:
        self.config, self.quiet, self.truth = config, quiet, truth
        Learned.made.append(self)
        self.workers = SimpleNamespace(first=Learned.first)
        self.prepared = SimpleNamespace(matches=MATCHES)
        self.labels = dict.fromkeys(Learned.names)

    made: ClassVar[list[Any]] = []
    first = True
    names = ("pay",)
    head = "gaussian"

    def train_together(self) -> Any:
        learned = {"training_rows": 1234, "seconds": 1.26, "head": Learned.head}
        facts = model_facts().model_copy(update=learned)
        models = {name: SimpleNamespace(facts=facts) for name in Learned.names}
        return SimpleNamespace(by_label=models)

    def prefix(self, label: str) -> str:
        return f"{label}: " if len(self.labels) > 1 else ""


def test_a_training_says_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PIPELINE}.learning.Learning", Learned)
    monkeypatch.setattr(Learned, "made", [])
    first, second, third = invoke("train", "--model", "m", "--true-labels", "t.csv").splitlines()
    assert (first, third) == (str(MATCHES), "next: feature-party evaluate, or predict")
    assert second == ("objective likelihood, head gaussian, 1,234 training rows, 1.3 s; model in m")
    assert Learned.made[0].truth.true_labels == Path("t.csv")
    assert Learned.made[0].quiet is False
    document = json.loads(invoke("train", "--model", "m", "--json", "-q"))
    assert Learned.made[-1].quiet is True
    assert (document["model"], document["matched"], document["name"]) == ("m", 1, "pay")
    assert (document["training_rows"], document["head"]) == (1234, "gaussian")
    monkeypatch.setattr(Learned, "names", ("pay", "late"))
    document = json.loads(invoke("train", "--model", "m", "--json"))
    assert [label["name"] for label in document["labels"]] == ["pay", "late"]
    assert "head" not in document
    assert "\nlate: objective likelihood, head gaussian" in invoke("train", "--model", "m")
    monkeypatch.setattr(Learned, "head", "")  # a model of points has none
    assert "\npay: objective likelihood, head -, 1,234" in invoke("train", "--model", "m")
    monkeypatch.setattr(Learned, "first", False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert invoke("train", "--model", "m") == ""  # another of several workers says nothing


def test_a_training_on_sums_counts_them(
    of_sums: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(GROUPS)
    document = json.loads(invoke("train", "--json"))
    assert document == {
        "releases": ["ab"], "events": 2400, "mean": 5.0, "columns": "", "seed": 7, "key": "id",
        "label": "y", "warnings": [], "sums": 1200, "model": "model",
    }  # fmt: skip
    assert invoke("train").splitlines() == [
        "1,200 sums over 2,400 events, 3 ridges; model in model",
        "next: feature-party submit, for the next round",
    ]
    (last := Path("release/day-2")).mkdir(parents=True)
    for name in ("manifest.json", "manifest.sig", "codes.bin", "keys.bin"):
        (last / name).touch()
    assert invoke("train").splitlines()[1] == "next: feature-party evaluate, or predict"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE=2, but train alone takes several processes" in refusal("train")
    assert of_sums == []


def test_a_model_of_sums_is_evaluated_by_sums_alone(of_sums: list[Any]) -> None:
    written(GROUPS)
    assert invoke("evaluate").splitlines() == [
        "1,200 sums", "good", "metrics in metrics.json, report report.html",
    ]  # fmt: skip
    assert of_sums == [("evaluate", "the model"), ("warn", "take care")]
    assert json.loads(invoke("evaluate", "--json")) == {"r2": 0.5}
    of_sums.clear()
    invoke("evaluate", "--ask", "squared", "--by", "x", "--true-labels", "t", "--nonprivate", "n")
    assert of_sums[0] == ("checked", ["squared"], ["x"])  # before anything is trained


def test_a_model_of_sums_is_compared_with_one_of_true_labels(of_sums: list[Any]) -> None:
    written(GROUPS)
    invoke("evaluate", "--true-labels", "t.csv", "--nonprivate", "ideal")
    assert of_sums[:2] == [
        ("train on truth", Path("ideal"), Path("t.csv")),
        ("evaluate", "the model", Path("ideal/metrics.json")),
    ]
    of_sums.clear()
    invoke("evaluate", "--true-labels", "t.csv", "--nonprivate-metrics", "known.json")
    assert of_sums[0] == ("evaluate", "the model", Path("known.json"))


def test_a_run_of_rounds_says_what_it_sent_and_goes_on_with_all_of_them(
    of_sums: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{PIPELINE}.rounds.Rounds", ThroughRounds)
    monkeypatch.setattr(ThroughRounds, "made", [])
    written(GROUPS)
    lines = invoke("run").splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == [
        f"2 keys as the population of '', epoch 'day-{number}'" for number in (1, 2, 3)
    ]
    assert lines[3:] == ["1,200 sums", "good", "metrics in metrics.json, report report.html"]
    assert of_sums == [
        ("trained", ["day-1", "day-2"]), ("score", "the model"), ("predict", "the model"),
        ("evaluate", "the model"), ("warn", "take care"),
    ]  # fmt: skip
    (rounds,) = ThroughRounds.made
    assert rounds.stages.config.only_labels_party.epoch == "day"
    assert rounds.last.config.only_labels_party.epochs == ["day-1", "day-2"]
    assert json.loads(invoke("run", "--json")) == {"r2": 0.5}
    assert invoke("run", "--quiet") == ""
    of_sums.clear()
    unscored = invoke("run", "--no-evaluate", "--model", "m").splitlines()[3:]
    assert unscored == [
        "1,200 sums", "model in m, predictions in predictions.parquet",
        "next: feature-party evaluate",
    ]  # fmt: skip
    assert [each[0] for each in of_sums] == ["trained", "score", "predict"]
    assert json.loads(invoke("run", "--no-evaluate", "--json")) == {"metrics of": {}}


@pytest.mark.usefixtures("everything")
def test_a_run_does_one_stage_after_another() -> None:
    assert invoke("run").splitlines() == [
        str(MATCHES), "good", "metrics in metrics.json, report report.html",
    ]  # fmt: skip
    assert All.last.done == [
        ("train", []), ("predict", "models"), ("evaluate", "models"), ("warn", "pay> take care"),
    ]  # fmt: skip
    assert (Moved.done, All.last.timings) == (["fetch"], {"fetch": 1.0})
    assert json.loads(invoke("run", "--json")) == {"mse": 2}
    said = invoke("run", "--no-evaluate", "--true-labels", "t.csv", "--model", "m", "-q")
    assert said == ""
    assert (All.last.quiet, All.last.truth.true_labels) == (True, Path("t.csv"))
    assert [each[0] for each in All.last.done] == ["train", "predict"]
    assert invoke("run", "--no-evaluate", "--model", "m").splitlines() == [
        str(MATCHES), "model in m, predictions in predictions.parquet",
        "next: feature-party evaluate",
    ]  # fmt: skip
    assert json.loads(invoke("run", "--no-evaluate", "--json")) == {"metrics of": {}}
    written('[labels_party]\nsubmit = true\nepoch = "day"\ndata_set = "sales"\n')
    first, *_ = invoke("run").splitlines()
    assert first.startswith("3 keys as the population of 'sales', epoch 'day': stored before; SHA")
    assert Moved.done[-2:] == ["submit", "fetch"]


@pytest.mark.usefixtures("everything")
def test_a_run_of_rounds_of_codes() -> None:
    written(ROUNDS)
    lines = invoke("run").splitlines()
    assert [line[-40:] != "" for line in lines[:3]] == [True] * 3
    assert lines[3:] == [str(MATCHES), "good", "metrics in metrics.json, report report.html"]
    assert ("score", "models") in OfSums.done
    assert All.last.done[0] == ("train", ["day-1", "day-2"])
    (rounds,) = ThroughRounds.made
    assert rounds.stages.config.only_labels_party.epoch == "day"


@pytest.mark.usefixtures("everything")
def test_an_evaluation_is_compared_with_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = invoke("evaluate", "--by", "shop", "--by", "x", "--ask", "squared").splitlines()
    assert lines == [
        str(MATCHES), "pay:", "good", "late:", "good",
        "metrics in metrics.json, report report.html",
    ]  # fmt: skip
    assert All.last.done == [
        ("checked", ["squared"], ["shop", "x"]), ("load",),
        ("evaluate", "models", None, ["squared"], ["shop", "x"]),
        ("warn", "pay> take care"), ("warn", "late> take care"),
    ]  # fmt: skip
    invoke("evaluate", "--nonprivate", "taught")
    assert All.last.done[:3] == [
        ("load",), ("train on truth", Path("taught")),
        ("evaluate", "models", Path("taught/metrics.json"), [], []),
    ]  # fmt: skip
    invoke("evaluate", "--nonprivate-metrics", "known.json")
    assert All.last.done[1] == ("evaluate", "models", Path("known.json"), [], [])
    done = CliRunner().invoke(
        app, ["evaluate", "--nonprivate", "taught", "--wait"], input="go\n", catch_exceptions=False
    )
    assert done.exit_code == 0
    assert [each[0] for each in All.last.done[:2]] == ["train on truth", "load"]
    assert refusal("evaluate", "--nonprivate=a", "--nonprivate-metrics=b").startswith(
        "--nonprivate"
    )
    assert "folder of the model itself" in refusal(
        "evaluate", "--nonprivate", f"{Path.cwd()}/model"
    )
