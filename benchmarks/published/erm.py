"""Private ERM: excess risk against ε and n for the three perturbations.

Published: Chaudhuri, Monteleoni, Sarwate, JMLR 2011, Figures 2 to 5, on other versions of census
data; no private model had been tried on the letters there. Excess risk is J(w) - J(w*), with w* the
exact minimiser of the same regularised risk J on the same records.

*What theory says.* J is λ-strongly convex and (c+λ)-smooth, and radial noise of scale s in d
dimensions has ``E‖b‖² = d(d+1)s²``. Output perturbation adds b with ``s = 2L/(nλε)`` to w*, so its
excess risk is ``(c+λ)/2 · E‖b‖²`` at most. Objective perturbation ends where
``∇J = -b/n - (Λ-λ)w`` with ``s = 2L/ε'``, and

    J_Λ(w) - J_Λ(w_Λ) <= ‖b‖²/(2Λn²),   J <= J_Λ,   J_Λ(w_Λ) <= J_Λ(w*) = J(w*) + (Λ-λ)/2 ‖w*‖²

for ``J_Λ = J + (Λ-λ)/2 ‖·‖²``: ``E‖b‖²/(2Λn²) + (Λ-λ)/2 ‖w*‖²`` at most. While Λ = λ both fall like
``d²/(nε)²``, slope -2 in n, and objective perturbation's bound is the smaller one if
``λ/(c+λ) · (ε/ε')² <= 1``. (Ibid., Section 4, has such bounds with high probability.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.harness import markdown
from benchmarks.published import sources
from benchmarks.published.kept import Kept
from benchmarks.published.panels import panels
from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy, system_entropy
from labelveil.common.mechanisms.central.perturbation import (
    Perturbation,
    objective_noise,
    output_sensitivity,
)
from labelveil.common.mechanisms.central.risk import HuberHinge, Logistic, Loss, Risk, minimise
from labelveil.common.mechanisms.clipping import scaled_rows
from labelveil.common.report.figures import logarithmic
from tests.data_sets import FOLDER

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
SIZES = (1000, 2000, 4000, 8000, 16_000)
FIXED = (1.0, 10.0)
"""ε while n grows: the second far enough into the regime that theory is about."""
RIDGE = 1e-3
ROWS = 16_000
RUNS = 20
LOSSES: dict[str, Loss] = {"logistic": Logistic(), "Huber hinge": HuberHinge()}


@dataclass(frozen=True)
class Outcome:
    """Mean excess risk and its standard error at each point, by perturbation."""

    title: str  # task and loss
    axis: tuple[float, ...]  # ε, or n
    means: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, list[float]] = field(default_factory=dict)
    bounds: dict[str, list[float]] = field(default_factory=dict)
    """Theory's bound of the mean; input perturbation has none here."""
    trivial: list[float] = field(default_factory=list)
    """Excess risk of w = 0, which needs no data."""


def bounds(loss: Loss, shape: tuple[int, int], epsilon: float, norm: float) -> dict[str, float]:
    """Bounds of the mean excess risk; ``shape`` is (n, d) and ``norm`` ‖w*‖."""
    n, d = shape
    moment = d * (d + 1)
    scale = float(output_sensitivity(loss, n, RIDGE)) / epsilon
    strong, wide = objective_noise(loss, n, RIDGE, Fraction(epsilon))
    raised = (strong - RIDGE) / 2 * norm**2
    return {
        "objective": moment * float(wide) ** 2 / (2 * strong * n**2) + raised,
        "output": (loss.smoothness + RIDGE) / 2 * moment * scale**2,
    }


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
    return scaled_rows(features, (0, 1), norm_bound=4.0), labels


def letters() -> tuple[Floats, Floats]:
    """Is a letter from the first half of the alphabet?"""
    table = pl.read_parquet(FOLDER / "letter_recognition.parquet")
    labels = np.where(table["letter"].cast(pl.String) <= "M", 1.0, -1.0)
    features = table.drop("letter").to_numpy().astype(np.float64)
    return scaled_rows(features, (0, 15), norm_bound=2.0), labels


TASKS: dict[str, tuple[str, Callable[[], tuple[Floats, Floats]]]] = {
    "census income": ("census_income_kdd_test.parquet", census),
    "letters": ("letter_recognition.parquet", letters),
}


def against_epsilon(
    title: str, data: tuple[Floats, Floats], loss: Loss, runs: int, rows: int = ROWS
) -> Outcome:
    """Excess risk at every ε."""
    points = [(rows, epsilon) for epsilon in EPSILONS]
    return _sweep(Outcome(title, EPSILONS), data, loss, runs, points, tuple(_MARKS))


def against_rows(
    title: str, data: tuple[Floats, Floats], loss: Loss, runs: int, epsilon: float
) -> Outcome:
    """Excess risk at one ε for growing n."""
    points = [(size, epsilon) for size in SIZES]
    outcome = Outcome(f"{title}, ε = {epsilon:g}", tuple(map(float, SIZES)))
    return _sweep(outcome, data, loss, runs, points, ("objective", "output"))


def _sweep(
    outcome: Outcome,
    data: tuple[Floats, Floats],
    loss: Loss,
    runs: int,
    points: list[tuple[int, float]],
    names: tuple[str, ...],
) -> Outcome:
    order = np.argsort(seeded_entropy(47).words("rows", 0, len(data[1])))
    for rows, epsilon in points:
        x, y = data[0][order[:rows]], data[1][order[:rows]]
        risk = Risk(loss, x, y, RIDGE, np.zeros(x.shape[1]))
        minimiser = minimise(risk)
        least = risk.value(minimiser)
        outcome.trivial.append(risk.value(risk.linear) - least)
        for name, bound in bounds(loss, x.shape, epsilon, float(np.linalg.norm(minimiser))).items():
            outcome.bounds.setdefault(name, []).append(bound)
        for name in names:
            excess = [
                risk.value(Perturbation(name, loss, RIDGE, epsilon).draw(x, y, system_entropy()))
                - least
                for _ in range(runs)
            ]
            outcome.means.setdefault(name, []).append(float(np.mean(excess)))
            error = float(np.std(excess, ddof=1) / runs**0.5)
            outcome.errors.setdefault(name, []).append(error)
    return outcome


def slope(outcome: Outcome, name: str) -> float:
    """Of log excess risk against log n."""
    return float(np.polyfit(np.log(outcome.axis), np.log(outcome.means[name]), 1)[0])


def verdict(outcomes: list[Outcome]) -> str:
    """Hold the means against theory: below their bounds, and in its order where it has one."""
    pairs = [
        (
            outcome.bounds["objective"][at] <= outcome.bounds["output"][at],
            outcome.means["objective"][at] <= outcome.means["output"][at],
        )
        for outcome in outcomes
        for at in range(len(outcome.axis))
    ]
    within = [
        mean <= bound
        for outcome in outcomes
        for name, limits in outcome.bounds.items()
        for mean, bound in zip(outcome.means[name], limits, strict=True)
    ]
    ordered = [measured for predicted, measured in pairs if predicted]
    return (
        f"Objective perturbation's bound is the smaller one at {len(ordered)} of {len(pairs)}"
        f" points, and its mean excess risk at {sum(ordered)} of these. {sum(within)} of"
        f" {len(within)} means lie within their bounds."
    )


def table(outcomes: list[Outcome], axis: str) -> str:
    """Means and standard errors as Markdown."""
    rows = []
    for outcome in outcomes:
        for name, means in outcome.means.items():
            pairs = zip(means, outcome.errors[name], strict=True)
            cells = [f"{mean:.3g} ± {error:.1g}" for mean, error in pairs]
            rows.append([outcome.title, name, *cells])
    points = [f"{axis} = {value:g}" for value in outcomes[0].axis]
    return markdown(["task", "perturbation", *points], rows)


_MARKS = {"objective": "o", "output": "s", "input": "^"}


def plot(outcomes: list[Outcome], name: str, path: Path) -> None:
    """Excess risk on double logarithmic axes, one panel a task, beside that of w = 0."""
    with panels(path, [outcome.title for outcome in outcomes], columns=2) as axes:
        for axis, outcome in zip(axes.values(), outcomes, strict=True):
            for method, means in outcome.means.items():
                errors, mark = outcome.errors[method], _MARKS[method]
                axis.errorbar(
                    outcome.axis, means, errors, label=method, marker=mark, ms=4, capsize=2
                )
            axis.plot(outcome.axis, outcome.trivial, ":", color="0.3", label="w = 0, no data")
            first, last = outcome.axis[0], outcome.axis[-1]
            end = outcome.means["objective"][-1]
            falling = [end * (last / first) ** 2, end]
            axis.plot([first, last], falling, "--", color="0.6", lw=1, label="slope -2", zorder=0)
            logarithmic(axis, "x", name)
            logarithmic(axis, "y", "excess risk")
        next(iter(axes.values())).legend(fontsize=9)


def report(out: Path, kept: Kept) -> Iterator[str]:
    """Run everything and write the plots; yields the report's sections."""
    by_epsilon, by_rows = [], []
    for name, (file, load) in TASKS.items():
        skipped = sources.missing(file)
        if skipped:
            yield f"Private ERM on {name}: skipped, {skipped}."
            continue
        data = load()
        for kind, loss in LOSSES.items():
            title = f"{name}, {kind}"
            by_epsilon.append(kept(f"erm {title}", against_epsilon, title, data, loss, RUNS))
            by_rows += [
                kept(f"erm {title} {epsilon:g}", against_rows, title, data, loss, RUNS, epsilon)
                for epsilon in FIXED
            ]
    if not by_epsilon:
        return
    plot(by_epsilon, "ε", out / "erm.png")
    plot(by_rows, "n", out / "erm_rows.png")
    names = "objective", "output"
    slopes = [[o.title, *(f"{slope(o, name):.2f}" for name in names)] for o in by_rows]
    yield (
        f"## Private ERM: excess risk, {ROWS:,} records, λ = {RIDGE:g}, {RUNS} runs\n\n"
        f"{table(by_epsilon, 'ε')}\n\n{verdict(by_epsilon)}\n\n![excess risk](erm.png)"
    )
    yield (
        f"## Private ERM: excess risk against n\n\n{table(by_rows, 'n')}\n\n{verdict(by_rows)}"
        "\n\nSlopes of log excess risk in log n; theory's bounds have -2:\n\n"
        f"{markdown(['task', *names], slopes)}\n\n![excess risk](erm_rows.png)"
    )
