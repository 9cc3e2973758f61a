"""How good a model of sums is, by sums that its labels party may have made up."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import labelveil as lv
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice, PrivateSums
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.release.question import decode_question, encode_question
from labelveil.feature_party.client.submission import Population
from labelveil.feature_party.config.labels_party import RoundsSection
from labelveil.feature_party.config.sections import FeaturePartyConfig, GroupsSection, TrueLabels

pytest.importorskip("torch", reason="the features party needs torch")

from labelveil.feature_party.groups.model import SumsModel, ask_first
from labelveil.feature_party.groups.saved import SavedSums
from labelveil.feature_party.groups.scoring import ScoreQuestion
from labelveil.feature_party.pipeline import sums
from labelveil.feature_party.pipeline.score import Sums
from labelveil.feature_party.pipeline.sums import SumStages
from labelveil.feature_party.pipeline.transfer import Transfer
from tests.effort import one_in

EVENTS, TAUGHT, EPSILON = 1_200, 200, 4.0


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SumStages]:
    """Of a run whose first events teach a model: the first evaluation trains it."""
    folder = tmp_path_factory.mktemp("sums")
    x = np.random.default_rng(0).normal(size=EVENTS)
    table = pl.DataFrame({"key": [f"e{i}" for i in range(EVENTS)], "x": x})
    table.write_parquet(folder / "features.parquet")
    output = {"model": "model", "metrics": "metrics.json", "report": "report.html"}
    sections = {
        "data": {"features": folder / "features.parquet", "key": "key"},
        "output": {name: folder / file for name, file in output.items()},
    }
    stated, less = (
        SimpleNamespace(
            labels=[SimpleNamespace(name="y", missing=2.5)],
            data_set="d",
            epoch="1",
            privacy=SimpleNamespace(requested_epsilon=epsilon),
        )
        for epsilon in (EPSILON, EPSILON / 2)
    )
    asked = lv.ask_groups(table[:TAUGHT].drop("key"), epsilon=EPSILON, lower=0, upper=10)
    sums = lv.group_sums(np.clip(5 + 2 * x[:TAUGHT], 0, 10), asked, epsilon=EPSILON)
    taught = Sums(np.arange(TAUGHT), sums, "ab", EPSILON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SumStages, "manifests", [stated, less])
        yield SumStages(FeaturePartyConfig.model_validate(sections), quiet=True, _answers=[taught])


def test_a_question_about_other_bounds_than_are_agreed_by_now_is_not_sent(
    stages: SumStages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept from before would be sent again as it was."""
    sent: list[Population] = []
    monkeypatch.setattr(Transfer, "submit", lambda self, asked, folder: sent.append(asked))
    question = lv.ask_groups(stages.table, epsilon=EPSILON, lower=0, upper=10)
    kept = Population(bytes(16 * EVENTS), bytes(16), encode_question(question))
    for lower, upper, taken in ((0.0, 10.0, True), (0.0, 9.0, False), (1.0, 10.0, False)):
        groups = GroupsSection(epsilon=EPSILON, lower=lower, upper=upper)
        now = stages.with_config(stages.config.model_copy(update={"groups": groups}))
        if taken:
            now.submit(kept, tmp_path)
        else:
            said = rf"labels in 0 … 10, and .* lower={lower:g}, upper={upper:g}; set these"
            with pytest.raises(ConfigError, match=said):
                now.submit(kept, tmp_path)
    assert sent == [kept]


def test_a_model_is_loaded_and_used_again_of_the_very_sums_and_seed_alone(
    stages: SumStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stages.trained()
    assert stages.load().facts == model.facts
    trained: list[int] = []
    monkeypatch.setattr(
        SumStages, "train", lambda self: trained.append(self.config.training.seed) or model
    )
    assert stages.final().facts == model.facts
    section = stages.config.training.model_copy(update={"seed": 9})
    other = replace(stages, config=stages.config.model_copy(update={"training": section}))
    said = r"was trained on other sums, columns or with another seed than 9; train again"
    with pytest.raises(DataError, match=said):
        other.load()
    assert trained == []
    assert other.trained() is model
    assert trained == [9]
    squares: Any = SimpleNamespace(scores=True)
    with pytest.raises(DataError, match="tell how good a model is, and teach none; fetch those"):
        _ = replace(stages, _answers=[squares]).learned_from


@pytest.fixture
def agreed(stages: SumStages) -> SumStages:
    """The same with what is agreed of labels, and two rounds."""
    groups = GroupsSection(epsilon=EPSILON, lower=0.0, upper=10.0)
    party = stages.config.only_labels_party.model_copy(update={"epoch": "1"})
    rounds = RoundsSection(shares=[0.5, 0.5])
    sections = {"groups": groups, "rounds": rounds, "labels_party": [party]}
    return replace(stages, config=stages.config.model_copy(update=sections))


def test_each_round_is_asked_about_its_own_events_at_random_anew(agreed: SumStages) -> None:
    mine = np.arange(EVENTS) % 4 == 1
    asked = [agreed.ask(None, mine, number) for number in (1, 1, 2)]
    assert asked[0] == asked[1] != asked[2]
    question = decode_question(asked[0], int(mine.sum()))
    assert isinstance(question, GroupQuestion)
    assert (question.lattice.lower, question.lattice.upper) == (0.0, 10.0)
    known = Lattice.between(0.0, 10.0), EPSILON, np.random.default_rng((0, 1))
    wanted = ask_first(agreed.table.filter(pl.Series(mine)), *known, agreed.config.data.stated)
    assert asked[0] == encode_question(wanted)
    given: list[Any] = []

    def ask(own: pl.DataFrame, epsilon: float, rng: np.random.Generator) -> Any:
        given.append((own["x"].to_list(), epsilon, rng.random()))
        return question

    model: Any = SimpleNamespace(model=SimpleNamespace(ask=ask))
    assert agreed.ask(model, mine, 2) == asked[0]
    x = agreed.features["x"].to_numpy()[mine].tolist()
    assert given == [(x, EPSILON, np.random.default_rng((0, 2)).random())]


def test_a_score_is_asked_about_what_is_predicted_of_events_kept(
    agreed: SumStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, mine = agreed.trained(), np.arange(EVENTS) % 3 == 0
    given: list[Any] = []
    plain = ScoreQuestion.from_predictions

    def of(*facts: Any) -> ScoreQuestion:
        given.append(facts)
        return plain(*facts)

    monkeypatch.setattr(ScoreQuestion, "from_predictions", of)
    question = decode_question(agreed.ask_score(model, mine), int(mine.sum()))
    assert isinstance(question, GroupQuestion)
    ((points, mean, lattice, epsilon, rng, miss),) = given
    predicted = model.predict(agreed.table)["prediction"].to_numpy()
    assert points == pytest.approx(predicted[mine])
    assert mean == pytest.approx(predicted[:TAUGHT].mean())
    assert (lattice, epsilon) == (Lattice.between(0.0, 10.0), EPSILON)
    assert miss == model.model.miss
    again = np.random.default_rng((0, 3))  # the epoch after the last round
    plain(points, mean, lattice, epsilon, again, miss)
    assert rng.random() == again.random()


def test_what_asks_nothing_or_of_codes_is_sent_whatever_is_agreed(
    agreed: SumStages, stages: SumStages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Population] = []
    monkeypatch.setattr(Transfer, "submit", lambda self, asked, folder: sent.append(asked))
    laws = np.ones((1, 3), dtype=np.int64)
    codes = Question(np.zeros(EVENTS, dtype=np.int64), Grid(np.arange(3.0)), laws)
    sums = lv.ask_groups(stages.table, epsilon=EPSILON, lower=0, upper=9)
    kept = [
        Population(bytes(16 * EVENTS), bytes(16), asked)
        for asked in (b"", encode_question(codes), encode_question(sums))
    ]
    for each in kept[:2]:
        agreed.submit(each, tmp_path)
    stages.submit(kept[2], tmp_path)  # nothing is agreed
    assert sent == kept


def test_segments_and_questions_are_not_had_of_sums(stages: SumStages) -> None:
    for ask, by, said in (([], ["x"], "--by"), (["squared"], [], "--ask")):
        with pytest.raises(ConfigError, match=f"^{said} cannot be had of a model of sums"):
            stages.check_asked(ask, by)
    with pytest.raises(ConfigError, match=r"^--by and --ask cannot be had"):
        stages.evaluate(stages.trained(), ask=["squared"], by=["x"])
    stages.check_asked([], [])


def test_what_any_release_taught_is_not_held_out(
    stages: SumStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        "labelveil.feature_party.pipeline.sums_learning.predict",
        lambda *of, **named: given.update(named),
    )
    now: Any = stages.with_config(stages.config)
    now._answers = [
        SimpleNamespace(rows=np.array(rows), scores=scores)
        for rows, scores in (([3, 5], False), ([1, 900], False), ([7, 8], True))
    ]
    now.predict(None)
    assert np.flatnonzero(given["trained"](0, EVENTS)).tolist() == [1, 3, 5, 900]
    assert given["trained"](3, 6).tolist() == [True, False, True]


@pytest.mark.parametrize(("rounds", "told"), [([], True), ([1.0], True), ([0.4, 0.6], False)])
def test_what_sums_do_not_show_is_said_of_the_last_round_alone(
    stages: SumStages,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    rounds: list[float],
    told: bool,
) -> None:
    """Who is about to ask about further events needs no advice to do so."""
    model = stages.trained().model

    def fit(*given: Any, **named: Any) -> SumsModel:
        warnings.warn("nothing is shown: ask about more events", stacklevel=1)
        return model

    monkeypatch.setattr(SumsModel, "fit", fit)
    monkeypatch.setattr(SumStages, "withdrawn", [])
    output = stages.config.output.model_copy(update={"model": tmp_path / "model"})
    section = RoundsSection(shares=rounds)
    now = stages.config.model_copy(update={"output": output, "rounds": section})
    saved = replace(stages, config=now, _warned=set()).train()
    assert ("nothing is shown: ask about more events" in capfd.readouterr().err) == told
    assert saved.facts.warnings == ("nothing is shown: ask about more events",)


def answered(stages: SumStages, *noise: float) -> SavedSums:
    """A model without errors, whose two sums arrive with noise of so many deviations."""
    del stages.answers[1:]
    model, rows = stages.trained(), np.arange(TAUGHT, EVENTS)
    points = model.predict(stages.table[rows])["prediction"].to_numpy()
    lattice, rng = stages.answers[0].answer.question.lattice, np.random.default_rng(1)
    asked = ScoreQuestion.from_predictions(points, model.facts.mean, lattice, EPSILON, rng, 0.1)
    assert asked.kind == "errors"
    noisy = lv.group_sums(points, asked.question, epsilon=EPSILON).noisy
    places = np.round((points - lattice.lower) / lattice.step).astype(np.int64)
    moved = np.round(np.array(noise) * noisy.variances**0.5).astype(np.int64)
    answer = PrivateSums(noisy, noisy.question.sums(places) + moved)
    stages.answers[1:] = [Sums(rows, answer, "cd", EPSILON)]
    return model


def evaluated(stages: SumStages, *noise: float) -> dict[str, Any]:
    """The metrics of such a model."""
    metrics = stages.evaluate(answered(stages, *noise))
    assert metrics["epsilon"] == EPSILON  # the most that a label spends
    assert json.loads(stages.config.output.metrics.read_text("utf-8")) == metrics
    return metrics


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("deviations", one_in(3, [0.0, -3.0, -15.0], first=1))
def test_noise_below_no_errors_at_all_leaves_an_interval(
    stages: SumStages, deviations: float
) -> None:
    """R² of 1 to 1 would be more than any noisy sum can tell."""
    metrics = evaluated(stages, deviations, 0.0)
    warnings, (line,) = stages.summary(metrics)
    assert warnings == metrics["warnings"]
    assert line.startswith("better than a constant: yes; R² ")
    assert line.endswith(", by sums over 1,000 events kept")
    assert metrics["estimated_r2_high"] == 1
    assert 0.5 < metrics["estimated_r2_low"] < 0.99
    assert metrics["verdict"] == "better"


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("first", "second"), one_in(3, [(-1e6, 0.0), (0.0, 1e6), (0.0, -1e6)]))
def test_sums_that_no_labels_have_leave_a_model_without_a_score(
    stages: SumStages, first: float, second: float
) -> None:
    metrics = evaluated(stages, first, second)
    (said,) = metrics["warnings"]
    assert said.startswith("no sums tell how good this model is: no labels have such sums")
    assert not {"verdict", "estimated_r2"} & set(metrics)
    assert stages.summary(metrics) == (metrics["warnings"], [])
    counted = [metrics[name] for name in ("rows", "training_rows", "holdout_rows")]
    assert counted == [EVENTS, TAUGHT, 0]
    step = stages.answers[0].answer.question.lattice.step  # from 0 to 10, both ends included
    assert metrics["points"] == round(10 / step) + 1
    groups = stages.answers[0].answer.question.half_widths.size
    assert stages.learned_words == f"{groups} sums over 200 events"
    assert stages.config.output.report.is_file()


def test_one_release_tells_how_good_a_model_is(
    stages: SumStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the score's epoch, or one that was fetched by name."""
    model = answered(stages, 1.0, 0.0)
    _, told = stages.answers
    scored = stages._scored(model)
    assert scored is not None
    monkeypatch.setattr(SumStages, "score_release", Path("there"))
    monkeypatch.setattr(Sums, "read", lambda folder, keys, secrets: told)
    monkeypatch.setattr(FeaturePartyConfig, "secrets_of", lambda self, party: [])
    with pytest.raises(ConfigError, match="2 releases tell how good a model is; leave all but one"):
        stages._scored(model)
    again = replace(stages, _answers=stages.answers[:1])._scored(model)
    assert again is not None
    assert again.r2 == scored.r2


@pytest.fixture
def beside(stages: SumStages, tmp_path: Path) -> tuple[SumStages, np.ndarray[Any, Any]]:
    """The same with a file of true labels, of which one is missing, and (n,) those."""
    labels = np.clip(5 + 2 * stages.table["x"].to_numpy(), 0, 10)
    keys = stages.features["key"]
    table = pl.DataFrame({"key": keys, "paid": labels})[::-1]
    table.filter(pl.col("key") != "e700").write_parquet(tmp_path / "truth.parquet")
    labels[700] = 2.5
    truth = TrueLabels(true_labels=tmp_path / "truth.parquet", true_label="paid")
    del stages.answers[1:]
    return replace(stages, truth=truth), labels


@pytest.mark.usefixtures("no_pictures")
def test_true_labels_of_events_that_no_sum_taught_score_a_model(
    beside: tuple[SumStages, np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    stages, labels = beside
    (tmp_path / "ideal.json").write_text('{"test_mse": 1.25, "test_mae": 0.5}')
    model = stages.trained()
    metrics = stages.evaluate(model, tmp_path / "ideal.json")
    missed = model.predict(stages.table)["prediction"].to_numpy() - labels
    assert metrics["test_mse"] == pytest.approx(np.mean(missed[TAUGHT:] ** 2))
    assert metrics["test_mae"] == pytest.approx(np.mean(np.abs(missed[TAUGHT:])))
    spread = labels[TAUGHT:] - labels[:TAUGHT].mean()
    assert metrics["constant_mse"] == pytest.approx(np.mean(spread**2))
    assert (metrics["nonprivate_mse"], metrics["nonprivate_mae"]) == (1.25, 0.5)
    assert (metrics["rows"], metrics["holdout_rows"]) == (EVENTS, EVENTS - TAUGHT)
    assert (metrics["epsilon_prior"], metrics["epsilon_labels"]) == (0, EPSILON)
    assert "Only a simulation can tell this" in stages.config.output.report.read_text("utf-8")


@pytest.mark.slow
def test_true_labels_of_the_same_events_are_learned_from(
    beside: tuple[SumStages, np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    stages, labels = beside
    found = json.loads(stages.train_on_truth(tmp_path / "ideal").read_text())
    spread = labels[TAUGHT:] - labels[:TAUGHT].mean()
    assert found["constant_mse"] == pytest.approx(np.mean(spread**2))
    assert found["test_mse"] < 0.05 * found["constant_mse"]  # a line without noise
    assert "nonprivate_mse" not in found


def test_what_is_held_out_of_true_labels_teaches_nothing(
    beside: tuple[SumStages, np.ndarray[Any, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other labels of events that are scored change scores, and neither prior nor model."""
    stages, labels = beside
    section = stages.config.training.model_copy(
        update={"ensemble": 2, "epochs": 1, "hidden": [4], "dropout": 0.0}
    )
    config = stages.config.model_copy(update={"training": section})
    made: list[Any] = []

    def learn(events: Any, setup: Any) -> Any:
        made.append(train(events, setup))
        return made[-1]

    train = sums.train
    monkeypatch.setattr(sums, "train", learn)
    found = []
    for name, held in (("as it is", labels[TAUGHT:]), ("turned", labels.max() - labels[TAUGHT:])):
        truth = np.concatenate([labels[:TAUGHT], held])
        monkeypatch.setattr(SumStages, "_truth", lambda self, truth=truth: truth)
        path = replace(stages, config=config).train_on_truth(tmp_path / name)
        found.append(json.loads(path.read_text()))
    first, second = made
    assert first.problem.prior.tolist() == second.problem.prior.tolist()
    grid = first.problem.grid
    counts = np.bincount(np.searchsorted(grid, labels[:TAUGHT]), minlength=grid.size)
    assert first.problem.prior == pytest.approx(counts / TAUGHT, abs=1e-3)
    said = [model.predict(stages.table)["prediction"].to_list() for model in made]
    assert said[0] == said[1]
    assert found[0]["test_mse"] != pytest.approx(found[1]["test_mse"])


def test_true_labels_are_called_as_in_the_release_by_default(
    beside: tuple[SumStages, np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    stages, labels = beside
    table = pl.read_parquet(tmp_path / "truth.parquet").with_columns(other=1.0)
    table.rename({"paid": "y"}).write_parquet(tmp_path / "called.parquet")
    truth = TrueLabels(true_labels=tmp_path / "called.parquet")
    assert replace(stages, truth=truth)._truth().tolist() == labels.tolist()


def test_true_labels_tell_nothing_of_events_that_were_all_learned_from(
    beside: tuple[SumStages, np.ndarray[Any, Any]],
) -> None:
    stages, _ = beside
    rows = stages.features[:TAUGHT]
    with pytest.raises(DataError, match=r"all 200 events were learned from, and true labels tell"):
        replace(stages, _features=rows).train_on_truth(Path("never"))
