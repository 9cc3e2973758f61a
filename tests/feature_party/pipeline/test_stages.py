"""What stages warn of, refuse and write, whatever was learned."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import ConfigError, ConnectionFailed, DataError, ReleaseError
from labelveil.common.release.folder import (
    CHECK_FILE,
    POPULATION_FILE,
    QUESTION_FILE,
    mark_withdrawn,
)
from labelveil.common.release.table import write_release
from labelveil.feature_party.client.channel import Withdrawn
from labelveil.feature_party.client.release_client import Fetched, ReleaseClient
from labelveil.feature_party.client.submission import FROZEN, Population, SubmittingClient
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.feature_party.config.sections import FeaturePartyConfig, TrueLabels
from labelveil.feature_party.evaluation.group_means import GroupMean
from labelveil.feature_party.evaluation.intervals import Measured
from labelveil.feature_party.evaluation.true_labels import match_true_labels
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.model.drift import ColumnDrift
from labelveil.feature_party.pipeline import learning, predicting
from labelveil.feature_party.pipeline import stages as stages_module
from labelveil.feature_party.pipeline.choice import learns_from_sums, stages_of
from labelveil.feature_party.pipeline.learning import Learning, _epochs_on
from labelveil.feature_party.pipeline.means import LabelMeans, means_by
from labelveil.feature_party.pipeline.stages import Stages
from labelveil.feature_party.pipeline.sums import SumStages, question_bits
from labelveil.feature_party.pipeline.transfer import Transfer, kept_in, read_kept
from labelveil.feature_party.training.fitting import EpochRecord
from tests.common.release.releases import make_release
from tests.feature_party.worlds import SECRET, World, build_world


def configured(world: World, folder: Path, **more: Any) -> FeaturePartyConfig:
    names = {"metrics": "metrics.json", "report": "r.html", "predictions": "p.csv", "model": "m"}
    values: dict[str, Any] = {
        "data": {"features": world.features, "key": "event"},
        "keys": {"secret_file": world.secret_file},
        "release": {"directory": world.directory},
        "output": {name: folder / file for name, file in names.items()},
    }
    return FeaturePartyConfig.model_validate(values | more)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_a_warning_is_given_once(capsys: pytest.CaptureFixture[str]) -> None:
    stages = Transfer(FeaturePartyConfig())
    for text in ("take care", "take care", "of this, too"):
        stages.warn(text)
    found = said(capsys)
    assert (found.count("take care"), found.count("of this, too")) == (1, 1)
    silent = Learning(FeaturePartyConfig(), workers=SimpleNamespace(first=False))  # type: ignore[arg-type]
    silent.warn("take care")
    assert said(capsys) == ""


def test_a_withdrawn_release_is_refused_or_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, keys, codes = make_release(40)
    write_release(tmp_path / "r", manifest.to_bytes(), keys, codes)
    release = {"directory": tmp_path / "r"}
    stages = Transfer(FeaturePartyConfig.model_validate({"release": release}))
    stages.check_withdrawn()
    assert stages.withdrawn == []
    mark_withdrawn(tmp_path / "r", "labels of another table")
    reason = f"the release in {tmp_path / 'r'} was withdrawn by its labels party: labels of another"
    assert stages.withdrawn == [f"{reason} table"]
    with pytest.raises(ReleaseError, match=r"fetch another, or set .release. withdrawn = true"):
        stages.check_withdrawn()
    features = {"features": tmp_path / "features.parquet", "key": "event"}
    config = FeaturePartyConfig.model_validate({"release": release, "data": features})
    with pytest.raises(ReleaseError, match=r"was withdrawn .*; fetch another"):
        Learning(config).join()  # nor is it joined
    assert said(capsys) == ""
    anyway = {"release": release | {"withdrawn": True}}
    Transfer(FeaturePartyConfig.model_validate(anyway)).check_withdrawn()
    assert "was withdrawn by its labels party: labels of another table" in said(capsys)
    assert [each.to_bytes() for each in stages.manifests] == [manifest.to_bytes()]


TWO: list[dict[str, Any]] = [{"name": "a", "data_set": "x"}, {"name": "b", "data_set": "y"}]


def test_every_release_is_fetched_into_its_folder(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, list[str], Path]] = []
    fails: dict[str, Exception] = {}

    def fetch(client: ReleaseClient, folder: Path, show: Any) -> Fetched:
        party = client.settings
        asked.append((party.called, party.epoch, party.epochs, folder.relative_to(tmp_path)))
        if party.called in fails:
            raise fails[party.called]
        return Fetched(world.release.manifest, folder, 5, 0.1)

    monkeypatch.setattr(ReleaseClient, "fetch", fetch)

    def fetched(parties: Any) -> list[Fetched]:
        asked.clear()
        values = {"labels_party": parties, "release": {"directory": tmp_path}}
        stages = Transfer(FeaturePartyConfig.model_validate(values), quiet=True)
        found = stages.fetch()
        assert stages.timings.keys() == {"fetch"}
        return found

    fetched({"data_set": "x", "epoch": "1"})
    assert asked == [("x", "1", [], Path())]
    fetched({"data_set": "x", "epochs": ["1", "2"]})
    assert asked == [("x", "1", [], Path("1")), ("x", "2", [], Path("2"))]
    fetched([TWO[0], TWO[1] | {"epochs": ["3"]}])
    assert asked == [("a", "", [], Path("a")), ("b", "3", [], Path("b/3"))]
    for error in (ConnectionFailed("nobody"), ReleaseError("no")):
        fails["a"] = error
        with pytest.raises(ConnectionFailed) as caught:
            fetched(TWO)
        assert str(caught.value) == (
            "1 of 2 labels parties did not send their release, those of the others are here;"
            f" a: {error}"
        )
        assert [each[0] for each in asked] == ["a", "b"]
        with pytest.raises(type(error)):  # an only one's is its own
            fetched(TWO[0])


def test_a_withdrawal_is_told_with_what_was_lost(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    done = Fetched(world.release.manifest, tmp_path, 5, 0.1)
    results: list[Any] = []

    def fetch(*_: Any) -> Fetched:
        if isinstance(results[0], Exception):
            raise results[0]
        found: Fetched = results[0]
        return found

    monkeypatch.setattr(ReleaseClient, "fetch", fetch)

    def fetched(**release: Any) -> list[Fetched]:
        values = {"release": {"directory": world.directory, **release}}
        return Transfer(FeaturePartyConfig.model_validate(values), quiet=True).fetch()

    results[:] = [done]
    fetched()
    assert said(capsys) == ""
    results[:] = [replace(done, withdrawn="wrong", replaced=("old", "zero"))]
    fetched()
    assert "withdrawn its release of data set 'old', epoch 'zero': wrong" in said(capsys)
    results[:] = [replace(done, withdrawn="wrong")]
    fetched()
    assert "withdrawn its release of data set 'sales', epoch 'one': wrong" in said(capsys)
    results[:] = [Withdrawn("it is withdrawn", "a mistake")]
    with pytest.raises(Withdrawn):
        fetched()
    (kept,) = fetched(withdrawn=True)  # what is here is learned from all the same
    assert (kept.received, kept.withdrawn, kept.directory) == (0, "a mistake", world.directory)
    assert "epoch 'one': a mistake" in said(capsys)


def test_what_was_submitted_is_kept_where_its_release_will_answer_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stages = Transfer(configured(world, tmp_path, labels_party={"epoch": "one"}), quiet=True)
    population, folder = Population(b"k" * 32, b"c" * 16, b"what?"), tmp_path / "to"
    during: list[Path | None] = []
    ending = [FROZEN]

    def submit(*_: Any) -> str:
        during.append(kept_in(folder))
        return ending[0]

    monkeypatch.setattr(SubmittingClient, "submit", submit)
    sums: list[Any] = [SimpleNamespace(question="0" * 64)]
    described = lambda *_: SimpleNamespace(sums=sums[0])  # noqa: E731
    monkeypatch.setattr(SubmittingClient, "describe", described)
    assert stages.submit(population, folder) == FROZEN
    assert during == [folder / "submission"]
    assert kept_in(folder) is None
    assert "the release exists, and answers another question than this one" in said(capsys)
    asked = hashlib.sha256(b"what?").hexdigest()
    for sums[0] in (None, SimpleNamespace(question=asked)):
        assert stages.submit(population, folder) == FROZEN
        assert kept_in(folder) == folder
        (folder / POPULATION_FILE).unlink()
    sums[0], ending[0] = SimpleNamespace(question="0" * 64), "stored"
    assert stages.submit(population, folder) == "stored"
    assert said(capsys) == ""
    kept = read_kept(folder, b"other")
    assert (kept.keys, kept.question, kept.secret_check) == (b"k" * 32, b"what?", b"c" * 16)
    (folder / CHECK_FILE).unlink()
    assert read_kept(folder, b"other").secret_check == b"other"
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [POPULATION_FILE, QUESTION_FILE]
    )
    assert stages.timings.keys() == {"submit"}


def test_features_are_the_population(world: World, tmp_path: Path) -> None:
    stages = Transfer(configured(world, tmp_path), quiet=True)
    found = stages.population()
    events = pl.read_parquet(world.features)["event"]
    sent = {world.keys[at : at + 16] for at in range(0, len(world.keys), 16)}
    assert found.rows == events.len()
    assert {found.keys[at : at + 16] for at in range(0, len(found.keys), 16)} == sent
    with pytest.raises(ReleaseError):
        stages.submit_all(b"no question")


def prepared(labels: int = 1, matched: int = 1500) -> dict[str, Any]:
    events = SimpleNamespace(
        release_id="ab", matches=MatchCounts(1500, 1500, matched), found=None,
        trained=lambda *_: np.zeros(0, dtype=bool),
    )  # fmt: skip
    return {f"y{number}": events for number in range(labels)}


@pytest.mark.parametrize(
    ("name", "value"), [("release", "cd"), ("matched", 7), ("holdout", 0.5), ("seed", 9)]
)
def test_only_a_model_of_these_events_is_loaded(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    facts = {"release": "ab", "matched": 1500, "holdout": 0.2, "seed": 0}
    models = SimpleNamespace(by_label={"y0": SimpleNamespace(facts=SimpleNamespace(**facts))})
    monkeypatch.setattr(
        "labelveil.feature_party.pipeline.learning.LabelModels.load", lambda folder: models
    )
    stages = Learning(configured(world, tmp_path), _labels=prepared())
    assert stages.load() is models
    setattr(models.by_label["y0"].facts, name, value)
    with pytest.raises(DataError) as caught:
        stages.load()
    assert str(caught.value) == (
        f"the model in {tmp_path / 'm'} was trained with {name}={value!r}, not {facts[name]!r}: its"
        " holdout is another; train again"
    )
    other = Learning(configured(world, tmp_path), _labels=prepared(2))
    with pytest.raises(DataError, match=r"is of y0, and the release of y0, y1; train again"):
        other.load()
    renamed = Learning(configured(world, tmp_path), _labels={"z": prepared()["y0"]})
    with pytest.raises(DataError, match=r"is of y0, and the release of z; train again"):
        renamed.load()
    assert [other.prefix("y0"), stages.prefix("y0")] == ["y0: ", ""]


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("first", [True, False])
def test_of_several_workers_the_first_saves_and_says_what_was_learned(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], first: bool, quiet: bool,
) -> None:  # fmt: skip
    """What columns mean is said once, and a withdrawal in each label's facts."""
    done: list[Any] = []

    def learn(events: Any, setup: Any) -> Any:
        done.append((setup.folder, setup.asks, setup.workers.first))
        return SimpleNamespace(facts=SimpleNamespace(warnings=["take care"]))

    learned = SimpleNamespace(
        encoder=SimpleNamespace(left_out=[("", "has no name"), ("z", "is empty")]),
        save=lambda folder: done.append(("save", folder)),
    )
    monkeypatch.setattr(learning, "train", learn)
    monkeypatch.setattr(learning, "LabelModels", lambda models: done.append(models) or learned)
    monkeypatch.setattr(learning, "remove_shards", lambda folder: done.append(folder))
    monkeypatch.setattr(Learning, "withdrawn", ["it was withdrawn"])
    workers: Any = SimpleNamespace(first=first, wait=lambda: done.append("wait"))
    labels = prepared(2)
    labels["y0"].found = SimpleNamespace(told=lambda ignored: ["x is a number"])
    folder = tmp_path / "m"
    stages = Learning(configured(world, tmp_path), quiet, workers=workers, _labels=labels)
    stages.train(asks=True)
    models = done.pop(2)
    assert [each.facts.warnings for each in models.values()] == [
        ["take care", "it was withdrawn"]
    ] * 2
    assert done[:3] == [(folder / "y0", True, first), (folder / "y1", True, first), "wait"]
    saved = [("save", folder), folder / "y0" / "shards", folder / "y1" / "shards"]
    assert done[3:] == saved * first
    lines = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]
    told = ["x is a number", "left out: the column without a name, which has no name"]
    told += ["left out: z, which is empty"]
    warned = [
        f"warning: {label}: {text}"
        for label in ("y0", "y1")
        for text in ("take care", "it was withdrawn")
    ]
    assert lines == told * (first and not quiet) + warned * first
    config = stages.config.model_copy(
        update={"training": stages.config.training.model_copy(update={"shards": "there"})}
    )
    done.clear()
    replace(stages, config=config).train()
    assert [each for each in done if isinstance(each, Path)] == []  # the user's own stay
    assert "x is a number" not in said(capsys)


def test_rows_that_were_trained_on_are_told_where_they_are_known(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        learning, "predict", lambda config, model, *, quiet, trained: (model, quiet, trained)
    )
    labels = prepared()
    for known, told in ((None, None), (labels, labels["y0"].trained)):
        stages: Any = Learning(configured(world, tmp_path), quiet=True, _labels=known)
        assert stages.predict("model") == stages.predicted == ("model", True, told)
        assert stages.timings.keys() == {"predict"}


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


def test_poor_matches_are_warned_of(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = Learning(configured(world, tmp_path))
    stages._warn_of_poor(MatchCounts(1500, 1500, 1350))
    assert said(capsys) == ""
    stages._warn_of_poor(MatchCounts(1500, 1500, 1349))
    assert "only 1,349 events match" in said(capsys)


def test_epochs_are_shown_by_candidate() -> None:
    bar = SimpleNamespace(tasks=[], updates=[])
    bar.add_task = lambda name, total, note: bar.tasks.append((name, total)) or len(bar.tasks)
    bar.update = lambda task, **values: bar.updates.append((task, values))
    show = _epochs_on(bar, "pay: ")  # type: ignore[arg-type]
    show("likelihood-gaussian", EpochRecord(1, 9, 2.0, 1.23456, True))
    show("likelihood-gaussian", EpochRecord(2, 9, 2.0, 1.2, True, "no better"))
    show("debiased", EpochRecord(1, 7, 2.0, 1.2, True))
    assert bar.tasks == [("pay: gaussian", 9), ("pay: debiased", 7)]
    assert bar.updates == [
        (1, {"completed": 1, "note": "epochs, validation loss 1.2346"}),
        (1, {"completed": 2, "note": "no better"}),
        (2, {"completed": 1, "note": "epochs, validation loss 1.2000"}),
    ]


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


def test_means_of_sums_are_of_one_release(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [SimpleNamespace(sums=None), SimpleNamespace(sums=object())]
    monkeypatch.setattr(Learning, "manifests", kinds)
    config = configured(world, tmp_path, labels_party={"epochs": ["1", "2"]})
    with pytest.raises(ConfigError, match=r"of the sums of one release, and there are 2; set"):
        means_by(config, ["shop"], None, quiet=True)


@pytest.mark.parametrize("matches", [None, MatchCounts(9, 8, 7)])
def test_means_are_told_with_where_they_are_from(matches: MatchCounts | None) -> None:
    means = [
        GroupMean(("a",), 1200, Measured(1.0, 0.5, 1.5)),
        GroupMean(("b",), 34, Measured(2, 1, 3)),
    ]
    found = LabelMeans("pay", ["arm"], 0.5, matches, matches is None, means)
    first = "sums over 1,234 events, whose own means these are" if matches is None else str(matches)
    assert found.lines[0] == first
    assert found.lines[-1] == "pay:"
    assert ("warning: this randomizer" in found.lines[1]) == (matches is not None)
    data = found.to_json()
    assert data["told_by"] == ("sums" if matches is None else "codes")
    assert (data["name"], data["by"], data["epsilon"]) == ("pay", ["arm"], 0.5)
    assert data["unbiased"] == (matches is None)
    assert data["groups"] == [mean.to_json(["arm"]) for mean in means]
    assert ("matched" in data) == (matches is not None)
    assert "name" not in replace(found, label="").to_json()
    assert replace(found, label="").lines[-1] != "pay:"


def test_means_by_a_column_are_of_the_matched_events(world: World, tmp_path: Path) -> None:
    (found,) = means_by(configured(world, tmp_path), ["shop"], "shop 1", quiet=True)
    truth = pl.read_parquet(world.features).join(pl.read_parquet(world.truth), on="event")
    known = dict(
        truth.group_by("shop")
        .agg(pl.col("amount").mean(), pl.len())
        .select("shop", "len")
        .iter_rows()
    )
    assert {mean.values[0]: mean.events for mean in found.means} == known
    assert (found.label, found.exact, found.epsilon) == ("", True, 4.5)
    with pytest.raises(DataError, match="--by 'event' is no column of the features; columns: x, "):
        means_by(configured(world, tmp_path), ["event"], None, quiet=True)


def test_means_of_several_labels_parties_are_each_ones_own(tmp_path: Path) -> None:
    """Of its own events, at its own ε, between its own labels."""
    worlds, releases = dict[str, World](), tmp_path / "releases"
    releases.mkdir()
    for name, rows, epsilon, seed in (("a", 300, 4.0, 1), ("b", 250, 2.0, 2)):
        (tmp_path / name).mkdir()
        worlds[name] = build_world(tmp_path / name, rows=rows, epsilon=epsilon, seed=seed)
        worlds[name].directory.rename(releases / name)
    parties = [{"name": name, "data_set": name} for name in worlds]
    config = configured(
        worlds["a"], tmp_path, labels_party=parties, release={"directory": releases}
    )
    shops = pl.read_parquet(worlds["a"].features)
    found = means_by(config, ["shop"], None, quiet=True)
    assert [(each.label, each.epsilon) for each in found] == [("a", 4.5), ("b", 2.5)]
    for each, (name, world), rows in zip(found, worlds.items(), (300, 250), strict=True):
        assert each.matches is not None
        assert (each.matches.matched, each.lines[-1]) == (rows, f"{name}:")
        own = shops.join(pl.read_parquet(world.truth), on="event")
        true = dict(own.group_by("shop").agg(pl.col("amount").mean()).iter_rows())
        assert sum(mean.events for mean in each.means) == rows
        for mean in each.means:
            assert mean.mean.low < true[mean.values[0]] < mean.mean.high


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


def test_sums_are_learned_from_where_they_are_asked_for_or_there(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(world, tmp_path)
    assert not learns_from_sums(config)
    groups = {"groups": {"epsilon": 1, "lower": 0, "upper": 1}, "rounds": {"shares": [1.0]}}
    party = {"labels_party": {"submit": True, "epoch": "day"}}
    asking = configured(world, tmp_path, **groups, **party)
    assert learns_from_sums(asking)
    assert [type(stages_of(each, True)) for each in (config, asking)] == [Stages, SumStages]
    module = "labelveil.feature_party.pipeline.choice.manifest_in"
    monkeypatch.setattr(module, lambda data: SimpleNamespace(sums=object()))
    assert learns_from_sums(config)
    assert not learns_from_sums(configured(world, tmp_path, release={"directory": tmp_path / "no"}))
    # of several releases all are of sums, as far as they are here
    days = {"directory": tmp_path / "days"}
    several = configured(world, tmp_path, release=days, labels_party={"epochs": ["1", "2", "3"]})
    for name in ("1", "2"):
        (tmp_path / "days" / name).mkdir(parents=True)
        (tmp_path / "days" / name / "manifest.json").touch()
    for kinds, sums in (({"1": 1, "2": 1}, True), ({"1": 1, "2": None}, False)):
        monkeypatch.setattr(
            module, lambda path, kinds=kinds: SimpleNamespace(sums=kinds[path.name])
        )
        assert learns_from_sums(several) == sums
    stages = SumStages(asking)
    stages.check_kept(100, 20)
    with pytest.raises(
        DataError, match=r"holdout=0.2 keeps 19 of 1,000 events, and 20 are the fewest"
    ):
        stages.check_kept(1000, 19)
    lattice, epsilon = stages._spent()
    assert (lattice.lower, lattice.upper, epsilon) == (0.0, 1.0, 1.0)
    with pytest.raises(ConfigError, match=r"set epsilon, lower and upper in \[groups\]"):
        SumStages(config)._spent()
    question = SimpleNamespace(half_widths=np.ones(8), offsets=np.ones(2))
    assert question_bits(SimpleNamespace(question=question)) == 4.0  # type: ignore[arg-type]


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
