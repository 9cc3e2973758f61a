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

from labelveil.simulation.demo_data import EXAMPLES

FOLDER = Path(os.environ.get("LABELVEIL_DATA", "../shared/data"))


@dataclass(frozen=True)
class DataSet:
    """A table of events with a label, and the label's public bounds."""

    name: str
    file: str | None  # in the data folder; None if a dependency carries it
    label: str
    lower: float
    upper: float
    load: Callable[[], pl.DataFrame]  # one row an event, features and label

    @property
    def missing(self) -> str | None:
        """Why the table cannot be loaded here; None if it can."""
        if self.file is None or (FOLDER / self.file).is_file():
            return None
        return f"{FOLDER / self.file} is missing; set LABELVEIL_DATA to its folder"


def read(file: str) -> pl.DataFrame:
    return pl.read_parquet(FOLDER / file)


def _randhie() -> pl.DataFrame:
    from statsmodels.datasets import randhie

    return pl.from_pandas(randhie.load_pandas().data)


def _retail() -> pl.DataFrame:
    bought = read("online_retail.parquet").filter(
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


def _criteo() -> pl.DataFrame:
    sold = read("criteo_sponsored_search.parquet").filter(pl.col("Sale") == 1)
    # what is known only after the sale would give the label away
    return sold.drop("Sale", "time_delay_for_conversion")


CRITEO_LOG_COLUMNS = (
    "Sale", "SalesAmountInEuro", "time_delay_for_conversion", "click_timestamp",
    "nb_clicks_1week", "product_price", "product_age_group", "device_type", "audience_id",
    "product_gender", "product_brand", *(f"prod_category{level}" for level in range(1, 8)),
    "product_country", "product_id", "product_title", "partner_id", "user_id",
)  # fmt: skip


def read_criteo_log(path: Path) -> pl.DataFrame:
    """The sales of the Criteo Sponsored Search Conversion Log as it is published.

    Tab-separated, 23 columns without a header, one row a click, 6 GB. Of the rows with a sale, all
    columns but those that are known only after it.
    """
    numbers = {"Sale": pl.Int8, "time_delay_for_conversion": pl.Int64, "click_timestamp": pl.Int64}
    numbers |= {"nb_clicks_1week": pl.Int64}
    numbers |= dict.fromkeys(("SalesAmountInEuro", "product_price"), pl.Float64)
    types = {name: numbers.get(name, pl.String) for name in CRITEO_LOG_COLUMNS}
    log = pl.scan_csv(path, separator="\t", has_header=False, schema=types, quote_char=None)
    sold = log.filter(pl.col("Sale") == 1).drop("Sale", "time_delay_for_conversion")
    return sold.collect(engine="streaming")


def _communities() -> pl.DataFrame:
    """Communities and Crime without what names a place, as RPWithPrior's notebook prepares it.

    It leaves out racepctblack and every column in which values are missing, but for OtherPerCap
    (V30), which lacks one.
    """
    table = read("communities_crime.parquet").drop(*(f"V{number}" for number in range(5)), "V7")
    table = table.with_columns(pl.col("V30").fill_null(strategy="mean"))
    return table.select(column for column in table if not column.null_count())


def _bike() -> pl.DataFrame:
    # the two that the label is the sum of, and a number of the row
    return read("bike_sharing_hour.parquet").drop("casual", "registered", "instant", strict=False)


RANDHIE = DataSet("randhie", None, "mdvis", 0, 77, _randhie)
HOUSING = DataSet(
    "housing", "california_housing.parquet", "median_house_value", 0, 500_001,
    lambda: read("california_housing.parquet"),
)  # fmt: skip
CENSUS = DataSet(
    "census", "census_income_kdd_test.parquet", "weeks worked in year", 0, 52,
    lambda: read("census_income_kdd_test.parquet").drop("instance weight"),
)  # fmt: skip
WORKED = DataSet(
    "census, who worked", CENSUS.file, CENSUS.label, 1, 52,
    lambda: CENSUS.load().filter(pl.col(CENSUS.label) > 0),
)  # fmt: skip
"""As the experiments of Regression with Label DP have it: nobody with 0 weeks."""

RETAIL = DataSet("retail", "online_retail.parquet", "amount", 0, 400, _retail)
CRITEO = DataSet("criteo", "criteo_sponsored_search.parquet", "SalesAmountInEuro", 0, 400, _criteo)

CRITEO_LOG = DataSet(
    "criteo-log", "CriteoSearchData", "SalesAmountInEuro", 0, 400,
    lambda: read_criteo_log(FOLDER / "CriteoSearchData"),
)  # fmt: skip
"""The whole log, for whoever has downloaded it; CRITEO is a sample of two partners."""

COMMUNITIES = DataSet("communities", "communities_crime.parquet", "V127", 0, 1, _communities)

DIAMONDS = DataSet("diamonds", None, "price", 0, 20_000, EXAMPLES["diamonds"].read)
BIKE = DataSet("bike", "bike_sharing_hour.parquet", "cnt", 0, 1000, _bike)


def _from_statsmodels(name: str) -> pl.DataFrame:
    from statsmodels import datasets

    return pl.from_pandas(getattr(datasets, name).load_pandas().data)


def _texas() -> pl.DataFrame:
    from plotnine.data import txhousing

    sold = pl.from_pandas(txhousing).select("city", "year", "month", "listings", "median")
    return sold.drop_nulls("median")


def _diabetes() -> pl.DataFrame:
    from sklearn.datasets import load_diabetes

    return pl.from_pandas(load_diabetes(as_frame=True).frame)


def _patients() -> pl.DataFrame:
    table = read("nih_chestxray14_labels.parquet").rename({"Patient Age": "age"})
    # what names a picture, and its size
    return table.select("age", "Patient Gender", "View Position", "Follow-up #", "^label:.*$")


FAIR = DataSet("fair", None, "affairs", 0, 20, lambda: _from_statsmodels("fair"))
ANES = DataSet("anes96", None, "age", 18, 100, lambda: _from_statsmodels("anes96"))
TRAVEL = DataSet("modechoice", None, "invt", 0, 1500, lambda: _from_statsmodels("modechoice"))
DIABETES = DataSet("diabetes", None, "target", 0, 400, _diabetes)
TEXAS = DataSet("texas", None, "median", 0, 350_000, _texas)
DIGITS = DataSet("digits", "optdigits.parquet", "Class", 0, 9, lambda: read("optdigits.parquet"))
LETTERS = DataSet(
    "letters", "letter_recognition.parquet", "onpix", 0, 15,
    lambda: read("letter_recognition.parquet"),
)  # fmt: skip
PATIENTS = DataSet("patients", "nih_chestxray14_labels.parquet", "age", 0, 100, _patients)

ALL = (RANDHIE, HOUSING, CENSUS, RETAIL, CRITEO)
