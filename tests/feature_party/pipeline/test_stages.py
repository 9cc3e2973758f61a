"""What stages warn of, refuse and write, whatever was learned."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from labelveil.common.errors import ConfigError, DataError
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.feature_party.config.sections import FeaturePartyConfig, TrueLabels
from labelveil.feature_party.evaluation.intervals import Measured
from labelveil.feature_party.evaluation.true_labels import match_true_labels
from labelveil.feature_party.model.drift import ColumnDrift
from labelveil.feature_party.pipeline import predicting
from labelveil.feature_party.pipeline import stages as stages_module
from labelveil.feature_party.pipeline.learning import Learning
from labelveil.feature_party.pipeline.stages import Stages
from labelveil.feature_party.pipeline.transfer import Transfer
from tests.feature_party.pipeline.configured import configured, prepared, said
from tests.feature_party.worlds import SECRET, World


def test_a_warning_is_given_once(capsys: pytest.CaptureFixture[str]) -> None:
    stages = Transfer(FeaturePartyConfig())
    for text in ("take care", "take care", "of this, too"):
        stages.warn(text)
    found = said(capsys)
    assert (found.count("take care"), found.count("of this, too")) == (1, 1)
    silent = Learning(FeaturePartyConfig(), workers=SimpleNamespace(first=False))  # type: ignore[arg-type]
    silent.warn("take care")
    assert said(capsys) == ""


@pytest.mark.parametrize("sources", [{}, {"north": "of north", "south": "of south"}])
def test_each_labels_party_has_a_page_and_one_is_about_all(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: dict[str, str]
) -> None:
    drift = [ColumnDrift("x", "number", (0.1, 0.4), (0.0, 0.0), (0.0, 0.0), 0.2)]
    written: list[Any] = []
    monkeypatch.setattr(
        stages_module,
        "write_report",
        lambda page, given: written.append((page.name, given.scores, given.drift)),
    )
    monkeypatch.setattr(
        stages_module, "write_overview", lambda page, scores, pages: written.append(page.name)
    )
    stages = Stages(configured(world, tmp_path))
    scores: Any = SimpleNamespace(sources=sources)
    for predicted, shown in ((None, ()), (SimpleNamespace(drift=drift), drift)):
        stages.predicted = predicted  # type: ignore[assignment]
        written.clear()
        stages._write_report(scores, tmp_path / "r.html")
        own = [(f"r-{name}.html", found, shown) for name, found in sources.items()]
        assert written == ([*own, "r.html"] if sources else [("r.html", scores, shown)])


def test_predictions_are_asked_as_configured(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        predicting, "predict_file", lambda *given, **named: calls.append((given, named)) or "done"
    )
    config = configured(world, tmp_path)
    output = {"source": "a", "interval": 0.5, "quantiles": [0.25], "above": [1.0]}
    config = config.model_copy(update={"output": config.output.model_copy(update=output)})
    model: Any = SimpleNamespace(key="event", has_distributions=True)
    assert predicting.predict(config, model, quiet=True) == "done"
    ((given, named),) = calls
    assert given == (model, world.features, tmp_path / "p.csv")
    assert {name: named[name] for name in output} == output
    assert named["key"] == "event"
    assert said(capsys) == ""
    for key, known, found in (("", "event", "event"), ("", "none", ""), ("event", "none", "event")):
        data = config.data.model_copy(update={"key": key})
        model.key = known
        predicting.predict(config.model_copy(update={"data": data}), model, quiet=True)
        assert calls[-1][1]["key"] == found
    model.has_distributions = False
    for output in ({"quantiles": [0.25], "above": []}, {"quantiles": [], "above": [1.0]}):
        own = config.output.model_copy(update=output)
        predicting.predict(config.model_copy(update={"output": own}), model, quiet=True)
        assert "predicts points alone, without quantiles and probabilities" in said(capsys)
    own = config.output.model_copy(update={"quantiles": [], "above": []})
    predicting.predict(config.model_copy(update={"output": own}), model, quiet=True)
    assert said(capsys) == ""


def test_metrics_are_written_with_drift_and_rounded_timings(world: World, tmp_path: Path) -> None:
    stages = Stages(configured(world, tmp_path), timings={"train": 1.23456})
    assert stages.write_metrics({"mse": 2.0}) == {
        "mse": 2.0, "drift": [], "timings": {"train": 1.235},
    }  # fmt: skip
    drift = ColumnDrift("x", "number", (0.1, 0.4), (0.0, 0.0), (0.0, 0.0), 0.2)
    stages.predicted = SimpleNamespace(drift=[drift])  # type: ignore[assignment]
    found = stages.write_metrics({"mse": float("nan")})
    assert found["drift"] == [drift.to_json()]
    assert json.loads((tmp_path / "metrics.json").read_text())["mse"] is None


def test_what_is_asked_of_the_labels_party_is_one_of_what_it_offers(
    world: World, tmp_path: Path
) -> None:
    stages = Stages(configured(world, tmp_path), _labels=prepared())
    with pytest.raises(ConfigError, match="--ask 'log' must be one of squared, absolute"):
        stages.evaluate(SimpleNamespace(), ask=["log"])  # type: ignore[arg-type]
    assert Stages(configured(world, tmp_path), _labels=prepared(2)).ask_score(None, None) == b""  # type: ignore[arg-type]
    assert stages.ask(None, None, 1) == b""  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_a_question_is_asked_about_one_release_of_what_is_held_out(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: Any
) -> None:
    """Of a squared error codes say within what bounds it lies: an answer is to say more."""
    checked: list[float] = []
    terms = SimpleNamespace(check=checked.append, sentence="these are the terms")
    given: list[Any] = []

    class Asked:
        def __init__(self, *facts: Any) -> None:
            given.append(facts)

        def terms(self, points: Any) -> Any:
            return terms

        def ask(self, *facts: Any) -> Any:
            given.append(facts)
            return "answered"

    monkeypatch.setattr(stages_module, "Questions", Asked)
    monkeypatch.setattr(stages_module, "released_rows", lambda *facts: facts)
    share = Measured(0.5, 0.25, 0.875)
    events = SimpleNamespace(holdout="held out")
    scores: Any = SimpleNamespace(
        label="y", points="points", keys="keys", events=events,
        explained=SimpleNamespace(share=share),
    )  # fmt: skip
    config = configured(world, tmp_path)
    assert Stages(config)._ask(scores, loss) == "answered"
    assert checked == [0.3125 if loss == "squared" else math.inf]
    manifest = (world.directory / "manifest.json").read_bytes()
    rows = (world.directory, "keys", "held out", SECRET)
    assert given == [(config.only_labels_party, manifest, loss, "y"), (rows, "points", terms)]
    both = config.model_copy(
        update={"labels_party": [LabelsPartySection(data_set="x", epochs=["1", "2"])]}
    )
    with pytest.raises(ConfigError, match=r"is about one release and 2 are learned from; leave"):
        Stages(both)._ask(scores, loss)


def test_true_labels_are_matched_and_completed() -> None:
    ends = 0.0, 4.0
    keys = pl.Series("event", [*"bacdefgh"])
    values = [1.0, 9.0, None, math.inf, -math.inf, math.nan, -1.0]
    truth = pl.DataFrame({"event": [*"abdefgh"], "y": values}, strict=False)
    found = match_true_labels(keys, truth, "y", ends, 2.5)
    assert found.tolist() == [4.0, 1.0, *[2.5] * 5, 0.0]
    other = truth.rename({"event": "id"})
    assert match_true_labels(keys, other, "y", ends, 2.5).tolist() == found.tolist()
    wide = other.with_columns(z=1)
    with pytest.raises(
        DataError, match="the true labels have no column 'event'; columns: id, y, z"
    ):
        match_true_labels(keys, wide, "y", ends, 2.5)
    assert match_true_labels(keys, wide, "y", ends, 2.5, "id").tolist() == found.tolist()
    with pytest.raises(DataError, match="the true labels have no column 'w'"):
        match_true_labels(keys, wide, "w", ends, 2.5, "id")
    with pytest.raises(DataError, match="keys occur more than once in column 'event' of the true"):
        match_true_labels(keys, pl.concat([truth, truth[:1]]), "y", ends, 2.5)
    whose = pl.DataFrame({"event": ["a", "a"], "y": [1.0, 3.0], "labels_party": ["p", "q"]})
    both = [match_true_labels(keys[1:2], whose, "y", ends, 0, None, who)[0] for who in "pq"]
    assert both == [1.0, 3.0]


def test_true_labels_are_those_of_the_matched_events(world: World, tmp_path: Path) -> None:
    table = pl.read_parquet(world.truth)
    table.rename({"amount": "pay", "event": "id"}).with_columns(z=1).write_parquet(
        tmp_path / "t.pq"
    )
    truth = TrueLabels(true_labels=tmp_path / "t.pq", true_label="pay", true_key="id")
    stages = Learning(configured(world, tmp_path), quiet=True, truth=truth)
    known = dict(table.iter_rows())
    keys = stages.prepared.keys()
    assert stages._truth("amount").tolist() == [known[key] for key in keys]
    some = pl.Series("event", ["e7", "e3"])
    assert stages._truth("amount", keys=some).tolist() == [known["e7"], known["e3"]]
    own = replace(stages, truth=TrueLabels(true_labels=world.truth))  # called as the release has it
    assert own._truth("amount").tolist() == stages._truth("amount").tolist()
    # of several labels each by its own name, whatever column is named
    both = replace(stages, _labels=dict.fromkeys(("late", "pay"), stages.prepared))
    assert both._truth("pay").tolist() == stages._truth("amount").tolist()
    with pytest.raises(DataError, match="the true labels have no column 'late'"):
        both._truth("late")
    # and of several labels parties each one's own, of its own events and between its own ends
    theirs = SimpleNamespace(
        keys=lambda: pl.Series("event", ["e1", "e2"]), problem=SimpleNamespace(grid=[0.0, 1.0])
    )
    events: Any = SimpleNamespace(for_source={"b": theirs}.__getitem__)
    whose = pl.DataFrame({"event": ["e1", "e1", "e2"], "pay": [7.0, 0.5, 9.0]})
    whose.with_columns(labels_party=pl.Series(["a", "b", "b"])).write_parquet(tmp_path / "w.pq")
    truth = TrueLabels(true_labels=tmp_path / "w.pq", true_label="pay")
    assert replace(stages, truth=truth, _labels={"y": events})._truth("y", "b").tolist() == [0.5, 1]
    with pytest.raises(DataError, match="true labels are needed; pass --true-labels FILE"):
        replace(stages, truth=TrueLabels())._truth("amount")
