"""A simulation of one table at hand: what its settings leave open, and both parties' file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import polars as pl

from common.errors import DataError

_DIGITS = 2


def write_events(table: Any, path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write a table with labels and features, and complete the settings that it answers.

    Parameters
    ----------
    table
        Polars or pandas.
    path
        File to write, Parquet.
    settings
        As of a simulation. Where they are not given, ``lower`` and ``upper`` are the smallest and
        the largest label, rounded outwards to two digits, and ``out`` is a new temporary folder.

    Raises
    ------
    DataError
        If there is no such label column, or its labels have no range.
    """
    frame = table if isinstance(table, pl.DataFrame) else pl.from_pandas(table)
    given = settings.get("label")
    labels = list(given) if isinstance(given, list | tuple) else [str(given)]
    frame.write_parquet(path)
    found = {"labels": path, "features": path, **settings}
    for place, label in enumerate(labels):
        if label not in frame.columns:
            if label.count(":") < 2:  # with its bounds, another checks it
                raise DataError(
                    f"label={label!r} must be one of the columns {', '.join(frame.columns)}"
                )
        elif len(labels) > 1:
            lower, upper = _bounds(frame[label])
            labels[place] = f"{label}:{lower!r}:{upper!r}"
        elif "lower" not in found or "upper" not in found:
            lower, upper = _bounds(frame[label])
            found = {"lower": lower, "upper": upper, **found}
    found["label"] = labels
    if "out" not in found:
        found["out"] = Path(mkdtemp(prefix="labelveil-"))
    return found


def _bounds(labels: pl.Series) -> tuple[float, float]:
    """The smallest and the largest label, rounded outwards."""
    if not (labels.dtype.is_numeric() or labels.dtype == pl.Boolean):
        raise DataError(f"label column {labels.name!r} has type {labels.dtype}; labels are numbers")
    numbers = labels.drop_nulls().cast(pl.Float64).drop_nans().to_numpy()
    lower, upper = float(numbers.min()), float(numbers.max())
    if not lower < upper:
        raise DataError(f"all labels are {lower:g}; give lower and upper")
    step = 10.0 ** (math.floor(math.log10(upper - lower)) - _DIGITS + 1)
    return math.floor(lower / step) * step, math.ceil(upper / step) * step
