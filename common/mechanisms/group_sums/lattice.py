"""The lattice of a question about groups: equally spaced points from one bound to the other.

Labels, offsets and half-widths are whole numbers of its steps, so that a sum of clipped labels is
one as well. With anything between its points a sum would have a fraction that noise of whole steps
leaves as it is: on labels 0, 1, …, clipped to 0.3 … 5.3, the fraction of a noisy sum tells how many
labels were clipped, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from typing import Self

import numpy as np

from labelveil.common.arrays import Floats, Indices, Words
from labelveil.common.errors import ConfigError
from labelveil.common.exact.rational import decimal_value
from labelveil.common.randomizers.grid import MAX_POINTS, Grid

MOST_STEPS = MAX_POINTS - 1
"""A grid whose points' differences have no common divisor as large as that has no lattice."""

_STEPS = 511
"""Of a lattice between two bounds, about: finer ones change no sum by as much as its noise."""

_EVEN = 1e-6
"""Share of a step by which numbers may miss a point that they were computed to be."""


@dataclass(frozen=True)
class Lattice:
    """``lower + i s`` for i = 0 … ``steps``, with s = (upper - lower) / steps.

    ``ConfigError`` if there is no such lattice.
    """

    lower: float
    """Bounds of the labels, which are clipped to them."""
    upper: float
    steps: int
    """1 … 8,191."""

    def __post_init__(self) -> None:
        _ = self.grid

    @cached_property
    def grid(self) -> Grid:
        """All of its points."""
        return Grid.from_count(self.lower, self.upper, self.steps + 1)

    @classmethod
    def between(cls, lower: float, upper: float) -> Self:
        """One that is fine enough, of whose points any whole numbers between whole bounds are some.

        Labels that a labels party has on whole numbers are then on it, unless they are more than
        8,192. ``ConfigError`` if there is nothing between the bounds.
        """
        span = upper - lower
        if lower % 1 == upper % 1 == 0 and 0 < span <= MOST_STEPS:
            return cls(lower, upper, int(span * max(1, _STEPS // span)))
        return cls(lower, upper, _STEPS)

    @classmethod
    def from_grid(cls, grid: Grid) -> Self:
        """The coarsest lattice that holds every point of a grid.

        ``ConfigError`` if it has more than 8,191 steps.
        """
        points, even = grid.points, cls(grid.lower, grid.upper, len(grid) - 1)
        if np.allclose(points, even.points(np.arange(points.size)), rtol=0, atol=_EVEN * even.step):
            return even
        gaps = [decimal_value(y) - decimal_value(points[0]) for y in points[1:].tolist()]
        divisor = Fraction(
            gcd(*(gap.numerator for gap in gaps)), lcm(*(gap.denominator for gap in gaps))
        )
        steps = gaps[-1] / divisor
        if steps > MOST_STEPS:
            raise ConfigError(
                f"the label grid's {len(grid):,} points are not whole steps of a common one apart,"
                f" of which there would be more than {MOST_STEPS:,}: sums would tell labels by"
                " their fractions; use equally spaced points"
            )
        return cls(grid.lower, grid.upper, int(steps))

    @property
    def step(self) -> float:
        """s, in units of the label."""
        return (self.upper - self.lower) / self.steps

    def points(self, places: Indices) -> Floats:
        """Label values of places 0 … steps."""
        return np.asarray(self.lower + self.step * places, dtype=np.float64)

    def places(self, values: Floats, what: str) -> Indices:
        """Where values lie; ``ConfigError`` if one is no point of the lattice."""
        found = (values - self.lower) / self.step
        whole = np.rint(found)
        off = ~(np.abs(found - whole) <= _EVEN) | (whole < 0) | (whole > self.steps)
        if off.any():
            raise ConfigError(
                f"{what} {values[off][0]:g} is none of {self.lower:g}, {self.lower + self.step:g},"
                f" … {self.upper:g}; all labels and offsets of a question lie on these"
            )
        return whole.astype(np.int64)

    def round(self, labels: Floats, words: Words) -> Indices:
        """Clip (n,) labels and round each to a neighbouring point at random, without bias.

        Takes as many uniform words; returns places 0 … steps. ``DataError`` if a label is NaN.
        """
        return self.grid.round(labels, words)
