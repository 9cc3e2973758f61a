"""The two commands that a notebook wants, as functions."""

from __future__ import annotations

from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from common.config.keywords import with_keywords
from labelveil.comparison import CompareSettings, Comparison, run_comparison
from labelveil.simulation import Outcome, Settings, run_simulation
from labelveil.simulation.one_table import write_events

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    Table = pl.DataFrame | pd.DataFrame


def _shown(function: Any) -> Signature:
    """The keywords' signature, with the table before them."""
    shown = signature(function)
    first = Parameter("table", Parameter.POSITIONAL_ONLY, default=None)
    return shown.replace(parameters=[first, *shown.parameters.values()])


@with_keywords(Settings)
def _simulate(settings: Settings) -> Outcome:
    """Run both parties on this machine, with mutual TLS between them, and score the model.

    ``lv.simulate(table, label="amount", epsilon=1)`` is enough: of a pandas or Polars table with
    labels and features it makes both parties' files. Bounds that are not given are then read off
    the labels and rounded outwards, which a simulation alone may do: in earnest they come from
    public knowledge. ``out`` is a new temporary folder.

    Returns metrics, the report's path and the release that was sent, and shows itself in a
    notebook; everything else is in ``out``. A refusal of either party is a `LabelveilError` with
    its own line.
    """
    return run_simulation(settings)


@wraps(_simulate)
def simulate(table: Table | None = None, /, **settings: Any) -> Outcome:
    if table is None:
        return _simulate(**settings)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        return _simulate(**write_events(table, path, settings))


simulate.__signature__ = _shown(simulate)  # type: ignore[attr-defined]


@with_keywords(CompareSettings)
def compare(settings: CompareSettings) -> Comparison:
    """Compare ways to randomize labels and to learn from them, by the models they give.

    Returns every run's record and their means; tables and plots are in ``out``. Called again with
    the same ``out`` it takes up where it was.
    """
    return run_comparison(settings)
