"""What is worked on a slice at a time is the same whatever the slices are."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact import channel as channels
from labelveil.common.exact.channel import BETWEEN, FiniteChannel, randomized_response_rows
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice
from labelveil.common.mechanisms.group_sums import question as sums_questions
from labelveil.common.mechanisms.pate import data_dependent
from labelveil.common.randomizers import base, grid
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.losses import get_loss
from labelveil.common.randomizers.message import known_labels, questions
from labelveil.common.release import cmac
from labelveil.label_party.events import completion

SIZE = 23
WORDS = seeded_entropy(1).words("slices", 0, SIZE)
VALUES = np.linspace(-0.2, 6.3, SIZE)
GRID = grid.Grid(np.array([0.0, 1.0, 2.5, 6.0]))
NUMBERS = np.arange(SIZE)
KEYS = pl.Series([f"key {number}" for number in range(SIZE)])


def mixed() -> Any:
    row_of = np.full(SIZE, BETWEEN)
    row_of[[0, 9, SIZE - 1]] = [0, 1, 2]
    made = FiniteChannel(NUMBERS, np.arange(3), randomized_response_rows(3, 1.0), row_of)
    return made.weights


def sampled() -> Any:
    made = FiniteChannel(NUMBERS, NUMBERS, randomized_response_rows(SIZE, 1.0))
    return made.sample(NUMBERS, WORDS).tolist()


def rounded() -> Any:
    moved = GRID.rounding_effect(VALUES)
    return GRID.round(VALUES, WORDS).tolist(), moved.labels, moved.fractional, moved.between


def loss() -> Any:
    rows = np.array(randomized_response_rows(3, 1.0), dtype=np.float64) / 2**64
    prior = np.arange(1.0, SIZE + 1) / np.arange(1.0, SIZE + 1).sum()
    return base.expected_loss(prior, get_loss("squared"), VALUES, np.arange(3.0), rows, NUMBERS % 3)


def strata() -> Any:
    asked = questions.Question(NUMBERS % 5, GRID, np.ones((5, len(GRID)), dtype=np.int64))
    return asked.classes.rows


def group_sums() -> Any:
    asked = GroupQuestion(
        Lattice(0.0, 5.0, 5), NUMBERS % 7, np.array([1, 2, 3, 1, 2, 5, 4]), np.array([0, 2, 3]),
        NUMBERS % 3, NUMBERS % 4, squares=2,
    )  # fmt: skip
    return asked.sums(NUMBERS % 6).tolist(), asked.sizes.tolist(), asked.widths


def known() -> Any:
    labels = known_labels.KnownLabels((0,), VALUES[:, None], np.arange(1.0, SIZE + 1))
    return labels.over(Group((0,), Cells((GRID,)))).tolist()


def curve() -> Any:
    return data_dependent.data_dependent_curve(np.geomspace(1e-9, 1, SIZE), 0.01).tolist()


def hashed() -> Any:
    return completion.hash_column(KEYS, bytes(32)).tolist()


def tagged() -> Any:
    return cmac.CMAC(bytes(16)).column(KEYS).tolist()


SLICED: list[tuple[ModuleType, str, Callable[[], Any]]] = [
    (channels, "_MIXED_AT_ONCE", mixed),
    (channels, "_CHUNK", sampled),
    (grid, "_CHUNK", rounded),
    (base, "_MAX_CELLS", loss),
    (questions, "_ROWS_AT_ONCE", strata),
    (sums_questions, "_ROWS_AT_ONCE", group_sums),
    (known_labels, "_VALUES_AT_ONCE", known),
    (data_dependent, "_ROWS", curve),
    (completion, "_SLICE", hashed),
    (cmac, "_SLICE_ROWS", tagged),
]


def close(mine: Any, other: Any) -> bool:
    return mine == other or bool(np.allclose(mine, other, rtol=1e-12, atol=0))


@pytest.mark.parametrize("size", [1, 2, 7, SIZE - 1, SIZE])
@pytest.mark.parametrize(("module", "name", "made"), SLICED)
def test_slices_of_any_size_give_the_same(
    module: ModuleType,
    name: str,
    made: Callable[[], Any],
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = made()
    monkeypatch.setattr(module, name, size)
    # else what no slice fills might be right, where memory is given out again
    monkeypatch.setattr(np, "empty", lambda shape, dtype=float: np.full(shape, 7, dtype))
    # sums in double precision differ in their last digits
    pairs = zip(whole, made(), strict=True) if isinstance(whole, tuple) else [(whole, made())]
    assert all(close(mine, other) for mine, other in pairs)
