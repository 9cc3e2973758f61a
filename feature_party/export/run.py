"""Write a trained model for serving elsewhere, and leave no file that predicts otherwise.

``onnx``
    One file, preprocessing included: inputs are the raw feature columns, categories as text.
``torch``
    ``torch.export``'s ``.pt2``; it cannot hold text, so a JSON file beside it maps the categories
    of each column to the places that the program takes.

Programs take columns, and return what they predict, by place. Names come from data and stand in no
program: they are text in the facts, JSON in the ONNX file's metadata or beside the ``.pt2``.
"""

from __future__ import annotations

import io
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.files import PUBLIC, appearing, writing
from labelveil.common.formats import EXPORT
from labelveil.common.version import software
from labelveil.feature_party.export.onnx_graph import onnx_model
from labelveil.feature_party.export.torch_module import (
    Column,
    ServedLabels,
    probes,
    served_columns,
)
from labelveil.feature_party.groups.model import SumsModel
from labelveil.feature_party.groups.saved import SavedSums
from labelveil.feature_party.model.columns import quantile
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.model.several_labels import LabelModels

Format = Literal["onnx", "torch"]
Outputs = Sequence[Floats]
Run = Callable[[pl.DataFrame], Outputs]

SUFFIXES: dict[str, Format] = {".onnx": "onnx", ".pt2": "torch"}
TOLERANCE = 1e-5
"""Relative to a prediction, and to the label's standard deviation where that is larger than it by
more than ten times."""

_TIE = 1e-6


@dataclass(frozen=True)
class Exported:
    """What was written."""

    files: tuple[Path, ...]  # the model first
    columns: tuple[Column, ...]  # its inputs
    rows: int  # number of rows on which the written file was compared with the model
    difference: float  # largest difference of a prediction, relative as in :data:`TOLERANCE`
    runtime: str  # what ran it; empty if nothing here can, and nothing was compared


def export_format(output: Path, wanted: str) -> Format:
    """The format asked for, or the one that the file's name ends in."""
    if wanted == "auto":
        if output.suffix.lower() not in SUFFIXES:
            raise ConfigError(
                f"the name {output.name!r} says nothing about the format; end it in"
                f" {' or '.join(SUFFIXES)}, or pass --format"
            )
        return SUFFIXES[output.suffix.lower()]
    if wanted not in SUFFIXES.values():
        raise ConfigError(f"format={wanted!r} must be {', '.join(SUFFIXES.values())} or auto")
    return cast(Format, wanted)


def export_model(
    models: LabelModels | SavedSums,
    output: Path,
    wanted: str,
    sample: pl.DataFrame | None,
) -> Exported:
    """Write models for serving, compare them with the originals, and only then replace ``output``.

    The models are on the CPU. What is ``wanted`` is ``onnx``, ``torch``, or ``auto`` to go by the
    file's name. They are compared on a sample of features, too, besides made-up rows with missing,
    unseen and far-out values.

    ``ConfigError`` if the format is unknown or its packages are not installed; ``DataError``
    if the written file predicts otherwise than the model; it is removed.
    """
    format_ = export_format(output, wanted)
    columns = served_columns(models.encoder)
    each: Mapping[str, Model | SumsModel] = models.by_label
    tables = [probes(models.encoder)] + ([] if sample is None else [sample])
    facts = _facts(models, columns)
    program = _program(models, columns, tables[0])
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".export-") as folder:
        written = Path(folder) / f"model{'.onnx' if format_ == 'onnx' else '.pt2'}"
        files = [output]
        if format_ == "onnx":
            with writing(written):
                written.write_bytes(onnx_model(program, columns, facts).SerializeToString())
            runtime, run = "ONNX Runtime", _onnx_runtime(written, columns)
        else:
            beside = output.with_name(output.name + ".json")
            content = io.BytesIO()  # of a disk that is full torch shows its own stack
            torch.export.save(program, content)
            with writing(written):
                written.write_bytes(content.getbuffer())
                (Path(folder) / beside.name).write_text(json.dumps(facts, indent=1), "utf-8")
            files.append(beside)
            runtime, run = "torch", _torch_runtime(written, columns)
        worst, rows = 0.0, 0
        if run is not None:
            for table in tables:
                outputs = run(table)
                for model, label in zip(each.values(), facts["labels"], strict=True):
                    own = [outputs[facts["outputs"].index(name)] for name in label["outputs"]]
                    # as NumPy's: Python's max would pass over a NaN
                    worst = float(np.maximum(worst, _difference(model, own, table)))
                rows += table.height
            if not worst <= TOLERANCE:
                raise DataError(
                    f"{output} would predict otherwise than the model, by up to {worst:.2g} of a"
                    f" prediction instead of {TOLERANCE:g}; nothing was written"
                )
        made = [Path(folder) / path.name for path in files[1:]] + [written]
        for path, target in zip(made, [*files[1:], output], strict=True):
            with appearing(target, mode=PUBLIC) as file:
                file.write(path.read_bytes())
    return Exported(tuple(files), columns, rows, worst, runtime if run is not None else "")


def _facts(models: LabelModels | SavedSums, columns: tuple[Column, ...]) -> dict[str, Any]:
    each: Mapping[str, Model | SumsModel] = models.by_label
    labels, several = [], len(each) > 1
    for place, (label, model) in enumerate(each.items()):
        outputs = ["prediction"]
        facts: dict[str, Any] = {"loss": _loss_and_deviation(model)[0]}
        if not isinstance(model, SumsModel) and model.has_distributions:
            outputs.append("probabilities")
            facts["support"] = model.support.values.tolist()
        facts["outputs"] = [f"{output}_{place}" if several else output for output in outputs]
        labels.append({"name": label, **facts})
    return {
        "format": str(EXPORT),
        "software": software(),
        "inputs": [column.to_json() for column in columns],
        "outputs": [output for facts in labels for output in facts["outputs"]],
        "labels": labels,
    }


def _loss_and_deviation(model: Model | SumsModel) -> tuple[str, float]:
    """What predictions minimise, and the label's standard deviation, or that of what is missed."""
    if isinstance(model, SumsModel):
        return "squared", model.miss
    return model.problem.loss, model.problem.deviation


def _program(
    models: LabelModels | SavedSums, columns: tuple[Column, ...], table: pl.DataFrame
) -> torch.export.ExportedProgram:
    inputs = _tensors(columns, table)
    rows = torch.export.Dim("rows")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.export.export(
            ServedLabels(models.by_label.values()).eval(),
            inputs,
            dynamic_shapes=(tuple({0: rows} for _ in inputs),),
        )


def _tensors(columns: tuple[Column, ...], table: pl.DataFrame) -> tuple[torch.Tensor, ...]:
    return tuple(torch.as_tensor(column.values(table)) for column in columns)


def _onnx_runtime(path: Path, columns: tuple[Column, ...]) -> Run | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path.read_bytes(), options, ["CPUExecutionProvider"])

    def run(table: pl.DataFrame) -> Outputs:
        found: Outputs = session.run(None, onnx_inputs(columns, table))
        return found

    return run


def onnx_inputs(
    columns: tuple[Column, ...], table: pl.DataFrame
) -> dict[str, Floats | NDArray[np.object_]]:
    """What an exported ONNX graph takes, for a features table: (n,) doubles and texts by input."""
    return {
        column.input: np.array(column.texts(table), dtype=object)
        if column.kind == "category"
        else column.values(table).astype(np.float64)
        for column in columns
    }


def _torch_runtime(path: Path, columns: tuple[Column, ...]) -> Run:
    module = torch.export.load(path).module()

    @torch.no_grad()
    def run(table: pl.DataFrame) -> Outputs:
        return [value.numpy() for value in module(*_tensors(columns, table))]

    return run


def _difference(model: Model | SumsModel, outputs: Outputs, table: pl.DataFrame) -> float:
    """Largest relative difference between a written model's predictions and the model's."""
    wanted = model.distributions(model.encoder.encode(table))
    points, *probabilities = outputs
    if points.shape != wanted.points.shape:
        return float("inf")
    loss, deviation = _loss_and_deviation(model)
    scale = np.maximum(np.abs(wanted.points), 0.1 * deviation)
    apart = np.abs(points - wanted.points) / scale
    if wanted.distributions is None or isinstance(model, SumsModel):
        return float(apart.max())
    if loss == "absolute":
        # a median may be another cell's where the last digit of a probability decides
        low, high = (
            quantile(model.support, wanted.distributions, 0.5 + tie) for tie in (-_TIE, _TIE)
        )
        apart[(low <= points) & (points <= high)] = 0.0
    return float(np.maximum(apart.max(), np.abs(probabilities[0] - wanted.distributions).max()))
