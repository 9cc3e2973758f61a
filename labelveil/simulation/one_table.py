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
    """Write a Polars or pandas table as Parquet, and complete a simulation's settings from it.

    Where they are not set, ``lower`` and ``upper`` are the smallest and the largest label, rounded
    outwards to two digits, and ``out`` is a new temporary folder. Raises ``DataError`` if there is
    no such label column, or its labels have no range.
    """
    frame = table if isinstance(table, pl.DataFrame) else pl.from_pandas(table)
    label = settings.get("label")
    labels = list(label) if isinstance(label, list | tuple) else [str(label)]
    frame.write_parquet(path)
    complete = {"labels": path, "features": path, **settings}
    for place, label in enumerate(labels):
        if label not in frame.columns:
            if label.count(":") < 2:  # with its bounds, another checks it
                raise DataError(
                    f"label={label!r} must be one of the columns {', '.join(frame.columns)}"
                )
        elif len(labels) > 1:
            lower, upper = _bounds(frame[label])
            labels[place] = f"{label}:{lower!r}:{upper!r}"
        elif "lower" not in settings or "upper" not in settings:
            lower, upper = _bounds(frame[label])
            complete = {"lower": lower, "upper": upper, **complete}
    if "out" not in settings:
        complete["out"] = Path(mkdtemp(prefix="labelveil-"))
    return {**complete, "label": labels}


def _bounds(labels: pl.Series) -> tuple[float, float]:
    if not (labels.dtype.is_numeric() or labels.dtype == pl.Boolean):
        raise DataError(f"label column {labels.name!r} has type {labels.dtype}; labels are numbers")
    numbers = labels.drop_nulls().cast(pl.Float64).drop_nans().to_numpy()
    lower, upper = float(numbers.min()), float(numbers.max())
    if not lower < upper:
        raise DataError(f"all labels are {lower:g}; give lower and upper")
    step = 10.0 ** (math.floor(math.log10(upper - lower)) - _DIGITS + 1)
    return math.floor(lower / step) * step, math.ceil(upper / step) * step
