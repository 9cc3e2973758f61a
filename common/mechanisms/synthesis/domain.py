"""The domain of a categorical table: a public list of attributes, each with its number of values.

A table is a vector of counts, one for each *cell*: each combination of values. Neighbours differ in
one replaced record, so the number of rows is public and one unit moves between two cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats, Integers, counted
from labelveil.common.errors import ConfigError, DataError

MAX_CELLS = 1 << 22


@dataclass(frozen=True)
class Domain:
    """Attributes and their numbers of values, in a fixed order."""

    names: tuple[str, ...]
    """Distinct names of the d >= 1 attributes."""
    sizes: tuple[int, ...]
    """Number of values of each, at least 1; their product is at most 2**22 cells."""

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise ConfigError(f"attributes {list(self.names)} must be at least one, each once")
        if len(self.names) != len(self.sizes) or min(self.sizes) < 1:
            raise ConfigError(f"sizes {list(self.sizes)} must be one number >= 1 per attribute")
        if self.cells > MAX_CELLS:
            raise ConfigError(
                f"a domain of {self.cells:,} cells is above {MAX_CELLS:,}; leave an attribute out,"
                " or merge values"
            )

    @property
    def cells(self) -> int:
        """Number of combinations of values."""
        return prod(self.sizes)

    def index(self, codes: ArrayLike) -> Integers:
        """(n,) cell of each record, of (n, d) integers, each in 0 … size - 1 of its attribute.

        The last attribute varies fastest.

        Raises
        ------
        DataError
            If the records are not such integers.
        """
        array = np.asarray(codes)
        if array.ndim != 2 or array.shape[1] != len(self.sizes) or array.dtype.kind not in "iu":
            raise DataError(
                f"codes of shape {array.shape}, type {array.dtype} must be integers with one column"
                f" for each of {len(self.sizes)} attributes"
            )
        if array.size and (array.min() < 0 or np.any(array >= np.array(self.sizes))):
            raise DataError(f"a code lies outside its attribute's values, {list(self.sizes)}")
        columns = tuple(array[:, j].astype(np.int64) for j in range(len(self.sizes)))
        return np.asarray(np.ravel_multi_index(columns, self.sizes), dtype=np.int64)

    def codes(self, cells: Integers) -> Integers:
        """(n, d) codes of (n,) cells: the inverse of :meth:`index`."""
        return np.stack(np.unravel_index(cells, self.sizes), axis=1).astype(np.int64)

    def histogram(self, codes: ArrayLike) -> Integers:
        """(cells,) int64 counts of (n, d) records."""
        return np.bincount(self.index(codes), minlength=self.cells).astype(np.int64)

    def rows(self, weights: Floats, count: int) -> Integers:
        """(count, d) records whose cells have the shares ``weights``, each to within one record.

        Systematic: records lie at equal distances along the cumulative weights, so every run of
        neighbouring cells, the values of the first attribute among them, is right to within one.
        Weights are (cells,) numbers >= 0, not all 0.
        """
        cumulative = np.cumsum(weights)
        targets = (np.arange(count) + 0.5) / max(count, 1) * cumulative[-1]
        return self.codes(np.searchsorted(cumulative, targets, side="right").astype(np.int64))


def check_histogram(histogram: ArrayLike, cells: int) -> Integers:
    """Return a histogram as int64; refuse one of another length, of no rows or of wrong numbers."""
    table = counted(histogram, "a histogram", bits=40)
    if table.size != cells or not 1 <= table.sum() <= 1 << 40:
        raise DataError(
            f"a histogram of {table.size} cells and {table.sum()} rows must have {cells} cells, and"
            " 1 … 2**40 rows"
        )
    return table
