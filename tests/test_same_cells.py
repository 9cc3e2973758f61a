"""Both parties read a cell of text by one rule."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from labelveil.common.table_cells import MISSING_WORDS
from labelveil.feature_party.schema import ColumnMeaning
from labelveil.label_party.sources.tables import CSV, as_numbers

ODD_CELLS = [
    *sorted(MISSING_WORDS),
    *(word.upper() for word in sorted(MISSING_WORDS)),
    *("1", " 1 ", "+1.5", "-.5", "1e3", "1E-3", "true", "FALSE", "x", "1x", "0x1", "1_000", "١"),
    *("inf", "-Infinity", "1,5", "1 2", "\t3\n", "\u00a04", "--5", "5-"),
]


@pytest.mark.parametrize("cell", ODD_CELLS)
def test_both_parties_read_a_cell_alike(cell: str) -> None:
    """Labels and features go by one rule: what is missing, and what is a number."""
    cells = pl.Series("x", [cell])
    labels = as_numbers(cells, "x", Path("labels.csv"), CSV, pl.Series([1]))[0].to_list()
    feature = ColumnMeaning("x", "number").read(cells)
    flags = ColumnMeaning("x", "true/false").read(cells)
    finite = feature.set(~feature.is_finite().fill_null(False), None)
    either = finite.to_list() if finite[0] is not None else flags.to_list()
    assert labels == either
