"""What is estimated, expected and planned from public numbers, as it was approved.

Slow tests say that it is right, on average; a manifest states what it led to, and whoever reads one
of last year works it out again.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.randomizers.cells import Cells
from labelveil.common.randomizers.denoising import KnownMeans, denoise_histogram
from labelveil.common.randomizers.design.assessment import Forecast
from labelveil.common.randomizers.design.conditionals import (
    ConditionalFamily,
    joint_conditionals,
    plausible_conditionals,
)
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.losses import ABSOLUTE, POISSON, SQUARED, Loss
from labelveil.common.randomizers.message.division import allocate, cell_grids
from labelveil.common.randomizers.message.plan import plan_message
from labelveil.common.randomizers.message.terms import LabelTerms
from tests.approved import approved

KEPT = Path(__file__).with_name("approved.json")
AT = np.arange(40.0)
TAIL = 900 * np.exp(-AT / 6) + 60 * (AT == 0) + 25 * np.sin(2.3 * AT) * np.cos(0.7 * AT * AT)
BELL = 700 * np.exp(-(((AT - 18) / 7) ** 2)) + 40 * (AT % 5 == 0) + 20 * np.sin(1.9 * AT * AT)
ENDS = np.r_[147.0, 100 + 9 * np.cos(AT[1:-1] ** 2), 49.0]  # a little more than two deviations
EMPTY = np.r_[900.0, 300.0, -18 + 12 * np.cos(AT[2:] ** 2)]
FEW = np.array([300.0, -20.0, 90.0, 11.0])
BOTH = (200 * np.exp(-np.arange(42.0) % 7 / 2) + 30 * np.sin(np.arange(42.0) ** 2)).round()
UNEVEN = np.array([0.0, 1.0, 1.5, 4.0, 4.5, 9.0, 20.0])
PRIOR = np.array([0.3, 0.25, 0.05, 0.2, 0.1, 0.08, 0.02])


def means(cells: int, *, far: bool) -> KnownMeans:
    places = np.arange(cells) / cells
    return KnownMeans(np.column_stack([places, places**2]), np.array([0.17, 0.06]), 0.02, far)


HISTOGRAMS: dict[str, tuple[Floats, dict[str, Any]]] = {
    "tail": (TAIL, {}),
    "bell": (BELL, {}),
    "bell, expected": (BELL, {"start": np.exp(-(((AT - 18) / 7) ** 2)) / 12.4}),
    "ends": (ENDS, {}),
    "empty": (EMPTY, {}),
    "few": (FEW, {}),
    "few, expected": (FEW, {"start": np.array([0.7, 0.0, 0.25, 0.05])}),
    "tail and means": (TAIL, {"means": means(40, far=False)}),
    "far tail and means": (TAIL, {"means": means(40, far=True)}),
    "two labels": (BOTH, {"shape": (6, 7)}),
    "two labels and means": (BOTH, {"shape": (6, 7), "means": means(42, far=False)}),
    "three labels": (BOTH[:40], {"shape": (2, 5, 4)}),
}


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_a_histogram_is_denoised_as_was_approved(name: str) -> None:
    noisy, more = HISTOGRAMS[name]
    found = denoise_histogram(noisy, round(float(noisy.sum())), 22.0, **more)
    approved(KEPT, f"histogram {name}", {"law": found, "mean": found @ np.arange(found.size)})


def of_family(family: ConditionalFamily) -> dict[str, Any]:
    half = np.column_stack([np.arange(family.labels.size) < 3, np.arange(family.labels.size) >= 3])
    channel = (1 + 1.7 * half) / 3.7
    return {
        "family": family,
        "tempered": family.tempered().gradients,
        "error": [family.excess_error(channel, effective) for effective in (3.0, 300.0)],
    }


LOSSES = {each.name: each for each in (SQUARED, ABSOLUTE, POISSON)}
LOSSES["custom"] = Loss("custom", lambda one, other: (one - other) ** 4)


@pytest.mark.parametrize("explained", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("loss", LOSSES)
def test_what_features_may_explain_is_as_was_approved(loss: str, explained: float) -> None:
    family = plausible_conditionals(UNEVEN, PRIOR, LOSSES[loss], explained)
    forecast = Forecast.for_family(family, PRIOR, LOSSES[loss], 120.0)
    error = forecast.error(forecast.nothing / 3)
    approved(KEPT, f"family {loss} {explained}", {
        **of_family(family), "forecast": forecast, "a third": error,
    })  # fmt: skip


def test_what_features_may_explain_of_two_labels_is_as_was_approved() -> None:
    cells = Cells((Grid(UNEVEN[:3]), Grid(UNEVEN)))
    prior = np.outer([0.6, 0.1, 0.3], PRIOR).ravel() * (1 + 0.5 * np.sin(np.arange(21.0)))
    families = joint_conditionals(cells, prior / prior.sum(), (SQUARED, ABSOLUTE), 0.3)
    approved(KEPT, "families", {str(j): of_family(each) for j, each in enumerate(families)})


TERMS = {
    "yes or no": LabelTerms("a", 0, 1, whole=True),
    "stars": LabelTerms("b", 1, 5, Grid(np.arange(1.0, 6.0)), values=True, weight=2.0),
    "amount": LabelTerms("c", 0, 400, loss="absolute"),
    "share": LabelTerms("d", -1, 1, weight=0.5),
    "count": LabelTerms("e", 0, 300, whole=True, loss="poisson"),
}


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_messages_are_planned_as_was_approved(epsilon: float) -> None:
    """Points, ε of histograms and channels, and knots, of one label and of the joint grids."""
    found: dict[str, Any] = {}
    for rows, records in product((300, 20_000, 10**7), (1, 4)):
        for name, terms in TERMS.items():
            plan = plan_message([terms], rows, epsilon, records=records)
            found[f"{name} {rows} {records}"] = [
                *([str(share.epsilon), share.group.cells.shape] for share in plan.histograms),
                *([str(share.epsilon), share.group.cells.shape] for share in plan.channels),
                plan.points,
            ]
    for rows, (one, two) in product((300, 10**7), product(TERMS, TERMS)):
        grids = cell_grids([TERMS[one], TERMS[two]], rows, epsilon)
        found[f"{one} and {two} {rows}"] = grids and [
            [len(grid), float(grid.points.sum())] for grid in grids
        ]
    approved(KEPT, f"plans {epsilon}", found)


def test_epsilon_is_divided_as_was_approved() -> None:
    grids = [Grid(np.arange(2.0)), Grid(UNEVEN)]
    priors = [np.array([0.9, 0.1]), PRIOR]
    weights = [(1.0, 1.0), (9.0, 1.0)]
    found = {}
    for (first, second), epsilon in product(weights, (0.3, 3.0)):
        terms = [LabelTerms("a", 0, 1, weight=first), LabelTerms("b", 0, 20, weight=second)]
        shares = allocate(terms, grids, priors, epsilon, 5000)
        assert sum(shares) == 1
        found[f"{first} {second} {epsilon}"] = [str(share) for share in shares]
    approved(KEPT, "division", found)
