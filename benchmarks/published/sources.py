"""The data of the comparisons: a folder of third-party tables, never shipped with the project."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from labelveil.common.arrays import Booleans, Floats, Integers
from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms.synthesis import Domain
from tests.data_sets import CENSUS, FOLDER


def missing(name: str) -> str | None:
    """Why a table cannot be used, or None."""
    path = FOLDER / name
    return None if path.is_file() else f"{path} is missing; set LABELVEIL_DATA to its folder"


def _read(name: str) -> pl.DataFrame:
    return pl.read_parquet(FOLDER / name)


@dataclass(frozen=True)
class CheckIns:
    """Distinct users of each place, and how many users there are."""

    name: str
    counts: Integers
    users: int


def brightkite() -> CheckIns:
    """BrightKite's 10-core: users and places of at least ten check-ins."""
    return _check_ins("BrightKite, 10-core", _read("checkins_brightkite.parquet"))


def check_in_file(name: str, *paths: Path) -> CheckIns:
    """Read check-ins as their sources publish them, tab-separated without a header.

    Foursquare: ``dataset_TSMC2014_{NYC,TKY}.txt``, user and venue first of 8 columns. SNAP:
    ``loc-brightkite_totalCheckins.txt.gz``, user first and place last of 5.
    """
    tables = []
    for path in paths:
        table = pl.read_csv(
            path, separator="\t", has_header=False, infer_schema=False,
            encoding="utf8-lossy", quote_char=None, truncate_ragged_lines=True,
        )  # fmt: skip
        place = "column_2" if table.width == 8 else table.columns[-1]
        tables.append(table.select(user="column_1", location=place))
    return _check_ins(name, pl.concat(tables))


def whole_check_ins() -> list[CheckIns]:
    """The data sets of Table 1 as far as their files lie in the data folder."""
    found = []
    for name, files in CHECK_IN_FILES.items():
        paths = [FOLDER / file for file in files]
        if all(path.is_file() for path in paths):
            found.append(check_in_file(name, *paths))
    return found


CHECK_IN_FILES = {
    "BrightKite": ("loc-brightkite_totalCheckins.txt.gz",),
    "Foursquare": ("dataset_TSMC2014_NYC.txt", "dataset_TSMC2014_TKY.txt"),
}


def _check_ins(name: str, table: pl.DataFrame) -> CheckIns:
    pairs = table.select("user", "location").drop_nulls().unique()  # who comes again counts once
    users = pairs.group_by("location").len().sort("location")["len"]
    return CheckIns(name, users.to_numpy().astype(np.int64), table["user"].n_unique())


def check_ins() -> Integers:
    """(n, 2) distinct pairs of user and location, both numbered from 0."""
    table = _read("checkins_brightkite.parquet").select("user", "location").unique()
    columns = [np.unique(table[name].to_numpy(), return_inverse=True)[1] for name in table.columns]
    pairs = np.column_stack(columns).astype(np.int64)
    return np.asarray(pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))])


def covid(new: bool = False) -> tuple[list[str], list[str], Integers]:
    """Days, states, and (days, states) cumulative cases from 2020-03-12 to 2020-05-12.

    Or ``new`` ones: what a day adds, 0 where a correction took cases away.
    """
    table = _read("covid_nyt_us_states.parquet").with_columns(day=pl.col("date").cast(pl.String))
    table = table.filter(pl.col("day").is_between(pl.lit("2020-03-11"), pl.lit("2020-05-12")))
    wide = table.pivot("state", index="day", values="cases").sort("day").fill_null(0)
    states = [column for column in wide.columns if column != "day"]
    cases = wide.select(states).to_numpy().astype(np.int64)
    shown = np.maximum(np.diff(cases, axis=0), 0) if new else cases[1:]
    return wide["day"].to_list()[1:], states, shown


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
    """k candidates with 500 + gap users each, all others with 500: one cliff of a chosen height."""
    counts = np.full(candidates, 500, dtype=np.int64)
    counts[:k] += gap
    return counts


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


TASKS: dict[str, tuple[str | None, Callable[[], Task], int]] = {
    "digits": (None, digits, 10),
    "optdigits": ("optdigits.parquet", optdigits, 10),
    "letters": ("letter_recognition.parquet", letters, 26),
}
"""The file that each needs, what reads it, and how many classes there are."""


def yeast() -> Task:
    """Mulan's yeast: 14 labels."""
    table = _read("mulan_yeast.parquet")
    names = [column for column in table.columns if column.startswith("label:")]
    y = table.select(names).cast(pl.Int64).to_numpy()
    x = table.drop(names).to_numpy().astype(np.float64)
    return _split("yeast", x, y, 200, 400)


def chest() -> Booleans:
    """(n, 14) findings on chest X-rays."""
    table = _read("nih_chestxray14_labels.parquet")
    names = [c for c in table.columns if c.startswith("label:") and c != "label:No Finding"]
    return np.asarray(table.select(names).to_numpy().astype(bool))


CELEBA = "list_attr_celeba.txt"


def celeba(path: Path | None = None) -> Booleans:
    """(n, 40) attributes of faces: the number of images, the names, then file name and ±1 each."""
    lines = (path or FOLDER / CELEBA).read_text("utf-8").splitlines()
    images, names = int(lines[0]), lines[1].split()
    rows = [line.split()[1:] for line in lines[2:] if line.strip()]
    values = np.array(rows, dtype=np.int64)
    if values.shape != (images, len(names)) or not np.all(np.abs(values) == 1):
        raise ValueError(
            f"{values.shape} values in {path or CELEBA} must be {images} rows of {len(names)} ±1"
        )
    return values > 0


def like_celeba(rows: int = 2000) -> Booleans:
    """(rows, 40) independent attributes of CelebA's sizes: 2% to 83% frequent, nine a face."""
    shares = 0.02 + 0.81 * np.linspace(0, 1, 40) ** 3
    return _uniform("like celeba", (rows, 40)) < shares


def votes_on(
    vectors: Booleans,
    teachers: int,
    queries: int,
    recall: float,
    false_alarms: float,
    seed: int = 29,
) -> tuple[Booleans, Booleans]:
    """Votes on label vectors: (teachers, queries, labels), and the true (queries, labels).

    A teacher sees each present label with probability ``recall`` and each absent one with
    probability ``false_alarms``, independently.
    """
    rows = np.argsort(seeded_entropy(seed).words("rows", 0, len(vectors)))[:queries]
    truth = vectors[rows]
    uniform = _uniform("votes", (teachers, *truth.shape), seed)
    return uniform < np.where(truth, recall, false_alarms), truth


def unequally_hard(
    vectors: Booleans, teachers: int, queries: int, seed: int
) -> tuple[Booleans, Booleans]:
    """Votes as of :func:`votes_on`, where teachers tend to err on the same labels.

    Each label of each query has an error rate of its own, of the law Beta(1, 14): a fifteenth in
    the mean, and above a half for one label in 16,000.
    """
    entropy = seeded_entropy(100 + seed)
    truth = vectors[np.argsort(entropy.words("rows", 0, len(vectors)))[:queries]]
    words = entropy.words("votes", 0, (teachers + 1) * truth.size).reshape(-1, *truth.shape)
    uniform = (words >> np.uint64(11)) / 2.0**53
    return truth ^ (uniform[1:] < 1 - (1 - uniform[0]) ** (1 / 14)), truth


def _uniform(name: str, shape: tuple[int, ...], seed: int = 29) -> Floats:
    words = seeded_entropy(seed).words(name, 0, int(np.prod(shape))).reshape(shape)
    return np.asarray((words >> np.uint64(11)).astype(np.float64) / 2**53)
