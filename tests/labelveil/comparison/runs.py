"""Events that are made up, and jobs that a worker does on them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from labelveil.common.arrays import Floats
from labelveil.comparison.worker import serve

UPPER = 10.0


def made_up(rows: int) -> tuple[pl.DataFrame, Floats]:
    """A number, a category and the labels that follow them, within 0 … :data:`UPPER`."""
    rng = np.random.default_rng(0)
    x, shop = rng.normal(size=rows), rng.integers(8, size=rows)
    table = pl.DataFrame({"event": np.arange(rows), "x": x, "shop": shop.astype(str)})
    return table, np.clip(5 + 2 * np.sign(x) + shop % 3 + 0.3 * rng.normal(size=rows), 0, UPPER)


def answers(
    folder: Path, rows: int, training: dict[str, Any], *jobs: dict[str, Any]
) -> list[dict[str, Any]]:
    """Have a worker do jobs, each the default one at ε = 2 but for what it says."""
    default = {"epsilon": 2.0, "run": 0, "objective": "auto", "head": "auto"}
    return served(specified(folder, rows, training), *({**default, **job} for job in jobs))


def specified(folder: Path, rows: int, training: dict[str, Any]) -> dict[str, Any]:
    """Write made-up events, and say of them what a worker is told."""
    table, labels = made_up(rows)
    table.write_parquet(folder / "features.parquet")
    pl.DataFrame({"label": labels}).write_parquet(folder / "truth.parquet")
    return {
        **{name: str(folder / f"{name}.parquet") for name in ("features", "truth")},
        "columns": [{"column": "label", "lower": 0, "upper": UPPER, "whole": False}],
        **{"key": "event", "loss": "squared", "holdout": 0.2, "training": training},
    }


def served(spec: dict[str, Any], *jobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Have a worker do jobs on a data set."""
    out = io.StringIO()
    serve(map(json.dumps, (spec, *jobs)), out)
    _, *records = map(json.loads, out.getvalue().splitlines())
    return records
