"""What commands print and write of what was done, and what they ask to be done."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from labelveil.common.errors import ConfigError
from labelveil.common.release.event_keys import hash_keys
from labelveil.feature_party.commands.cli import app
from labelveil.feature_party.commands.options import start
from labelveil.feature_party.evaluation.group_means import GroupMean
from labelveil.feature_party.evaluation.intervals import Measured
from labelveil.feature_party.model.drift import ColumnDrift
from labelveil.feature_party.pipeline.means import LabelMeans
from labelveil.feature_party.torchrun import started_by_torchrun
from tests.feature_party.commands.stand_ins import MATCHES, PIPELINE, invoke, refusal
from tests.feature_party.worlds import SECRET, World

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize("names", [("",), ("pay", "late")])
def test_means_are_a_document_of_each_label(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [GroupMean(("a",), 12, Measured(1.0, 0.5, 1.5))]
    found = [LabelMeans(name, ["x"], 0.5, MATCHES, True, groups) for name in names]
    monkeypatch.setattr(f"{PIPELINE}.means.means_by", lambda *given, quiet: found)
    document = json.loads(invoke("means", "--by", "x", "--json"))
    wanted = [json.loads(json.dumps(each.to_json(), default=str)) for each in found]
    assert document == (wanted if len(names) > 1 else wanted[0])
    shown = invoke("means", "--by", "x")
    assert shown.count(str(MATCHES)) == len(names)
    assert [f"{name}:" in shown.splitlines() for name in names] == [bool(n) for n in names]


def test_predictions_end_a_script_where_a_column_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same, other = (
        ColumnDrift(name, "number", (0.0, now), (0.0, 0.0), (0.0, 0.0), 0.0)
        for name, now in (("a", 0.0), ("b", 0.9))
    )
    done = SimpleNamespace(rows=1200, drift=[same, other])
    loaded = "labelveil.feature_party.model.several_labels.LabelModels.load"
    monkeypatch.setattr(loaded, lambda folder: folder)
    asked = []

    def predict(config: Any, model: Any, *, quiet: bool) -> Any:
        asked.append((model, quiet))
        return done

    monkeypatch.setattr(f"{PIPELINE}.predicting.predict", predict)
    given = ("predict", "--model", "m", "--output", "p.csv", "--features", "f.csv")
    assert invoke(*given) == "1,200 predictions in p.csv\n"
    document = json.loads(invoke(*given, "--json", "-q"))
    assert (document["rows"], document["predictions"]) == (1200, "p.csv")
    assert [column["column"] for column in document["drift"]] == ["a", "b"]
    assert asked == [(Path("m"), False), (Path("m"), True)]
    assert refusal(*given, "--fail-on-drift") == (
        "columns of f.csv are unlike what the model was trained on ('b'), as said above; the"
        " predictions are in p.csv"
    )
    done.drift = [same]
    invoke(*given, "--fail-on-drift")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["unbiased", "low-variance"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_labels_are_written_with_their_channel(world: World, method: str, suffix: str) -> None:
    output = f"out/labels{suffix}"
    given = ("--release", str(world.directory), "--features", str(world.features))
    given = (*given, "--key", "event", "--secret-file", str(world.secret_file))
    document = json.loads(
        invoke("labels", *given, "-o", output, "--method", method, "--json", "-q")
    )
    assert document == {
        "release_rows": 1500, "feature_rows": 1500, "matched": 1500, "labels": output,
        "channel": "out/labels.json", "parties": [], "right_secrets": True, "unmatched": [],
    }  # fmt: skip
    facts = json.loads(Path("out/labels.json").read_text())
    assert facts.keys() == {"grid", "prior", "channel"}
    channel = np.array(facts["channel"])
    np.testing.assert_allclose(channel, world.release.manifest.channel.probabilities, atol=1e-12)
    read = pl.read_csv if suffix == ".csv" else pl.read_parquet
    table = read(output)
    assert table.columns == ["event", "code", "target", "weight"]
    # each key has the code that was sent of it
    sent = {world.keys[16 * i : 16 * i + 16]: code for i, code in enumerate(world.codes)}
    ours = hash_keys(table["event"], SECRET)
    assert table["code"].to_list() == [sent[ours[16 * i : 16 * i + 16]] for i in range(1500)]
    if method == "unbiased":
        by_code = dict(zip(table["code"], table["target"], strict=True))
        targets = np.array([by_code.get(code, 0.0) for code in range(channel.shape[1])])
        np.testing.assert_allclose(channel @ targets, facts["grid"], atol=1e-6)
    said = invoke("labels", *given, "-o", output, "--method", method).splitlines()
    assert said[-1] == f"1,500 labels in {output}; the channel in out/labels.json"


def test_only_tables_are_written() -> None:
    assert "labels.txt" in refusal("labels", "-o", "labels.txt")


@pytest.mark.parametrize(
    ("size", "said"), [("0", "WORLD_SIZE='0'"), ("two", "WORLD_SIZE='two'"), ("-1", "'-1'")]
)
def test_how_many_workers_there_are(size: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert started_by_torchrun() == 1
    for many in (1, 3):
        monkeypatch.setenv("WORLD_SIZE", str(many))
        assert started_by_torchrun() == many
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(ConfigError, match=said):
        started_by_torchrun()


def test_whatever_will_be_written_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    start({"--output": Path("a/b.csv")}, {"--model": Path("c/d")})
    Path("file").touch()
    with pytest.raises(ConfigError, match="--output"):
        start({"--output": Path("file/b.csv")})
    with pytest.raises(ConfigError, match="--model"):
        start({}, {"--model": Path("file")})
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="run this command without torchrun"):
        start()
    start(torchrun=True)


def test_an_export_says_what_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    column = SimpleNamespace(name="x", input="in_0", kind="number")
    exported = SimpleNamespace(
        files=(Path("m.pt2"), Path("m.pt2.json")), columns=(column,), rows=1234, difference=1.23e-7,
        runtime="torch",
    )  # fmt: skip
    seen = []
    encoder = SimpleNamespace(columns=("x",), check=lambda names: seen.append(names))
    models = SimpleNamespace(encoder=encoder, for_source=lambda name: seen.append(name) or models)
    several = "labelveil.feature_party.model.several_labels.LabelModels.load"
    monkeypatch.setattr(several, lambda folder: models)

    def export(of: Any, output: Path, wanted: str, sample: Any) -> Any:
        seen.append((output, wanted, None if sample is None else sample.shape))
        return exported

    monkeypatch.setattr("labelveil.feature_party.export.run.export_model", export)
    given = ("export", "--model", "m", "-o", "m.pt2")
    assert invoke(*given) == (
        "1 inputs; 1,234 rows agree to 1e-07 in torch; in m.pt2 and m.pt2.json\n"
    )
    pl.DataFrame({"x": range(3000), "z": range(3000)}).write_csv("f.csv")
    document = json.loads(
        invoke(
            *given, "--features", "f.csv", "--format", "torch", "--set", "output.source=a", "--json"
        )
    )
    assert document == {
        "inputs": [{"name": "x", "input": "in_0", "kind": "number"}],
        "files": ["m.pt2", "m.pt2.json"], "runtime": "torch", "rows_compared": 1234,
        "largest_difference": 1.23e-7,
    }  # fmt: skip
    assert seen == [
        "", (Path("m.pt2"), "auto", None), "a", ["x", "z"], (Path("m.pt2"), "torch", (2000, 1)),
    ]  # fmt: skip
    exported.runtime = ""
    assert "1 inputs; not compared: no runtime for it is installed here" in invoke(*given)
    assert json.loads(invoke(*given, "--json")).keys() == {"inputs", "files"}


@pytest.mark.parametrize(
    "name",
    ["init", "doctor", "submit", "fetch", "join", "train", "labels", "means", "evaluate", "predict",
     "export", "run"],
)  # fmt: skip
def test_a_command_says_of_itself_what_the_program_says_of_it(name: str) -> None:
    own = " ".join(CliRunner().invoke(app, [name, "--help"]).output.split())
    listed = CliRunner().invoke(app, ["--help"]).output.partition("Commands:")[2]
    said = " ".join(re.split(r"\n\n|\n  (?=\S)", listed.split(f"\n  {name} ")[1])[0].split())
    assert len(said) > 30
    assert said in own


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("doctor", ()), ("submit", ()), ("fetch", ()), ("join", ()), ("labels", ()),
        ("means", ("--by", "x")), ("evaluate", ()), ("predict", ()), ("export", ()), ("run", ()),
    ],
)  # fmt: skip
def test_what_takes_one_process_is_refused_to_several(
    name: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE=2, but train alone takes several processes" in refusal(name, *more)
