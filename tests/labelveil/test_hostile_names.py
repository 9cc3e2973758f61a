"""Names of columns, categories, labels, keys and files are data at every door of either party.

Both parties run as processes of their own on a table whose names would be code, paths, formats,
patterns or marks; then the features party predicts, exports and reports. Nothing is executed, and
all that is written reads back as the names that went in.
"""

from __future__ import annotations

import csv
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from markdown_it import MarkdownIt

from labelveil.common.errors import printable
from labelveil.feature_party.commands.cli import main as feature_party
from labelveil.label_party.commands.cli import main as label_party
from labelveil.simulation import Settings, run_simulation
from tests.commands import RunCommand
from tests.hostile import Page, names

pytest.importorskip("torch", reason="the features party needs torch")

ROWS = 1_500
KEY = "^k\"' $[red]*$"
LABEL = '^am"ount\x1b[31m\n|<b>$x$ `[a](b)'
QUICK = (
    *("training.ensemble=1", "training.epochs=2", "training.checkpoint=false"),
    *("training.learner=networks", "training.hidden=[4]"),
)


@dataclass(frozen=True)
class Run:
    folder: Path  # of the run
    table: Path
    names: list[str]
    canary: Path


def hostile_table(canary: Path) -> pl.DataFrame:
    """Every third column of categories, which are hostile, too; the others are numbers."""
    generator, all_names = np.random.default_rng(0), names(canary)
    x = generator.normal(size=ROWS)
    columns: dict[str, Any] = {KEY: [f"k{i}" for i in range(ROWS)]}
    columns[LABEL] = np.clip(2 + 2 * x, 0, 4)
    for place, name in enumerate(all_names):
        if place % 3:
            columns[name] = x * np.sin(place) + generator.normal(size=ROWS)
        else:
            drawn = generator.integers(0, 12, ROWS)
            columns[name] = [all_names[(7 * each + place) % len(all_names)] for each in drawn]
    return pl.DataFrame(columns)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("hostile")
    canary = folder / "canary"
    table = folder / f"all `[1]* $(touch {canary.name}) {{epoch}} %s <b>.parquet"
    hostile_table(canary).write_parquet(table)
    settings: dict[str, Any] = {
        "labels": table, "features": table, "key": KEY, "label": LABEL, "lower": 0.0,
        "upper": 4.0, "epsilon": 4.0, "out": folder / "out", "feature_settings": QUICK,
        "quiet": True,
    }  # fmt: skip
    run_simulation(Settings(**settings))
    return Run(folder / "out", table, names(canary), canary)


@pytest.mark.slow
def test_the_run_executes_nothing_and_its_pages_show_the_names(run: Run) -> None:
    assert not list(run.folder.rglob("canary"))
    assert not run.canary.exists()
    page = Page((run.folder / "report.html").read_text("utf-8"))
    assert not page.elements & {"script", "img", "b", "iframe"}
    assert not [name for name in page.attributes if name.startswith("on")]
    for name in (printable(LABEL), *run.names):
        assert printable(name, lines=True) in page.text, name
    card = (run.folder / "report.md").read_text("utf-8")
    tokens = MarkdownIt().enable("table").parse(card)
    headings = [token.tag for token in tokens if token.type == "heading_open"]
    assert headings == ["h1"] + ["h2"] * 5
    inner = [child for token in tokens for child in token.children or []]
    assert {child.type for child in inner} <= {
        *("text", "code_inline", "softbreak", "strong_open", "strong_close"),
    }
    words = "".join(child.content for child in inner if child.type == "text")
    for name in run.names:
        assert printable(name) in words, name
    for toml in run.folder.rglob("label_party.toml"):
        data = tomllib.loads(toml.read_text("utf-8"))["data"]
        assert (data["key"], data["label"]) == (KEY, LABEL)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_exports_predict_what_the_model_predicts_and_execute_nothing(
    run: Run, ending: str, tmp_path: Path, run_command: RunCommand
) -> None:
    import torch

    if ending == ".onnx":
        pytest.importorskip("onnxscript")
        onnxruntime = pytest.importorskip("onnxruntime")
    model, output = run.folder / "model", tmp_path / f"served{ending}"
    sources = "--model", str(model), "--features", str(run.table)
    done = run_command(feature_party, "export", *sources, "-o", str(output), "--json")
    assert done.code == 0, done
    assert not run.canary.exists()
    assert {entry["name"] for entry in json.loads(done.out)["inputs"]} <= set(run.names)
    written = "--key", KEY, "--output", str(tmp_path / "p.parquet"), "--quiet"
    done = run_command(feature_party, "predict", *sources, *written)
    assert done.code == 0, done
    wanted = pl.read_parquet(tmp_path / "p.parquet")
    assert wanted.columns[0] == KEY
    # a server that knows nothing but the files, and the table
    table = pl.read_parquet(run.table, glob=False)
    if ending == ".pt2":
        facts = json.loads(Path(f"{output}.json").read_text("utf-8"))
        program = torch.export.load(output).module()
    else:
        session = onnxruntime.InferenceSession(output)
        facts = json.loads(session.get_modelmeta().custom_metadata_map["labelveil"])
    inputs: dict[str, Any] = {}
    for column in facts["inputs"]:
        values = table[column["name"]]
        if column["kind"] == "number":
            inputs[column["input"]] = values.to_numpy().copy()
            continue
        # as the model reads a cell: without space around it, and nothing is missing
        values = values.alias("").str.strip_chars().replace("", None).fill_null(column["missing"])
        if ending == ".onnx":
            inputs[column["input"]] = np.array(values.to_list(), dtype=object)
        else:
            places = [column["places"].get(text, column["unknown_place"]) for text in values]
            inputs[column["input"]] = np.array(places)
    if ending == ".pt2":
        with torch.no_grad():
            found = program(*map(torch.as_tensor, inputs.values()))[0].numpy()
        assert "canary" not in program.code
    else:
        found = session.run(None, inputs)[0]
    np.testing.assert_allclose(found, wanted["prediction"].to_numpy(), rtol=1e-5)
    assert not run.canary.exists()


@pytest.mark.slow
def test_a_folder_and_a_csv_file_of_predictions_keep_the_key(
    run: Run, tmp_path: Path, run_command: RunCommand
) -> None:
    folder = tmp_path / "many [1]*"
    folder.mkdir()
    table = pl.read_parquet(run.table, glob=False)
    table[:700].write_parquet(folder / "a[0].parquet")
    table[700:].write_parquet(folder / "b*.parquet")
    for features, rows in ((folder, ROWS), (folder / "a[0].parquet", 700)):
        done = run_command(
            *(feature_party, "predict", "--model", str(run.folder / "model"), "--key", KEY),
            *("--features", str(features), "--output", str(tmp_path / "p.csv"), "--quiet"),
        )
        assert done.code == 0, done
        with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
            written = [line[KEY] for line in csv.DictReader(file)]
        assert written == table[KEY][:rows].to_list()


def test_init_and_release_take_them_for_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    canary = tmp_path / "canary"
    hostile = names(canary)
    values = [hostile[place % len(hostile)] for place in range(3_000)]
    table = pl.DataFrame(
        {KEY: range(3_000), LABEL: [place % 5 for place in range(3_000)], "^kind$": values}
    )
    table[[KEY, "^kind$"]].write_parquet("events [1].parquet")
    table[[KEY, LABEL]].write_parquet("labels *.parquet")
    done = run_command(
        *(label_party, "init", "--labels", "labels *.parquet", "--key", KEY),
        *("--population", "events [1].parquet", "--strata-column", "^kind$"),
        *("--label", f"{LABEL}:0:4", "--epsilon", "4", "--total-epsilon", "8", "--new-secret"),
    )
    assert done.code == 0, done
    text = Path("label_party.toml").read_text("utf-8")
    data = tomllib.loads(text)
    assert (data["data"]["key"], data["data"]["label"]) == (KEY, LABEL)
    assert data["strata"]["column"] == "^kind$"
    listed = Path("strata.txt").read_text("utf-8").split("\n")
    assert set(listed) <= {name.strip() for name in hostile}
    assert "^.*$" in listed
    assert "{{ 7*7 }}{% for %}" in listed
    for epoch in ("../out", "a/b", "a\n", "..", "$(x)", "", "x" * 65):
        done = run_command(label_party, "release", "--set", f"data.epoch={json.dumps(epoch)}")
        assert done.error
    done = run_command(label_party, "release", "--yes", "--quiet")
    assert done.code == 0, done
    assert "\x1b" not in done.out + done.err
    assert {path.name for path in tmp_path.iterdir()} <= {
        *("labels *.parquet", "events [1].parquet", "label_party.toml", "strata.txt"),
        *("label_party.toml.receipt", "label_store", "certificates"),
    }
    for command in ("budget", "status"):
        assert run_command(label_party, command).code == 0
    assert not canary.exists()
