"""A model of sums predicts, where it is served, what it predicts here."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

import labelveil as lv
from labelveil.common.mechanisms.group_sums import Lattice
from labelveil.feature_party.commands.cli import app
from labelveil.feature_party.export.run import onnx_inputs
from labelveil.feature_party.export.torch_module import ServedSums, probes, served_columns
from labelveil.feature_party.groups.model import SumsModel
from labelveil.feature_party.groups.saved import SavedSums, SumsFacts

ROWS = 800
LATTICE = Lattice.between(-2, 10)


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    rng = np.random.default_rng(4)
    start = datetime(2024, 3, 1)
    return pl.DataFrame(
        {
            "x": [None if u < 0.1 else u for u in rng.random(ROWS)],
            "skewed": np.exp(2 * rng.normal(size=ROWS)),
            "kind": rng.choice(["a", "b", "c", None], ROWS),
            "when": [start + timedelta(minutes=607 * row) for row in range(ROWS)],
        }
    )


@pytest.fixture(scope="module")
def model(table: pl.DataFrame) -> SumsModel:
    x = table["x"].fill_null(0.5).to_numpy()
    labels = 6 * (x > 0.6) + 3 * (table["kind"] == "a").fill_null(value=False).to_numpy()
    groups = np.random.default_rng(0).permutation(ROWS) // 4
    widths = np.full(ROWS // 4, (LATTICE.steps + 1) // 2)
    question = lv.GroupQuestion(LATTICE, groups, widths, np.array([LATTICE.steps // 2]))
    fitted = SumsModel.fit(table, [lv.group_sums(labels, question, epsilon=8)])
    assert fitted.boosted is not None
    return fitted


@pytest.mark.slow
def test_the_module_is_the_model(table: pl.DataFrame, model: SumsModel) -> None:
    strange = table.head(4).with_columns(
        pl.Series("x", [float("inf"), -1e300, None, 0.0]),
        pl.Series("kind", ["never", "", None, "a"]),
        pl.Series("when", [None, datetime(1, 1, 1), datetime(2999, 12, 31), None]),
    )
    clipped = replace(model, lattice=Lattice(1, 5, 8))  # below what it says of some, and above
    for of in (model, replace(model, boosted=None), clipped):
        for rows in (table, strange, probes(model.encoder)):
            inputs = [torch.as_tensor(c.values(rows)) for c in served_columns(model.encoder)]
            with torch.no_grad():
                (found,) = ServedSums(of).eval()(*inputs)
            wanted = of.distributions(of.encoder.encode(rows)).points
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5)
            assert rows is strange or np.ptp(wanted) > 2


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_the_command_writes_a_file_that_predicts_alike(
    table: pl.DataFrame, model: SumsModel, tmp_path: Path, suffix: str
) -> None:
    facts = SumsFacts(("ab",), ROWS, 3.0, "", 0, "id", "amount")
    SavedSums(model, facts).save(tmp_path / "model")
    output = tmp_path / f"model.{suffix}"
    given = ["export", "--model", str(tmp_path / "model"), "-o", str(output)]
    result = CliRunner().invoke(app, given, catch_exceptions=False)
    assert "4 inputs; 256 rows agree to" in result.output
    columns = served_columns(model.encoder)
    if suffix == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(output)
        told = json.loads(session.get_modelmeta().custom_metadata_map["labelveil"])
        (found,) = session.run(None, onnx_inputs(columns, table))
    else:
        told = json.loads(output.with_name("model.pt2.json").read_text("utf-8"))
        inputs = [torch.as_tensor(column.values(table)) for column in columns]
        (points,) = torch.export.load(output).module()(*inputs)
        found = points.detach().numpy()
    assert told["labels"] == [{"name": "amount", "loss": "squared", "outputs": ["prediction"]}]
    wanted = model.distributions(model.encoder.encode(table)).points
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)  # of labels -2 … 10
