"""What a comparison prepares, asks of its workers, and what a worker makes of a job."""

from __future__ import annotations

import json
import math
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import ConfigError, DataError
from labelveil.common.guarantees import PureDP
from labelveil.comparison import CompareSettings, run_comparison, worker
from labelveil.comparison import run as runs
from labelveil.comparison.names import CENTRAL, DP_SGD
from labelveil.comparison.settings import Job, Method, default_methods
from labelveil.comparison.tables import Cell
from labelveil.comparison.worker import Experiment, serve
from labelveil.feature_party.training.holdout import draw_holdout
from tests.labelveil.comparison.runs import UPPER, specified

FIGURES = {
    "label_mse": 1.0,
    "test_mse": 2.0,
    "test_mae": 1.0,
    "test_loss": 2.0,
    "constant_mse": 3.0,
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Job], dict[str, Any], int, Path]]:
    """What was asked of workers, which all say the same."""
    seen: list[tuple[list[Job], dict[str, Any], int, Path]] = []

    def answer(
        jobs: Iterable[Job], data_set: dict[str, Any], workers: int, log: Path,
        on_result: Callable[[Job, dict[str, Any]], None],
    ) -> None:  # fmt: skip
        seen.append((list(jobs), data_set, workers, log))
        for job in seen[-1][0]:
            on_result(job, FIGURES)

    def drawn(cells: list[Cell], out: Path, loss: str) -> None:
        (out / f"{len(cells)} cells by {loss} loss.png").touch()

    monkeypatch.setattr(runs, "run_jobs", answer)
    monkeypatch.setattr(runs, "draw", drawn)
    return seen


ROWS = 50


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., CompareSettings]:
    table = pl.DataFrame({"id": range(ROWS), "x": range(ROWS), "y": [i % 11 for i in range(ROWS)]})
    table.write_parquet(tmp_path / "events.parquet")

    def make(**changes: Any) -> CompareSettings:
        given: dict[str, Any] = {
            "labels": tmp_path / "events.parquet", "features": tmp_path / "events.parquet",
            "key": "id", "label": "y", "lower": 0, "upper": 10, "out": tmp_path / "out",
            "methods": ["auto", "laplace:raw"], "epsilons": (0.5, 2), "runs": 2, "quiet": True,
        }  # fmt: skip
        return CompareSettings(**given | changes)

    return make


Settings = Callable[..., CompareSettings]
Told = list[tuple[list[Job], dict[str, Any], int, Path]]


def test_other_events_on_one_side_are_refused_and_leave_no_folder(
    settings: Settings, tmp_path: Path
) -> None:
    pl.read_parquet(tmp_path / "events.parquet")[1:].write_parquet(tmp_path / "labels.parquet")
    with pytest.raises(DataError, match=f"{ROWS} events with features and {ROWS - 1} with labels"):
        run_comparison(settings(labels=tmp_path / "labels.parquet"))
    assert not (tmp_path / "out").exists()


def test_workers_get_the_data_once_and_every_job(
    settings: Settings, told: Told, tmp_path: Path
) -> None:
    comparison = run_comparison(settings(workers=3, training=["ensemble=4"], holdout=0.3))
    ((jobs, data_set, workers, log),) = told
    out = tmp_path / "out"
    assert data_set == {
        "features": str(out / "data" / "features.parquet"),
        "truth": str(out / "data" / "truth.parquet"),
        "key": "id", "loss": "squared", "holdout": 0.3, "training": {"ensemble": 4},
        "columns": [{"column": "label", "lower": 0.0, "upper": 10.0, "whole": True}],
    }  # fmt: skip
    assert (workers, log) == (3, out / "logs" / "worker")
    assert [(job.epsilon, job.run, str(job.method)) for job in jobs[:5]] == [
        (math.inf, 0, "true labels"), (0.5, 0, "auto · auto"), (0.5, 0, "laplace · raw"),
        (2.0, 0, "auto · auto"), (2.0, 0, "laplace · raw"),
    ]  # fmt: skip
    assert [job.run for job in jobs] == [0] * 5 + [1] * 5
    assert pl.read_parquet(data_set["truth"])["label"].to_list() == [i % 11 for i in range(ROWS)]
    assert pl.read_parquet(data_set["features"]).columns == ["id", "x"]
    assert len(comparison.records) == 10
    assert comparison.records[0] == {**jobs[0].to_json(), **FIGURES}
    kept = (out / "results.jsonl").read_text().splitlines()
    assert [*map(json.loads, kept)] == comparison.records
    assert (comparison.complete, comparison.failures, comparison.folder) == (True, [], out)
    facts = json.loads((out / "comparison.json").read_text())
    assert {name: facts[name] for name in data_set} == data_set
    assert facts["rows"] == ROWS
    text = (out / "table.md").read_text("utf-8")
    assert "- " not in text  # nothing to note
    assert (out / "5 cells by squared loss.png").exists()


def test_what_has_a_result_is_not_asked_again(
    settings: Settings, told: Told, tmp_path: Path
) -> None:
    results = tmp_path / "out" / "results.jsonl"
    run_comparison(settings(runs=1))
    lines = results.read_text().splitlines(keepends=True)
    failed = json.dumps({**json.loads(lines[1]), "error": "no"})
    results.write_text("".join([*lines[2:], failed + "\n", '{"epsilon": 1}\n', "{"]))
    comparison = run_comparison(settings(runs=1, workers=7))
    again = told[1][0]
    assert [str(job.method) for job in again] == ["true labels", "auto · auto"]
    assert told[1][2] == 2  # no more workers than jobs
    assert len(comparison.records) == 5
    assert sorted(results.read_text().splitlines(keepends=True)) == sorted(lines)
    assert run_comparison(settings(runs=1)).complete
    assert len(told) == 2  # nothing is left, and nobody is started


def test_what_could_not_be_run_is_named_unless_nothing_could(
    settings: Settings, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference on true labels does not count as something that was asked for."""

    def failing(*names: str) -> Callable[..., None]:
        def answer(jobs: Iterable[Job], *_: Any) -> None:
            *_, on_result = _
            for job in jobs:
                fails = job.method.randomizer in names
                on_result(job, {"error": "too little"} if fails else FIGURES)

        return answer

    for at, (names, complete) in enumerate(((("laplace",), False), (("true-labels",), True))):
        monkeypatch.setattr(runs, "run_jobs", failing(*names))
        comparison = run_comparison(settings(runs=1, out=tmp_path / str(at)))
        assert comparison.complete is complete
        (failure,) = comparison.failures
        assert failure.endswith("could not be run: too little")
        assert f"- {failure}." in (tmp_path / str(at) / "table.md").read_text("utf-8")
    monkeypatch.setattr(runs, "run_jobs", failing("auto", "laplace"))
    with pytest.raises(ConfigError, match=r"^nothing to compare: auto · auto could not .*; lapl"):
        run_comparison(settings(runs=1, out=tmp_path / "none"))


@pytest.mark.parametrize(
    "other",
    [
        {"upper": 11},
        {"loss": "absolute"},
        {"holdout": 0.1},
        {"training": ["epochs=2"]},
        {"rows": 7},
    ],
)
def test_another_comparison_needs_another_folder(
    settings: Settings, told: Told, other: dict[str, Any]
) -> None:
    run_comparison(settings(runs=1))
    with pytest.raises(ConfigError, match="holds a comparison with other data or settings"):
        run_comparison(settings(runs=1, **other))


def test_other_labels_of_the_same_events_are_other_data(
    settings: Settings, told: Told, tmp_path: Path
) -> None:
    run_comparison(settings(runs=1))
    table = pl.read_parquet(tmp_path / "events.parquet")
    table.with_columns(y=pl.col("y").reverse()).write_parquet(tmp_path / "events.parquet")
    with pytest.raises(ConfigError, match="other data"):
        run_comparison(settings(runs=1))


def test_some_events_are_drawn_once_in_their_order(
    settings: Settings, told: Told, tmp_path: Path
) -> None:
    def drawn(folder: str, rows: int) -> tuple[list[int], list[float]]:
        run_comparison(settings(rows=rows, out=tmp_path / folder))
        data_set = told[-1][1]
        features = pl.read_parquet(data_set["features"])["x"].to_list()
        return features, pl.read_parquet(data_set["truth"])["label"].to_list()

    features, truth = drawn("a", 20)
    assert len(features) == 20
    assert features == sorted(features) != [*range(20)]
    assert truth == [x % 11 for x in features]
    assert drawn("b", 20)[0] == features
    for rows in (ROWS, ROWS + 1):
        assert drawn(f"all{rows}", rows)[0] == [*range(ROWS)]


def test_both_sides_have_the_same_events(settings: Settings, told: Told, tmp_path: Path) -> None:
    more = pl.DataFrame({"id": range(ROWS + 1), "x": range(ROWS + 1)})
    more.write_parquet(tmp_path / "features.parquet")
    with pytest.raises(DataError, match="51 events with features and 50 with labels"):
        run_comparison(settings(features=tmp_path / "features.parquet"))
    assert not told


def test_baselines_are_noted_with_what_they_guarantee(
    settings: Settings, told: Told, tmp_path: Path
) -> None:
    run_comparison(settings(methods=[], baselines="central", delta=1e-5, runs=1, epsilons=(1,)))
    (jobs, data_set, _, _) = told[0]
    assert [job.method.randomizer for job in jobs[1:]] == ["auto", *CENTRAL]
    assert data_set["delta"] == 1e-5
    notes = (tmp_path / "out" / "table.md").read_text("utf-8").splitlines()[-4:]
    assert notes[0].startswith("- feature-aware-ridge: ridge regression where one party holds")
    assert notes[3] == ("- δ = 1e-05 for feature-aware-gaussian, dp-sgd; no other method has one.")
    run_comparison(settings(methods=[DP_SGD, "auto"], out=tmp_path / "b", runs=1))
    notes = (tmp_path / "b" / "table.md").read_text("utf-8").splitlines()[-2:]
    assert notes[1] == "- δ = 1e-06 for dp-sgd; no other method has one."
    run_comparison(settings(methods=["feature-aware-ridge"], out=tmp_path / "c", runs=1))
    assert "delta" not in told[-1][1]
    beside = settings(methods=["laplace:raw"], baselines="central", runs=1, epsilons=(1,)).jobs
    assert [job.method.randomizer for job in beside[1:]] == ["laplace", "auto", *CENTRAL]


def test_methods_that_are_not_named_are_the_default_ones(settings: Settings) -> None:
    jobs = settings(methods=[], runs=1, epsilons=(1,)).jobs
    assert [job.method for job in jobs[1:]] == default_methods()
    assert [str(method) for method in default_methods()] == [
        "auto · auto", "rr-on-bins · raw", "rr-on-bins · debiased", "rr-on-bins · likelihood",
        "laplace · raw", "unbiased · debiased", "unbiased · likelihood",
        "randomized-thresholds · likelihood",
    ]  # fmt: skip
    several = settings(methods=[], label=["y:0:1", "x:0:1"], lower=None, upper=None, runs=1)
    named = [job.method.randomizer for job in several.jobs[1:5]]
    assert named == ["auto", "joint", "split", "separate"]
    assert several.several
    inputs: Any = SimpleNamespace(whole=lambda label: label.column == "x")
    assert several.for_workers([], inputs)["columns"] == [
        {"column": "y", "lower": 0.0, "upper": 1.0, "whole": False},
        {"column": "x", "lower": 0.0, "upper": 1.0, "whole": True},
    ]
    assert settings().simulation.epsilon == 0.5


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("auto", "auto · auto"),
        ("rr-on-bins:raw", "rr-on-bins · raw"),
        ("unbiased:likelihood:gaussian", "unbiased · likelihood · gaussian"),
        ("laplace,clip=true:as-published", "laplace, clip · as-published"),
        ("laplace,clip=false", "laplace, clip false · auto"),
        ("rr-on-bins,prior_share=0.5,bins=3:raw", "rr-on-bins, bins 3, prior_share 0.5 · raw"),
        ("true-labels:as-published", "true labels"),
        ("groups", "sums over groups"),
        ("dp-sgd", "dp-sgd"),
    ],
)
def test_a_method_is_read_and_shown(text: str, shown: str) -> None:
    method = Method.parse(text)
    assert str(method) == shown
    job = Job(1.5, 3, method)
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must look like"),
        ("auto:", "must look like"),
        ("auto::gaussian", "must look like"),
        ("groups::", "must look like"),
        ("groups:auto:gaussian", "groups has no objective, head or options"),
        ("groups,bins=3", "groups has no objective"),
        ("true-labels,bins=3", "true labels take no options"),
        ("joint", "randomizer must be one of"),
        ("rr-on-bins,prior_share=0", "prior_share=0 must lie above 0 and below 1"),
        ("rr-on-bins,prior_share=1.0", "prior_share=1.0 must"),
        ("rr-on-bins,prior_share=a", "prior_share=a must"),
        ("rr-on-bins,prior_share=0.5:as-published", "as-published takes none"),
        ("laplace,continuous=1:as-published", "continuous=1 is true or false"),
        ("rr-on-bins,continuous=true:as-published", "continuous=True is true or false"),
        ("laplace,continuous=true", "beside no option but clip"),
    ],
)
def test_what_a_method_cannot_be_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Method.parse(text)


@pytest.mark.parametrize("text", ["auto,bins=2", "rr-on-bins", "joint:as-published", "groups"])
def test_several_labels_are_shared_by_a_division_alone(text: str) -> None:
    with pytest.raises(ConfigError, match="several labels are sent by one of auto, joint, split"):
        Method.parse(text, several=True)
    assert Method.parse("joint:likelihood", several=True).randomizer == "joint"


WORKER_ROWS, SEED = 40, 3


class Learning:
    """In place of what learns: what it was given; the model says 4 of every event."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[dict[str, Any]] = []

        def model(table: pl.DataFrame) -> Any:
            encoder = SimpleNamespace(encode=lambda asked: asked)
            points = lambda asked: SimpleNamespace(points=np.full(asked.height, 4.0))  # noqa: E731
            return SimpleNamespace(
                encoder=encoder, distributions=points, facts=SimpleNamespace(head="gaussian")
            )

        def train(events: Any, setup: Any) -> Any:
            self.given.append({"events": events, "setup": setup})
            return model(events)

        def published(features: Any, sent: Any, queries: Any, **named: Any) -> Any:
            self.given.append({"features": features, "sent": sent, "queries": queries, **named})
            return np.full(queries.height, 4.0)

        def central(name: str, features: Any, labels: Any, queries: Any, **named: Any) -> Any:
            given = {"name": name, "features": features, "labels": labels, "queries": queries}
            self.given.append({**given, **named})
            guarantee = PureDP.of(1)
            points = np.full(queries.height, 4.0)
            return SimpleNamespace(predictions=points, chosen="this", guarantee=guarantee)

        def in_rounds(table: Any, lattice: Any, epsilon: float, answer: Any, **named: Any) -> Any:
            given = {"table": table, "lattice": lattice, "epsilon": epsilon, "answer": answer}
            self.given.append({**given, **named})
            answers = [SimpleNamespace(sums=np.zeros(size)) for size in (3, 4)]
            yield SimpleNamespace(model=None, answers=answers[:1])
            yield SimpleNamespace(model=model(table), answers=answers)

        monkeypatch.setattr(worker, "train", train)
        monkeypatch.setattr(worker, "published_predictions", published)
        monkeypatch.setattr(worker, "central_predictions", central)
        monkeypatch.setattr(worker, "learn_in_rounds", in_rounds)


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> Learning:
    return Learning(monkeypatch)


def experiment(tmp_path: Path, **more: Any) -> tuple[Experiment, np.ndarray[Any, Any]]:
    spec = specified(tmp_path, WORKER_ROWS, {"hidden": [8], "learner": "networks"}) | more
    return Experiment(spec), pl.read_parquet(spec["truth"])["label"].to_numpy()


def scores(truth: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Of a model that says 4: errors over the events kept, and of the others' mean."""
    held = draw_holdout(WORKER_ROWS, 0.2, SEED)
    kept, mean = truth[held], np.delete(truth, held).mean()
    return {
        "test_mse": pytest.approx(np.mean((kept - 4) ** 2)),
        "test_mae": pytest.approx(np.mean(np.abs(kept - 4))),
        "test_loss": pytest.approx(np.mean((kept - 4) ** 2)),
        "constant_mse": pytest.approx(np.mean((kept - mean) ** 2)),
    }


def done(job: Experiment, method: str, epsilon: float = 2.0) -> dict[str, Any]:
    figures = job.run(Job(epsilon, SEED, Method.parse(method)))
    assert figures.pop("seconds") >= 0
    return figures


HELD = draw_holdout(WORKER_ROWS, 0.2, SEED)
TRAINING = np.delete(np.arange(WORKER_ROWS), HELD)


def test_a_worker_learns_from_what_is_sent_and_scores_the_events_kept(
    tmp_path: Path, learning: Learning
) -> None:
    job, truth = experiment(tmp_path)
    figures = done(job, "rr-on-bins:raw:auto", 40.0)
    events, setup = learning.given[-1]["events"], learning.given[-1]["setup"]
    section = setup.training
    assert (section.objective, section.head, section.seed, section.holdout) == (
        "raw",
        "auto",
        3,
        0.2,
    )
    assert (section.hidden, section.learner, section.checkpoint) == ([8], "networks", False)
    assert setup.true_labels is None
    assert events.holdout.tolist() == HELD.tolist()
    outputs, label_mse = figures.pop("outputs"), figures.pop("label_mse")
    assert figures == {**scores(truth), "chosen": "rr-on-bins, gaussian"}
    assert 2 <= outputs <= 11
    # at so large an ε labels are sent as they are, but for the grid's rounding
    assert label_mse < 0.5
    reference = job.run(Job(math.inf, SEED, Method("true-labels", "true")))
    assert (reference["label_mse"], reference["chosen"]) == (0.0, "rr-on-bins, gaussian")
    assert learning.given[-1]["setup"].true_labels.tolist() == truth.tolist()


def test_jobs_that_differ_in_learning_alone_share_a_release(
    tmp_path: Path, learning: Learning
) -> None:
    job, _ = experiment(tmp_path)
    for method in ("rr-on-bins:raw", "rr-on-bins:debiased", "rr-on-bins,prior_share=0.4:raw"):
        done(job, method)
    first, second, third = (given["events"].codes for given in learning.given)
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)
    objectives = [given["setup"].training.objective for given in learning.given]
    assert objectives == ["raw", "debiased", "raw"]


def test_the_published_protocol_randomizes_the_training_events_alone(
    tmp_path: Path, learning: Learning
) -> None:
    job, truth = experiment(tmp_path)
    figures = done(job, "true-labels:as-published", math.inf)
    given = learning.given[-1]
    assert given["sent"].tolist() == truth[TRAINING].tolist()
    assert given["features"].equals(job.features[TRAINING])
    assert given["queries"].equals(job.features[HELD])
    assert (given["key"], given["loss"], given["bounds"]) == ("event", "squared", (0, UPPER))
    assert given["training"].seed == SEED
    # eleven whole numbers between the bounds
    assert figures == {
        **scores(truth), "label_mse": 0.0, "outputs": 11, "chosen": "true-labels, as-published",
    }  # fmt: skip
    figures = done(job, "laplace,continuous=true,clip=true:as-published", 3.0)
    sent = learning.given[-1]["sent"]
    assert figures["label_mse"] == pytest.approx(np.mean((sent - truth[TRAINING]) ** 2))
    assert (figures["outputs"], figures["chosen"]) == (None, "laplace, as-published")
    assert len(np.unique(sent[(sent > 0) & (sent < UPPER)] % 1)) > 3  # floats
    assert sent.min() >= 0
    assert sent.max() <= UPPER


def test_a_curator_is_given_the_true_labels_and_the_budget(
    tmp_path: Path, learning: Learning
) -> None:
    job, truth = experiment(tmp_path, delta=1e-5)
    figures = done(job, "dp-sgd", 1.5)
    given = learning.given[-1]
    assert (given["name"], given["epsilon"], given["delta"]) == ("dp-sgd", 1.5, 1e-5)
    assert given["labels"].tolist() == truth[TRAINING].tolist()
    assert given["features"].equals(job.features[TRAINING])
    assert given["queries"].equals(job.features[HELD])
    assert (given["bounds"], given["hidden"], given["key"]) == ((0, UPPER), [8], "event")
    assert figures == {
        **scores(truth), "label_mse": None, "outputs": None, "chosen": "this",
        "guarantee": PureDP.of(1).to_json(),
    }  # fmt: skip
    job, _ = experiment(tmp_path)
    done(job, "feature-aware-ridge")
    assert learning.given[-1]["delta"] is None


def test_sums_are_asked_of_the_training_events_in_rounds(
    tmp_path: Path, learning: Learning, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, truth = experiment(tmp_path)
    figures = done(job, "groups", 0.5)
    given = learning.given[-1]
    assert given["table"].equals(job.features.drop("event")[TRAINING])
    assert (given["lattice"].lower, given["lattice"].upper) == (0, UPPER)
    assert (given["epsilon"], given["shares"], given["seed"]) == (0.5, (0.25, 0.3, 0.45), SEED)
    assert figures == {
        **scores(truth), "label_mse": None, "outputs": None, "chosen": "7 sums",
    }  # fmt: skip
    asked: list[Any] = []

    def exactly(labels: Any, question: Any, *, epsilon: float) -> None:
        asked.append((labels.tolist(), question, epsilon))

    monkeypatch.setattr(worker, "group_sums", exactly)
    given["answer"](np.array([3, 1]), "question")
    assert asked == [(truth[TRAINING][[3, 1]].tolist(), "question", 0.5)]


def test_several_labels_are_one_message_or_one_each(tmp_path: Path, learning: Learning) -> None:
    """Which spend the same: of separate messages each has half."""
    columns = [
        {"column": name, "lower": 0, "upper": upper, "whole": upper == 1}
        for name, upper in (("label", UPPER), ("high", 1))
    ]
    spec = specified(tmp_path, WORKER_ROWS, {}) | {"columns": columns}
    truth = pl.read_parquet(spec["truth"])
    truth.with_columns(high=(pl.col("label") > 5).cast(pl.Int8)).write_parquet(spec["truth"])
    job = Experiment(spec)
    for name, messages in (("separate", 2), ("split", 1)):
        released = job._release(name, (), 4.0, 0)
        assert [label.name for label in released] == ["label", "high"]
        spent = {id(label.events): label.events.guarantee.epsilon for label in released}
        assert len(spent) == messages
        assert sum(spent.values()) == pytest.approx(4.0, rel=1e-5)
    figures = job.run(Job(4.0, SEED, Method("split")))
    assert [label["name"] for label in figures["labels"]] == ["label", "high"]
    assert "label_mse" not in figures["labels"][0]


def test_labels_are_clipped_to_their_bounds(tmp_path: Path, learning: Learning) -> None:
    columns = [{"column": "label", "lower": 4, "upper": 6, "whole": False}]
    job, truth = experiment(tmp_path, columns=columns)
    assert truth.min() < 4
    assert job.truth.tolist() == np.clip(truth, 4, 6).tolist()


def test_a_worker_answers_line_by_line(tmp_path: Path, learning: Learning) -> None:
    """That it is ready; then each job, or why it cannot be done, at once."""
    written: list[str] = []

    class Answers:
        def write(self, text: str) -> None:
            written.append(text)

        def flush(self) -> None:
            written.append("(flushed)")

    spec = specified(tmp_path, WORKER_ROWS, {"hidden": [8]})
    jobs = [Job(2.0, 0, Method("dp-sgd")), Job(2.0, 0, Method("unbiased", "likelihood", "no"))]
    serve(map(json.dumps, (spec, *(job.to_json() for job in jobs))), Answers())  # type: ignore[arg-type]
    assert written[1::2] == ["(flushed)"] * 3
    assert written[0] == '{"ready": true}\n'
    assert json.loads(written[2])["chosen"] == "this"
    assert "error" in json.loads(written[4])


WORKER = """
import json, os, sys
data = json.loads(sys.stdin.readline())
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    said = {"of": data["name"], "seen": job, "threads": os.environ["OMP_NUM_THREADS"]}
    print(json.dumps(said), flush=True)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_is_answered_by_a_worker_that_knows_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    started: list[str] = []

    def child(module: str) -> list[str]:
        started.append(module)
        return [sys.executable, "-c", WORKER]

    monkeypatch.setattr(runs, "child_command", child)
    monkeypatch.setattr(runs.os, "cpu_count", lambda: 6)
    jobs = [Job(epsilon, run, Method("auto")) for epsilon in (0.5, 1.0) for run in (0, 1)]
    found: dict[Job, dict[str, Any]] = {}
    log = tmp_path / "logs" / "worker"
    runs.run_jobs(jobs, {"name": "d"}, workers, log, found.__setitem__)
    assert found == {
        job: {"of": "d", "seen": job.to_json(), "threads": str(6 // workers)} for job in jobs
    }
    assert started == ["labelveil.comparison.worker"] * workers
    assert sorted(path.name for path in log.parent.iterdir()) == [
        f"worker.{at}.log" for at in range(workers)
    ]


def test_what_a_comparison_leaves_may_be_read_by_others(
    settings: Settings, told: Told, tmp_path: Path
) -> None:
    run_comparison(settings(runs=1))
    run_comparison(settings(runs=1))  # and takes up its results
    for name in ("comparison.json", "results.jsonl"):
        assert stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) & 0o044 == 0o044, name


def test_a_worker_is_made_to_end_with_whoever_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "end_with_parent", (tmp_path / "bound").touch)
    with runs._start(1, tmp_path / "worker.log") as process:
        process.kill()
    assert (tmp_path / "bound").exists()
