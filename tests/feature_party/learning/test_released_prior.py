"""The labels' distribution from a noisy histogram and codes together."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from labelveil.common.entropy import seeded_entropy
from labelveil.common.randomizers.denoising import KnownMeans, denoise_histogram
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.prior import NoisyPrior
from labelveil.feature_party.learning.problem import prior_given_codes
from tests.one_label import one_label

ROWS = 2_000
GRID = Grid.from_count(0, 10, 12)


@pytest.mark.slow
def test_codes_tell_the_mean_that_noise_on_the_histogram_hides() -> None:
    """Of 8 releases, the root mean square error; about 0.6 of the histogram's alone."""
    shape = np.exp(-0.5 * ((GRID.points - 3) / 2) ** 2)
    counts = np.round(ROWS * shape / shape.sum()).astype(np.int64)
    labels = np.repeat(np.arange(counts.size), counts)
    truth = GRID.points[labels].mean()
    alone, together = [], []
    for seed in range(8):
        made = one_label(counts, GRID, 1.0, seeded_entropy(seed), "randomized-thresholds")
        channel = made.channel
        codes = made.draw(labels, seeded_entropy(seed))
        found = prior_given_codes(
            made.prior, channel.probabilities, np.bincount(codes, minlength=channel.outputs.size)
        )
        assert found.min() >= 0
        assert found.sum() == pytest.approx(1)
        alone.append(made.prior.probabilities @ GRID.points - truth)
        together.append(found @ GRID.points - truth)
    assert np.square(together).sum() < 0.7 * np.square(alone).sum()


@pytest.mark.slow
def test_noise_on_the_cells_of_a_far_tail_is_not_taken_for_labels() -> None:
    """Labels from 0 to 100 of a rounded log-normal law, whose tail is below the histogram's noise;
    of 6 releases, errors in deviations of the labels. With one smoothness for all cells the root
    mean square error of the mean is .28, and a law has 3.6 times the deviation of the labels; now
    .04 and 1.7."""
    grid = Grid.from_count(0, 100, 101)
    below = scipy.stats.norm.cdf((np.log(grid.points[:-1] + 0.5) - 0.4) / 1.1)
    shape = np.diff(np.concatenate([[0.0], below, [1.0]]))
    counts = np.round(9_000 * shape).astype(np.int64)
    labels = np.repeat(np.arange(counts.size), counts)
    deviation = grid.points[labels].std()
    beyond, spread = [], []
    for seed in range(4, 10):
        made = one_label(counts, grid, 0.5, seeded_entropy(seed), "randomized-thresholds")
        channel = made.channel
        codes = made.draw(labels, seeded_entropy(seed))
        found = prior_given_codes(
            made.prior, channel.probabilities, np.bincount(codes, minlength=channel.outputs.size)
        )
        mean = found @ grid.points
        beyond.append((mean - grid.points[labels].mean()) / deviation)
        spread.append((found @ (grid.points - mean) ** 2) ** 0.5 / deviation)
    assert np.mean(np.square(beyond)) < 0.1**2
    assert 0.6 < min(spread) < max(spread) < 2


def test_without_codes_or_with_a_histogram_made_of_them_nothing_changes() -> None:
    counts = np.full(len(GRID), 100)
    made = one_label(counts, GRID, 1.0, seeded_entropy(1), "randomized-thresholds")
    told = made.channel.probabilities
    outputs = told.shape[1]
    none = prior_given_codes(made.prior, told, np.zeros(outputs, np.int64))
    assert np.array_equal(none, made.prior.probabilities)
    decoded = NoisyPrior(counts, made.prior.exact_epsilon, int(counts.sum()), code_noise=30.0)
    same = prior_given_codes(decoded, told, np.full(outputs, 10))
    assert np.array_equal(same, decoded.probabilities)


@pytest.mark.parametrize("cells", [4, 12])  # of fewer than five nothing but the projection is tried
def test_what_is_told_for_certain_is_kept(cells: int) -> None:
    noisy = np.random.default_rng(0).normal(50, 40, cells)
    labels = np.arange(float(cells))
    told = KnownMeans(labels[:, None], np.array([0.4 * cells]), 1e-6)
    found = denoise_histogram(noisy, 50 * cells, 40.0, told)
    assert found @ labels == pytest.approx(0.4 * cells, rel=1e-3)
    assert denoise_histogram(noisy, 50 * cells, 40.0) @ labels != pytest.approx(
        0.4 * cells, rel=1e-2
    )


def test_the_projection_is_the_least_squares_of_an_independent_solver() -> None:
    generator = np.random.default_rng(1)
    cells, rows, deviation = 4, 100, 30.0
    noisy = generator.normal(25, 60, cells)
    told = KnownMeans(generator.normal(size=(cells, 2)), np.array([0.3, -0.2]), 0.05)
    found = denoise_histogram(noisy, rows, deviation, told)
    design = [np.eye(cells) * rows / deviation, told.functions.T / told.deviation]
    design += [np.full((1, cells), 10 * rows / deviation)]
    seen = [noisy / deviation, told.means / told.deviation, [10 * rows / deviation]]
    best, _ = scipy.optimize.nnls(np.concatenate(design), np.concatenate(seen))
    assert found == pytest.approx(best / best.sum(), abs=1e-8)
    assert np.count_nonzero(best) < cells
