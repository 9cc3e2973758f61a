"""The absolute error estimated from privatized labels is the true one, as often as it claims."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers.grid import Grid
from labelveil.feature_party.evaluation.error_estimates import estimate_absolute_error
from labelveil.feature_party.evaluation.intervals import Estimate
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Predictions
from tests.feature_party.worlds import thresholds_channel
from tests.statistics import binomial_range, mean_fits

RELEASES = 100


def simulate(
    channel: FiniteChannel, labels: np.ndarray, predictions: Predictions, cells: int = 64
) -> list[Estimate]:
    """Estimates from independent releases of the same labels."""
    grid = Grid(channel.inputs)
    prior = np.bincount(grid.round(labels, seeded_entropy(0).words("r", 0, labels.size)))
    problem = LabelProblem.from_channel(channel, np.append(prior, np.zeros(9))[: len(grid)] + 1)
    support = Support.from_problem(problem, cells)
    estimates = []
    for seed in range(RELEASES):
        entropy = seeded_entropy(1000 + seed)
        indices = grid.round(labels, entropy.words("rounding", 0, labels.size))
        codes = channel.sample(indices, entropy.words("labels", 0, labels.size))
        estimates.append(estimate_absolute_error(problem, support, predictions, codes))
    return estimates


def check(estimates: list[Estimate], truth: float) -> None:
    values = np.array([e.value for e in estimates])
    assert mean_fits(values, truth)
    assert not mean_fits(values + values.std(), truth)
    low, high = binomial_range(RELEASES, 0.95)
    assert low <= sum(e.low <= truth <= e.high for e in estimates) <= high
    # intervals of half the width cover too seldom
    assert sum(abs(e.value - truth) <= (e.high - e.low) / 4 for e in estimates) < low


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    rng = np.random.default_rng(5)
    return np.clip(rng.gamma(3.0, 0.6, 1500), 0, 5)


@pytest.mark.statistical
def test_absolute_error_is_unbiased_and_covered(labels: np.ndarray) -> None:
    grid = np.linspace(0, 5, 11)
    on_grid = grid[np.abs(labels[:, None] - grid).argmin(axis=1)]
    points = np.full(labels.size, 2.3)
    estimates = simulate(thresholds_channel(grid, 2.0), on_grid, Predictions(points, None))
    assert {e.method for e in estimates} == {"unbiased"}
    check(estimates, float(np.mean(np.abs(points - on_grid))))


@pytest.mark.statistical
def test_bins_need_the_model_and_say_so(labels: np.ndarray) -> None:
    grid = np.linspace(0, 5, 26)
    row_of = np.minimum(np.arange(26) // 5, 4)
    channel = FiniteChannel(
        grid, [0.5, 1.5, 2.5, 3.5, 4.5], randomized_response_rows(5, 1.0), row_of
    )
    on_grid = grid[np.abs(labels[:, None] - grid).argmin(axis=1)]
    points = np.full(labels.size, 2.0)
    # the distribution that is right for every event, so that the model's word can be taken
    right = np.bincount(np.abs(labels[:, None] - grid).argmin(axis=1), minlength=26) + 1e-3
    right = np.tile(right / right.sum(), (labels.size, 1))
    estimates = simulate(channel, on_grid, Predictions(points, right))
    # said of cells of several labels each, whose shares in them are the prior's
    problem = LabelProblem.from_channel(channel, right[0])
    cells = np.eye(10)[Support.from_problem(problem, 10).cell_of]
    of_cells = simulate(channel, on_grid, Predictions(points, right @ cells), 10)
    assert [e.value for e in of_cells] == pytest.approx([e.value for e in estimates], rel=0.01)
    assert {e.method for e in estimates} == {"model-within-groups"}
    truth = float(np.mean(np.abs(points - on_grid)))
    values = np.array([e.value for e in estimates])
    assert abs(values.mean() - truth) <= 0.03 * truth + 2 * values.std() / np.sqrt(RELEASES)
