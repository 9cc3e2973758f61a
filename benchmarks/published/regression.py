"""Regression with Label DP (ICLR 2023) and RPWithPrior (TMLR 2026): their tables and figures.

Each comparison is `labelveil compare` on one data set, by default on a part of the rows, few splits
and budgets; ``--full`` takes all rows, ten splits and every ε from .05 to 8, as published. A
comparison keeps its results and takes them up again, whichever splits and budgets are asked for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from benchmarks.published import label_noise
from benchmarks.published.kept import Kept
from labelveil.comparison import CompareSettings, run_comparison
from tests.data_sets import COMMUNITIES, CRITEO_LOG, HOUSING, RANDHIE, RETAIL, WORKED, DataSet

EVERY_EPSILON = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
FEW_EPSILONS = (0.5, 2.0, 8.0)
SPLITS = 10
"""Of 80/20, as published; a few where ``--full`` is not given."""

PUBLISHED = "rr-on-bins:as-published"
NOISES = ("laplace", "staircase")
FLOATS = "clip=true,continuous=true:as-published"
ADDITIVE = tuple(f"{name},{FLOATS}" for name in NOISES)
UNCLIPPED = tuple(f"{name},continuous=true:as-published" for name in NOISES)
DISCRETE = tuple(f"discrete-{name},clip=true:as-published" for name in NOISES)
OTHERS = ("exponential:as-published", "randomized-response:as-published")


@dataclass(frozen=True)
class Size:
    """How much is run: everything or a part, and other splits and ε than are meant for it."""

    full: bool = False
    splits: int | None = None
    epsilons: tuple[float, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One table or figure; rows, runs and ε are those of the reduced size."""

    name: str
    title: str
    data_set: DataSet
    methods: tuple[str, ...]
    rows: int
    runs: int = 1
    loss: str = "squared"
    few: tuple[str, ...] = ()  # settings of training at the reduced size
    full: tuple[str, ...] = ()  # and at the full one
    epsilons: tuple[float, ...] = FEW_EPSILONS
    folder: str = ""  # of results that several experiments share

    def run(self, out: Path, size: Size) -> str:
        """Compare, keep the pictures, and return the section of the report."""
        if self.data_set.missing:
            return f"## {self.title}\n\nSkipped: {self.data_set.missing}."
        full = size.full
        folder = out / "comparisons" / ("full" if full else "part") / (self.folder or self.name)
        folder.mkdir(parents=True, exist_ok=True)
        events = folder / "events.parquet"
        if not events.exists():
            self.data_set.load().write_parquet(events)
        settings = CompareSettings(
            labels=events,
            features=events,
            label=self.data_set.label,
            lower=self.data_set.lower,
            upper=self.data_set.upper,
            loss=self.loss,
            epsilons=size.epsilons or (EVERY_EPSILON if full else self.epsilons),
            runs=size.splits or (SPLITS if full else self.runs),
            rows=None if full else self.rows,
            workers=os.cpu_count() or 1 if full else 1,
            methods=list(self.methods),
            training=list(self.full if full else self.few),
            out=folder,
        )
        found = run_comparison(settings)
        pictures = []
        for picture in sorted(folder.glob("*.png")):
            kept = f"{self.name}-{picture.stem.replace('_', '-')}.png"
            shutil.copy(picture, out / kept)
            pictures.append(f"![{picture.stem.replace('_', ' ')}]({kept})")
        tables = (folder / "table.md").read_text().removeprefix("# Comparison\n")
        tables = tables.replace("## ", "### ").strip()
        rows = pl.scan_parquet(folder / "data" / "truth.parquet").select(pl.len()).collect().item()
        splits = "1 split" if settings.runs == 1 else f"{settings.runs} splits"
        how = f"{self.data_set.name}, {rows:,} rows, {splits} of 80/20"
        refused = {record["error"] for record in found.records if "error" in record}
        notes = [how + ".", *(f"- {error}" for error in sorted(refused))]
        return "\n\n".join([f"## {self.title}", "\n".join(notes), tables, *pictures])


HUNDRED_THOUSANDS = replace(
    HOUSING,
    name="housing (100,000 USD)",
    upper=5.00001,
    load=lambda: HOUSING.load().with_columns(pl.col(HOUSING.label) / 1e5),
)
"""Housing with values in units of 100,000 dollars, as scikit-learn has it."""

SALES = RETAIL if CRITEO_LOG.missing else CRITEO_LOG
"""The paper's Criteo log where it is, or else amounts of a shop, clipped at 400 as well."""

ON_SALES = Experiment(
    "sales",
    "Table 1 and Figure 3: amounts of sales",
    SALES,
    (*ADDITIVE, "exponential:as-published", PUBLISHED),
    40_000,
    few=("batch_size=1024",),
    folder="sales",
)
ON_WEEKS = Experiment(
    "weeks",
    "Figure 4(a): weeks worked, integers of 1 … 52",
    WORKED,
    (*ADDITIVE, *DISCRETE, *OTHERS, PUBLISHED),
    51_873,
    runs=3,
    few=("batch_size=1024",),
    full=("epochs=200",),
    folder="weeks",
)
EXPERIMENTS = (
    ON_SALES,
    replace(
        ON_SALES,
        name="clipping",
        title="Figure 6: clipped noise, unclipped, and the exponential mechanism",
        methods=(*ADDITIVE, *UNCLIPPED, "exponential:as-published"),
    ),
    ON_WEEKS,
    replace(
        ON_WEEKS,
        name="likeliest",
        title="Table 2: RRWithPrior",
        methods=("rr-with-prior:as-published", PUBLISHED),
    ),
    Experiment(
        "visits",
        "Figure 4(b): counts of visits under Poisson loss",
        RANDHIE,
        (*DISCRETE, *OTHERS, PUBLISHED),
        20_190,
        loss="poisson",
        few=("batch_size=512", "optimizer=adamw"),
        full=("optimizer=adamw",),
    ),
    Experiment(
        "housing",
        "RPWithPrior on housing",
        HUNDRED_THOUSANDS,
        ("rp-with-prior,radius=0.7:raw", "rp-with-prior:raw", "rp-with-prior:likelihood", "auto"),
        20_640,
        epsilons=(0.05, 2.0),
    ),
    Experiment(
        "crime",
        "RPWithPrior on Communities and Crime",
        COMMUNITIES,
        (
            "rp-with-prior:raw",
            "rp-with-prior,radius=0.4:raw",
            *(f"{name},clip={clip}:raw" for name in NOISES for clip in ("true", "false")),
            "rr-on-bins:raw",
            "unbiased:raw",
            "rp-with-prior:likelihood",
            "auto",
        ),
        1994,
        runs=SPLITS,
        epsilons=EVERY_EPSILON,
    ),
)


def report(out: Path, size: Size, kept: Kept, only: str | None = None) -> Iterator[str]:
    """Run everything, or the experiment named, and yield the sections."""
    if only in (None, "label-noise"):
        yield from _label_noise(out, kept)
    for one in EXPERIMENTS:
        if only in (None, one.name):
            kept.check_time()
            yield one.run(out, size)


def _label_noise(out: Path, kept: Kept) -> Iterator[str]:
    shown = {"amounts": SALES, "weeks": WORKED, "visits": RANDHIE}
    there = {title: one for title, one in shown.items() if one.missing is None}
    if "amounts" in there:
        name = f"label noise {SALES.name}"
        picture = out / "densities.png"
        found = kept(f"{name} densities", label_noise.densities, SALES, picture)
        errors = ", ".join(
            f"{title} {error:,.4g} ({size} values)" for title, (error, size) in found.items()
        )
        yield (
            f"## Figure 2: labels and what is sent, ε = {label_noise.FIGURE_EPSILON:g}\n\n"
            f"{SALES.name}, mean squared error of what is sent: {errors}.\n\n"
            "![densities](densities.png)"
        )
        yield (
            f"## Table 1: mean squared error of randomized labels, all of {SALES.name}\n\n"
            f"{kept(f'{name} errors', label_noise.label_errors, SALES, EVERY_EPSILON)}"
        )
        table = kept(f"{name} bins", label_noise.bins_figure, SALES, out / "bins.png")
        yield (
            f"## Algorithm 2: least loss by number of bins, {SALES.name}\n\n{table}\n\n"
            "![bins](bins.png)"
        )
    name = f"convergence {' '.join(there)}"
    table = kept(name, label_noise.convergence, there, out / "convergence.png", 2.0)
    yield (
        "## Theorem 7: what a private prior costs, ε = 2\n\nExcess error of two steps over the"
        f" optimum for the true prior, as a share of the largest loss.\n\n{table}\n\n"
        "![convergence](convergence.png)"
    )
