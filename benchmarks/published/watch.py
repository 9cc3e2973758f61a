"""Sixty epochs of online retail by date: few priors paid for, against one in every epoch.

An epoch is a sixtieth of the invoices in the order of their dates. From epoch 40 on a shift is
planted: amounts are three times what they were, as after a change of currency.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.harness import markdown
from benchmarks.published.kept import Kept
from labelveil.common.console import progress
from tests.data_sets import FOLDER
from tests.watched import KEY, LABEL, Arm, run_arm, write_epochs

EPOCHS, SHIFTED, FACTOR = 60, 40, 3.0
FILE = FOLDER / "online_retail.parquet"
_TRAINING = {"ensemble": 2, "hidden": [64], "objective": "likelihood", "head": "log-normal",
             "epochs": 8, "batch_size": 512, "checkpoint": False}  # fmt: skip


def retail_epochs(rows: int, seed: int = 0) -> list[pl.DataFrame]:
    """Return ``rows`` random invoices lines, cut into epochs by date, with the planted shift."""
    bought = pl.read_parquet(FILE).filter((pl.col("Quantity") > 0) & (pl.col("UnitPrice") > 0))
    table = bought.sample(rows, seed=seed).sort("InvoiceDate").select(
        pl.int_range(pl.len()).alias(KEY),
        "StockCode",
        "Country",
        pl.col("CustomerID").cast(pl.Int64).cast(pl.String),
        "UnitPrice",
        hour=pl.col("InvoiceDate").dt.hour(),
        late=pl.int_range(pl.len()) * EPOCHS // pl.len() >= SHIFTED,
        amount=pl.col("Quantity") * pl.col("UnitPrice"),
    )  # fmt: skip
    shifted = pl.when("late").then(FACTOR * pl.col(LABEL)).otherwise(LABEL)
    table = table.with_columns(shifted.alias(LABEL), pl.col(KEY).cast(pl.String))
    edges = np.linspace(0, table.height, EPOCHS + 1).astype(int)
    return [table[a:b] for a, b in itertools.pairwise(edges)]


def compare(
    rows: int, epsilon: float, report: Callable[[str], None], seed: int = 0
) -> dict[str, Arm]:
    """Run both arms on the same events, at the same ε of every event."""
    epochs = retail_epochs(rows, seed)
    truth = pl.concat(epochs).select(KEY, LABEL)
    sections: dict[str, dict[str, object]] = {
        "domain": {"lower": 0, "upper": 400, "grid": "log", "points": 40, "scale": 10},
        "privacy": {"epsilon": epsilon},
        "randomizer": {"name": "randomized-thresholds"},
    }
    with tempfile.TemporaryDirectory() as name:
        write_epochs(Path(name) / "data", epochs)
        return {
            arm: run_arm(Path(name) / "data", arm, truth, {**_TRAINING, "seed": seed},
                         lambda epoch, arm=arm: report(f"{arm} {epoch}"), **sections)
            for arm in ("watch", "daily")
        }  # fmt: skip


def report(kept: Kept, rows: int = 60_000, epsilon: float = 2.0) -> Iterator[str]:
    """Run the comparison, or say why not."""
    if not FILE.is_file():
        yield f"Sixty epochs: skipped, {FILE} is missing; set LABELVEIL_DATA to its folder."
        return

    def run() -> str:
        with progress() as bar:
            task = bar.add_task("sixty epochs, twice", total=2 * EPOCHS, note="")
            return table(compare(rows, epsilon, lambda line: bar.advance(task)), rows, epsilon)

    yield kept(f"watch {rows} {epsilon:g}", run)


def table(found: dict[str, Arm], rows: int, epsilon: float) -> str:
    """Write the comparison as Markdown."""
    cells = []
    for name, arm in found.items():
        each = [sum(part.epsilon for part in one.guarantees[:-1]) for one in arm.manifests]
        least = min(one.labels_guarantee.epsilon for one in arm.manifests)
        where = ", ".join(map(str, arm.paid)) if len(arm.paid) < 20 else "all"
        figures = [f"{value:.3f}" for value in (arm.prior_epsilon, max(each), least)]
        errors = f"{arm.test_mse:.1f}", f"{arm.test_mse / arm.constant_mse:.1%}"
        cells.append([name, str(len(arm.paid)), where, *figures, *errors])
    head = ("", "priors paid", "in epochs", "ε for priors and tests, summed",
            "largest of an event", "smallest ε₂", "test error", "of the constant's")  # fmt: skip
    return (
        f"## A prior only after drift: {rows:,} lines of online retail in {EPOCHS} epochs, ε ="
        f" {epsilon:g}\n\nShift planted at epoch {SHIFTED}.\n\n{markdown(head, cells)}\n"
    )
