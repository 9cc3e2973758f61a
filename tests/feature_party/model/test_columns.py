"""What predictions say beside the label, against distributions written down by hand."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.errors import DataError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.columns import columns


def problem_of(grid: np.ndarray, prior: np.ndarray) -> LabelProblem:
    rows = randomized_response_rows(grid.size, 1.0)
    return LabelProblem.from_channel(FiniteChannel(grid, grid, rows), prior)


def test_all_columns_of_a_distribution() -> None:
    problem = problem_of(np.arange(10.0), np.array([10.0, *[1.0] * 9]))
    support = Support.from_problem(problem)
    law = np.array([[0.3, 0.1, 0.1, 0, 0.2, 0, 0, 0.3, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0, 0, 1.0]])
    found = columns(problem, support, law, 0.8, [0.35, 0.95], [0.0, 3.5])
    assert list(found) == [
        *("mean", "median", "lower", "upper", "equal_0"),
        *("quantile_0.35", "quantile_0.95", "above_0", "above_3.5"),
    ]
    first = {name: column[0] for name, column in found.items()}
    assert first == pytest.approx(
        {
            **{"mean": 3.2, "median": 2.0, "lower": 0.0, "upper": 7.0, "equal_0": 0.3},
            **{"quantile_0.35": 1.0, "quantile_0.95": 7.0, "above_0": 0.7, "above_3.5": 0.5},
        }
    )
    assert found["above_3.5"][1] == 1


def test_labels_within_a_cell_are_shared_out_by_the_prior() -> None:
    grid = np.linspace(0, 1, 201)
    problem = problem_of(grid, np.ones(201))
    support = Support.from_problem(problem, 20)
    law = np.tile(support.prior, (2, 1))
    assert columns(problem, support, law, above=[0.25])["above_0.25"] == pytest.approx(
        0.75, abs=0.01
    )


def test_two_labels_have_one_probability() -> None:
    problem = problem_of(np.array([-1.0, 4.0]), np.array([3.0, 1.0]))
    law = np.array([[0.9, 0.1]])
    found = columns(problem, Support.from_problem(problem), law, 0.9)
    assert {name: column.tolist() for name, column in found.items()} == {"probability": [0.1]}


@pytest.mark.parametrize("value", [-1.0, 9.0, 20.0])
def test_a_value_outside_the_labels_is_refused(value: float) -> None:
    problem = problem_of(np.arange(10.0), np.ones(10))
    with pytest.raises(DataError, match=f"above={value:g} must be a label in 0 … 9"):
        columns(problem, Support.from_problem(problem), np.full((1, 10), 0.1), above=[value])
