"""The demonstration's data: visits to the doctor, from the RAND Health Insurance Experiment.

20,190 person-years that statsmodels carries and that are in the public domain. The labels party
knows how often somebody saw a doctor (``mdvis``, 0 to 77); the features party knows everything
else.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from common.errors import ConfigError

KEY, LABEL = "event", "mdvis"
LOWER, UPPER = 0.0, 77.0


@dataclass(frozen=True)
class DemoFiles:
    """One file for each party, with the event's number in both."""

    labels: Path
    features: Path


def write_demo_data(directory: Path) -> DemoFiles:
    """Write both parties' files as CSV, replacing earlier ones.

    Raises
    ------
    ConfigError
        If statsmodels is not installed, or the folder cannot be written.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from statsmodels.datasets import randhie
    except ImportError as error:
        raise ConfigError(
            "the demonstration's data comes with statsmodels, which is not installed; install"
            " labelveil[demo]"
        ) from error
    table = pl.DataFrame(
        {name: column.to_numpy() for name, column in randhie.load_pandas().data.items()}
    ).with_row_index(KEY, offset=1)
    files = DemoFiles(directory / "visits.csv", directory / "people.csv")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        table.select(KEY, LABEL).write_csv(files.labels)
        table.drop(LABEL).write_csv(files.features)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror}") from error
    return files
