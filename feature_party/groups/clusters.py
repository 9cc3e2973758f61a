"""Groups of like events: k-means, in two levels where there are many groups."""

from __future__ import annotations

import numpy as np

from labelveil.common.arrays import Floats, Indices

_AT_ONCE = 128
"""Groups that are looked for at once; of more, parts are split one by one."""
_STEPS = 12
_ROWS_AT_ONCE = 1 << 14


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
    """Lloyd's algorithm from points drawn at random."""
    centres = points[rng.choice(len(points), count, replace=False)]
    nearest = _nearest(points, centres)
    for _ in range(_STEPS if count > 1 else 0):
        sizes = np.bincount(nearest, minlength=count)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, points)
        there = sizes > 0
        centres[there] = sums[there] / sizes[there, None]
        # a mean without points goes where there are many
        centres[~there] = points[rng.choice(len(points), int((~there).sum()), replace=False)]
        moved = _nearest(points, centres)
        if (moved == nearest).all():
            break
        nearest = moved
    return nearest


def _nearest(points: Floats, centres: Floats) -> Indices:
    halves = 0.5 * np.square(centres).sum(axis=1)
    parts = [
        (points[at : at + _ROWS_AT_ONCE] @ centres.T - halves).argmax(axis=1)
        for at in range(0, len(points), _ROWS_AT_ONCE)
    ]
    return np.concatenate(parts).astype(np.int64)
