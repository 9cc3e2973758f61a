"""Private ERM: excess risk against ε and n for the three perturbations.

Published: Chaudhuri, Monteleoni, Sarwate, JMLR 2011, Figures 2 to 5, on other versions of census
data; no private model had been tried on the letters there. Excess risk is J(w) - J(w*), with w* the
exact minimiser of the same regularised risk J on the same records.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.entropy import seeded_entropy, system_entropy
from common.learning.losses import HuberHinge, Logistic, Loss
from common.learning.minimise import Risk, minimise
from common.learning.perturbation import PERTURBATIONS, learn
from common.learning.scaling import RowScaling
from tests.benchmarks.published import sources
from tests.data_sets import FOLDER

Floats = NDArray[np.float64]

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
RIDGE = 1e-3
ROWS = 16_000
RUNS = 20
LOSSES: dict[str, Loss] = {"logistic": Logistic(), "Huber hinge": HuberHinge()}


@dataclass(frozen=True)
class Outcome:
    """Mean excess risk and its standard error, by perturbation and ε (or n)."""

    title: str
    axis: tuple[float, ...]
    means: dict[str, list[float]]
    errors: dict[str, list[float]]


def census() -> tuple[Floats, Floats]:
    """Income above 50,000 $ from age, weeks, sex, capital gains and education; public bounds."""
    table = pl.read_parquet(FOLDER / "census_income_kdd_test.parquet")
    labels = np.where(
        table["income"].cast(pl.String).str.contains("50000+", literal=True), 1.0, -1.0
    )
    numbers = table.select(
        pl.col("age") / 90,
        pl.col("weeks worked in year") / 52,
        (pl.col("capital gains") + 1).log(10) / 5,
        pl.col("sex").cast(pl.String).str.contains("Female").cast(pl.Float64),
    ).to_numpy()
    education = table["education"].cast(pl.String).to_dummies().to_numpy()
    features = np.column_stack([numbers, education]).astype(np.float64)
    return RowScaling((0, 1), norm_bound=4.0).apply(features), labels


def letters() -> tuple[Floats, Floats]:
    """Is a letter from the first half of the alphabet?"""
    table = pl.read_parquet(FOLDER / "letter_recognition.parquet")
    labels = np.where(table["letter"].cast(pl.String) <= "M", 1.0, -1.0)
    features = table.drop("letter").to_numpy().astype(np.float64)
    return RowScaling((0, 15), norm_bound=2.0).apply(features), labels


TASKS: dict[str, tuple[str, Callable[[], tuple[Floats, Floats]]]] = {
    "census income": ("census_income_kdd_test.parquet", census),
    "letters": ("letter_recognition.parquet", letters),
}


def against_epsilon(
    title: str, data: tuple[Floats, Floats], loss: Loss, runs: int, rows: int = ROWS
) -> Outcome:
    """Excess risk at every ε."""
    points = [(rows, epsilon) for epsilon in EPSILONS]
    return _sweep(title, data, loss, runs, points, EPSILONS, PERTURBATIONS)


def against_rows(title: str, data: tuple[Floats, Floats], loss: Loss, runs: int) -> Outcome:
    """Excess risk at ε = 1 for growing n."""
    sizes = tuple(float(size) for size in (1000, 2000, 4000, 8000, 16_000))
    points = [(int(size), 1.0) for size in sizes]
    return _sweep(title, data, loss, runs, points, sizes, ("objective", "output"))


def _sweep(
    title: str,
    data: tuple[Floats, Floats],
    loss: Loss,
    runs: int,
    points: list[tuple[int, float]],
    axis: tuple[float, ...],
    names: tuple[str, ...],
) -> Outcome:
    order = np.argsort(seeded_entropy(47).words("rows", 0, len(data[1])))
    means: dict[str, list[float]] = {name: [] for name in names}
    errors: dict[str, list[float]] = {name: [] for name in names}
    for rows, epsilon in points:
        x, y = data[0][order[:rows]], data[1][order[:rows]]
        risk = Risk(loss, x, y, RIDGE, np.zeros(x.shape[1]))
        least = risk.value(minimise(risk))
        for name in names:
            excess = [
                risk.value(learn(name, loss, x, y, RIDGE, epsilon, system_entropy()).weights)
                - least
                for _ in range(runs)
            ]
            means[name].append(float(np.mean(excess)))
            errors[name].append(float(np.std(excess, ddof=1) / runs**0.5))
    return Outcome(title, axis, means, errors)


def slope(outcome: Outcome, name: str) -> float:
    """Of log excess risk against log n."""
    return float(np.polyfit(np.log(outcome.axis), np.log(outcome.means[name]), 1)[0])


def table(outcomes: list[Outcome], what: str) -> str:
    """Means and standard errors as Markdown."""
    axis = outcomes[0].axis
    lines = [
        f"| task | perturbation | {' | '.join(f'{what} = {value:g}' for value in axis)} |",
        "|---" * (len(axis) + 2) + "|",
    ]
    for outcome in outcomes:
        for name, means in outcome.means.items():
            cells = " | ".join(
                f"{mean:.3g} ± {error:.1g}"
                for mean, error in zip(means, outcome.errors[name], strict=True)
            )
            lines.append(f"| {outcome.title} | {name} | {cells} |")
    return "\n".join(lines)


def plot(outcomes: list[Outcome], what: str, path: Any, plt: Any) -> None:
    """Excess risk on double logarithmic axes, one panel a task."""
    wide = len(outcomes)
    figure, axes = plt.subplots(1, wide, figsize=(3.9 * wide, 3.5), squeeze=False)
    for axis, outcome in zip(axes.flat, outcomes, strict=True):
        for name, means in outcome.means.items():
            axis.errorbar(
                outcome.axis, means, yerr=outcome.errors[name], label=name, marker="o", ms=3
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(outcome.title, fontsize=10)
        axis.set_xlabel(what)
    axes.flat[0].set_ylabel("excess risk")
    axes.flat[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def report(out: Path, plt: Any) -> list[str]:
    """Run everything and write the plots; returns the report's sections."""
    parts: list[str] = []
    by_epsilon, by_rows = [], []
    for name, (file, load) in TASKS.items():
        skipped = sources.missing(file)
        if skipped:
            parts.append(f"Private ERM on {name}: skipped, {skipped}.")
            continue
        data = load()
        for kind, loss in LOSSES.items():
            start = time.perf_counter()
            by_epsilon.append(against_epsilon(f"{name}, {kind}", data, loss, RUNS))
            by_rows.append(against_rows(f"{name}, {kind}", data, loss, RUNS))
            print(f"ERM, {name}, {kind}: {time.perf_counter() - start:.1f} s", flush=True)
    if not by_epsilon:
        return parts
    plot(by_epsilon, "ε", out / "erm.png", plt)
    plot(by_rows, "n", out / "erm_rows.png", plt)
    slopes = ", ".join(
        f"{outcome.title}, {name}: {slope(outcome, name):.2f}"
        for outcome in by_rows
        for name in outcome.means
    )
    return [
        *parts,
        f"## Private ERM: excess risk, {ROWS:,} records, λ = {RIDGE:g}, {RUNS} runs\n\n"
        f"{table(by_epsilon, 'ε')}\n\n![excess risk](erm.png)",
        f"## Private ERM: excess risk against n at ε = 1\n\n{table(by_rows, 'n')}\n\n"
        f"Slopes of log excess risk in log n: {slopes}.\n\n![excess risk](erm_rows.png)",
    ]
