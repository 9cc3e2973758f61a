"""Models are trained, saved by one worker, and loaded for the events that they were trained on."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import ConfigError, DataError
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.pipeline import learning
from labelveil.feature_party.pipeline.choice import learns_from_sums, stages_of
from labelveil.feature_party.pipeline.learning import Learning, _epochs_on
from labelveil.feature_party.pipeline.stages import Stages
from labelveil.feature_party.pipeline.sums import SumStages, question_bits
from labelveil.feature_party.training.fitting import EpochRecord
from tests.feature_party.pipeline.configured import configured, prepared, said
from tests.feature_party.worlds import World


@pytest.mark.parametrize(
    ("name", "value"), [("release", "cd"), ("matched", 7), ("holdout", 0.5), ("seed", 9)]
)
def test_only_a_model_of_these_events_is_loaded(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    facts = {"release": "ab", "matched": 1500, "holdout": 0.2, "seed": 0, "held_out": ""}
    models = SimpleNamespace(by_label={"y0": SimpleNamespace(facts=SimpleNamespace(**facts))})
    monkeypatch.setattr(
        "labelveil.feature_party.pipeline.learning.LabelModels.load", lambda folder: models
    )
    labels = prepared()
    labels["y0"].holdout = np.zeros(0, dtype=int)
    stages = Learning(configured(world, tmp_path), _labels=labels)
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


def test_a_model_is_scored_on_the_events_that_it_left_out(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their places are others where a row of the features is new, or rows come in another order."""
    facts = SimpleNamespace(release="ab", matched=1500, holdout=0.2, seed=0)
    facts.held_out = hashlib.sha256(b"a\0b").hexdigest()
    models = SimpleNamespace(by_label={"y0": SimpleNamespace(facts=facts)})
    monkeypatch.setattr(
        "labelveil.feature_party.pipeline.learning.LabelModels.load", lambda folder: models
    )
    (events,) = prepared().values()
    events.key, events.holdout = "k", np.arange(2)
    stages = Learning(configured(world, tmp_path), _labels={"y0": events})
    events.held_out = lambda: (pl.DataFrame({"k": ["b", "a"]}), None)
    assert stages.load() is models
    events.held_out = lambda: (pl.DataFrame({"k": ["a", "c"]}), None)
    with pytest.raises(DataError, match="are not those, in their order, that the model"):
        stages.load()


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
    labels["y0"].found = SimpleNamespace(describe=lambda ignored: ["x is a number"])
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
