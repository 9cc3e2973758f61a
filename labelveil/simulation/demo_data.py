"""The demonstrations' data, which dependencies carry: prices of diamonds, visits to the doctor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import polars as pl

from labelveil.common.errors import ConfigError
from labelveil.common.extras import install_command
from labelveil.common.files import file_errors

KEY = "event"


@dataclass(frozen=True)
class Example:
    """A table that a library carries: its label with public bounds, and each party's file name."""

    label: str
    lower: float
    upper: float
    labels_file: str
    features_file: str
    library: str
    read: Callable[[], pl.DataFrame]
    rows: int  # drawn, so that a demonstration takes a minute


def _diamonds() -> pl.DataFrame:
    path = distribution("plotnine").locate_file("plotnine/data/diamonds.csv")
    return pl.read_csv(str(path), glob=False)


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


def write_demo_data(
    example: Example, directory: Path, rows: int | None = None
) -> tuple[Path, Path]:
    """Write the labels' and the features' CSV file, replacing earlier ones; returns their paths.

    ``ConfigError`` if the library is not installed, or the folder cannot be written.
    """
    try:
        table = example.read()
    except (PackageNotFoundError, ImportError, OSError) as error:
        raise ConfigError(
            f"the demonstration's data comes with {example.library}, which is not installed;"
            f" {install_command('demo')}"
        ) from error
    drawn = min(rows or example.rows, table.height)
    table = table.sample(drawn, seed=0).with_row_index(KEY, offset=1)
    labels, features = directory / example.labels_file, directory / example.features_file
    with file_errors(ConfigError, f"{directory} cannot be written"):
        directory.mkdir(parents=True, exist_ok=True)
        table.select(KEY, example.label).write_csv(labels)
        table.drop(example.label).write_csv(features)
    return labels, features
