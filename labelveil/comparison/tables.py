"""Means and standard deviations over runs: as CSV, as the tables and as the figures of a paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import polars.selectors as cs

from labelveil.common.files import write_text, writing
from labelveil.common.report.markdown import markdown
from labelveil.comparison.names import SEPARATE, TRUE_LABELS
from labelveil.comparison.settings import Job

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = ("label_mse", "test_mse", "test_mae", "test_loss")
GAIN = "test_gain"
"""Of several labels: how much lower the test error is than with a message a label, run by run."""

_APART = 1.012
"""Factor between the places of two methods at one ε, so that their error bars stand apart."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One method at one ε, and for several labels one label.

    Means and standard deviations (n - 1) over the runs are NaN for the label error of a method that
    randomizes no label.
    """

    method: str
    epsilon: float  # infinite for true labels
    runs: int
    means: dict[str, float]
    deviations: dict[str, float]
    constant_mse: float
    label: str = ""

    def has(self, metric: str) -> bool:
        """Whether it is private, and has this figure."""
        return math.isfinite(self.epsilon) and not math.isnan(self.means[metric])

    def to_json(self) -> dict[str, Any]:
        """JSON values; what is not a finite number is null."""

        def finite(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: finite(inner) for name, inner in value.items()}
            return None if isinstance(value, float) and not math.isfinite(value) else value

        return {name: finite(value) for name, value in asdict(self).items() if name != "label"}


def by_label(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of each label; a single one has no name."""
    names = dict.fromkeys(cell.label for cell in cells)
    return {name: [cell for cell in cells if cell.label == name] for name in names}


def summarise(records: Sequence[dict[str, Any]]) -> list[Cell]:
    """Aggregate over runs; jobs that could not be run are left out."""
    rows = [*_rows(records)]
    if not rows:
        return []
    shown = [name for name in (*METRICS, GAIN) if name in rows[0]]
    names = [*shown, "constant_mse"]
    table = pl.DataFrame(rows).group_by("label", "method", "epsilon", maintain_order=True)
    means = table.agg(
        pl.len().alias("runs"),
        *(cs.by_name(name).mean().alias(f"{name} mean") for name in names),
        *(cs.by_name(name).std().fill_null(0.0).alias(f"{name} sd") for name in names),
    )
    return [
        Cell(
            row["method"],
            row["epsilon"],
            row["runs"],
            {name: row[f"{name} mean"] for name in shown},
            {name: row[f"{name} sd"] for name in shown},
            row["constant_mse mean"],
            row["label"],
        )
        for row in means.iter_rows(named=True)
    ]


def _rows(records: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One a job and label; NaN stands for what a job has no figure for."""
    jobs = [(Job.from_json(record), record) for record in records if "error" not in record]
    errors = {
        (job, label["name"]): label["test_mse"]
        for job, record in jobs
        for label in record.get("labels", [])
    }
    for job, record in jobs:
        apart = replace(job, method=replace(job.method, randomizer=SEPARATE))
        for label in record.get("labels", [record]):
            values = {name: label.get(name) for name in (*METRICS, "constant_mse")}
            name = label.get("name", "")
            if name:
                beside = None if job == apart else errors.get((apart, name))
                values[GAIN] = None if beside is None else beside - label["test_mse"]
            yield {
                "label": name,
                "method": str(job.method),
                "epsilon": job.epsilon,
                **{name: math.nan if v is None else float(v) for name, v in values.items()},
            }


def write_csv(cells: Sequence[Cell], path: Path) -> None:
    rows = [
        {
            **({"label": cell.label} if cell.label else {}),
            "method": cell.method,
            "epsilon": cell.epsilon,
            "runs": cell.runs,
            **{f"{name}_mean": mean for name, mean in cell.means.items()},
            **{f"{name}_sd": deviation for name, deviation in cell.deviations.items()},
            "constant_mse": cell.constant_mse,
        }
        for cell in cells
    ]
    with writing(path):
        pl.DataFrame(rows).write_csv(path)


def write_markdown(
    cells: Sequence[Cell], path: Path, notes: Sequence[str] = (), loss: str = "squared"
) -> None:
    """Tables of test and label error: methods down, ε across, mean ± deviation; notes."""
    titles = {
        "test_loss": f"Test loss of the model ({loss})",
        "test_mse": "Test error of the model (mean squared error)",
        GAIN: "How much lower than with a message a label (paired, ± standard error)",
        "label_mse": "Error of the randomized label (mean squared error)",
    }
    parts = ["# Comparison", ""]
    for label, mine in by_label(cells).items():
        for metric, title in titles.items():
            if metric in mine[0].means and (metric, loss) != ("test_loss", "squared"):
                parts += _table(mine, metric, f"{label}: {title}" if label else title)
    text = "\n".join([*parts, *(f"- {markdown(note)}" for note in notes)]) + "\n"
    write_text(path, text)


def _table(cells: Sequence[Cell], metric: str, title: str) -> list[str]:
    private = [cell for cell in cells if cell.has(metric)]
    epsilons = sorted({cell.epsilon for cell in private})
    methods = list(dict.fromkeys(cell.method for cell in private))
    choose = max if metric == GAIN else min
    best = {
        epsilon: choose(c.means[metric] for c in private if c.epsilon == epsilon)
        for epsilon in epsilons
    }
    if not private:
        return []
    lines = [f"## {markdown(title)}", ""]
    lines.append("| method | " + " | ".join(f"ε = {epsilon:g}" for epsilon in epsilons) + " |")
    lines.append("|---" * (len(epsilons) + 1) + "|")
    for method in methods:
        row = []
        for epsilon in epsilons:
            cell = next((c for c in private if (c.method, c.epsilon) == (method, epsilon)), None)
            text = "–" if cell is None else _with_deviation(cell, metric)
            row.append(f"**{text}**" if cell and cell.means[metric] == best[epsilon] else text)
        lines.append(f"| {markdown(method)} | " + " | ".join(row) + " |")
    if metric == "test_mse":
        true_labels = TRUE_LABELS.replace("-", " ")
        truth = [c for c in cells if c.method == true_labels][:1]
        lines += ["", *(f"True labels: {_with_deviation(cell, metric)}." for cell in truth)]
        lines += [f"Best constant: {cells[0].constant_mse:.4g}."]
    return [*lines, ""]


def _with_deviation(cell: Cell, metric: str) -> str:
    mean, spread = f"{cell.means[metric]:.4g}", cell.deviations[metric]
    if metric == GAIN:
        spread /= math.sqrt(cell.runs)
    return mean if cell.runs == 1 else f"{mean} ± {spread:.2g}"


def draw(cells: Sequence[Cell], out: Path, loss: str = "squared") -> None:
    """Write ``test_error.png``, ``label_error.png`` and, for other losses, ``test_loss.png``."""
    _figure(cells, "test_mse", "Test error of the model", out / "test_error.png")
    _figure(cells, "label_mse", "Error of the randomized label", out / "label_error.png")
    if loss != "squared":
        title, unit = "Test loss of the model", f"{loss} loss"
        _figure(cells, "test_loss", title, out / "test_loss.png", unit)


def _figure(
    cells: Sequence[Cell], metric: str, title: str, path: Path, unit: str = "mean squared error"
) -> None:
    """Draw a panel for each label, if there is anything to be seen."""
    from labelveil.common.report.figures import picture

    if not any(cell.has(metric) for cell in cells):
        return
    labels = by_label(cells)
    with picture(path, 8 if len(labels) == 1 else 5 * len(labels), 5) as figure:
        panels = figure.subplots(1, len(labels), squeeze=False)[0]
        for axes, (label, mine) in zip(panels, labels.items(), strict=True):
            _panel(axes, mine, metric, unit)
            axes.set_title(f"{label}: {title[0].lower()}{title[1:]}" if label else title)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4 if label else 3)


def _panel(axes: Axes, cells: Sequence[Cell], metric: str, unit: str) -> None:
    from labelveil.common.report.figures import MARKERS, clean, epsilon_axis, level, logarithmic

    levels = [("constant", cells[0].constant_mse)] if metric == "test_mse" else []
    if metric != "label_mse":
        levels += [("true labels", c.means[metric]) for c in cells if math.isinf(c.epsilon)]
    cells = [cell for cell in cells if cell.has(metric)]
    methods = list(dict.fromkeys(cell.method for cell in cells))
    for index, method in enumerate(methods):
        mine = sorted((c for c in cells if c.method == method), key=lambda cell: cell.epsilon)
        shift = _APART ** (index - (len(methods) - 1) / 2)
        axes.errorbar(
            [cell.epsilon * shift for cell in mine],
            [cell.means[metric] for cell in mine],
            yerr=[cell.deviations[metric] for cell in mine],
            label=method,
            marker=MARKERS[index % len(MARKERS)],
            linewidth=2.6 if method.startswith("auto") else 1.2,
            capsize=2,
        )
    for name, height in levels:
        level(axes, height, name)
    heights = [cell.means[metric] for cell in cells] + [height for _, height in levels]
    axes.set_ylabel(unit)
    if heights and max(heights) > 4 * min(heights) > 0:
        logarithmic(axes, "y", unit)
    epsilon_axis(axes, [cell.epsilon for cell in cells])
    clean(axes)
