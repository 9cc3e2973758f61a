"""Synthesis: error of census marginals against the number of queries, and BLR on a tiny domain.

Published: Hardt, Ligett and McSherry, NeurIPS 2012, Figures 1 to 3; Blum, Ligett and Roth 2008.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from benchmarks.harness import markdown
from benchmarks.published.panels import panels
from benchmarks.published.sources import census_table
from labelveil.common.entropy import seeded_entropy
from labelveil.common.guarantees import largest_rho
from labelveil.common.mechanisms.synthesis import (
    BLR,
    MWEM,
    ConcentratedBudget,
    LinearQueries,
    Marginals,
    PureBudget,
    SelectMeasureProject,
    errors,
    laplace_answers,
)
from labelveil.common.report.figures import logarithmic

EPSILONS = (Fraction(1, 10), Fraction(1))
SETS = (8, 12, 20, 44, 92)
DELTA = Fraction(1, 10**9)
ROUNDS = 60
RUNS = 3
NAMES = (
    "noise on each answer",
    "noise on each cell",
    "MWEM",
    "select–measure–project",
    "the same in zCDP, δ = 1e-9",
)


@dataclass(frozen=True)
class Cell:
    """Largest and mean error of one method on one workload, as shares of the records."""

    epsilon: float
    queries: int
    name: str
    largest: float
    mean: float


def census(epsilon: Fraction, sets: int, runs: int) -> list[Cell]:
    """Every method on so many marginals of up to three of eight columns, means over runs."""
    domain, table = census_table()
    every = Marginals.up_to(domain, 3).sets
    singles = len(domain.sizes)
    # larger sets are taken at equal distances, so that all columns are among them
    chosen = np.linspace(singles, len(every) - 1, sets - singles, dtype=int)
    workload = Marginals(domain, every[:singles] + tuple(every[i] for i in chosen))
    rho = largest_rho(float(epsilon), DELTA)
    cells = []
    for name in NAMES:
        found = []
        for run in range(runs):
            answers = _answers(name, workload, table, epsilon, rho, run)
            found.append(errors(workload, table, answers))
        largest, mean = np.mean(found, axis=0)
        cells.append(Cell(float(epsilon), workload.size, name, largest, mean))
    return cells


def _answers(
    name: str, workload: Marginals, table: np.ndarray, epsilon: Fraction, rho: Fraction, seed: int
) -> np.ndarray:
    entropy = seeded_entropy(seed)
    records = int(table.sum())
    if name == NAMES[0]:
        return laplace_answers(workload, table, epsilon, entropy)
    if name == NAMES[1]:
        full = Marginals(workload.domain, (tuple(range(len(workload.domain.sizes))),))
        return workload.answers(laplace_answers(full, table, epsilon, entropy))
    if name == NAMES[2]:
        weights = MWEM(workload, epsilon, ROUNDS).draw(table, entropy).weights
    else:
        budget = PureBudget(epsilon) if name == NAMES[3] else ConcentratedBudget(rho)
        weights = SelectMeasureProject(workload, budget).draw(table, entropy).weights
    return workload.answers(weights * records)


def table_of(cells: list[Cell]) -> str:
    """Mean (largest) errors as Markdown, in percent of the records."""
    by, rows = {(cell.epsilon, cell.queries, cell.name): cell for cell in cells}, []
    for epsilon in sorted({cell.epsilon for cell in cells}):
        for queries in sorted({cell.queries for cell in cells}):
            row = [by[epsilon, queries, name] for name in NAMES]
            shown = [f"{100 * c.mean:.3f} ({100 * c.largest:.2f})" for c in row]
            rows.append([f"{epsilon:g}", f"{queries:,}", *shown])
    return markdown(["ε", "queries", *NAMES], rows)


def plot(cells: list[Cell], path: Path) -> None:
    """Mean error against the number of queries."""
    with panels(path, [f"ε = {float(epsilon):g}" for epsilon in EPSILONS]) as axes:
        for axis, epsilon in zip(axes.values(), EPSILONS, strict=True):
            for name in NAMES:
                row = [c for c in cells if c.name == name and c.epsilon == float(epsilon)]
                queries, means = [c.queries for c in row], [c.mean for c in row]
                axis.plot(queries, means, marker="o", ms=3, label=name)
            logarithmic(axis, "x", "queries")
            logarithmic(axis, "y", "mean error, share of records")
        next(iter(axes.values())).legend(fontsize=8)


def blr_table() -> str:
    """BLR on eight cells: mean error of the exact law, its bound, and noise on each answer."""
    queries = LinearQueries(np.tril(np.ones((8, 8), dtype=np.int64))[:-1])
    shares = np.array([30, 5, 0, 0, 20, 25, 15, 5])
    rows = []
    for records in (100, 1_000, 10_000):
        table = shares * (records // 100)
        for epsilon in EPSILONS:
            blr = BLR(queries, epsilon, alpha=0.4)
            mean = float(blr.probabilities(table) @ blr.errors(table))
            noisy = [
                errors(queries, table, laplace_answers(queries, table, epsilon, seeded_entropy(s)))
                for s in range(200)
            ]
            figures = mean, blr.bound(records, 0.05), np.mean([largest for largest, _ in noisy])
            cells = [f"{figure:.3f}" for figure in figures]
            rows.append([f"{records:,}", f"{float(epsilon):g}", *cells])
    return markdown(["records", "ε", "BLR", "bound (95%)", "noise on each answer"], rows)
