"""Exported models predict what the model predicts, whatever the columns and the head."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from labelveil.common.errors import ConfigError, DataError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.feature_party.commands.cli import app
from labelveil.feature_party.export import run as export_run
from labelveil.feature_party.export import torch_module
from labelveil.feature_party.export.run import export_format, export_model, onnx_inputs
from labelveil.feature_party.export.torch_module import ServedModel, probes, served_columns
from labelveil.feature_party.learning.names import HEAD_NAMES
from labelveil.feature_party.learning.objectives import build_objective
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.model.model import Expert, Model
from labelveil.feature_party.model.network import Ensemble, NetworkShape
from labelveil.feature_party.model.random_features import RandomFeatures, RandomFeaturesShape
from labelveil.feature_party.model.reach import Reach
from labelveil.feature_party.model.several_labels import LabelModels
from labelveil.feature_party.schema import MISSING, Stated
from tests.feature_party.worlds import model_facts
from tests.hostile import names

ROWS = 300


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    """Every kind of column, with names that graphs do not like."""
    rng = np.random.default_rng(0)
    start = datetime(1969, 11, 1)
    return pl.DataFrame(
        {
            "age": rng.integers(18, 80, ROWS),
            "net income, €": np.exp(3 * rng.normal(size=ROWS)),
            "gap": [None if u < 0.2 else u * u for u in rng.random(ROWS)],
            "member": rng.random(ROWS) < 0.5,
            "when": [
                None if i % 9 == 4 else start + timedelta(minutes=2011 * i) for i in range(ROWS)
            ],
            "day": [date(2024, 1, 1) + timedelta(days=i % 40) for i in range(ROWS)],
            "CustomerID": rng.integers(1, 6, ROWS).astype(float),
            "matmul": [("", None, "Größe L", "s1")[i % 4] for i in range(ROWS)],
            "flag": rng.random(ROWS) < 0.3,
        }
    )


def untrained(
    table: pl.DataFrame,
    experts: Sequence[tuple[str, str]],
    loss: str = "squared",
    shrinkage: float = 0.1,
) -> Model:
    """A model with random weights, large enough that every input matters."""
    grid = np.arange(30.0)
    channel = FiniteChannel(grid, grid, randomized_response_rows(30, 2.0))
    problem = LabelProblem.from_channel(channel, np.exp(-grid / 6), loss)
    support = Support.from_problem(problem)
    flags = {"flag"} & {*table.columns}
    encoder = Encoder.fit(table, stated=Stated.from_settings({}, categorical=[*flags]), pieces=3)
    built = []
    for seed, (name, head) in enumerate(experts):
        objective = build_objective(name, problem, support, head)
        shape = NetworkShape(encoder.inputs, encoder.cardinalities, (12,), objective.outputs, 2)
        network = Ensemble(shape, torch.Generator().manual_seed(seed))
        with torch.no_grad():
            network.weights[-1].mul_(6)
            network.embeddings.mul_(6)
        ridge = ridge_on_waves(encoder, objective.outputs, seed)
        built.append(Expert(objective, ridge if seed % 2 else network, 1 / len(experts)))
    factors = reach = None
    if len(experts) > 1:
        factors = np.exp(0.5 * np.sin(np.arange(support.size)))
        reach = Reach(support, 3.0, np.array([0.0, 12.0]), np.array([0.2, 1.0]))
    return Model(encoder, problem, support, built, model_facts(), shrinkage, factors, reach)


def ridge_on_waves(encoder: Encoder, outputs: int, seed: int) -> RandomFeatures:
    """With random weights."""
    sizes = encoder.plain_inputs, encoder.cardinalities
    ridge = RandomFeatures(RandomFeaturesShape(*sizes, waves=9, outputs=outputs, groups=(2, 1)))
    draw = torch.Generator().manual_seed(seed)
    for weights in ridge.parameters():
        weights.data = 0.05 * torch.randn(weights.shape, generator=draw)
    return ridge


def unusual(table: pl.DataFrame) -> pl.DataFrame:
    """The same columns with values that training never saw."""
    return table.head(6).with_columns(
        pl.Series("age", [None, 10**12, -(10**12), 0, 1, 2]),
        pl.Series("net income, €", [float("nan"), float("inf"), -1e300, 1e300, 0.0, -0.0]),
        pl.Series("matmul", ["never", None, "", "<missing>", "größe l", "s1 "]),
        pl.Series("CustomerID", [None, 2.5, 1e20, 3.0, float("nan"), -1.0]),
        pl.Series("when", [datetime(1, 1, 1), None, datetime(2999, 12, 31, 23, 59, 59)] * 2),
    )


def run_onnx(path: Path, model: Model, table: pl.DataFrame) -> dict[str, np.ndarray[Any, Any]]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path)
    columns = served_columns(model.encoder)
    facts = json.loads(session.get_modelmeta().custom_metadata_map["labelveil"])
    assert [entry["name"] for entry in facts["inputs"]] == list(model.encoder.columns)
    called = [value.name for value in session.get_inputs()]
    assert called == [entry["input"] for entry in facts["inputs"]]
    names = [value.name for value in session.get_outputs()]
    assert names == facts["outputs"]
    return dict(zip(names, session.run(None, onnx_inputs(columns, table)), strict=True))


def assert_alike(found: dict[str, Any], model: Model, table: pl.DataFrame) -> None:
    wanted = model.distributions(model.encoder.encode(table))
    np.testing.assert_allclose(found["prediction"], wanted.points, rtol=1e-5)
    if wanted.distributions is not None:
        np.testing.assert_allclose(found["probabilities"], wanted.distributions, atol=3e-6)
    assert np.ptp(wanted.points) > 0.1


@pytest.mark.slow
def test_every_head_and_column_in_onnx_runtime(table: pl.DataFrame, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    heads = [head for head in HEAD_NAMES if head != "bernoulli"]  # which is for two labels
    model = untrained(table, [("likelihood", head) for head in heads])
    exported = export_model(LabelModels({"y": model}), tmp_path / "model.onnx", "auto", table)
    assert exported.runtime == "ONNX Runtime"
    assert exported.rows == ROWS + probes(model.encoder).height
    assert exported.difference < 1e-6
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    for rows in (table, unusual(table)):
        assert_alike(run_onnx(exported.files[0], model, rows), model, rows)


@pytest.mark.parametrize(
    ("objective", "head", "loss"),
    [
        ("debiased", "", "squared"),
        ("raw", "", "poisson"),
        ("likelihood", "negative-binomial", "squared"),
        ("likelihood", "gaussian", "absolute"),
    ],
)
def test_the_module_is_the_model(table: pl.DataFrame, objective: str, head: str, loss: str) -> None:
    experts = [(objective, head)]
    if objective == "likelihood":
        experts.append((objective, "log-normal"))  # a mixture, which is adjusted
    model = untrained(table, experts, loss)
    for rows in (table, unusual(table), probes(model.encoder)):
        columns = served_columns(model.encoder)
        inputs = [torch.as_tensor(column.values(rows)) for column in columns]
        with torch.no_grad():
            found = ServedModel(model).eval()(*inputs)
        names = "prediction", "probabilities"
        assert_alike({n: v.numpy() for n, v in zip(names, found, strict=False)}, model, rows)


@pytest.mark.parametrize("kept", [["age", "gap", "when"], ["flag", "matmul"]])
def test_the_module_of_one_kind_of_columns_is_the_model(
    table: pl.DataFrame, kept: list[str]
) -> None:
    model = untrained(table.select(kept), [("likelihood", "gamma")])
    for rows in (table, unusual(table), probes(model.encoder)):
        inputs = [torch.as_tensor(c.values(rows)) for c in served_columns(model.encoder)]
        with torch.no_grad():
            points, laws = ServedModel(model).eval()(*inputs)
        found = {"prediction": points.numpy(), "probabilities": laws.numpy()}
        assert_alike(found, model, rows.select(kept))


def test_a_mixture_of_all_heads_is_what_it_was_once_it_is_read(
    table: pl.DataFrame, tmp_path: Path
) -> None:
    heads = [head for head in HEAD_NAMES if head != "bernoulli"]
    model = untrained(table, [("likelihood", head) for head in heads])
    model.save(tmp_path)
    again = Model.load(tmp_path)
    for rows in (table, unusual(table)):
        asked = rows, 0.8, [0.3], [5.0]
        frames = model.predict(*asked), again.predict(*asked)
        assert frames[0].columns == frames[1].columns
        for column in frames[0].columns:
            np.testing.assert_allclose(frames[1][column], frames[0][column], rtol=1e-9)
    assert [again.reaches(value) for value in (-0.1, 0.0, 28.9, 29.0)] == [
        False, True, True, False,
    ]  # fmt: skip
    shorter = json.loads((tmp_path / "model.json").read_text("utf-8"))
    shorter["adjustment"].pop()
    (tmp_path / "model.json").write_text(json.dumps(shorter), "utf-8")
    with pytest.raises(DataError, match="29 factors for 30 cells"):
        Model.load(tmp_path)


@pytest.mark.slow
def test_torch_program_with_its_tables(table: pl.DataFrame, tmp_path: Path) -> None:
    model = untrained(table, [("likelihood", "gaussian")], "absolute")
    LabelModels({"label": model}).save(tmp_path / "model")
    table.write_parquet(tmp_path / "features.parquet")
    result = CliRunner().invoke(
        app,
        [
            *("export", "--model", str(tmp_path / "model")),
            *("--features", str(tmp_path / "features.parquet")),
            *("-o", str(tmp_path / "served" / "model.pt2")),
        ],
        catch_exceptions=False,
    )
    assert "9 inputs; 556 rows agree to" in result.output
    # a server that knows nothing but the two files
    facts = json.loads((tmp_path / "served" / "model.pt2.json").read_text("utf-8"))
    program = torch.export.load(tmp_path / "served" / "model.pt2").module()
    inputs = []
    for column in facts["inputs"]:
        values = table[column["name"]]
        if column["kind"] == "moment":
            array = values.cast(pl.Datetime("us")).dt.epoch("us").cast(pl.Float64) / 1e6
        elif column["kind"] == "number":
            array = values.cast(pl.Float64)
        else:
            whole = values.cast(pl.Int64) if values.dtype == pl.Float64 else values
            texts = whole.cast(pl.String).str.strip_chars().replace("", None)
            texts = texts.fill_null(column["missing"])
            array = pl.Series([column["places"].get(t, column["unknown_place"]) for t in texts])
        inputs.append(torch.as_tensor(array.to_numpy(writable=True)))
    with torch.no_grad():
        found = dict(zip(facts["outputs"], program(*inputs), strict=True))
    points = model.predict(table)["prediction"].to_numpy()
    np.testing.assert_allclose(found["prediction"].numpy(), points, rtol=1e-5)
    assert sorted(path.name for path in (tmp_path / "served").iterdir()) == [
        "model.pt2",
        "model.pt2.json",
    ]


@pytest.mark.slow
def test_a_file_that_disagrees_is_not_left(
    table: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = untrained(table, [("raw", "")])

    class Off(ServedModel):
        def forward(self, *columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (super().forward(*columns)[0] * (1 + 1e-4),)

    monkeypatch.setattr(torch_module, "ServedModel", Off)
    (tmp_path / "model.pt2").write_text("an earlier one")
    with pytest.raises(DataError, match="would predict otherwise"):
        export_model(LabelModels({"y": model}), tmp_path / "model.pt2", "auto", None)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["an earlier one"]


def test_formats_go_by_the_name() -> None:
    assert export_format(Path("a.onnx"), "auto") == "onnx"
    assert export_format(Path("a.PT2"), "auto") == "torch"
    assert export_format(Path("a"), "torch") == "torch"
    for path, wanted in (("a.pt", "auto"), ("a.onnx", "tensorflow")):
        with pytest.raises(ConfigError, match=r"format"):
            export_format(Path(path), wanted)


def test_a_missing_category_has_a_text_of_its_own() -> None:
    encoder = Encoder.fit(pl.DataFrame({"a": ["\x1amissing", None, "x"] * 9}))
    (column,) = served_columns(encoder)
    assert column.missing not in ("", "\x1amissing", "x")
    rows = pl.DataFrame({"a": ["\x1amissing", None, "x", "y"]})
    assert column.values(rows).tolist() == encoder.encode(rows).categories[:, 0].tolist()


def test_no_name_of_a_column_or_a_label_is_executed(tmp_path: Path) -> None:
    """Neither by who exports, nor by who calls the program."""
    canary, generator = tmp_path / "canary", np.random.default_rng(0)
    hostile = names(canary)[:10]
    table = pl.DataFrame({name: generator.normal(size=ROWS) for name in hostile})
    table = table.with_columns(flag=generator.random(ROWS) < 0.3)
    models = LabelModels({label: untrained(table, [("raw", "")]) for label in hostile[:2]})
    exported = export_model(models, tmp_path / "model.pt2", "auto", table)
    facts = json.loads((tmp_path / "model.pt2.json").read_text("utf-8"))
    assert [column["name"] for column in facts["inputs"]] == [*hostile, "flag"]
    assert [label["name"] for label in facts["labels"]] == hostile[:2]
    program = torch.export.load(exported.files[0]).module()
    inputs = [torch.as_tensor(column.values(table)) for column in exported.columns]
    for points, model in zip(program(*inputs), models.by_label.values(), strict=True):
        wanted = model.predict(table)["prediction"].to_numpy()
        np.testing.assert_allclose(points.detach().numpy(), wanted, rtol=1e-5)
    assert not canary.exists()


def test_a_model_of_many_columns_has_rows_to_be_compared_on() -> None:
    generator = np.random.default_rng(0)
    table = pl.DataFrame({str(place): generator.normal(size=50) for place in range(70)})
    made = probes(Encoder.fit(table))
    assert made.columns == table.columns
    assert all(series.is_nan().any() for series in made)


def test_made_up_rows_have_what_is_usual_missing_unseen_and_far_out(table: pl.DataFrame) -> None:
    encoder = Encoder.fit(table, stated=Stated.from_settings({}, categorical=["flag"]))
    made = probes(encoder)
    for column in encoder.numeric:
        series = made[column.name]
        if column.part == "value":
            assert {np.inf, 1e30, -1e30} < set(series)
            assert series.is_nan().any()
            usual = ((series - column.middle).abs() <= column.spread).sum()
            assert usual == pytest.approx(made.height / 2, abs=5)
        else:
            assert series.null_count() == 1
            assert series.n_unique() == made.height
    for category in encoder.categorical:
        known = {None if text == MISSING else text for text in category.vocabulary}
        assert known | {None} < set(made[category.name])


def test_a_column_is_read_as_its_description_says() -> None:
    """By who has nothing but the two files."""
    table = pl.DataFrame(
        {
            "price": ["1.234,5", "7,25", "-", "0,5"] * 9,
            "day": ["31.12.2024", "01.02.2025", None, "05.06.2020"] * 9,
            "shop": ["a", "b", "?", "c"] * 9,
        }
    )
    said = {
        "price": "number 1.234,5; missing: -",
        "day": "date %d.%m.%Y",
        "shop": "category; missing: ?",
    }
    for column in served_columns(Encoder.fit(table, stated=Stated.from_settings(said))):
        data = json.loads(json.dumps(column.to_json()))
        (meaning,) = Stated.from_settings({data["name"]: data["read"]}).given
        cells = meaning.read(table[data["name"]])
        found = column.values(table)
        if data["kind"] == "category":
            texts = cells.replace(MISSING, data["missing"]).to_list()
            assert [data["places"][text] for text in texts] == found.tolist()
            assert found[2] != found[0]
        elif data["kind"] == "number":
            assert cells.to_list()[:4] == [1234.5, 7.25, None, 0.5]
            np.testing.assert_array_equal(cells.to_numpy(), found)
        else:
            days = np.array(["2024-12-31", "2025-02-01", "NaT", "2020-06-05"], "datetime64[s]")
            seconds = [math.nan if np.isnat(day) else float(day.astype(int)) for day in days]
            np.testing.assert_array_equal(found[:4], seconds)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("off", "usual"), [(1 + 1e-4, True), (1 + 1e-4, False), (float("nan"), False), (np.inf, True)]
)
def test_one_cell_that_is_off_is_seen(
    table: pl.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: int,
    off: float,
    usual: bool,
) -> None:
    """Of predictions or of probabilities, be it no number, of a usual row or of a made-up one; what
    is written is made up here."""
    model = untrained(table, [("likelihood", "gaussian")])

    def run(rows: pl.DataFrame, scale: float) -> list[np.ndarray[Any, Any]]:
        wanted = model.distributions(model.encoder.encode(rows))
        assert wanted.distributions is not None
        found = [wanted.points.copy(), wanted.distributions.copy()]
        if (rows is table) == usual:
            found[place].flat[found[place].argmax()] *= scale
        return found

    def export(scale: float) -> None:
        monkeypatch.setattr(export_run, "_torch_runtime", lambda *a: lambda rows: run(rows, scale))
        export_model(LabelModels({"y": model}), tmp_path / "model.pt2", "auto", table)

    monkeypatch.setattr(export_run, "_program", lambda *a: None)
    monkeypatch.setattr(torch.export, "save", lambda program, file: file.write(b"new"))
    (tmp_path / "model.pt2").write_text("old")
    with pytest.raises(DataError, match="would predict otherwise"):
        export(off)
    assert (tmp_path / "model.pt2").read_text() == "old"
    export(1.0)
    assert (tmp_path / "model.pt2").read_text() == "new"


def test_a_link_stays_one_as_a_device_does(
    table: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_run, "_program", lambda *a: None)
    monkeypatch.setattr(export_run, "_torch_runtime", lambda *a: None)
    monkeypatch.setattr(torch.export, "save", lambda program, file: file.write(b"new"))
    (tmp_path / "latest.pt2").symlink_to("first.pt2")
    models = LabelModels({"y": untrained(table, [("raw", "")])})
    export_model(models, tmp_path / "latest.pt2", "auto", None)
    assert (tmp_path / "latest.pt2").is_symlink()
    assert (tmp_path / "first.pt2").read_text() == "new"


def test_a_disk_without_room_is_one_line(
    table: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = torch.export.export(torch.nn.Linear(100, 100), (torch.zeros(1, 100),))
    monkeypatch.setattr(export_run, "_program", lambda *a: program)
    models = LabelModels({"y": untrained(table, [("raw", "")])})
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*/model\.pt2'"):
            export_model(models, tmp_path / "model.pt2", "auto", None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert not list(tmp_path.iterdir())
