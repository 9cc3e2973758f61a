"""Groups of like events: k-means, in two levels where there are many groups."""

from __future__ import annotations

import warnings

import numpy as np
from scipy.cluster.vq import kmeans2

from labelveil.common.arrays import Floats, Indices

_AT_ONCE = 128
"""Groups that are looked for at once; of more, parts are split one by one."""
_STEPS = 12


def clusters(points: Floats, count: int, rng: np.random.Generator) -> Indices:
    """(n,) group 0 … of each of (n, d) points, by its nearest mean: about ``count`` groups.

    None of the groups is empty. In groups of one at most, as many as there are points.
    """
    count = max(1, min(count, len(points)))
    if count <= _AT_ONCE:
        found = _k_means(points, count, rng)
    else:
        coarse = _k_means(points, int(np.ceil(np.sqrt(count))), rng)
        found, first = np.empty(len(points), dtype=np.int64), 0
        for part in range(int(coarse.max()) + 1):
            rows = np.flatnonzero(coarse == part)
            share = max(1, round(count * rows.size / len(points)))
            own = clusters(points[rows], share, rng)
            found[rows] = first + own
            first += int(own.max()) + 1 if rows.size else 0
    return np.unique(found, return_inverse=True)[1].reshape(-1)


def _k_means(points: Floats, count: int, rng: np.random.Generator) -> Indices:
    """Lloyd's algorithm from points drawn at random; groups may stay empty."""
    if count == 1:
        return np.zeros(len(points), dtype=np.int64)
    first = points[rng.choice(len(points), count, replace=False)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of points that are alike some groups are
        _, nearest = kmeans2(points, first, iter=_STEPS, minit="matrix", missing="warn")
    return np.asarray(nearest, dtype=np.int64)
