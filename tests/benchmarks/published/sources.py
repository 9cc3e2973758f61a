"""The data of the comparisons: a folder of third-party tables, never shipped with the project."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from common.arrays import Booleans, Floats, Integers
from common.entropy import seeded_entropy
from common.mechanisms.selection import count_users
from common.mechanisms.synthesis import Domain
from tests.data_sets import CENSUS, FOLDER


def missing(name: str) -> str | None:
    """Why a table cannot be used, or None."""
    path = FOLDER / name
    return None if path.is_file() else f"{path} is missing; set LABELVEIL_DATA to its folder"


def _read(name: str) -> pl.DataFrame:
    return pl.read_parquet(FOLDER / name)


def brightkite() -> Integers:
    """Distinct users of each location (10-core check-ins)."""
    return count_users(_read("checkins_brightkite.parquet"), "user", "location").counts


def check_ins() -> Integers:
    """(n, 2) distinct pairs of user and location, both numbered from 0."""
    table = _read("checkins_brightkite.parquet").select("user", "location").unique()
    columns = [np.unique(table[name].to_numpy(), return_inverse=True)[1] for name in table.columns]
    pairs = np.column_stack(columns).astype(np.int64)
    return np.asarray(pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))])


def covid() -> tuple[list[str], list[str], Integers]:
    """Days, states, and (days, states) cumulative cases from 2020-03-12 to 2020-05-12."""
    table = _read("covid_nyt_us_states.parquet").with_columns(day=pl.col("date").cast(pl.String))
    table = table.filter(pl.col("day").is_between(pl.lit("2020-03-12"), pl.lit("2020-05-12")))
    wide = table.pivot("state", index="day", values="cases").sort("day").fill_null(0)
    states = [column for column in wide.columns if column != "day"]
    return wide["day"].to_list(), states, wide.select(states).to_numpy().astype(np.int64)


CENSUS_COLUMNS = (
    "sex",
    "income",
    "own business or self employed",
    "veterans benefits",
    "member of a labor union",
    "live in this house 1 year ago",
    "enroll in edu inst last wk",
    "race",
)
"""Few values each, so that there are many marginals on a small domain (4,860 cells)."""


def census_table() -> tuple[Domain, Integers]:
    """Domain and histogram of eight categorical census columns."""
    table = CENSUS.load()
    codes, sizes = [], []
    for column in CENSUS_COLUMNS:
        values, code = np.unique(table[column].cast(pl.String).to_numpy(), return_inverse=True)
        codes.append(code)
        sizes.append(len(values))
    domain = Domain(CENSUS_COLUMNS, tuple(sizes))
    return domain, domain.histogram(np.stack(codes, axis=1))


def synthetic(k: int, gap: int, candidates: int = 1000) -> Integers:
    """k candidates above 500 + gap, the rest at most 500: one cliff of a chosen height."""
    words = seeded_entropy(17).words("synthetic", 0, candidates)
    low = (words % np.uint64(500)).astype(np.int64)
    low[k] = 500
    low[:k] = 500 + gap + np.arange(k)
    return low


@dataclass(frozen=True)
class Task:
    """Private records, public queries and a test set of one learning problem."""

    name: str
    private: tuple[Floats, Integers]
    public: tuple[Floats, Integers]
    test: tuple[Floats, Integers]


def _split(name: str, x: Floats, y: Integers, queries: int, tests: int) -> Task:
    order = np.argsort(seeded_entropy(23).words("split", 0, len(x)))
    x, y = x[order], y[order]
    public, test = slice(0, queries), slice(queries, queries + tests)
    rest = slice(queries + tests, None)
    return Task(name, (x[rest], y[rest]), (x[public], y[public]), (x[test], y[test]))


def digits() -> Task:
    """scikit-learn's digits."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return _split("digits", x / 16.0, y.astype(np.int64), 200, 300)


def optdigits() -> Task:
    """Optical digits, 5,620 images."""
    table = _read("optdigits.parquet")
    y = table["Class"].cast(pl.Int64).to_numpy()
    x = table.drop("Class").select(pl.selectors.numeric()).to_numpy().astype(np.float64) / 16.0
    return _split("optdigits", x, y, 400, 800)


def letters() -> Task:
    """Letter recognition, 26 classes."""
    table = _read("letter_recognition.parquet")
    y = table["letter"].cast(pl.Categorical).to_physical().to_numpy().astype(np.int64)
    _, y = np.unique(y, return_inverse=True)
    x = table.drop("letter").to_numpy().astype(np.float64) / 15.0
    return _split("letters", x, y, 1000, 2000)


def yeast() -> Task:
    """Mulan's yeast: 14 labels."""
    table = _read("mulan_yeast.parquet")
    names = [column for column in table.columns if column.startswith("label:")]
    y = table.select(names).cast(pl.Int64).to_numpy()
    x = table.drop(names).to_numpy().astype(np.float64)
    return _split("yeast", x, y, 200, 400)


def chest_votes(
    teachers: int, queries: int, recall: float, false_alarms: float
) -> tuple[Booleans, Booleans]:
    """Votes on chest X-ray label vectors: (teachers, queries, 14), and the true (queries, 14).

    A teacher sees each present finding with probability ``recall`` and each absent one with
    probability ``false_alarms``, independently.
    """
    table = _read("nih_chestxray14_labels.parquet")
    names = [c for c in table.columns if c.startswith("label:") and c != "label:No Finding"]
    entropy = seeded_entropy(29)
    rows = np.argsort(entropy.words("rows", 0, table.height))[:queries]
    truth = table.select(names).to_numpy().astype(bool)[rows]
    words = entropy.words("votes", 0, teachers * truth.size).reshape(teachers, *truth.shape)
    uniform = (words >> np.uint64(11)).astype(np.float64) / 2**53
    return uniform < np.where(truth, recall, false_alarms), truth
