"""Several labels of each event, from their release to predictions, figures, pages and an export."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from labelveil.common.errors import ConfigError, DataError
from labelveil.feature_party.commands.cli import app
from labelveil.feature_party.config.sections import FeaturePartyConfig, TrueLabels
from labelveil.feature_party.export.run import export_model
from labelveil.feature_party.join.matches import JoinInputs, Party
from labelveil.feature_party.model.several_labels import LabelModels
from labelveil.feature_party.pipeline.means import means_by
from labelveil.feature_party.pipeline.stages import Stages
from labelveil.feature_party.training.prepare import Preparation
from labelveil.feature_party.training.streamed import PreparedShards
from tests.effort import one_in
from tests.feature_party.two_labels import NAMES, Division, two_labels
from tests.feature_party.worlds import SECRET, build_world

ROWS = 1600
PARTIES = {"north": 1, "south": 2}


def stages(folder: Path, division: Division, rows: int = ROWS, **training: object) -> Stages:
    """All stages of a release of two labels, written to a folder."""
    release, table, labels = two_labels(rows, division)
    release.write(folder / "release")
    table.write_parquet(folder / "features.parquet")
    truth = pl.DataFrame({"event": table["event"], **dict(zip(NAMES, labels.T, strict=True))})
    truth.write_parquet(folder / "truth.parquet")
    secret = folder / "keys.secret"
    secret.write_text(SECRET.hex())
    secret.chmod(0o600)
    config = FeaturePartyConfig.model_validate(
        {
            "data": {"key": "event", "features": folder / "features.parquet"},
            "keys": {"secret_file": secret},
            "release": {"directory": folder / "release"},
            "training": {"ensemble": 4, "hidden": [8], **training},
            "output": {
                "model": folder / "model",
                "metrics": folder / "metrics.json",
                "report": folder / "report.html",
                "predictions": folder / "predictions.parquet",
                "above": [40.0],
            },
            "join": {"directory": folder / "joined", "shard_rows": 500},
        }
    )
    return Stages(config, quiet=True, truth=TrueLabels(true_labels=folder / "truth.parquet"))


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    "division",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in ("split", "separate")), "joint"],
)
def test_two_labels_go_all_the_way(tmp_path: Path, division: Division) -> None:
    run = stages(
        tmp_path, division, learner="linear" if division == "separate" else "auto", epochs=8
    )
    models = run.train()
    assert [*models.by_label] == [*NAMES]
    scores = run.evaluate(run.load())
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert [one["name"] for one in metrics["labels"]] == [*NAMES]
    assert metrics["matched"] == ROWS
    for one in metrics["labels"]:
        assert one["verdict"] == "better"
        assert one["test_r2"] > 0.1
        assert one["estimated_r2_low"] < one["test_r2"] < one["estimated_r2_high"]
        assert (tmp_path / f"report-{one['name']}.html").is_file()
    page = (tmp_path / "report.html").read_text()
    assert all(f"report-{name}.html" in page for name in NAMES)
    assert "All labels together (“returned”, “amount”) of one event." in page
    assert scores["returned"].fitting is not None  # a label of two values has a log loss
    assert ("joint" in models.by_label["amount"].facts.heads) == (division == "joint")

    assert run.predict(LabelModels.load(tmp_path / "model")).rows == ROWS
    predicted = pl.read_parquet(tmp_path / "predictions.parquet")
    expected = {"event", "returned", "returned_probability", "amount", "amount_median"}
    assert expected | {"amount_lower", "amount_upper", "amount_above_40"} <= {*predicted.columns}
    assert "returned_above_40" not in predicted.columns


@pytest.mark.slow
def test_shards_hold_what_memory_holds(tmp_path: Path) -> None:
    memory = stages(tmp_path, "split").labels
    run = stages(tmp_path, "split", shards=str(tmp_path / "encoded"))
    assert [*run.labels] == [*memory] == [*NAMES]
    for name, events in run.labels.items():
        assert isinstance(events, PreparedShards)
        assert np.array_equal(events.problem.rows, memory[name].problem.rows)
        kept = pl.DataFrame({"event": events.keys(), "code": events.all_codes()}).sort("event")
        known = pl.DataFrame({"event": memory[name].keys(), "code": memory[name].all_codes()}).sort(
            "event"
        )
        assert kept.equals(known.cast(kept.schema))
        table, codes = events.held_out()
        held = (
            table.select("event")
            .with_columns(code=pl.Series(codes))
            .join(kept, on=["event", "code"])
        )
        assert held.height == events.holdout.size > 0
        streamed = [codes for _, codes in events.training_events(["x"])]
        assert np.concatenate(streamed).max() < events.problem.outputs.size


@pytest.mark.slow
def test_one_file_serves_all_labels(tmp_path: Path) -> None:
    run = stages(tmp_path, "joint", head="gaussian", learner="linear")
    models = run.train()
    exported = export_model(models, tmp_path / "model.onnx", "auto", None)
    assert exported.difference < 1e-5
    assert exported.runtime
    import onnxruntime

    session = onnxruntime.InferenceSession((tmp_path / "model.onnx").read_bytes())
    facts = json.loads(session.get_modelmeta().custom_metadata_map["labelveil"])
    assert [label["name"] for label in facts["labels"]] == [*NAMES]
    outputs = [name for label in facts["labels"] for name in label["outputs"]]
    assert [one.name for one in session.get_outputs()] == outputs


@pytest.mark.slow
def test_decoded_labels_are_a_file_each(tmp_path: Path) -> None:
    run = stages(tmp_path, "joint")
    done = CliRunner().invoke(
        app,
        [
            *("labels", "--output", str(tmp_path / "labels.csv"), "--key", "event", "--json"),
            *(
                "--features",
                str(run.config.features),
                "--secret-file",
                str(run.config.keys.secret_file),
            ),
            *("--release", str(tmp_path / "release"), "--quiet"),
        ],
    )
    assert done.exit_code == 0, done.output
    means = means_by(run.config, ["size"], None, quiet=True)
    assert [(each.label, each.lines[-1]) for each in means] == [(n, f"{n}:") for n in NAMES]
    assert [each.matches == means[0].matches for each in means] == [True, True]
    files = [document["labels"] for document in json.loads(done.stdout)]
    assert files == [str(tmp_path / f"labels-{name}.csv") for name in NAMES]
    truth = pl.read_parquet(tmp_path / "truth.parquet")
    for name in NAMES:
        found = pl.read_csv(tmp_path / f"labels-{name}.csv").join(truth, on="event")
        apart = found["target"] - found[name]
        assert found.height == ROWS
        assert abs(apart.mean()) < 5 * apart.std() / ROWS**0.5
        assert np.corrcoef(found["target"], found[name])[0, 1] > 0.2


@pytest.mark.slow
def test_what_is_about_one_label_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "labelveil.feature_party.pipeline.stages"
    monkeypatch.setattr(f"{module}.write_report", lambda page, given: page.touch())
    run = stages(tmp_path, "split", 300, learner="linear", epochs=1, checkpoint=False)
    models = run.train()
    ideal = json.loads(run.train_on_truth(tmp_path / "ideal").read_text())
    scores = run.evaluate(models, tmp_path / "ideal" / "metrics.json")
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    truth = pl.read_parquet(tmp_path / "truth.parquet")
    for name, found, known in zip(NAMES, metrics["labels"], ideal["labels"], strict=True):
        table = scores[name].events.held_out()[0].join(truth, "event", maintain_order="left")
        missed = models.by_label[name].predict(table)["prediction"] - table[name]
        assert (found["name"], known["name"]) == (name, name)
        assert found["test_mse"] == pytest.approx((missed**2).mean())
        assert found["nonprivate_mse"] == pytest.approx(known["test_mse"])
        assert (tmp_path / f"report-{name}.html").is_file()
    assert ideal["test_mse"] == ideal["labels"][0]["test_mse"] != ideal["labels"][1]["test_mse"]
    page = (tmp_path / "report.html").read_text()
    assert all(f"report-{name}.html" in page for name in NAMES)
    warnings, lines = run.summary(scores)
    assert [line for line in lines if line.removesuffix(":") in NAMES] == [f"{n}:" for n in NAMES]
    assert all(warning.startswith(("returned: ", "amount: ")) for warning in warnings)
    with pytest.raises(ConfigError, match="'squared' must be one of returned:squared"):
        run.evaluate(models, ask=["squared"])
    with pytest.raises(DataError, match="above=100 must be some label's value"):
        models.predict(tmp_path / "features.parquet", above=[100.0])
    LabelModels({"returned": models.by_label["returned"]}).save(tmp_path / "model")
    with pytest.raises(DataError, match="is of returned, and the release of returned, amount"):
        run.load()


def test_labels_may_have_any_name(tmp_path: Path) -> None:
    models = [*stages(tmp_path, "split", 300, learner="linear").train().by_label.values()]
    with pytest.raises(DataError, match="two labels both predict a column 'y_probability'"):
        LabelModels(dict(zip(["y", "y_probability"], models, strict=True))).predict(
            tmp_path / "features.parquet"
        )
    names = ["a/b", "../c"]
    LabelModels(dict(zip(names, models, strict=True))).save(tmp_path / "other")
    assert sorted(one.name for one in (tmp_path / "other").iterdir()) == [
        "label-1",
        "label-2",
        "model.json",
    ]
    found = LabelModels.load(tmp_path / "other")
    assert [*found.by_label] == names
    (tmp_path / "other" / "model.json").write_text('{"format": "labelveil-models/1"}')
    with pytest.raises(DataError, match=r"is damaged .KeyError: 'labels'.; train it again"):
        LabelModels.load(tmp_path / "other")


@pytest.mark.slow
@pytest.mark.parametrize("division", one_in(2, ["split", "joint"]))
def test_several_labels_parties_release_each_label_on_its_own(
    tmp_path: Path, division: Division
) -> None:
    for name, seed in PARTIES.items():
        release, table, _ = two_labels(300, division, seed=seed)
        release.write(tmp_path / name)
    section = FeaturePartyConfig.model_validate({"data": {"key": "event"}})
    table.write_parquet(tmp_path / "features.parquet")
    parties = tuple(Party(SECRET, name) for name in PARTIES)
    folders = tuple(tmp_path / name for name in PARTIES)
    inputs = JoinInputs(folders, tmp_path / "features.parquet", "event", parties)
    sections = section.training, section.join, section.engine
    if division == "joint":
        with pytest.raises(DataError, match=r"ask for releases with \[privacy\] division = split"):
            Preparation(inputs, *sections).events()
        return
    found = Preparation(inputs, *sections).events()
    assert [*found] == [*NAMES]
    digests = [
        hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest() for folder in folders
    ]

    def joined(releases: Sequence[Path], names: Sequence[str]) -> Any:
        parties = tuple(Party(SECRET, name) for name in names)
        own = JoinInputs(tuple(releases), tmp_path / "features.parquet", "event", parties)
        return Preparation(own, *sections).events()

    # what releases say of whom counts where they are several
    both = joined(folders, ["one", "one"])
    for events, facts in ((found, [*digests, *PARTIES]), (both, digests)):
        whose = hashlib.sha256("".join(facts).encode()).hexdigest()
        assert {each.release_id for each in events.values()} == {whose}
    alone = joined(folders[1:], ["south"])
    assert {each.release_id for each in alone.values()} == {digests[1]}
    with pytest.raises(DataError, match="one release stands twice among those to learn from"):
        joined((folders[0], folders[0]), ["one", "one"])
    other = build_world(tmp_path / "other", rows=300)
    for releases, said in (
        ((folders[0], other.directory), "of the labels returned, amount and of amount cannot"),
        ((other.directory, folders[0]), "of the labels amount and of returned, amount cannot"),
    ):
        with pytest.raises(DataError, match=said):
            joined(releases, ["one", "one"])
    for events in found.values():
        assert [one.name for one in events.problem.sources] == [*PARTIES]
