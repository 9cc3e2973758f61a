"""Real data sets that comparisons and some tests run on, prepared as events with a label.

``randhie`` comes with statsmodels, ``diamonds`` with plotnine. The others are third-party files not
part of this project: they are looked for in the folder that the environment variable LABELVEIL_DATA
names (``../shared/data`` if it is not set), and whatever needs a missing one is skipped, with the
reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from common.program.simulation.demo_data import EXAMPLES

FOLDER = Path(os.environ.get("LABELVEIL_DATA", "../shared/data"))


@dataclass(frozen=True)
class DataSet:
    """A table of events with a label.

    Attributes
    ----------
    name
        For people and folders.
    file
        Its file in the data folder; None if a dependency carries it.
    label
        Label column.
    lower, upper
        Public bounds of the label.
    load
        Returns the table, one row an event, features and label.
    """

    name: str
    file: str | None
    label: str
    lower: float
    upper: float
    load: Callable[[], pl.DataFrame]

    @property
    def missing(self) -> str | None:
        """Why the table cannot be loaded here; None if it can."""
        if self.file is None or (FOLDER / self.file).is_file():
            return None
        return f"{FOLDER / self.file} is missing; set LABELVEIL_DATA to its folder"


def _read(file: str) -> pl.DataFrame:
    return pl.read_parquet(FOLDER / file)


def _randhie() -> pl.DataFrame:
    from statsmodels.datasets import randhie

    return pl.from_pandas(randhie.load_pandas().data)


def _retail() -> pl.DataFrame:
    bought = _read("online_retail.parquet").filter(
        (pl.col("Quantity") > 0) & (pl.col("UnitPrice") > 0)
    )
    return bought.select(
        "StockCode",
        "Country",
        pl.col("CustomerID").cast(pl.Int64).cast(pl.String),
        "UnitPrice",
        hour=pl.col("InvoiceDate").dt.hour(),
        amount=pl.col("Quantity") * pl.col("UnitPrice"),
    )


def _census() -> pl.DataFrame:
    return _read("census_income_kdd_test.parquet").drop("instance weight")


def _criteo() -> pl.DataFrame:
    sold = _read("criteo_sponsored_search.parquet").filter(pl.col("Sale") == 1)
    # what is known only after the sale would give the label away
    return sold.drop("Sale", "time_delay_for_conversion")


def _bike() -> pl.DataFrame:
    # the two that the label is the sum of, and a number of the row
    return _read("bike_sharing_hour.parquet").drop("casual", "registered", "instant", strict=False)


def _diamonds() -> pl.DataFrame:
    return EXAMPLES["diamonds"].read()


RANDHIE = DataSet("randhie", None, "mdvis", 0, 77, _randhie)
HOUSING = DataSet(
    "housing",
    "california_housing.parquet",
    "median_house_value",
    0,
    500_001,
    lambda: _read("california_housing.parquet"),
)
CENSUS = DataSet("census", "census_income_kdd_test.parquet", "weeks worked in year", 0, 52, _census)
RETAIL = DataSet("retail", "online_retail.parquet", "amount", 0, 400, _retail)
CRITEO = DataSet("criteo", "criteo_sponsored_search.parquet", "SalesAmountInEuro", 0, 400, _criteo)

DIAMONDS = DataSet("diamonds", None, "price", 0, 20_000, _diamonds)
BIKE = DataSet("bike", "bike_sharing_hour.parquet", "cnt", 0, 1000, _bike)

ALL = (RANDHIE, HOUSING, CENSUS, RETAIL, CRITEO)
