"""Records brought within public bounds, each by itself and certainly: floats' rounding included."""

from __future__ import annotations

import math

import numpy as np

from labelveil.common.arrays import Floats, Integers
from labelveil.common.errors import DataError


def checked_labels(rows: Floats, labels: Floats) -> Floats:
    """(n,) labels clipped to -1 … 1; refuses rows and labels that do not fit together."""
    if rows.ndim != 2 or labels.shape != rows.shape[:1] or not rows.size:
        raise DataError(
            f"rows of shape {rows.shape} with labels of shape {labels.shape}; give one label a row"
        )
    if not (np.all(np.isfinite(rows)) and np.all(np.isfinite(labels))):
        raise DataError("rows and labels must be finite; replace missing values first")
    return np.clip(labels, -1.0, 1.0)


def clip_rows(rows: Floats) -> Floats:
    """Shrink rows to norm 1 where they are longer.

    A row that is too long to have a norm, or holds what is no number, becomes 0.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.sum(rows * rows, axis=1))
    return _shrunk(rows, norms, 1 - (rows.shape[1] + 16) * 2.0**-52)


def rounded_within(rows: Floats, grid: int, order: int = 2) -> Integers:
    """(m, p) rows as integers, in steps of 1/grid, of norm 1 at most, L1 or L2.

    They are clipped to a norm by so much shorter that rounding to nearest cannot pass 1, which is
    then looked at in integers: a row that did, whatever the floats, would count as 0. So does one
    that is no number, or too long to have a norm: what a cast to integers makes of it has squares
    that wrap around.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(rows, ord=order, axis=1)
    most = (1 - 1e-9) * max(0.0, 1 - rounding_length(rows.shape[1], order) / grid)
    steps = np.rint(_shrunk(rows, norms, most) * grid).astype(np.int64)
    return np.where((np.abs(steps) ** order).sum(axis=1) <= grid**order, steps.T, 0).T


def rounding_length(size: int, order: int) -> float:
    """How much longer rounding may make a vector of that many numbers, in steps."""
    return size / 2 if order == 1 else math.sqrt(size) / 2


def _shrunk(rows: Floats, norms: Floats, most: float) -> Floats:
    usual = np.isfinite(norms)
    factors = np.minimum(1.0, most / np.maximum(np.where(usual, norms, 1.0), 1e-300))
    return np.asarray(np.where(usual[:, None], rows, 0.0) * factors[:, None])
