"""How far a written model's predictions are from the model's, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labelveil.common.errors import ConfigError
from labelveil.common.mechanisms.group_sums import Lattice
from labelveil.feature_party.export.run import _difference, _facts, export_format
from labelveil.feature_party.groups.model import SumsModel
from labelveil.feature_party.model.model import Predictions

VALUES = np.array([0.0, 1.0, 2.0])


def model(points: Any, laws: Any = None, loss: str = "squared") -> Any:
    predicted = Predictions(np.array(points), None if laws is None else np.array(laws))
    problem = SimpleNamespace(deviation=5.0, loss=loss)
    encoder = SimpleNamespace(encode=lambda table: table)
    return SimpleNamespace(
        distributions=lambda inputs: predicted, problem=problem, encoder=encoder,
        support=SimpleNamespace(values=VALUES, size=3), has_distributions=laws is not None,
    )  # fmt: skip


class OfSums(SumsModel):
    """One that misses labels by 5, whatever it says of them."""

    def __init__(self, points: Any) -> None:
        ridge: Any = SimpleNamespace(gain=0.0, miss=5.0)
        encoder: Any = SimpleNamespace(encode=lambda table: table)
        super().__init__(encoder, (ridge,), Lattice(-99, 99, 1))
        object.__setattr__(self, "said", Predictions(np.array(points), None))

    def distributions(self, inputs: Any) -> Predictions:
        said: Predictions = vars(self)["said"]
        return said


@pytest.mark.parametrize("of", [model, OfSums])
@pytest.mark.parametrize(
    ("points", "written", "apart"),
    [
        ([10.0, 4.0], [10.1, 4.0], 0.01),
        ([0.1, 4.0], [0.11, 4.0], 0.02),  # of a tenth of the label's deviation, where that is more
        ([0.5, 0.5], [0.5, 0.55], 0.1),
        ([-10.0, 4.0], [-10.5, 4.0], 0.05),
        ([10.0, 4.0], [10.0, 3.0], 0.25),
    ],
)
def test_predictions_are_apart_as_a_share_of_themselves(
    points: list[float], written: list[float], apart: float, of: Any
) -> None:
    table: Any = None
    assert _difference(of(points), [np.array(written)], table) == pytest.approx(apart)


def test_probabilities_count_too_and_nothing_is_passed_over() -> None:
    laws = [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]
    given = model([10.0, 10.0], laws)
    table: Any = None
    same = [np.array([10.0, 10.0]), np.array(laws)]
    assert _difference(given, same, table) == 0
    assert _difference(
        given, [same[0], same[1] + [[0, 0, 0.02], [0, 0, 0]]], table
    ) == pytest.approx(0.02)
    assert _difference(given, [same[0] + [1.0, 0], same[1]], table) == pytest.approx(0.1)
    assert np.isnan(_difference(given, [same[0] + [np.nan, 0], same[1]], table))
    assert np.isnan(_difference(given, [same[0], same[1] * np.nan], table))
    assert _difference(given, [same[0][:1], same[1]], table) == float("inf")


def test_a_median_may_be_the_next_cells_where_the_last_digit_decides() -> None:
    table: Any = None
    tie = [[0.5 - 5e-7, 0.5, 5e-7]]
    for loss, apart in (("absolute", 0.0), ("squared", 1.0)):
        given = model([1.0], tie, loss)
        assert _difference(given, [np.array([0.0]), np.array(tie)], table) == apart
    clear = [[0.5 - 1e-5, 0.5, 1e-5]]
    given = model([1.0], clear, "absolute")
    assert _difference(given, [np.array([0.0]), np.array(clear)], table) == 1.0
    assert _difference(given, [np.array([2.0]), np.array(clear)], table) == 1.0


def test_facts_name_outputs_by_their_places() -> None:
    columns: Any = [SimpleNamespace(to_json=lambda: {"name": "x"})]
    one, two = model([1.0], [[1.0, 0.0, 0.0]]), model([1.0], loss="absolute")
    alone = _facts(SimpleNamespace(by_label={"y": one}), columns)  # type: ignore[arg-type]
    assert alone["inputs"] == [{"name": "x"}]
    assert alone["outputs"] == ["prediction", "probabilities"]
    assert alone["labels"] == [
        {"name": "y", "loss": "squared", "support": [0.0, 1.0, 2.0],
         "outputs": ["prediction", "probabilities"]},
    ]  # fmt: skip
    both = _facts(SimpleNamespace(by_label={"y": one, "z": two}), columns)  # type: ignore[arg-type]
    assert both["outputs"] == ["prediction_0", "probabilities_0", "prediction_1"]
    assert both["labels"][1] == {"name": "z", "loss": "absolute", "outputs": ["prediction_1"]}


@pytest.mark.parametrize(
    ("name", "wanted", "found"),
    [
        ("m.onnx", "auto", "onnx"), ("m.PT2", "auto", "torch"), ("m.bin", "onnx", "onnx"),
        ("m.onnx", "torch", "torch"), ("m.bin", "auto", "end it in .onnx or .pt2, or pass"),
        ("m.onnx", "pt2", "format='pt2' must be onnx, torch or auto"),
    ],
)  # fmt: skip
def test_the_format_is_that_of_the_name_unless_it_is_said(
    name: str, wanted: str, found: str
) -> None:
    if found in ("onnx", "torch"):
        assert export_format(Path(name), wanted) == found
        return
    with pytest.raises(ConfigError, match=found):
        export_format(Path(name), wanted)
