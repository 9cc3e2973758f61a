"""A served model as an ONNX graph: torch's exporter, with text lookup in front."""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from labelveil.common.errors import ConfigError, not_none
from labelveil.common.extras import install_command
from labelveil.feature_party.export.torch_module import Column

ML_OPSET = 3
_PREFIX = "served"
_SHIFT = 8
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)


def onnx_model(
    program: torch.export.ExportedProgram, columns: Sequence[Column], facts: Mapping[str, Any]
) -> Any:
    """Translate what torch's export made of a served model to an ``onnx.ModelProto``.

    Its inputs and outputs are called as the facts say, by their places: names of columns and labels
    stand in the facts alone. Categories become text, looked up by ``ai.onnx.ml.LabelEncoder``.
    Under the metadata key ``labelveil`` lie the facts, as JSON.

    ``ConfigError`` if the packages for it are not installed.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"--format onnx needs the package {error.name!r}; {install_command('export')}"
        ) from error
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            aten = torch.ops.aten
            table: dict[Any, Any] = {aten.lgamma.default: _lgamma, aten.softplus.default: _softplus}
            translated = torch.onnx.export(
                program, dynamo=True, verbose=False, custom_translation_table=table
            )
    finally:
        logger.setLevel(level)
    model = not_none(translated).model_proto
    _name(model.graph, [column.input for column in columns], facts["outputs"])
    _look_up(onnx, model, columns)
    onnx.helper.set_model_props(model, {"labelveil": json.dumps(facts)})
    onnx.checker.check_model(model)
    return model


def _name(graph: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give inputs and outputs their public names, and all other values names out of their way."""
    public: dict[str, str] = dict(zip((value.name for value in graph.input), inputs, strict=True))
    public |= dict(zip((value.name for value in graph.output), outputs, strict=True))

    def named(name: str) -> str:
        return public.get(name, f"{_PREFIX}/{name}" if name else "")

    for node in graph.node:
        node.input[:] = [named(name) for name in node.input]
        node.output[:] = [named(name) for name in node.output]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = named(value.name)
    del graph.value_info[:]


def _look_up(onnx: Any, model: Any, columns: Sequence[Column]) -> None:
    """Put a lookup of texts before each categorical input."""
    graph = model.graph
    lookups = []
    for value, column in zip(graph.input, columns, strict=True):
        if column.kind != "category":
            continue
        place = f"{_PREFIX}/place_of_{column.input}"
        for node in graph.node:
            node.input[:] = [place if name == column.input else name for name in node.input]
        value.type.tensor_type.elem_type = onnx.TensorProto.STRING
        lookup = {
            "keys_strings": [*column.places],
            "values_int64s": [*column.places.values()],
            "default_int64": 0,
        }
        names = [column.input], [place]
        node = onnx.helper.make_node("LabelEncoder", *names, domain="ai.onnx.ml", **lookup)
        lookups.append(node)
    nodes = [*lookups, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    if lookups:
        model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", ML_OPSET))


def _lgamma(x: Any) -> Any:
    """ln Γ for doubles x > 0, which ONNX lacks.

    Stirling's series at x + 8, less ln(x (x + 1) … (x + 7)); good to 1e-12 of the larger of them.
    """
    from onnxscript import opset18 as op

    product = x
    for step in range(1, _SHIFT):
        product = op.Mul(product, op.Add(x, _constant(step)))
    z = op.Add(x, _constant(_SHIFT))
    inverse = op.Div(_constant(1.0), z)
    square = op.Mul(inverse, inverse)
    series = _constant(_STIRLING[-1])
    for term in _STIRLING[-2::-1]:
        series = op.Add(op.Mul(series, square), _constant(term))
    leading = op.Sub(op.Mul(op.Sub(z, _constant(0.5)), op.Log(z)), z)
    total = op.Add(op.Add(leading, _constant(math.log(2 * math.pi) / 2)), op.Mul(series, inverse))
    return op.Sub(total, op.Log(product))


def _softplus(x: Any) -> Any:
    """ln(1 + e^x), which ONNX Runtime lacks for doubles: max(x, 0) + ln(1 + e^-|x|)."""
    from onnxscript import opset18 as op

    tail = op.Log(op.Add(_constant(1.0), op.Exp(op.Neg(op.Abs(x)))))
    return op.Add(op.Max(x, _constant(0.0)), tail)


def _constant(value: float) -> Any:
    from onnx import TensorProto, helper
    from onnxscript import opset18 as op

    return op.Constant(value=helper.make_tensor("constant", TensorProto.DOUBLE, [], [value]))
