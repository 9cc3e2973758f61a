"""Sums over any range of labels in constant time, every one of terms of one sign.

The difference of two prefix sums would lose the digits that they have in common. Here every level
ℓ cuts the labels into blocks of 2^ℓ and keeps, for each label, the sums from it to the middle of
its block. The first and the last label of a range lie on either side of the middle of exactly one
block (the highest bit in which their indices differ names its level), so that two entries of that
level make up the range: O(k log k) numbers in all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.arrays import Booleans, Floats, Indices


@dataclass(frozen=True)
class _Halves:
    """A range cut at the middle of its block: flat indices into the tables of either part."""

    left: Indices
    right: Indices
    middle: Indices
    single: Booleans


class RangeSums:
    """Weights and distances of ranges of (k,) ascending labels with priors > 0.

    Ranges are given by their first and last label.
    """

    def __init__(self, labels: Floats, prior: Floats) -> None:
        self.labels = labels
        levels = max(labels.size - 1, 1).bit_length()
        self._size = size = 1 << levels
        self._bits = np.zeros(size, dtype=np.int64)
        for bit in range(levels):
            self._bits[1 << bit : 2 << bit] = bit + 1
        y = np.append(labels, np.full(size - labels.size, labels[-1]))
        p = np.append(prior, np.zeros(size - labels.size))
        self._mass, self._near, self._far = np.zeros((3, levels + 1, size))
        self._mass[0] = p
        for level in range(1, levels + 1):
            half = 1 << (level - 1)
            for side in (0, 1):
                self._fill(level, side, half, y, p)
        self._mass, self._near, self._far = map(np.ravel, (self._mass, self._near, self._far))

    def _fill(self, level: int, side: int, half: int, y: Floats, p: Floats) -> None:
        """Sum outwards from the middle of each block, on one side of it."""
        outwards = slice(None, None, -1 if side == 0 else 1)

        def part(values: Floats) -> Floats:
            return values.reshape(-1, 2, half)[:, side, outwards]

        label, weight = part(y), part(p)
        middle = y.reshape(-1, 2, half)[:, 1, :1]
        gaps = np.abs(np.diff(label, axis=1))
        mass = np.cumsum(weight, axis=1)
        far = np.zeros_like(mass)  # Σ p · distance to the outermost label
        np.cumsum(mass[:, :-1] * gaps, axis=1, out=far[:, 1:])
        part(self._mass[level])[:] = mass
        part(self._far[level])[:] = far
        part(self._near[level])[:] = np.cumsum(weight * np.abs(label - middle), axis=1)

    def _halves(self, first: Indices, last: Indices) -> _Halves:
        level = self._bits[first ^ last]
        single = level == 0
        shift = np.maximum(level - 1, 0)
        middle = (last >> shift) << shift
        base = level * self._size
        return _Halves(base + first, base + last, middle, single)

    def mass(self, first: Indices, last: Indices) -> Floats:
        """Σ p over labels first … last."""
        at = self._halves(first, last)
        return np.asarray(self._mass[at.left] + np.where(at.single, 0.0, self._mass[at.right]))

    def below(self, first: Indices, last: Indices) -> Floats:
        """Σ p (y_last - y) over labels first … last."""
        at = self._halves(first, last)
        outside = self.labels[last] - self.labels[at.middle]
        total = self._near[at.left] + self._mass[at.left] * outside + self._far[at.right]
        return np.asarray(np.where(at.single, 0.0, total))

    def above(self, first: Indices, last: Indices) -> Floats:
        """Σ p (y - y_first) over labels first … last."""
        at = self._halves(first, last)
        outside = self.labels[at.middle] - self.labels[first]
        total = self._far[at.left] + self._near[at.right] + self._mass[at.right] * outside
        return np.asarray(np.where(at.single, 0.0, total))
