"""A few well-chosen grid points for a randomizer, and the rounding of all labels onto them.

A label between two working points goes to one of them at random with its expectation unchanged.
That rounding is folded into the channel's rows: a mixture of two rows of an ε-DP channel is ε-DP.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_FLOOR = 0.05


def working_points(labels: Floats, prior: Floats, count: int) -> Indices:
    """Choose at most ``count`` grid points, dense where labels are.

    Rounding y between neighbours a <= y <= b adds the variance (y - a)(b - y). For many points its
    expectation is least when their density is proportional to the cube root of the labels' density
    (the high-resolution argument of Panter and Dite, 1951), so that is the density used, over the
    prior with a small uniform share that keeps empty stretches covered.

    Parameters
    ----------
    labels
        (k,) grid, strictly ascending.
    prior
        (k,) probabilities.
    count
        Number of points wanted, at least 2.

    Returns
    -------
    (m,) ascending indices into ``labels``, 2 <= m <= count, with the first and the last point.
    """
    k = labels.size
    if count >= k:
        return np.arange(k)
    gaps = np.diff(labels)
    mass = (prior[:-1] + prior[1:]) / 2
    density = (1 - _FLOOR) * mass / gaps / mass.sum() + _FLOOR / (labels[-1] - labels[0])
    travelled = np.concatenate([[0.0], np.cumsum(np.cbrt(density) * gaps)])
    wanted = np.linspace(0.0, travelled[-1], count)
    nearest = np.searchsorted((travelled[:-1] + travelled[1:]) / 2, wanted)
    return np.unique(np.concatenate([[0], nearest, [k - 1]]))


def rounding_matrix(labels: Floats, points: Floats) -> Floats:
    """(k, m) probabilities with which each label is rounded to each working point.

    Parameters
    ----------
    labels
        (k,) ascending, within the points' range.
    points
        (m,) strictly ascending, m >= 2.
    """
    left = np.clip(np.searchsorted(points, labels, side="right") - 1, 0, points.size - 2)
    fraction = (labels - points[left]) / (points[left + 1] - points[left])
    matrix = np.zeros((labels.size, points.size))
    rows = np.arange(labels.size)
    matrix[rows, left] = 1 - fraction
    matrix[rows, left + 1] += fraction
    return matrix
