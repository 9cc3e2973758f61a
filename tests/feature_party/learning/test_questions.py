"""What a question tells of labels, and where it is asked."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.knots import interpolation
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.randomizers.message.strata import MOST_WEIGHT
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.questions import (
    ask,
    explained_by,
    quantized,
    unpaid_grid,
)
from labelveil.feature_party.learning.several_releases import unrounded
from labelveil.feature_party.learning.support import Support

POINTS = Grid(np.array([0.0, 1.0, 4.0]))


@pytest.mark.parametrize(
    ("laws", "strata", "share"),
    [
        ([[1, 0, 0], [0, 0, 1]], [0, 1], 1.0),
        ([[1, 1, 1], [2, 2, 2]], [0, 1], 0.0),
        ([[1, 0, 0]], [0, 0], 0.0),
        # of 0, 4 with a chance of a half the variance is 4; means of 1 and 3 tell 1 of it
        ([[3, 0, 1], [1, 0, 3]], [0, 1], 0.25),
        ([[3, 0, 1], [1, 0, 3]], [0, 0], 0.0),
    ],
)
def test_the_share_of_variance_that_strata_tell(
    laws: list[list[int]], strata: list[int], share: float
) -> None:
    question = Question(np.array(strata), POINTS, np.array(laws, dtype=np.int64))
    assert explained_by(question) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "most"),
    [
        (np.random.default_rng(1).lognormal(size=9000), 0.05),  # of equally many events 0.28
        (np.random.default_rng(1).normal(size=9000), 0.5),
        (np.linspace(0, 1, 9000), 1.001),
    ],
    ids=["skewed", "normal", "even"],
)
def test_means_of_a_stratum_lie_close_together(labels: Floats, most: float) -> None:
    """Against strata of equally many events; the best of all, by Lloyd's method, are 4 % better."""

    def within(stratum: Floats) -> float:
        rows = np.bincount(stratum)
        return float(np.mean((labels - (np.bincount(stratum, labels) / rows)[stratum]) ** 2))

    equal = np.argsort(np.argsort(labels)) * 16 // labels.size
    ends = quantized(labels, 16)
    assert ends.shape == (15,)
    assert within(np.searchsorted(ends, labels)) < most * within(equal)


@pytest.mark.parametrize("labels", [[3.0], [2.0] * 50, [0.0] * 30 + [1.0] * 20 + [9.0]])
def test_means_that_are_the_same_are_of_one_stratum(labels: list[float]) -> None:
    found = np.searchsorted(quantized(np.array(labels), 16), labels)
    assert np.unique(found).size == np.unique(labels).size


def test_a_question_says_of_each_point_what_the_model_says_of_its_cell() -> None:
    """By the prior within; but for a share in which the prior stands for all."""
    grid = np.arange(200.0)
    prior = np.exp(-grid / 50) / np.exp(-grid / 50).sum()
    channel = FiniteChannel(grid, grid + 0.5, randomized_response_rows(200, 3.0))
    problem = LabelProblem.from_channel(channel, prior)
    support = Support.from_problem(problem)
    assert support.size < 100
    laws = np.random.default_rng(1).dirichlet(np.ones(support.size), size=50)
    question = ask(problem, support, lambda some: [laws[some]], 1)
    assert question.grid.points.tolist() == grid.tolist()
    mean, mass = laws.mean(axis=0), np.bincount(support.cell_of, prior)
    wanted = 0.95 * mean[support.cell_of] * prior / mass[support.cell_of] + 0.05 * prior
    found = question.laws[0] / question.laws[0].sum()
    np.testing.assert_allclose(found, wanted, rtol=0.02)


@pytest.mark.parametrize(
    ("points", "asked"),
    [
        (np.linspace(0, 1000, 16), 512),  # all that a histogram of few events affords
        (Grid.from_zero(1000, 16).points, 512),
        (Grid.from_zero(20_000, 40).points + 1, 40),  # from 1 on none are spaced so by default
        (np.linspace(0, 300, 16), 301),  # whole numbers
        (np.linspace(0.5, 2.25, 40), 512),
        (np.linspace(0, 52, 53), 53),  # whole numbers already
        (np.linspace(0, 20_000, 2001), 2001),  # finer ones were chosen
        (np.array([0.0, 1, 10, 100, 1000]), 5),  # and so were uneven ones
    ],
)
def test_questions_are_asked_on_a_grid_that_nobody_pays_for(points: Floats, asked: int) -> None:
    grid = unpaid_grid(points)
    assert len(grid) == asked
    assert (grid.lower, grid.upper) == (points[0], points[-1])


@pytest.mark.parametrize("deviation", [50.0, 200.0])
def test_a_law_before_rounding_is_told_from_the_one_after(deviation: float) -> None:
    """Rounding to points 67 apart makes of a deviation of 50 one of 57."""
    fine, points = np.linspace(0, 1000, 512), np.linspace(0, 1000, 16)
    law = np.exp(-0.5 * ((fine - 400) / deviation) ** 2)
    law /= law.sum()
    rounded = law @ interpolation(fine, points)
    (found,) = unrounded(rounded[None], points, fine)
    assert found @ interpolation(fine, points) == pytest.approx(rounded, abs=1e-6)
    assert np.abs(found - law).sum() < 0.06


def test_a_question_is_moved_to_the_points_that_are_configured() -> None:
    question = Question(np.array([0, 1]), POINTS, np.array([[1, 0, 0], [0, 1, 3]]))
    assert question.on(POINTS) is question
    moved = question.on(Grid(np.array([0.0, 2.0, 4.0])))
    assert moved.laws / moved.laws.sum(axis=1, keepdims=True) == pytest.approx(
        np.array([[1, 0, 0], [0.125, 0.125, 0.75]])
    )
    rare = Question(np.array([0]), Grid(np.arange(513.0)), np.eye(1, 513, 3).astype(np.int64))
    assert rare.on(Grid(np.array([0.0, 512.0]))).laws.all()
    # the heaviest weights that a question may have are moved as light ones are
    heavy = Question(question.strata, POINTS, question.laws * (MOST_WEIGHT // 3))
    assert (heavy.on(moved.grid).laws == moved.laws).all()
