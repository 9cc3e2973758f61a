"""Groups of like events."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.feature_party.groups import asking
from labelveil.feature_party.groups.asking import clusters


@pytest.mark.parametrize("count", [1, 2, 40, 300, 5000])
def test_groups_are_of_like_points_and_none_is_empty(count: int) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3000, 3))
    found = clusters(points, count, rng)
    sizes = np.bincount(found)
    assert found.shape == (3000,)
    assert sizes.min() >= 1
    assert 0.7 * min(count, 3000) <= sizes.size <= 1.3 * min(count, 3000)
    means = np.stack([np.bincount(found, points[:, i]) / sizes for i in range(3)], axis=1)
    within = np.mean((points - means[found]) ** 2)
    # in three dimensions what is left falls with the number of groups to the power -2/3
    assert within <= 1.6 * min(count, 3000) ** (-2 / 3)


def test_equal_points_make_groups_too() -> None:
    rng = np.random.default_rng(0)
    assert clusters(np.zeros((50, 2)), 7, rng).max() < 7
    assert clusters(np.ones((1, 2)), 7, rng).tolist() == [0]


def test_points_beyond_those_that_means_are_found_by_go_to_the_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "_MANY", 64)
    rng = np.random.default_rng(0)
    corner = rng.integers(0, 2, size=(2_000, 2))
    found = clusters(corner + rng.normal(0, 0.01, (2_000, 2)), 40, rng)
    corners = [np.unique(corner[found == group], axis=0) for group in range(found.max() + 1)]
    assert len(corners) > 4
    assert {len(each) for each in corners} == {1}
