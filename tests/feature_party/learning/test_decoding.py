"""Decoders are unbiased where the channel allows it, and of least variance."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.feature_party.learning.calibration import decoding_slope
from labelveil.feature_party.learning.decoding import convex_targets, decoder, indicator_decoder
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.several_releases import join_problems
from tests.feature_party.worlds import thresholds_channel


def bins_problem(epsilon: float = 1.0) -> LabelProblem:
    """Nine labels in three bins, as RR-on-bins makes them."""
    channel = FiniteChannel(
        np.arange(9.0),
        [1.0, 4.0, 7.0],
        randomized_response_rows(3, epsilon),
        [0, 0, 0, 1, 1, 1, 2, 2, 2],
    )
    return LabelProblem.from_channel(channel, np.full(9, 1 / 9))


def thresholds_problem(epsilon: float = 1.0) -> LabelProblem:
    grid = np.linspace(0, 5, 11)
    prior = np.linspace(2, 1, 11)
    return LabelProblem.from_channel(thresholds_channel(grid, epsilon), prior)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_values_and_squares_are_unbiased(epsilon: float) -> None:
    problem = thresholds_problem(epsilon)
    grid = problem.grid
    found = decoder(problem, np.stack([grid, grid**2], axis=1))
    assert found.exact
    expected = problem.channel @ found.values
    np.testing.assert_allclose(expected[:, 0], grid, atol=1e-8)
    np.testing.assert_allclose(expected[:, 1], grid**2, atol=1e-8)


def test_no_unbiased_decoder_has_less_variance() -> None:
    problem = thresholds_problem()
    found = decoder(problem, problem.grid).values[:, 0]
    # any other unbiased decoder differs by an element of the channel's null space
    null = np.linalg.svd(problem.channel)[2][np.linalg.matrix_rank(problem.channel) :]
    assert null.shape[0] > 0
    best = problem.output_prior @ found**2
    for direction in null:
        for step in (-1e-3, 1e-3):
            other = found + step * direction
            np.testing.assert_allclose(problem.channel @ other, problem.grid, atol=1e-8)
            assert problem.output_prior @ other**2 >= best - 1e-12


def test_bins_are_decoded_to_their_means() -> None:
    problem = bins_problem()
    found = decoder(problem, problem.grid)
    assert not found.exact
    np.testing.assert_allclose(problem.channel @ found.values[:, 0], np.repeat([1, 4, 7], 3))
    assert indicator_decoder(problem).exact


def test_several_releases_are_decoded_as_exactly_as_the_worst() -> None:
    """Labels of the merged bins are told by their mean, whatever another release tells."""
    binned = bins_problem()
    channel = FiniteChannel(binned.grid, binned.grid, randomized_response_rows(9, 1.0))
    plain = LabelProblem.from_channel(channel, np.ones(9))
    for parts in ([plain, binned], [binned, plain]):
        assert not decoder(join_problems(parts, [1, 1]), binned.grid).exact
    assert decoder(join_problems([plain, plain], [1, 1]), binned.grid).exact


def test_a_prior_of_one_label_has_a_deviation_to_divide_by() -> None:
    channel = FiniteChannel(np.arange(9.0), np.arange(9.0), randomized_response_rows(9, 1.0))
    certain = LabelProblem.from_channel(channel, np.eye(9)[4])
    assert certain.deviation == pytest.approx(8 / 1000)  # of the range


def test_ridge_trades_bias_for_variance() -> None:
    problem = thresholds_problem(0.2)
    plain = decoder(problem, problem.grid)
    shrunk = decoder(problem, problem.grid, ridge=0.05)
    variance = [problem.output_prior @ d.values[:, 0] ** 2 for d in (plain, shrunk)]
    assert variance[1] < variance[0]
    assert np.abs(shrunk.bias).max() > np.abs(plain.bias).max()


def test_squares_make_up_for_rounding() -> None:
    problem = thresholds_problem()
    gap = problem.grid[1] - problem.grid[0]
    inner = convex_targets(problem, np.square)
    # a label spread evenly between two points is rounded to each with probability one half
    midpoints = (inner[1:] + inner[:-1]) / 2
    exact = (problem.grid[1:] ** 3 - problem.grid[:-1] ** 3) / (3 * gap)
    np.testing.assert_allclose(midpoints, exact, rtol=1e-9)
    whole = bins_problem()
    np.testing.assert_array_equal(convex_targets(whole, np.square), whole.grid**2)


def test_slope_finds_flat_predictions() -> None:
    problem = thresholds_problem(3.0)
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 11, 4000)
    choices = np.array([rng.choice(problem.outputs.size, p=problem.channel[y]) for y in truth])
    right = decoding_slope(problem, choices, problem.grid[truth])
    flat = decoding_slope(problem, choices, 0.5 * problem.grid[truth])
    assert right is not None
    assert not right.misspecified
    assert flat is not None
    assert flat.misspecified
    assert "too flat" in flat.sentence
    assert decoding_slope(bins_problem(), choices % 3, problem.grid[truth]) is None
