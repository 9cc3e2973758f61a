"""The estimate of a histogram from a noisy one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.randomizers import denoising
from labelveil.common.randomizers.denoising import (
    MOST_CELLS,
    KnownMeans,
    denoise_histogram,
    project_to_simplex,
)
from labelveil.common.randomizers.prior import NoisyPrior, private_prior
from tests.effort import effort

ROWS = 20_000


def geometric_counts(cells: int, ratio: float) -> np.ndarray:
    masses = ratio ** np.arange(cells)
    return np.round(ROWS * masses / masses.sum()).astype(np.int64)


def noisy_priors(counts: np.ndarray, epsilon: float, repetitions: int) -> list[NoisyPrior]:
    return [private_prior(counts, epsilon, seeded_entropy(seed)) for seed in range(repetitions)]


def spread(cells: int, probabilities: np.ndarray) -> float:
    labels = np.arange(cells)
    mean = probabilities @ labels
    return float(np.sqrt(probabilities @ (labels - mean) ** 2))


def test_an_end_may_have_a_mass_of_its_own_where_it_stands_out() -> None:
    """By more than two deviations of the noise, from the mean of the four cells beside it."""
    flat = np.array([5.0, 4.0, 6.0, 4.0, 6.0, 90.0, 6.0, 4.0, 6.0, 4.0, 5.0])
    for low, high in product((0.0, 1.9, -1.9, 2.1, -2.1), repeat=2):
        counts = flat.copy()
        counts[[0, -1]] += low, high
        ends = denoising._Fit(counts, counts.sum(), counts.shape, None).plausible_ends()
        assert ends == [(False, True) if abs(end) > 2 else (False,) for end in (low, high)]


@pytest.mark.parametrize("far_tail", [None, False, True])
def test_fits_are_where_what_they_minimise_is_flat(far_tail: bool | None) -> None:
    cells = np.arange(12.0)
    counts = 40 * 0.7**cells + np.random.default_rng(1).normal(size=12)
    means = None
    if far_tail is not None:
        means = KnownMeans(cells[:, None], np.array([2.2]), 0.1, far_tail)
    fit = denoising._Fit(counts, counts.sum(), counts.shape, means)
    if means is None:  # the misfit itself, by hand
        off = float(np.sum((counts - 3) ** 2) + 100 * (36 - counts.sum()) ** 2)
        assert fit.misfit(np.full(12, 3.0)) == pytest.approx(off)

    def slopes(cost: Callable[[np.ndarray], Any], at: np.ndarray) -> np.ndarray:
        steps = 1e-5 * np.eye(at.size)
        return np.array([(cost(at + step) - cost(at - step)) / 2e-5 for step in steps])

    basis = np.column_stack([np.ones(12), cells / 11, (cells / 11) ** 2])
    law, freedom = fit.law(basis)
    assert freedom == 2
    found = np.linalg.lstsq(basis, np.log(law), rcond=None)[0]
    np.testing.assert_allclose(np.exp(basis @ found), law)
    assert np.abs(slopes(lambda a: fit.misfit(np.exp(basis @ a)), found)).max() < 0.05

    bends = fit._bends(np.zeros(12))
    start = slopes(lambda theta: fit._objective(theta, 3.0, bends), fit.theta)
    fit._newton(3.0, bends)
    end = slopes(lambda theta: fit._objective(theta, 3.0, bends), fit.theta)
    assert np.abs(start).max() > 5
    assert np.abs(end).max() < 0.01


def test_a_public_prior_counts_for_few_cells_as_far_as_counts_bear_it_out() -> None:
    """exp(-Cp/8) of each: 3 for a degree of freedom of the counts, and none of the prior's."""
    noisy, start = np.array([52.0, 30.0, 18.0]), np.array([0.4, 0.3, 0.3])
    found = denoise_histogram(noisy, 100, 5.0, start=start)
    weights = np.exp(-np.array([3 * 2, np.sum(((noisy - 100 * start) / 5) ** 2)]) / 8)
    wanted = weights @ [noisy / 100, start] / weights.sum()
    np.testing.assert_allclose(found, wanted, atol=1e-9)
    assert np.array_equal(denoise_histogram(noisy, 100, 5.0), noisy / 100)


def test_a_smooth_tail_is_told_from_noise() -> None:
    counts = geometric_counts(80, 0.8)
    truth = counts / counts.sum()
    smooth, projected = [], []
    for prior in noisy_priors(counts, 0.06, 5):
        smooth.append(spread(80, prior.probabilities))
        projected.append(spread(80, project_to_simplex(prior.noisy_counts / prior.rows)))
    true = spread(80, truth)
    assert np.mean(projected) > 1.5 * true  # what the noise alone does to the tail
    assert np.mean(smooth) == pytest.approx(true, rel=0.2)


@pytest.mark.slow
def test_the_average_is_nearer_than_the_estimate_of_least_cp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In squared distance, which is what Mallows's criterion estimates; 0.87 on 1,500 draws."""
    monkeypatch.setattr("labelveil.common.randomizers.prior.denoise_histogram", denoise_histogram)
    counts = geometric_counts(80, 0.8)

    def squared_error() -> float:
        found = np.array([prior.probabilities for prior in noisy_priors(counts, 0.06, 60)])
        return float(np.square(found - counts / counts.sum()).sum())

    averaged = squared_error()
    monkeypatch.setattr(denoising, "_TEMPERATURE", 1e-9)
    assert averaged < 0.95 * squared_error()


@pytest.mark.parametrize(
    ("logarithm", "most"),
    [
        (lambda x: 2 * np.log(x) - (x - 1) / 6, 0.025),  # gamma
        (lambda x: -2 * (np.log(x) - 2.2) ** 2, 0.045),  # log-normal
        (lambda x: -((x - 31) ** 2) / 128, 0.04),  # normal
    ],
    ids=["gamma", "log-normal", "normal"],
)
def test_counts_that_follow_a_common_law_are_hardly_changed(
    logarithm: Callable[[np.ndarray], np.ndarray], most: float
) -> None:
    """Whatever noise is said to be on them: the law alone fits them with so few numbers."""
    law = np.exp(logarithm(1.0 + np.arange(64)))
    law /= law.sum()
    assert np.abs(denoise_histogram(1000 * law, 1000, 5.0) - law).sum() < most


def test_heaps_that_stand_out_of_the_noise_stay() -> None:
    counts = geometric_counts(60, 0.95)
    counts[[10, 25, 40]] += 3_000
    for prior in noisy_priors(counts, 0.1, 3):
        found = prior.probabilities * counts.sum()
        assert found[[10, 25, 40]] == pytest.approx(counts[[10, 25, 40]], rel=0.1)
        assert np.abs(found - counts).sum() < 1.1 * np.abs(prior.noisy_counts - counts).sum()


@pytest.mark.slow
def test_point_masses_at_both_ends_stay() -> None:
    counts = np.full(53, 40)
    counts[0], counts[-1] = 9_000, 7_000
    for prior in noisy_priors(counts, 0.05, 3):
        ends = prior.probabilities[[0, -1]] * counts.sum()
        assert ends == pytest.approx([9_000, 7_000], rel=0.05)


@pytest.mark.slow
def test_noise_on_the_last_cell_is_no_point_mass() -> None:
    """Two and a half deviations there would be half as much again as the mean of all labels."""
    counts = geometric_counts(80, 0.8) // 16
    truth = counts @ np.arange(80) / counts.sum()
    for prior in noisy_priors(counts, 0.125, 2):
        noisy = prior.noisy_counts.astype(float)
        noisy[-1] = 2.5 * prior.deviation
        found = denoise_histogram(noisy, prior.rows, prior.deviation)
        assert found[-1] < 0.5 * noisy[-1] / prior.rows
        noisy[-1] = 8 * prior.deviation  # of this size it is one
        found = denoise_histogram(noisy, prior.rows, prior.deviation)
        assert found[-1] == pytest.approx(noisy[-1] / prior.rows, rel=0.2)
        assert found @ np.arange(80) > 2 * truth


@pytest.mark.slow
@pytest.mark.parametrize("law", ["normal", "log-normal", "gamma"])
def test_few_events_of_a_common_law_tell_its_mean(law: str) -> None:
    """Root mean square errors over six releases, as a share of those of the projection."""
    cells = np.arange(60)
    logarithm = {
        "normal": -0.5 * ((cells - 20) / 6) ** 2,
        "log-normal": -0.5 * ((np.log1p(cells) - 2) / 0.7) ** 2,
        "gamma": np.log1p(cells) - cells / 5,
    }[law]
    counts = np.round(1_250 * np.exp(logarithm) / np.exp(logarithm).sum()).astype(np.int64)
    truth = counts @ cells / counts.sum()
    errors = [
        (
            prior.probabilities @ cells - truth,
            project_to_simplex(prior.noisy_counts / prior.rows) @ cells - truth,
        )
        for prior in noisy_priors(counts, 0.125, 6)
    ]
    ours, projected = np.sqrt(np.square(errors).mean(axis=0))
    assert ours < 0.6 * projected, (ours, projected)


@pytest.mark.slow
@pytest.mark.parametrize("far_tail", [True, False])
def test_noise_that_is_known_to_be_laplace_tells_more(far_tail: bool) -> None:
    """The root mean square error of the mean, beside that of least squares; 8 releases each."""
    cells = np.arange(60)
    shape = np.exp(-cells / 4) if far_tail else np.exp(-0.5 * ((cells - 25) / 8) ** 2)
    counts = np.round(1_250 * shape / shape.sum()).astype(np.int64)
    truth = counts @ cells / counts.sum()
    nothing = KnownMeans(np.zeros((60, 1)), np.zeros(1), 1.0, far_tail)
    errors = []
    for prior in noisy_priors(counts, 0.125, 8):
        noisy = prior.noisy_counts.astype(float)
        found = denoise_histogram(noisy, prior.rows, prior.deviation, nothing)
        errors.append((found @ cells - truth, prior.probabilities @ cells - truth))
    ours, squares = np.sqrt(np.square(errors).mean(axis=0))
    assert ours < (0.7 if far_tail else 1.0) * squares


def test_the_larger_the_data_the_closer() -> None:
    shape = np.abs(np.sin(np.arange(100) / 3)) + 0.1  # nothing that the penalty likes
    errors = []
    for rows in (10_000, 1_000_000, 100_000_000):
        counts = np.round(rows * shape / shape.sum()).astype(np.int64)
        found = private_prior(counts, 0.05, seeded_entropy(3)).probabilities
        errors.append(float(np.abs(found - counts / counts.sum()).sum()))
    assert errors[0] > 10 * errors[1] > 100 * errors[2]


def noisy_cells(seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Amounts down, and along whether they were returned, 2 % of them: true and noisy counts."""
    amounts = 0.9 ** np.arange(40)
    masses = np.outer(amounts / amounts.sum(), [0.98, 0.02])
    counts = np.round(ROWS * masses).astype(np.int64)
    return counts, private_prior(counts.reshape(-1), 0.05, seeded_entropy(seed)).noisy_counts, 56.0


@pytest.mark.slow
def test_cells_of_two_labels_are_smoothed_along_each() -> None:
    """One after the other they jump from cell to cell; of two labels they bend little."""
    apart, series = [], []
    for seed in range(3):
        counts, noisy, deviation = noisy_cells(seed)
        rows = int(counts.sum())
        for found, shape in ((apart, counts.shape), (series, ())):
            law = denoise_histogram(noisy.astype(float), rows, deviation, shape=shape)
            returned = law.reshape(counts.shape).sum(axis=0)[1]
            found.append((returned - 0.02) ** 2)
            assert law.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.mean(apart) < 0.3 * np.mean(series)


def test_the_order_of_labels_says_nothing() -> None:
    counts, noisy, deviation = noisy_cells(0)
    rows, other = int(counts.sum()), noisy.reshape(counts.shape).T
    law = denoise_histogram(noisy.astype(float), rows, deviation, shape=counts.shape)
    turned = denoise_histogram(
        other.reshape(-1).astype(float), rows, deviation, shape=counts.T.shape
    )
    found = turned.reshape(other.shape).T
    assert found == pytest.approx(law.reshape(counts.shape), abs=1e-6)


def test_one_label_is_a_single_line() -> None:
    (prior,) = noisy_priors(geometric_counts(30, 0.8), 0.05, 1)
    noisy, deviation = prior.noisy_counts.astype(float), prior.deviation
    line = denoise_histogram(noisy, ROWS, deviation, shape=(30,))
    assert np.array_equal(line, denoise_histogram(noisy, ROWS, deviation))


def test_cells_in_another_order_have_the_same_probabilities() -> None:
    counts, *_ = noisy_cells(0)
    prior = private_prior(counts.reshape(-1), 0.5, seeded_entropy(0), shape=counts.shape)
    order = np.argsort(np.arange(80) % 7, kind="stable")
    other = prior.reordered(order)
    assert np.array_equal(other.noisy_counts, prior.noisy_counts[order])
    assert np.array_equal(other.probabilities, prior.probabilities[order])


def test_hardly_any_noise_gives_the_counts() -> None:
    counts = np.array([5, 0, 90, 5, 0, 0, 1, 0])
    found = denoise_histogram(counts.astype(float), int(counts.sum()), 0.0)
    assert found == pytest.approx(counts / counts.sum(), abs=1e-15)


def test_long_grids_are_projected() -> None:
    noisy = np.arange(MOST_CELLS + 1, dtype=float) - 500
    found = denoise_histogram(noisy, 1_000_000, 10.0)
    assert np.array_equal(found, project_to_simplex(noisy / 1_000_000))


@pytest.mark.slow
def test_mallows_criterion_estimates_the_risk() -> None:
    """The criterion's guarantee on real noise: the choice is no worse than the projection."""
    counts = geometric_counts(40, 0.7)
    ours, theirs = 0.0, 0.0
    for seed in range(8):
        noise = discrete_laplace(30, counts.size, seeded_entropy(seed).source("test"))
        noisy = (counts + noise).astype(float)
        truth = counts / counts.sum()
        found = denoise_histogram(noisy, int(counts.sum()), 30 * 2**0.5)
        ours += float(np.sum((found - truth) ** 2))
        theirs += float(np.sum((project_to_simplex(noisy / counts.sum()) - truth) ** 2))
    assert ours < 0.8 * theirs


@pytest.mark.slow
@settings(max_examples=effort(15, 500), deadline=None)
@given(
    st.lists(st.integers(-1_000, 5_000), min_size=1, max_size=30),
    st.integers(1, 10_000),
    st.floats(0.01, 1e4),
)
def test_the_estimate_is_a_distribution(noisy: list[int], rows: int, deviation: float) -> None:
    found = denoise_histogram(np.array(noisy, dtype=float), rows, deviation)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1.0, abs=1e-12)


_AGAIN = """
import subprocess
import sys

import numpy as np
from labelveil.common.randomizers.denoising import denoise_histogram
noisy = np.array([2043, -58, -12, 45, 2, 13, -15, -93, 30, -4, 1939.0])
print(denoise_histogram(noisy, 4000, 53.9).tobytes().hex())
"""


@pytest.mark.slow
def test_processes_that_loaded_libraries_in_another_order_give_the_same_bytes() -> None:
    # with SciPy's MINPACK one process in eight had other last digits, and nearly all of these
    before = ["", "import polars, numpy", "import polars, numpy", "import polars, scipy.optimize"]
    told = [
        subprocess.run(
            [sys.executable, "-c", libraries + _AGAIN], capture_output=True, text=True, check=True
        ).stdout
        for libraries in before
    ]
    assert len(set(told)) == 1


@pytest.mark.parametrize("cells", [2, 3, 7, 40])
@pytest.mark.parametrize("functions", [1, 3])
def test_the_projection_has_the_least_misfit_of_all_masses(cells: int, functions: int) -> None:
    """By another method, non-negative least squares; all masses but a few may be 0."""
    draw = np.random.default_rng(cells + functions)
    for height in (0.5, 4.0, 40.0):
        counts = draw.normal(0, 1.5, cells)
        counts[draw.integers(cells)] += height
        known = draw.normal(0, 1, (cells, functions))
        mean = known[int(np.argmax(counts))] + draw.normal(0, 0.1, functions)
        means = KnownMeans(known, mean, 0.1, far_tail=False)
        total = height + 1
        fit = denoising._Fit(counts, total, (cells,), means)
        weight = denoising._TOTAL_WEIGHT**0.5
        rows = np.vstack([np.eye(cells), np.full(cells, weight), known.T / (total * 0.1)])
        masses, _ = nnls(rows, np.concatenate([counts, [weight * total], mean / 0.1]))
        assert fit.projected() == pytest.approx(masses / masses.sum(), abs=1e-6)


@pytest.mark.parametrize("cells", [9, 101])
def test_a_rounded_estimate_still_adds_up_to_one(cells: int) -> None:
    """Rounding takes or gives each cell up to half a unit; what is left is shared in proportion."""
    prior = private_prior(geometric_counts(cells, 0.97), 0.3, seeded_entropy(cells))
    found = denoise_histogram(prior.noisy_counts.astype(np.float64), prior.rows, prior.deviation)
    assert abs(found.sum() - 1) < 1e-14
    unit = 10.0**-denoising._DIGITS
    total = round(1 / unit)
    near = [(total + off) * found for off in range(-cells, cells + 1)]
    assert min(float(np.abs(units - np.rint(units)).max()) for units in near) < 1e-3
