"""Selection: recall on check-ins, daily top states, and the cliff of chosen height.

Published: Zhu and Wang, AISTATS 2022, Table 1 and Figures 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from common.entropy import seeded_entropy
from common.guarantees import BoundedRange, epsilon_at, largest_rho
from common.mechanisms.selection import (
    FixedStableTopK,
    LimitedDomain,
    Peeling,
    Ranking,
    Selector,
    StableTopK,
    TopStable,
    pull_towards,
)
from tests.benchmarks.published import sources

DELTA = Fraction(1, 10**6)
KS = (3, 10, 50)
EPSILONS = (1.0, 2.0, 4.0)
NAMES = ("StableTopK", "StableTopK, unfilled", "Top-Stable", "Limited Domain", "EM-CDP")


def largest(good: Callable[[Fraction], bool], high: Fraction) -> Fraction:
    """The largest multiple of 1/4096 below ``high`` that is good; goodness ends once."""
    low, top = 0, int(high * 4096)
    while top - low > 1:
        middle = (low + top) // 2
        low, top = (middle, top) if good(Fraction(middle, 4096)) else (low, middle)
    return Fraction(low, 4096)


def selectors(k: int, epsilon: float) -> dict[str, Selector]:
    """Every mechanism at the same (ε, δ)."""
    half = DELTA / 2
    rho = largest_rho(epsilon, DELTA, half)
    domain = max(2 * k, k + 10)

    def limited(rate: Fraction) -> LimitedDomain:
        return LimitedDomain(k, domain, rate, half)

    return {
        "StableTopK": FixedStableTopK(k, rho, half),
        "StableTopK, unfilled": StableTopK(rho, half, most=2 * k, regularizer=pull_towards(k, 16)),
        "Top-Stable": TopStable(k, Fraction(epsilon), DELTA),
        "Limited Domain": limited(
            largest(lambda e: epsilon_at(limited(e).guarantee, DELTA) <= epsilon, Fraction(9))
        ),
        "EM-CDP": Peeling(
            k,
            largest(
                lambda e: epsilon_at(BoundedRange.of(e).repeat(k), DELTA) <= epsilon, Fraction(9)
            ),
        ),
    }


@dataclass(frozen=True)
class Cell:
    """Recall of the true top-k by one mechanism: mean and standard error over trials."""

    k: int
    epsilon: float
    name: str
    recall: float
    error: float


def recall(selector: Selector, ranking: Ranking, k: int, trials: int) -> tuple[float, float]:
    """Mean share of the true top-k that comes out, and its standard error."""
    # every candidate that ties with the k-th is as true as it
    bar = int(ranking.sorted[k - 1])
    shares = []
    for trial in range(trials):
        chosen = selector.select(ranking, seeded_entropy(trial)).chosen
        hits = 0 if chosen is None else int(np.sum(ranking.counts[chosen] >= bar))
        shares.append(min(hits, k) / k)
    return float(np.mean(shares)), float(np.std(shares) / np.sqrt(trials))


def brightkite(trials: int, on_cell: Callable[[], None]) -> list[Cell]:
    """The table of recalls."""
    ranking = Ranking(sources.brightkite())
    cells = []
    for epsilon in EPSILONS:
        for k in KS:
            for name, selector in selectors(k, epsilon).items():
                mean, error = recall(selector, ranking, k, trials)
                cells.append(Cell(k, epsilon, name, mean, error))
                on_cell()
    return cells


def brightkite_table(cells: Iterable[Cell]) -> str:
    """The recalls as Markdown."""
    by = {(cell.epsilon, cell.k, cell.name): cell for cell in cells}
    lines = ["| ε | k | " + " | ".join(NAMES) + " |", "|---" * (len(NAMES) + 2) + "|"]
    for epsilon in EPSILONS:
        for k in KS:
            row = [by[epsilon, k, name] for name in NAMES]
            shown = " | ".join(f"{cell.recall:.2f} ± {cell.error:.2f}" for cell in row)
            lines.append(f"| {epsilon:g} | {k} | {shown} |")
    return "\n".join(lines)


def at_least_three(rank: int) -> Fraction:
    """r(j): rank 1 is always New York; look below it."""
    return Fraction(0) if rank >= 3 else Fraction(-(10**9))


def covid_plot(path: Path, plt: Any, epsilon: float = 4.0) -> dict[str, float]:
    """Daily adaptive top-k of the states by cumulative cases, composed to one budget."""
    days, states, cases = sources.covid()
    rho = largest_rho(epsilon, DELTA, DELTA / 2)
    daily = StableTopK(rho / len(days), DELTA / 2 / len(days), most=10, regularizer=at_least_three)
    shown = np.zeros(cases.shape, dtype=bool)
    right, sizes = 0, []
    for i in range(len(days)):
        selection = daily.select(cases[i], seeded_entropy(i))
        sizes.append(selection.k)
        if selection.chosen is not None:
            shown[i, selection.chosen] = True
            right += bool(np.array_equal(selection.chosen, Ranking(cases[i]).top(selection.k)))
    total = daily.guarantee.repeat(len(days))
    assert epsilon_at(total, DELTA) <= epsilon
    often = np.argsort(-shown.sum(axis=0), kind="stable")[:12]
    figure, axes = plt.subplots(2, 1, figsize=(9, 6), sharex=True, height_ratios=(2, 1))
    axes[0].imshow(shown[:, often].T, aspect="auto", cmap="Blues", interpolation="nearest")
    axes[0].set_yticks(range(len(often)), [states[j] for j in often])
    axes[0].set_title(f"States released each day, ε = {epsilon:g} for all {len(days)} days")
    axes[1].bar(range(len(days)), sizes, color="tab:blue")
    axes[1].set_ylabel("chosen k (0: ⊥)")
    axes[1].set_xticks(range(0, len(days), 10), [days[j] for j in range(0, len(days), 10)])
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    answered = sum(size > 0 for size in sizes)
    return {
        "days": len(days),
        "answered": answered,
        "exact": right,
        "mean_k": float(np.mean(sizes)),
    }


def cliff_plot(path: Path, plt: Any, trials: int, k: int = 20, epsilon: float = 1.0) -> list[Cell]:
    """Recall against the height of one cliff at rank k."""
    gaps = (5, 10, 20, 40, 60, 80, 120, 160, 240)
    cells = []
    for gap in gaps:
        ranking = Ranking(sources.synthetic(k, gap))
        for name, selector in selectors(k, epsilon).items():
            mean, error = recall(selector, ranking, k, trials)
            cells.append(Cell(gap, epsilon, name, mean, error))
    figure, axis = plt.subplots(figsize=(7, 4.5))
    for name in NAMES:
        row = [cell for cell in cells if cell.name == name]
        axis.errorbar(
            gaps, [c.recall for c in row], [c.error for c in row], label=name, marker="o", ms=3
        )
    axis.set_xlabel(f"gap between rank {k} and {k + 1}, users")
    axis.set_ylabel(f"recall of the top {k}, ε = {epsilon:g}, δ = 1e-6")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    return cells
