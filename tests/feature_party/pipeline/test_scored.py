"""How good a model of rounds is: by codes, and by events held out that no round was about."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice, NoisySums, PrivateSums
from labelveil.common.release.folder import CODES_FILE, MANIFEST_FILE
from labelveil.common.release.question import decode_question
from labelveil.feature_party.config.sections import FeaturePartyConfig, TrueLabels
from labelveil.feature_party.model.several_labels import LabelModels
from labelveil.feature_party.pipeline import stages as module
from labelveil.feature_party.pipeline.rounds import held_out
from labelveil.feature_party.pipeline.score import Judged, Sums
from labelveil.feature_party.pipeline.stages import Stages
from tests.feature_party.worlds import build_world, made_up_events

RELEASED, MORE = 300, 500


@dataclass(frozen=True, eq=False)
class Rounds:
    """One round's release, and a model of it."""

    stages: Stages
    models: LabelModels
    kept: np.ndarray[Any, Any]  # (n,) rows of the features that are held out and in no round
    truth: np.ndarray[Any, Any]  # (n,) true labels of all rows
    table: pl.DataFrame


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    """Of 800 events the first 300 are in the round; of all a third is held out."""
    folder = tmp_path_factory.mktemp("scored")
    world = build_world(folder, rows=RELEASED)
    (folder / "releases").mkdir()
    world.directory.rename(folder / "releases" / "day-1")
    more, labels = made_up_events(MORE, 9)
    more = more.with_columns(event=pl.col("event") + "more")
    table = pl.concat([pl.read_parquet(world.features), more]).sample(
        fraction=1, shuffle=True, seed=3
    )
    table.write_parquet(world.features)
    truth = pl.read_parquet(world.truth)
    truth = pl.concat([truth, pl.DataFrame({"event": more["event"], "amount": labels})])
    truth.write_parquet(world.truth)
    output = {"model": "model", "metrics": "metrics.json", "report": "report.html"}
    training = {"learner": "linear", "head": "gaussian", "ensemble": 2, "holdout": 0.35, "seed": 4}
    config = FeaturePartyConfig.model_validate(
        {
            "data": {"features": world.features, "key": "event", "min_match": 0.1},
            "keys": {"secret_file": world.secret_file},
            "labels_party": {"submit": True, "epoch": "day"},
            "release": {"directory": folder / "releases"},
            "rounds": {"shares": [1.0]},
            "training": {**training, "epochs": 1, "hidden": [4], "checkpoint": False},
            "output": {name: folder / file for name, file in output.items()},
        }
    )
    stages = Stages(config.through(1), quiet=True)
    known = dict(truth.iter_rows())
    kept = held_out(config, table.height) & table["event"].str.ends_with("more").to_numpy()
    true = np.array([known[event] for event in table["event"]])
    return Rounds(stages, stages.train(), kept, true, table)


@pytest.fixture
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests look at them, and they take most of an evaluation."""
    monkeypatch.setattr(module, "write_report", lambda page, given: page.touch())


def beside(rounds: Rounds) -> Stages:
    """The same stages, which know true labels."""
    path = rounds.stages.config.features.with_name("truth.parquet")
    return replace(rounds.stages, truth=TrueLabels(true_labels=path))


def errors(models: LabelModels, rounds: Rounds) -> float:
    """Mean squared error of predictions of all that are held out, whether in the round or not."""
    (model,), (events,) = models.by_label.values(), rounds.stages.labels.values()
    of = held_out(rounds.stages.config, rounds.table.height)
    of = rounds.kept | np.isin(rounds.table["event"], events.keys()[events.holdout].to_list())
    points = model.predict(rounds.table)["prediction"].to_numpy()
    return float(np.mean((points - rounds.truth)[of] ** 2))


@pytest.mark.usefixtures("no_pages")
def test_events_that_no_round_was_about_are_counted_and_their_true_labels_tell(
    rounds: Rounds, tmp_path: Path
) -> None:
    (scores,) = rounds.stages.evaluate(rounds.models).values()
    kept = int(rounds.kept.sum())
    assert (scores.kept, scores.kept_epsilon, scores.truth) == (kept, 0.0, None)
    metrics = json.loads(rounds.stages.config.output.metrics.read_text())
    held = rounds.stages.prepared.holdout.size
    assert (metrics["rows"], metrics["holdout_rows"]) == (RELEASED + kept, held + kept)
    stages = beside(rounds)
    ideal = json.loads(stages.train_on_truth(tmp_path).read_text())
    own = errors(LabelModels.load(tmp_path), rounds)
    assert (ideal["test_mse"], ideal["labels"][0]["test_mse"]) == (
        pytest.approx(own),
        ideal["test_mse"],
    )
    assert ideal["labels"][0]["name"] == "amount"
    (scores,) = stages.evaluate(rounds.models, tmp_path / "metrics.json").values()
    metrics = json.loads(stages.config.output.metrics.read_text())
    assert metrics["test_mse"] == pytest.approx(errors(rounds.models, rounds))
    assert metrics["nonprivate_mse"] == pytest.approx(own)
    assert own != pytest.approx(metrics["test_mse"])


def answered(
    question: GroupQuestion, labels: np.ndarray[Any, Any], epsilon: Fraction
) -> PrivateSums:
    """Its sums, of labels rounded to the lattice at random."""
    noisy = NoisySums(question, epsilon)
    words = np.random.default_rng(1).integers(0, 1 << 64, labels.size, dtype=np.uint64)
    places = question.lattice.round(labels, words)
    return PrivateSums(noisy, noisy.draw(places, seeded_entropy(1)))


@pytest.fixture
def score_arrived(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sums]]:
    """The last epoch's release, of the sums that a test puts there."""
    arrived: list[Sums] = []
    folder = rounds.stages.config.score_folder
    folder.mkdir()
    for name in (MANIFEST_FILE, CODES_FILE):
        (folder / name).touch()
    monkeypatch.setattr(Sums, "read", lambda *given: arrived[0])
    yield arrived
    for name in (MANIFEST_FILE, CODES_FILE):
        (folder / name).unlink()
    folder.rmdir()


@pytest.mark.usefixtures("no_pages")
def test_sums_about_them_tell_of_the_model_that_asked_and_of_no_other(
    rounds: Rounds, score_arrived: list[Sums], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    calls, plain = list[Any](), module.score
    monkeypatch.setattr(module, "score", lambda *a, **b: calls.append(b) or plain(*a, **b))
    stages, kept = replace(rounds.stages, _judged=None), rounds.kept
    (model,) = rounds.models.by_label.values()
    points = model.predict(rounds.table.filter(pl.Series(kept)))["prediction"].to_numpy()
    asked = list[tuple[Any, ...]]()

    def ask(judged: Judged, *given: Any) -> Any:
        asked.append(given)
        return ask_score(replace(judged, half_width=9.0), *given)  # codes tell little

    ask_score = module.ask_score
    monkeypatch.setattr(module, "ask_score", ask)
    question = decode_question(stages.ask_score(rounds.models, kept), int(kept.sum()))
    assert isinstance(question, GroupQuestion)
    assert asked[0][0] == pytest.approx(points)
    assert asked[0][1:] == (Lattice.between(0.0, 4.0), Fraction(9, 2), 4)
    answer = answered(question, rounds.truth[kept], Fraction(20))
    score_arrived[:] = [Sums(np.flatnonzero(kept), answer, "ab", 20.0)]
    (codes,) = stages._judge(rounds.models).values()
    stages._judged = {"amount": replace(codes, clipped=cast(Any, "of codes"))}
    (scores,) = stages.evaluate(rounds.models).values()
    assert len(calls) == 1  # what codes say was known
    assert (scores.kept, scores.kept_epsilon, scores.epsilon) == (kept.sum(), 20.0, 20.0)
    labels = rounds.truth[kept]
    r2 = 1 - np.mean((labels - points) ** 2) / np.mean((labels - stages.prepared.problem.mean) ** 2)
    explained = scores.explained
    assert explained.share.low < r2 < explained.share.high
    assert (explained.sums, explained.events, scores.clipped) == (kept.sum(), None, None)
    assert explained.codes == codes.explained.share != explained.share
    assert capsys.readouterr().err == ""
    moved = SimpleNamespace(by_label={"amount": replace(model, adjustment=None, shrinkage=0.5)})
    again = replace(stages, _points=None, _judged=None)
    (other,) = again.evaluate(moved).values()  # type: ignore[arg-type]
    assert (other.explained.sums, other.kept) == (0, kept.sum())
    assert other.kept_epsilon == 20.0  # they were answered

    def anew(*given: Any, label: str) -> None:
        raise KeyboardInterrupt(*given[-2:])

    monkeypatch.setattr(module, "score", anew)
    for wanted in ((None, ["shop"]), (Path("ideal"), [])):  # of which nothing is known yet
        with pytest.raises(KeyboardInterrupt) as caught:
            stages.evaluate(rounds.models, wanted[0], by=wanted[1])
        assert caught.value.args == wanted
    said = " ".join(capsys.readouterr().err.split())
    assert "were asked about another model's predictions, or tell nothing" in said


def test_where_all_that_is_held_out_was_in_a_round_codes_tell_alone(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = np.zeros(rounds.kept.size, dtype=bool)
    monkeypatch.setattr(module, "held_out", lambda config, rows: nobody)
    assert rounds.stages._kept() is None


@pytest.mark.parametrize(
    ("asked", "grid", "whole"),
    [
        (True, [0.0, 1.0, 4.0], True),
        (True, [0.0, 1.5, 4.0], False),
        (False, [0.0, 1.0, 4.0], False),
        (True, [0.0, 0.5, np.pi], None),  # whose points have no lattice
    ],
)
def test_labels_are_taken_for_points_of_a_grid_of_whole_numbers_that_was_named(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, asked: bool, grid: list[float],
    whole: bool | None,
) -> None:  # fmt: skip
    """And ε is what each of a unit's labels may spend."""
    (manifest,) = rounds.stages.manifests
    label = manifest.labels[0].model_copy(update={"asked": asked, "grid": grid})
    privacy = manifest.privacy.model_copy(update={"records_per_unit": 3})
    changed = manifest.model_copy(update={"labels": [label], "privacy": privacy})
    monkeypatch.setattr(Stages, "manifests", [changed])
    judged, given = list[bool](), list[Any]()

    def judge(explained: Any, spread: Any, problem: Any, whole: bool) -> str:
        judged.append(whole)
        # a first round's histogram may be far off the mean label: all that was learned is not
        (scores,) = rounds.stages._judge(rounds.models).values()
        assert spread.centre == pytest.approx(scores.unseen.scored.predicted.points.mean())
        return "judged"

    monkeypatch.setattr(module.Judged, "from_evaluation", judge)
    monkeypatch.setattr(module, "ask_score", lambda *facts: given.append(facts))
    some = rounds.kept & (np.arange(rounds.kept.size) % 2 == 0)
    for mine in (rounds.kept, some):
        assert rounds.stages.ask_score(rounds.models, mine) == b""
    assert judged == [whole, whole] * (whole is not None)
    sizes = [points.size for _, points, *_ in given]
    assert sizes == [rounds.kept.sum(), some.sum()] * (whole is not None)
    for of_codes, _, lattice, epsilon, seed in given:
        assert (of_codes, epsilon, seed) == ("judged", Fraction(3, 2), 4)
        assert (lattice.lower, lattice.upper) == (0.0, 4.0)
