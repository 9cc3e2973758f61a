"""`simulate --ask groups`: sums over groups from a file to a report, and who decides on them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import labelveil as lv
from labelveil.commands.cli import main
from labelveil.common.errors import DataError, LabelveilError
from labelveil.common.mechanisms.group_sums import NO_GROUP
from labelveil.feature_party.groups.saved import load_trained
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.schema import Stated
from labelveil.feature_party.training.holdout import draw_holdout
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
def test_sums_teach_a_model_that_true_labels_score(events: Path, run_command: RunCommand) -> None:
    files = ["--labels", events / "labels.parquet", "--features", events / "features.parquet"]
    given = ["--key", "id", "--label", "y", "--lower", 0, "--upper", 100, "--missing", 50]
    asked = ["--ask", "groups", "--rounds", "0.4,0.6", "--no-nonprivate", "--out", events / "out"]
    done = run_command(main, "simulate", *files, *given, *asked, "--epsilon", 4, "--json")
    metrics = json.loads(done.out)
    assert metrics["rows"] == ROWS
    assert metrics["holdout_rows"] == ROWS // 5
    assert [asked["events"] for asked in metrics["rounds"]] == [800, 1200]
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
    assert predicted["key"].to_list() == [f"e{i}" for i in range(ROWS)]
    features = pl.read_parquet(events / "features.parquet")
    both = features.join(pl.read_parquet(events / "labels.parquet"), on="id", how="left")
    errors = predicted["prediction"].to_numpy() - both["y"].fill_null(50).to_numpy()
    assert np.mean(errors**2) == pytest.approx(metrics["test_mse"], rel=0.3)
    # noise of 16 and the 50 events without a label are left of 350
    assert metrics["test_mse"] < 0.35 * metrics["constant_mse"]
    assert metrics["columns_matter"] is True
    assert 0 < metrics["estimated_r2_low"] < metrics["estimated_r2"] <= metrics["estimated_r2_high"]
    assert metrics["verdict"] == "better"
    assert {path.name for path in (events / "out").iterdir()} == {
        "metrics.json", "model", "predictions.parquet", "report.html"
    }  # fmt: skip
    page = (events / "out" / "report.html").read_text()
    assert "What was asked" in page
    assert "simulation" in page


@pytest.mark.slow
def test_what_is_held_out_is_asked_nothing_and_all_else_once(events: Path) -> None:
    given = read_inputs(settings_of(events)).truth
    pl.DataFrame({"id": given["key"], "y": given["label"]}).write_parquet(events / "labels.parquet")
    outcome = run_simulation(settings_of(events, epsilon=0.5, ask="auto", rounds="auto"))
    decision = outcome.metrics["decision"]
    assert "sums over groups in three rounds, as they tell 5.1 times as much" in decision
    assert decision in (events / "out" / "report.html").read_text("utf-8")
    assert outcome.release is None
    assert sum(len(answer.question) for answer in outcome.sums) == ROWS - ROWS // 5
    for answer in outcome.sums:
        assert answer.guarantee.exact_epsilon == Fraction(1, 2)
        assert not (answer.question.groups == NO_GROUP).any()
    assert "told from sums alone" in repr(outcome)


def test_a_column_is_learned_from_as_is_stated(
    events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(Exception):
        pass

    def encode(table: pl.DataFrame, *_: object, stated: Stated, **__: object) -> None:
        raise Seen(Encoder.fit(table, stated=stated).inputs)

    monkeypatch.setattr("labelveil.feature_party.groups.rounds.learn_in_rounds", encode)
    for columns, numbers in (({}, 1), ({"x": "category of numbers"}, 0)):
        with pytest.raises(Seen, match=f"^{numbers}$"):
            run_simulation(settings_of(events, columns=columns))


def test_too_few_to_score_are_refused_before_anything_is_asked(events: Path) -> None:
    with pytest.raises(DataError, match=r"--holdout 0\.007 keeps 18 of 2,500 events, and 20"):
        run_simulation(settings_of(events, holdout=0.007))
    assert not list((events / "out").iterdir())


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
        ({"epsilon": 0.5}, 20_000, "groups", 3),
        ({"epsilon": 0.5}, 1_000_000, "groups", 3),
        ({"epsilon": 0.7}, 4_000, "groups", 3),
        ({"epsilon": 0.75}, 4_000, "codes", 3),
        # codes of fewer events have no rounds
        ({"epsilon": 1.2}, 3_999, "groups", 3),
        ({"epsilon": 1.25}, 3_999, "codes", 1),
        ({"epsilon": 40}, 3_999, "codes", 1),
        ({"epsilon": 0.5, "feature_settings": ["training.trees=3"]}, 20_000, "codes", 3),
        ({"epsilon": 0.5, "ask": "codes"}, 20_000, "codes", 3),
        ({"epsilon": 0.5, "ask": "codes"}, 3_999, "codes", 1),
        # of 97 events 19 would tell how good a model of sums is
        ({"epsilon": 0.5}, 98, "groups", 3),
        ({"epsilon": 0.5}, 97, "codes", 1),
        # a code that is asked around a prediction tells hardly more
        ({"epsilon": 3}, 4_000, "codes", 3),
        ({"epsilon": 3.5}, 1_000_000, "codes", 1),
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
    said = {"groups": "sums over groups in three rounds, as they tell"}.get(ask, "codes in three")
    said = said if rounds > 1 else "one message, as"
    decision = decided.decision_facts["decision"]
    assert " ".join(capfd.readouterr().err.split()) == decision
    assert decision.startswith(said)
    assert ("--rounds 1 sends one message" in decision) == (rounds > 1)


class Learned:
    """In place of a model that rounds of sums have taught: what it was given, 40 or 44 of all."""

    miss = 7.0
    points = np.where(np.arange(ROWS) % 3 == 0, 44.0, 40.0)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
        self.given: dict[str, Any] = {}
        self.asked: list[np.ndarray[Any, Any]] = []
        self.encoder = SimpleNamespace(encode=lambda table: table)
        self.pages: list[Any] = []
        self.saved: list[tuple[Any, Path]] = []

        def save(saved: Any, folder: Path) -> None:
            self.saved.append((saved.facts, folder))

        monkeypatch.setattr("labelveil.feature_party.groups.saved.SavedSums.save", save)

        def learn(*given: Any, **named: Any) -> Iterator[Any]:
            self.given = {**dict(enumerate(given)), **named}
            for number in range(rounds):
                warnings.warn(f"round {number}", stacklevel=1)
                yield SimpleNamespace(model=self, answers=())

        def exactly(labels: Any, question: Any, *, epsilon: float) -> Any:
            self.asked.append(np.asarray(labels))
            return SimpleNamespace(question=question, epsilon=epsilon)

        def score(question: Any, answer: Any) -> Any:
            self.scored = question
            return answer.epsilon

        for name, value in {
            "labelveil.feature_party.groups.rounds.learn_in_rounds": learn,
            "labelveil.simulation.sums.group_sums": exactly,
            "labelveil.feature_party.groups.scoring.ScoreQuestion.score": score,
            "labelveil.feature_party.pipeline.sums.facts_of": lambda answers, model: {},
            "labelveil.feature_party.pipeline.sums.scored_facts": lambda score: {"at": score},
            "labelveil.feature_party.report.sums.write_sums_report": (
                lambda path, page: self.pages.append((path, page))
            ),
        }.items():
            monkeypatch.setattr(name, value)

    def distributions(self, table: pl.DataFrame) -> Any:
        return SimpleNamespace(points=self.points[: table.height])


def test_a_run_of_sums_asks_of_the_training_events_and_scores_the_others(
    events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the model is: what rounds are given, and the figures of one that says 40 or 44."""
    learned = Learned(monkeypatch, rounds=2)
    settings = settings_of(events, seed=4, holdout=0.3, epsilon=0.5)
    outcome = run_simulation(settings)
    truth = read_inputs(settings).truth["label"].to_numpy()
    held = draw_holdout(ROWS, 0.3, 4)
    training = np.delete(np.arange(ROWS), held)
    table, lattice, epsilon, answer = (learned.given[at] for at in range(4))
    features = pl.read_parquet(settings.features).drop("id")
    assert table.equals(features[training])
    assert (lattice.lower, lattice.upper, epsilon) == (0, 100, 0.5)
    assert (learned.given["shares"], learned.given["seed"]) == ([0.4, 0.6], 4)
    rows = np.array([1_700, 2])  # by then others lie between
    assert answer(rows, None).epsilon == 0.5
    assert learned.asked[-1].tolist() == truth[training[rows]].tolist()
    assert learned.asked[0].tolist() == truth[held].tolist()
    metrics = outcome.metrics
    between = truth * lattice.steps / 100
    assert {name: metrics[name] for name in (
        "at", "epsilon", "epsilon_prior", "epsilon_labels", "rows", "training_rows", "seed",
        "points", "labels_between", "warnings",
    )} == {
        "at": 0.5, "epsilon": 0.5, "epsilon_prior": 0.0, "epsilon_labels": 0.5, "rows": ROWS,
        "training_rows": training.size, "seed": 4, "points": lattice.steps + 1,
        "labels_between": int((np.abs(between - np.rint(between)) > 1e-9).sum()),
        "warnings": ["round 1"],  # those of the last model
    }  # fmt: skip
    points, reference = learned.points, learned.points[training].mean()
    assert learned.scored.points.tolist() == points[held].tolist()
    assert set(learned.scored.reference.tolist()) == {reference}
    assert metrics["test_mse"] == pytest.approx(np.mean((truth - points)[held] ** 2))
    assert metrics["test_mae"] == pytest.approx(np.mean(np.abs(truth - points)[held]))
    mean = truth[training].mean()
    assert metrics["constant_mse"] == pytest.approx(np.mean((truth[held] - mean) ** 2))
    assert {"prepare", "round_1", "round_2", "score"} == set(metrics["timings"])
    assert "nonprivate_mse" not in metrics
    written = pl.read_parquet(events / "out" / "predictions.parquet")
    assert written["key"].to_list() == [f"e{i}" for i in range(ROWS)]
    assert written["prediction"].to_list() == points.tolist()
    assert json.loads((events / "out" / "metrics.json").read_text()) == metrics
    ((facts, folder),) = learned.saved
    assert (folder, facts.events, facts.key) == (events / "out" / "model", training.size, "id")
    assert (facts.label, facts.mean, facts.warnings) == ("y", reference, ("round 1",))
    ((path, page),) = learned.pages
    assert (path, outcome.report) == ((events / "out" / "report.html"),) * 2
    assert (page.label, page.lattice) == ("y", lattice)
    assert not (events / "out" / "label_party").exists()


def test_a_run_of_sums_is_set_beside_true_labels(
    events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = Learned(monkeypatch, rounds=1)
    settings = settings_of(events, rounds="1", nonprivate=True)
    taught = np.arange(ROWS // 5) * 1.0
    monkeypatch.setattr("labelveil.simulation.sums._on_true_labels", lambda *given: taught)
    outcome = run_simulation(settings)
    truth = read_inputs(settings).truth["label"].to_numpy()[draw_holdout(ROWS, 0.2, 0)]
    assert outcome.metrics["nonprivate_mse"] == pytest.approx(np.mean((truth - taught) ** 2))
    assert learned.given["shares"] == [1.0]
    (events / "ideal.json").write_text('{"test_mse": 2.5}')
    again = settings.model_copy(update={"overwrite": True})
    outcome = run_simulation(again, lambda: events / "ideal.json")
    assert outcome.metrics["nonprivate_mse"] == 2.5
    assert "nonprivate" in outcome.metrics["timings"]
