"""Means and standard deviations over runs, as CSV and as the Markdown table of a paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from common.mechanisms.central.names import TRUE_LABELS
from common.program.comparison.jobs import Job

METRICS = ("label_mse", "test_mse", "test_mae", "test_loss")


@dataclass(frozen=True)
class Cell:
    """One method at one ε.

    Attributes
    ----------
    method
        In words.
    epsilon
        Infinite for true labels.
    runs
        Number of runs behind the figures.
    means, deviations
        Mean and standard deviation (n - 1) of every metric over the runs; NaN for the label error
        of a method that randomizes no label.
    constant_mse
        Test error of the best constant.
    """

    method: str
    epsilon: float
    runs: int
    means: dict[str, float]
    deviations: dict[str, float]
    constant_mse: float

    def to_json(self) -> dict[str, Any]:
        """JSON values; what is not a finite number is null."""

        def finite(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: finite(inner) for name, inner in value.items()}
            return None if isinstance(value, float) and not math.isfinite(value) else value

        return {name: finite(value) for name, value in asdict(self).items()}


def summarise(records: Sequence[dict[str, Any]]) -> list[Cell]:
    """Aggregate over runs; jobs that could not be run are left out."""
    rows = []
    for record in records:
        if "error" in record:
            continue
        job = Job.from_json(record)
        # results of earlier versions have no test_loss
        found = {name: record.get(name) for name in (*METRICS, "constant_mse")}
        metrics = {name: math.nan if v is None else float(v) for name, v in found.items()}
        rows.append({"method": str(job.method), "epsilon": job.epsilon, **metrics})
    if not rows:
        return []
    table = pl.DataFrame(rows).group_by("method", "epsilon", maintain_order=True)
    names = (*METRICS, "constant_mse")
    means = table.agg(
        pl.len().alias("runs"),
        *(pl.col(name).mean().alias(f"{name} mean") for name in names),
        *(pl.col(name).std().fill_null(0.0).alias(f"{name} sd") for name in names),
    )
    return [
        Cell(
            row["method"],
            row["epsilon"],
            row["runs"],
            {name: row[f"{name} mean"] for name in METRICS},
            {name: row[f"{name} sd"] for name in METRICS},
            row["constant_mse mean"],
        )
        for row in means.iter_rows(named=True)
    ]


def write_csv(cells: Sequence[Cell], path: Path) -> None:
    """One line a method and ε."""
    rows = [
        {
            "method": cell.method,
            "epsilon": cell.epsilon,
            "runs": cell.runs,
            **{f"{name}_mean": cell.means[name] for name in METRICS},
            **{f"{name}_sd": cell.deviations[name] for name in METRICS},
            "constant_mse": cell.constant_mse,
        }
        for cell in cells
    ]
    pl.DataFrame(rows).write_csv(path)


def write_markdown(
    cells: Sequence[Cell], path: Path, notes: Sequence[str] = (), loss: str = "squared"
) -> None:
    """Tables of test and label error: methods down, ε across, mean ± deviation; notes."""
    judged = _table(cells, "test_loss", f"Test loss of the model ({loss})")
    parts = [
        "# Comparison",
        "",
        *(judged if loss != "squared" else []),
        *_table(cells, "test_mse", "Test error of the model (mean squared error)"),
        *_table(cells, "label_mse", "Error of the randomized label (mean squared error)"),
        *(f"- {note}" for note in notes),
    ]
    path.write_text("\n".join(parts) + "\n")


def _table(cells: Sequence[Cell], metric: str, title: str) -> list[str]:
    private = [
        cell for cell in cells if math.isfinite(cell.epsilon) and not math.isnan(cell.means[metric])
    ]
    epsilons = sorted({cell.epsilon for cell in private})
    methods = list(dict.fromkeys(cell.method for cell in private))
    best = {
        epsilon: min(c.means[metric] for c in private if c.epsilon == epsilon)
        for epsilon in epsilons
    }
    lines = [f"## {title}", ""]
    lines.append("| method | " + " | ".join(f"ε = {epsilon:g}" for epsilon in epsilons) + " |")
    lines.append("|---" * (len(epsilons) + 1) + "|")
    for method in methods:
        row = []
        for epsilon in epsilons:
            cell = next((c for c in private if (c.method, c.epsilon) == (method, epsilon)), None)
            row.append(_entry(cell, metric, best[epsilon]))
        lines.append(f"| {method} | " + " | ".join(row) + " |")
    if metric == "test_mse":
        lines += ["", *_references(cells)]
    return [*lines, ""]


def _entry(cell: Cell | None, metric: str, best: float) -> str:
    if cell is None:
        return "–"
    text = _with_deviation(cell, metric)
    return f"**{text}**" if cell.means[metric] <= best else text


def _with_deviation(cell: Cell, metric: str) -> str:
    mean = f"{cell.means[metric]:.4g}"
    return mean if cell.runs == 1 else f"{mean} ± {cell.deviations[metric]:.2g}"


def _references(cells: Sequence[Cell]) -> list[str]:
    lines = []
    truth = next((c for c in cells if c.method == TRUE_LABELS.replace("-", " ")), None)
    if truth is not None:
        lines.append(f"True labels: {_with_deviation(truth, 'test_mse')}.")
    lines.append(f"Best constant: {cells[0].constant_mse:.4g}.")
    return lines
