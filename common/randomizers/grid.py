"""The label grid: finitely many public points on which every label is placed.

A label outside the grid's range is clipped; a label between two points goes to one of them at
random, so that its expectation is unchanged. Rounding acts before randomization and record by
record, so it never weakens a guarantee: a mixture of two rows of an ε-DP channel is ε-DP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats, Indices, Words
from labelveil.common.errors import ConfigError, DataError

MAX_POINTS = 1 << 13
"""A finer grid would say no more of a label: on each point lies noise of its own."""

_WHOLE = 2.0**53
"""From here on numbers one apart are the same in double precision."""
LARGEST, LEAST_GAP = 1e100, 1e-100
"""Of points, and between two of them: their squares and quotients then neither overflow nor lose
digits."""

INTEGER_RANGE = 512
"""Ranges with whole bounds and at most this many steps get one grid point for each integer."""
_FEWEST_STEPS, _STEPS = 10, (1.0, 0.5, 0.2, 0.1)

_CHUNK = 1 << 13
"""Values at a time: what is made of them stays in the cache."""
_MOST_BITS = 16


@dataclass(frozen=True)
class RoundingEffect:
    """What placing labels on a grid does to them; that of further labels is added."""

    labels: int = 0
    between: int = 0  # two points, so that they go to one of them
    fractional: int = 0  # no whole numbers
    added: float = 0.0  # sum of the variances that this adds to each
    total: float = 0.0  # sum of the labels, counted from the grid's lowest point
    squares: float = 0.0  # sum of their squares

    def __add__(self, other: RoundingEffect) -> RoundingEffect:
        return RoundingEffect(
            *(getattr(self, f.name) + getattr(other, f.name) for f in fields(self))
        )

    @property
    def share(self) -> float:
        """The variance added, relative to the labels' own; 0 if no label is moved."""
        own = self.squares - self.total**2 / max(self.labels, 1)
        return self.added / own if self.between and own > 0 else 0.0

    def __str__(self) -> str:
        adds = f", which adds {self.share:.1%} to their variance" if self.between else ""
        return f"{self.between:,} of {self.labels:,} labels lie between{adds}"


@dataclass(frozen=True, eq=False)
class Grid:
    """A sorted grid of label values."""

    points: Floats
    """(k,) float64, strictly ascending, k >= 2."""

    def __post_init__(self) -> None:
        points = np.array(self.points, dtype=np.float64)
        if points.ndim != 1 or points.size < 2:
            raise ConfigError(f"a label grid of {points.size} points must have at least 2")
        if points.size > MAX_POINTS:
            raise ConfigError(
                f"a label grid of {points.size:,} points may have at most {MAX_POINTS:,};"
                " use a larger step"
            )
        sizes = np.abs(points)
        if not np.all((sizes <= LARGEST) & ((sizes >= LEAST_GAP) | (sizes == 0))):  # nor NaN
            raise ConfigError(
                f"label grid points must be finite numbers of at most {LARGEST:g}, and 0 or at"
                f" least {LEAST_GAP:g}; rescale labels"
            )
        steps = np.diff(points)
        if np.any(steps <= 0):
            at = int(np.argmax(steps <= 0))
            remedy = "sort them and remove repetitions"
            if np.any(sizes > _WHOLE):  # neighbours are one number in double precision
                remedy += ", or subtract a constant from labels, which are large"
            raise ConfigError(
                f"label grid points must be strictly ascending, but {points[at]:.17g} is followed"
                f" by {points[at + 1]:.17g}; {remedy}"
            )
        if np.any(steps < LEAST_GAP):
            at = int(np.argmax(steps < LEAST_GAP))
            raise ConfigError(
                f"label grid points must be at least {LEAST_GAP:g} apart, but {points[at]:g} is"
                f" followed by {points[at + 1]:g}; rescale labels, or use a larger step"
            )
        points.setflags(write=False)
        object.__setattr__(self, "points", points)

    @classmethod
    def from_step(cls, lower: float, upper: float, step: float) -> Grid:
        """Equally spaced points from ``lower`` to ``upper``; the last step may be shorter.

        Raises
        ------
        ConfigError
            If the step is not in 0 … upper − lower, or gives too many points.
        """
        _check_bounds(lower, upper)
        if not (math.isfinite(step) and 0 < step <= upper - lower):
            raise ConfigError(f"step={step:g} must lie in 0 … {upper - lower:g} (upper - lower)")
        if (upper - lower) / step > MAX_POINTS:
            raise ConfigError(
                f"step={step:g} gives more than {MAX_POINTS:,} points; use a larger step"
            )
        count = math.floor((upper - lower) / step * (1 + 1e-12))
        points: Floats = lower + step * np.arange(count + 1, dtype=np.float64)
        if points[-1] < upper - 1e-9 * step:
            points = np.append(points, upper)
        points[-1] = upper
        return cls(points)

    @classmethod
    def from_count(cls, lower: float, upper: float, count: int) -> Grid:
        """``count`` >= 2 equally spaced points from ``lower`` to ``upper``."""
        _check_bounds(lower, upper)
        _check_count(count)
        return cls(np.linspace(lower, upper, count))

    @classmethod
    def from_edges(cls, edges: Sequence[float]) -> Grid:
        """Build a grid from points written out one by one."""
        return cls(np.asarray(edges, dtype=np.float64))

    @classmethod
    def from_log(cls, lower: float, upper: float, count: int, scale: float) -> Grid:
        """Points that are dense near ``lower``: equal steps of ln(1 + (y - lower) / scale).

        ``scale`` > 0 is the distance from ``lower`` up to which the spacing is nearly even.

        Raises
        ------
        ConfigError
            If the scale is no number > 0, or too small for that range.
        """
        _check_bounds(lower, upper)
        _check_count(count)
        if not (math.isfinite(scale) and scale > 0):
            raise ConfigError(f"scale={scale:g} must be a number > 0, in units of the label")
        if not math.isfinite((upper - lower) / scale):
            raise ConfigError(f"scale={scale:g} is too small for labels up to {upper:g}")
        t = np.linspace(0.0, math.log1p((upper - lower) / scale), count)
        points = lower + scale * np.expm1(t)
        points[-1] = upper
        return cls(points)

    @classmethod
    def from_zero(cls, upper: float, count: int) -> Grid:
        """``count`` >= 2 points from 0 to ``upper``, where labels are amounts or counts, most of
        them small: a quarter as far apart as equally spaced ones at 0, 1.75 times at ``upper``.

        No function is used whose last digit depends on the machine: a grid is public, and made
        again to check a release.
        """
        _check_bounds(0.0, upper)
        _check_count(count)
        t = np.arange(count) / (count - 1)
        return cls(upper * (t * (1 + 3 * t) / 4))

    @classmethod
    def default(
        cls, lower: float, upper: float, rows: int, epsilon: float, *, whole: bool = False
    ) -> Grid:
        """Choose a grid from public facts alone: the bounds, the number of events and ε.

        Whole bounds at most 128 apart give steps of :func:`whole_step`. Otherwise the number of
        points k is such that Theorem 7's √(k/n) spends about a sixteenth of ε on the prior, within
        16 … 512; up to that number a range of integers again gets one point for each. From 0 on
        they are those of :meth:`from_zero`, unless that put several between two integers.
        """
        _check_bounds(lower, upper)
        affordable = int(min(max(rows * (epsilon / 16) ** 2, 16), INTEGER_RANGE))
        step = whole_step(lower, upper, whole=whole)
        if step is not None and upper - lower <= max(128, affordable):
            return cls.from_step(lower, upper, step)
        if lower == 0 and (step is None or upper >= 4 * (affordable - 1)):
            return cls.from_zero(upper, affordable)
        return cls.from_count(lower, upper, affordable)

    @property
    def spaced_by_default(self) -> bool:
        """Whether its points lie as :meth:`default` may place so many between these ends, now or,
        from 0 on, in releases of before: equally spaced."""
        spacings = [Grid.from_count(self.lower, self.upper, len(self))]
        if self.lower == 0:
            spacings.append(Grid.from_zero(self.upper, len(self)))
        return any(np.allclose(self.points, grid.points) for grid in spacings)

    @property
    def lower(self) -> float:
        return float(self.points[0])

    @property
    def upper(self) -> float:
        return float(self.points[-1])

    def __len__(self) -> int:
        return int(self.points.size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grid) and np.array_equal(self.points, other.points)

    def __hash__(self) -> int:
        return hash(self.points.tobytes())

    def outside(self, values: Floats) -> int:
        """Count the values that clipping will change."""
        return int(np.count_nonzero((values < self.lower) | (values > self.upper)))

    def round(self, values: ArrayLike, words: Words) -> Indices:
        """Clip values to the range and round each to a neighbouring point without bias.

        Takes (n,) numbers and as many uniform words, and returns (n,) int64 indices into
        ``points``; entry ``i`` depends on ``values[i]`` and ``words[i]``. A point's chance is its
        float64 share of the gap, rounded up to a multiple of 2**-53.

        Raises
        ------
        DataError
            If a value is NaN: missing labels are filled in before rounding.
        ValueError
            If there are not as many words as values.
        """
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != 1 or array.shape != words.shape:
            raise ValueError(f"values of shape {array.shape} need as many words, not {words.shape}")
        out = np.empty(array.size, dtype=np.int64)
        for start in range(0, array.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            clipped = np.clip(array[part], self.lower, self.upper)
            if not clipped.min() >= self.lower:
                raise DataError("a label is NaN; fill missing labels in before rounding")
            below = self._floor(clipped)
            clipped -= self.points.take(below)
            clipped /= self._gaps.take(below)  # how far it is to the next point, as a share
            clipped *= 2.0**53  # exact, as is the comparison with a word's first 53 bits
            coin = (words[part] >> np.uint64(11)).astype(np.float64)
            np.add(below, coin < clipped, out=out[part])
        return out

    def neighbours(self, values: Floats) -> tuple[Indices, Floats]:
        """Where :meth:`round` may put (n,) values, and with which probabilities.

        (n, 2) indices into ``points``, and (n, 2) probabilities that sum to 1.
        """
        clipped = np.clip(values, self.lower, self.upper)
        below = np.searchsorted(self.points[1:-1], clipped, side="right")
        share = (clipped - self.points[below]) / self._gaps[below]
        return np.stack([below, below + 1], axis=1), np.stack([1 - share, share], axis=1)

    def rounding_effect(self, values: Floats) -> RoundingEffect:
        """What :meth:`round` is expected to do to (n,) values."""
        total = RoundingEffect()
        for start in range(0, values.size, _CHUNK):
            part = np.clip(values[start : start + _CHUNK], self.lower, self.upper)
            below = self._floor(part)
            gaps, heights = self._gaps.take(below), part - self.lower
            share = (part - self.points.take(below)) / gaps
            off = share * (1 - share)
            total += RoundingEffect(
                part.size,
                int(np.count_nonzero(off > 1e-9)),  # more than an error of floating point
                int(np.count_nonzero(part != np.rint(part))),
                float(off @ gaps**2),
                float(heights.sum()),
                float(heights @ heights),
            )
        return total

    def __str__(self) -> str:
        gap = self._gaps[0]
        even = np.allclose(self._gaps, gap, rtol=1e-6)
        return f"{len(self):,} points{f', {gap:.4g} apart' if even else ''}"

    @cached_property
    def _floor(self) -> _Floor:
        return _Floor(self.points)

    @cached_property
    def _gaps(self) -> Floats:
        return np.diff(self.points)


def whole_step(lower: float, upper: float, *, whole: bool) -> float | None:
    """Distance of points between whole bounds, all whole numbers being points; None for others.

    1 where labels are ``whole`` numbers. Others may lie anywhere, so that it is the longest of 1,
    1/2, 1/5 and 1/10 that makes ten steps: coarser ones would take up to 60 % of what a label
    tells, finer ones would spend more of ε on the prior and tell 3 % more at most.
    """
    if lower % 1 or upper % 1:
        return None
    enough = (step for step in _STEPS if upper - lower >= _FEWEST_STEPS * step)
    return 1.0 if whole else next(enough)


class _Floor:
    """Finds the last point at or below a value, but for the last of all.

    The range is cut into equal cells, of which none holds two points: a value's cell says the point
    in question but for one, with which the value is compared. A value's cell never falls as the
    value grows, rounding errors included, so that this is exact. Where even the finest cells hold
    two points, bisection finds it.
    """

    def __init__(self, points: Floats) -> None:
        self._points = points
        self._cells: Indices | None = None
        for bits in range(points.size.bit_length(), _MOST_BITS + 1):
            self._scale = float((1 << bits) / (points[-1] - points[0]))
            cells = self._cell(points)
            if (np.diff(cells) > 0).all():
                # how many points lie in cells before; the last of them is the one, or the next is
                before = np.searchsorted(cells, np.arange(cells[-1] + 1))
                self._cells = np.clip(before - 1, 0, points.size - 2).astype(np.int64)
                break

    def __call__(self, values: Floats) -> Indices:
        """Return (n,) indices from 0 to k - 2 for values within the points' range."""
        if self._cells is None:
            below: Indices = np.searchsorted(self._points, values, side="right") - 1
        else:
            below = self._cells.take(self._cell(values))
            below += values >= self._points[1:].take(below)
        return np.minimum(below, self._points.size - 2, out=below)

    def _cell(self, values: Floats) -> Indices:
        return np.asarray((values - self._points[0]) * self._scale).astype(np.int64)


def _check_bounds(lower: float, upper: float) -> None:
    try:
        finite = math.isfinite(lower) and math.isfinite(upper)
    except OverflowError:  # whole numbers that no float comes near
        raise ConfigError(f"labels' bounds must be at most {LARGEST:g}; rescale labels") from None
    if not finite:
        raise ConfigError(f"lower={lower:g} and upper={upper:g} must be finite numbers")
    if max(abs(lower), abs(upper)) > LARGEST:
        raise ConfigError(
            f"lower={lower:g} and upper={upper:g} must be at most {LARGEST:g}; rescale labels"
        )
    if lower >= upper:
        raise ConfigError(
            f"lower={lower:g} must be below upper={upper:g}; the label domain is empty"
        )
    if upper - lower < LEAST_GAP:
        raise ConfigError(
            f"lower={lower:g} and upper={upper:g} must be at least {LEAST_GAP:g} apart; rescale"
            " labels"
        )


def _check_count(count: int) -> None:
    if not 2 <= count <= MAX_POINTS:
        raise ConfigError(f"points={count:,} must lie in 2 … {MAX_POINTS:,}")
