"""Small tables and their neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement

import numpy as np

from labelveil.common.arrays import Integers


def tables(cells: int, rows: int) -> Iterator[Integers]:
    """All histograms of that many rows."""
    for chosen in combinations_with_replacement(range(cells), rows):
        yield np.bincount(np.array(chosen), minlength=cells).astype(np.int64)


def neighbours(table: Integers) -> Iterator[Integers]:
    """All histograms with one record replaced by another."""
    for gone in np.flatnonzero(table):
        for come in range(table.size):
            if come != gone:
                moved = table.copy()
                moved[gone] -= 1
                moved[come] += 1
                yield moved
