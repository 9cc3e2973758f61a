"""Numbers that the report's pictures and sentences rest on."""

from __future__ import annotations

import math

import numpy as np

from common.arrays import Floats
from common.exact.channel import Codes

_MOST_WHOLE = 60


def label_boundaries(labels: Floats, bounds: tuple[float, float], rows: int = 48) -> Floats:
    """Return ascending boundaries of intervals for a picture's label axis.

    Whole numbers get an interval each while that is legible. The axis ends early where a long tail
    would squeeze nearly all events into a corner.
    """
    lower, upper = bounds
    most = float(np.quantile(labels, 0.995))
    if most > lower:
        upper = min(upper, lower + 1.1 * (most - lower))
    if upper - lower <= _MOST_WHOLE and np.all(labels == np.floor(labels)):
        return np.arange(math.floor(lower), math.ceil(upper) + 2, dtype=np.float64) - 0.5
    return np.linspace(lower, upper, rows + 1, dtype=np.float64)


def joint_shares(labels: Floats, codes: Codes, outputs: int, edges: Floats) -> Floats:
    """(intervals, outputs) shares of events, summing to 1; the last interval takes the tail."""
    rows = edges.size - 1
    at = np.clip(np.searchsorted(edges, labels, side="right") - 1, 0, rows - 1)
    counts = np.bincount(at * outputs + codes, minlength=rows * outputs)
    return np.asarray(counts.reshape(rows, outputs) / labels.size)


def channel_shares(probabilities: Floats, grid: Floats) -> tuple[Floats, Floats]:
    """Return the channel's rows, one for each grid point, with the points' boundaries."""
    boundaries = np.concatenate([[grid[0]], (grid[1:] + grid[:-1]) / 2, [grid[-1]]])
    return probabilities, boundaries
