"""What a question tells of labels, by which it is asked or left out."""

from __future__ import annotations

import numpy as np
import pytest

from common.randomizers.grid import Grid
from common.randomizers.message.questions import Question
from feature_party.learning.questions import explained_by

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
