"""The cost of a bin in RR-on-bins, for every loss.

For a bin S of consecutive labels and c = e^ε - 1,

    L(S) = min over ŷ of  G(ŷ) + c Σ_{y in S} p_y ℓ(ŷ, y),     G(ŷ) = Σ_{all y} p_y ℓ(ŷ, y),

a weighted version of "best constant" with weights p_y (1 + c·1[y in S]). Bins are half-open index
ranges (r, i): labels r … i - 1.

c reaches e^40, so a bin's own spread must not be the difference of two prefix sums over the whole
grid: an error in their last digit, times c, would outweigh everything. All sums are of terms of one
sign.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from labelveil.common.arrays import Booleans, Floats, Indices
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.losses import Loss

Divergence = Callable[[Floats, Floats], Floats]
"""D(a, a + t) from a and t: a Bregman divergence, so that the mean is the best constant."""

MAX_CUSTOM_LABELS = 1024
"""The most labels that a loss without a closed form may have: it takes O(k³) time."""

_GOLDEN = (5**0.5 - 1) / 2
_GOLDEN_ROUNDS = 80


class IntervalCosts(ABC):
    """Costs L(r, i) and minimisers ŷ(r, i) over (k,) ascending labels with priors > 0.

    ``boost`` is c = e^ε - 1 > 0; ``offset`` what a subclass leaves out of every L(S): the ratio of
    any partition is short of its loss by this much.
    """

    offset: float = 0.0

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        self.labels, self.prior, self.boost = labels, prior, boost

    @abstractmethod
    def ending(self, i: int) -> tuple[Floats, Floats]:
        """Return the costs, and the output values, of bins (0, i) … (i - 1, i)."""


class _MeanCosts(IntervalCosts):
    """Losses that are a Bregman divergence D(y, ŷ), whose best constant is the weighted mean.

    Σ w_y D(y, ŷ) over any labels is the same sum at their mean, plus Σ w_y times D(mean, ŷ)
    (Banerjee, Guo and Wang, *On the Optimality of Conditional Expectation as a Bregman Predictor*,
    2005). With m and μ the bin's mass and mean, M the mean of all labels and
    ŷ = (M + c m μ) / (1 + c m):

        L(S) = V + c V_S + D(M, ŷ) + c m D(μ, ŷ),    V_S = Σ_{y in S} p_y D(y, μ).
    """

    def __init__(self, labels: Floats, prior: Floats, boost: float, divergence: Divergence) -> None:
        super().__init__(labels, prior, boost)
        self._divergence = divergence
        _, above, within = self._sums(labels.size)
        self._above, self._spread = float(above[0]), float(within[0])
        self._mean = float(labels[0]) + self._above
        self._offsets = labels - labels[0]

    def _sums(self, i: int) -> tuple[Floats, Floats, Floats]:
        """Of bins (0, i) … (i - 1, i): mass, mean less the first label, and V_S.

        A bin grows downwards, label by label. The next one draws the mean, ``apart`` from it,
        towards itself.
        """
        y, p = self.labels[:i][::-1], self.prior[:i][::-1]
        mass, gaps = np.cumsum(p), y[:-1] - y[1:]
        above = np.append(0.0, np.cumsum(mass[:-1] * gaps)) / mass
        apart = above[:-1] + gaps
        # loss of the labels so far by the new mean, and of the new label
        grown = mass[:-1] * self._divergence(y[1:] + apart, -apart * p[1:] / mass[1:])
        grown += p[1:] * self._divergence(y[1:], above[1:])
        return mass[::-1], above[::-1], np.append(0.0, np.cumsum(grown))[::-1]

    def ending(self, i: int) -> tuple[Floats, Floats]:
        mass, above, within = self._sums(i)
        boosted = self.boost * mass
        total = 1 + boosted
        apart = (self._above - self._offsets[:i]) - above  # from the bin's mean to that of all
        costs = self._spread + self.boost * within
        costs += self._divergence(np.full(i, self._mean), -apart * (boosted / total))
        costs += boosted * self._divergence(self.labels[:i] + above, apart / total)
        values = self.labels[0] + (self._above + boosted * (self._offsets[:i] + above)) / total
        return costs, np.clip(values, self.labels[0], self.labels[-1])


class _PoissonCosts(_MeanCosts):
    """The divergence is D(y, ŷ) = ŷ - y + y ln(y/ŷ).

    ℓ(ŷ, y) is D(y, ŷ) plus y - y ln y, which no ŷ can change: L(S) is the cost in D plus the
    entropy term (E[y - y ln y] and c times its part in the bin). That term adds the same amount to
    the ratio N/D of every partition, so it is left out here and returned by :attr:`offset`.
    """

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        super().__init__(labels, prior, boost, _poisson_divergence)
        logs = np.log(np.where(labels > 0, labels, 1.0))
        self.offset = float(prior @ (labels - labels * logs))


def _poisson_divergence(value: Floats, step: Floats) -> Floats:
    """D(a, a + t) = t - a ln(1 + t/a) for a >= 0 and a + t > 0; D(0, t) = t.

    Near t = 0 that is the difference of two equal numbers. With s = t / (2a + t) the logarithm is
    2 artanh s, and what remains is a (2s²/(1 - s) - 2s³ (1/3 + s²/5 + s⁴/7 + …)).
    """
    safe = np.where(value > 0, value, 1.0)
    ratio = step / safe
    s = ratio / (2 + ratio)
    near = np.abs(ratio) < 0.25
    s = np.where(near, s, 0.0)
    square = s * s
    series = np.full(s.shape, 1 / 19)
    for odd in range(17, 1, -2):
        series = series * square + 1 / odd
    small = 2 * square / (1 - s) - 2 * s * square * series
    far = np.where(near, 0.0, ratio)
    large = far - np.log(np.where(near, 1.0, np.maximum(value + step, 0.0) / safe))
    return np.asarray(np.where(value > 0, safe * np.where(near, small, large), step))


class _RangeSums:
    """Weights and distances of ranges of (k,) ascending labels with priors > 0, in constant time.

    The difference of two prefix sums would lose the digits that they have in common. Here every
    level ℓ cuts the labels into blocks of 2^ℓ and keeps, for each label, the sums from it to the
    middle of its block. The first and the last label of a range, by which it is given, lie on
    either side of the middle of exactly one block (the highest bit in which their indices differ
    names its level), so that two entries of that level make up the range: O(k log k) numbers in
    all.
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

    def _halves(self, first: Indices, last: Indices) -> tuple[Indices, Indices, Indices, Booleans]:
        """Flat indices into the tables of either part of a range that is cut at its block's middle,
        that middle, and whether there is one label alone."""
        level = self._bits[first ^ last]
        single = level == 0
        shift = np.maximum(level - 1, 0)
        middle = (last >> shift) << shift
        base = level * self._size
        return base + first, base + last, middle, single

    def mass(self, first: Indices, last: Indices) -> Floats:
        """Σ p over labels first … last."""
        left, right, _, single = self._halves(first, last)
        return np.asarray(self._mass[left] + np.where(single, 0.0, self._mass[right]))

    def below(self, first: Indices, last: Indices) -> Floats:
        """Σ p (y_last - y) over labels first … last."""
        left, right, middle, single = self._halves(first, last)
        outside = self.labels[last] - self.labels[middle]
        total = self._near[left] + self._mass[left] * outside + self._far[right]
        return np.asarray(np.where(single, 0.0, total))

    def above(self, first: Indices, last: Indices) -> Floats:
        """Σ p (y - y_first) over labels first … last."""
        left, right, middle, single = self._halves(first, last)
        outside = self.labels[middle] - self.labels[first]
        total = self._far[left] + self._near[right] + self._mass[right] * outside
        return np.asarray(np.where(single, 0.0, total))


class _AbsoluteCosts(IntervalCosts):
    """Weighted median, found by one vectorised search in the prior's cumulative sums."""

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        super().__init__(labels, prior, boost)
        self._mass = np.concatenate([[0.0], np.cumsum(prior)])
        self._sums = _RangeSums(labels, prior)
        every = np.arange(labels.size)
        # Σ_y p_y |y_j - y| for every label j
        self._overall = self._sums.below(np.zeros_like(every), every) + self._sums.above(
            every, np.full_like(every, labels.size - 1)
        )

    def _medians(self, r: Indices, i: int) -> Indices:
        """Indices of the weighted medians of bins (r, i)."""
        c, mass = self.boost, self._mass
        start, end = mass[r], mass[i]
        half = (mass[-1] + c * (end - start)) / 2  # of the bin's total weight
        # cumulative weight: the mass up to r, then 1 + c times as steep, then mass + c·inside
        own = c * (end - start)
        inside = (start < half) & (end + own >= half)
        target = np.where(inside, start + (half - start) / (1 + c), half)
        target -= np.where(end + own < half, own, 0.0)
        median = np.searchsorted(mass[1:], target, side="left")
        # rounding must not move a median out of the bin that holds it
        median = np.where(inside, np.minimum(np.maximum(median, r), i - 1), median)
        return np.asarray(np.minimum(median, self.labels.size - 1), dtype=np.int64)

    def ending(self, i: int) -> tuple[Floats, Floats]:
        r, last = np.arange(i), np.full(i, i - 1)
        median = self._medians(r, i)
        nearest = np.clip(median, r, last)
        own = self._sums.below(r, nearest) + self._sums.above(nearest, last)
        outside = np.abs(self.labels[median] - self.labels[nearest])
        own += np.where(outside > 0, self._sums.mass(r, last) * outside, 0.0)
        return self._overall[median] + self.boost * own, self.labels[median]


class _ConvexCosts(IntervalCosts):
    """Any convex loss, by golden-section search for all bins of one end at once: O(k³) in all.

    The search ends between two labels; the better of them is taken if it is better still, because
    that is where a loss with a kink has its minimum.
    """

    def __init__(self, labels: Floats, prior: Floats, boost: float, loss: Loss) -> None:
        super().__init__(labels, prior, boost)
        if labels.size > MAX_CUSTOM_LABELS:
            raise ConfigError(
                f"a custom loss on {labels.size:,} labels would take too long; use at most"
                f" {MAX_CUSTOM_LABELS:,}, or one of the named losses"
            )
        self.loss = loss

    def ending(self, i: int) -> tuple[Floats, Floats]:
        size = self.labels.size
        inside = np.tri(i, size, -1) == 0  # row r: labels from r on
        inside[:, i:] = False
        weights = self.prior * (1 + self.boost * inside)
        low, high = np.full(i, self.labels[0]), np.full(i, self.labels[-1])
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        at_left, at_right = self._value(left, weights), self._value(right, weights)
        for _ in range(_GOLDEN_ROUNDS):
            go_left = at_left <= at_right
            low, high = np.where(go_left, low, left), np.where(go_left, right, high)
            fresh = np.where(go_left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
            value = self._value(fresh, weights)
            left, right = np.where(go_left, fresh, right), np.where(go_left, left, fresh)
            at_left, at_right = (  # of the two old points one stays, on the other side
                np.where(go_left, value, at_right),
                np.where(go_left, at_left, value),
            )
        best, cost = left, at_left
        above = np.clip(np.searchsorted(self.labels, best), 1, size - 1)
        for candidate in (self.labels[above - 1], self.labels[above]):
            value = self._value(candidate, weights)
            best, cost = np.where(value < cost, candidate, best), np.minimum(cost, value)
        return cost, best

    def _value(self, predictions: Floats, weights: Floats) -> Floats:
        return np.asarray((self.loss.matrix(predictions, self.labels) * weights).sum(axis=1))


class _ListedCosts(IntervalCosts):
    """Any loss, with the best of some given outputs for each bin: O(m k²) in all, of m outputs.

    From each label's losses the least of any output is taken off, which adds the same amount to the
    loss of every partition, so that all sums are of terms >= 0.
    """

    def __init__(
        self, labels: Floats, prior: Floats, boost: float, loss: Loss, outputs: Floats
    ) -> None:
        super().__init__(labels, prior, boost)
        losses = loss.matrix(outputs, labels)
        least = losses.min(axis=0)
        if not np.isfinite(least).all():
            first = labels[~np.isfinite(least)][0]
            raise ConfigError(
                f"every one of the outputs {outputs[0]:g} … {outputs[-1]:g} has an infinite"
                f" {loss.name} loss for the label {first:g}; allow another"
            )
        self.offset = float(prior @ least)
        self._outputs, self._losses = outputs, prior * (losses - least)
        self._overall = self._losses.sum(axis=1)[:, None]

    def ending(self, i: int) -> tuple[Floats, Floats]:
        own = np.cumsum(self._losses[:, :i][:, ::-1], axis=1)
        costs = (self._overall + self.boost * own)[:, ::-1]
        best = costs.argmin(axis=0)
        return costs[best, np.arange(i)], self._outputs[best]


def interval_costs(
    labels: Floats, prior: Floats, boost: float, loss: Loss, outputs: Floats | None = None
) -> IntervalCosts:
    """Pick the cheapest exact costs for a loss, of any outputs or of (m,) ascending ones alone."""
    if outputs is not None:
        return _ListedCosts(labels, prior, boost, loss, outputs)
    if loss.name == "squared":
        return _MeanCosts(labels, prior, boost, lambda value, step: np.asarray(step * step))
    if loss.name == "poisson":
        return _PoissonCosts(labels, prior, boost)
    if loss.name == "absolute":
        return _AbsoluteCosts(labels, prior, boost)
    return _ConvexCosts(labels, prior, boost, loss)
