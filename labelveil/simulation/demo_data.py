"""The demonstrations' data, which dependencies carry: prices of diamonds, visits to the doctor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import polars as pl

from common.errors import ConfigError

KEY = "event"


@dataclass(frozen=True)
class Example:
    """A table that a library carries, and what both parties know of its label.

    Attributes
    ----------
    label, lower, upper
        The label's column and its public bounds.
    labels_file, features_file
        What each party calls its file.
    library
        The distribution that carries the table.
    read
        Reads it, without importing more of the library than that takes.
    rows
        How many events are drawn, so that a demonstration takes a minute.
    """

    label: str
    lower: float
    upper: float
    labels_file: str
    features_file: str
    library: str
    read: Callable[[], pl.DataFrame]
    rows: int


@dataclass(frozen=True)
class DemoFiles:
    """One file for each party, with the event's number in both."""

    labels: Path
    features: Path


def _diamonds() -> pl.DataFrame:
    path = distribution("plotnine").locate_file("plotnine/data/diamonds.csv")
    return pl.read_csv(str(path))


def _visits() -> pl.DataFrame:
    distribution("statsmodels")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from statsmodels.datasets import randhie
    columns = randhie.load_pandas().data.items()
    return pl.DataFrame({name: column.to_numpy() for name, column in columns})


EXAMPLES = {
    # 53,940 stones; the label is what was paid for one, in US dollars.
    "diamonds": Example(
        "price", 0, 20_000, "sales.csv", "stones.csv", "plotnine", _diamonds, 16_000
    ),
    # 20,190 person-years of the RAND Health Insurance Experiment, in the public domain; the label
    # is how often somebody saw a doctor.
    "visits": Example("mdvis", 0, 77, "visits.csv", "people.csv", "statsmodels", _visits, 20_190),
}


def write_demo_data(example: Example, directory: Path, rows: int | None = None) -> DemoFiles:
    """Write both parties' files as CSV, replacing earlier ones.

    Parameters
    ----------
    rows
        How many events to draw, if not as many as usual.

    Raises
    ------
    ConfigError
        If the library is not installed, or the folder cannot be written.
    """
    try:
        table = example.read()
    except (PackageNotFoundError, ImportError, OSError) as error:
        raise ConfigError(
            f"the demonstration's data comes with {example.library}, which is not installed;"
            " run: pip install 'labelveil[demo]'"
        ) from error
    drawn = table.sample(min(rows or example.rows, table.height), seed=0)
    table = drawn.with_row_index(KEY, offset=1)
    files = DemoFiles(directory / example.labels_file, directory / example.features_file)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        table.select(KEY, example.label).write_csv(files.labels)
        table.drop(example.label).write_csv(files.features)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror}") from error
    return files
