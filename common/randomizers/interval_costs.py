"""The cost of a bin in RR-on-bins, for every loss.

For a bin S of consecutive labels and c = e^ε - 1,

    L(S) = min over ŷ of  Σ_{all y} p_y ℓ(ŷ, y) + c Σ_{y in S} p_y ℓ(ŷ, y),

a weighted version of "best constant" with weights p_y (1 + c·1[y in S]). Bins are half-open index
ranges (r, i): labels r … i - 1.

c reaches e^40, so a bin's own spread must not be the difference of two prefix sums over the whole
grid: an error in their last digit, times c, would outweigh everything. The sums below run from the
bin's right end to its left, relative to its last label, and add only terms of one sign. Squared and
Poisson loss then split like a variance: spread of all labels, plus c times the spread in the bin,
plus the distance between the two means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from common.errors import ConfigError
from common.losses import Loss

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

MAX_CUSTOM_LABELS = 1024
"""The most labels that a loss without a closed form may have: it takes O(k³) time."""

_GOLDEN = (5**0.5 - 1) / 2
_GOLDEN_ROUNDS = 80


class IntervalCosts(ABC):
    """Costs L(r, i) and minimisers ŷ(r, i) over a grid of labels with positive mass.

    Parameters
    ----------
    labels
        (k,) strictly ascending.
    prior
        (k,) > 0, summing to 1.
    boost
        c = e^ε - 1 > 0.

    Attributes
    ----------
    offset
        What a subclass leaves out of every L(S): the ratio of any partition is short of its loss by
        this much.
    """

    offset: float = 0.0

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        self.labels = labels
        self.prior = prior
        self.boost = boost
        self._reversed_prior = prior[::-1].copy()

    @property
    def size(self) -> int:
        return int(self.labels.size)

    @abstractmethod
    def ending_at(self, i: int) -> Floats:
        """(i,) costs L(r, i) for r = 0 … i - 1."""

    @abstractmethod
    def minimiser(self, r: int, i: int) -> float:
        """The output value of bin (r, i)."""

    def cost(self, r: int, i: int) -> float:
        """L(r, i)."""
        return float(self.ending_at(i)[r])

    def whole(self) -> float:
        """Loss of the best constant: L of the whole grid without its boost."""
        return self.cost(0, self.size) / (1 + self.boost)


class _MeanCosts(IntervalCosts):
    """Losses whose best constant is the weighted mean."""

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        super().__init__(labels, prior, boost)
        self.middle = float(labels[labels.size // 2])
        self.centred = labels - self.middle  # exact where labels are close to one another
        self.centred_mean = float(prior @ self.centred)
        self.mean = self.middle + self.centred_mean
        self._reversed_labels = labels[::-1].copy()

    def minimiser(self, r: int, i: int) -> float:
        weights = self.prior.copy()
        weights[r:i] *= 1 + self.boost
        value = self.middle + weights @ self.centred / weights.sum()
        return float(np.clip(value, self.labels[0], self.labels[-1]))


class _SquaredCosts(_MeanCosts):
    """With m and μ the bin's mass and mean: L = V + c V_S + c m (μ - mean)² / (1 + c m)."""

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        super().__init__(labels, prior, boost)
        self.spread = float(prior @ (self.centred - self.centred_mean) ** 2)

    def ending_at(self, i: int) -> Floats:
        c, skip, last = self.boost, self.size - i, self.labels[i - 1]
        p, y = self._reversed_prior[skip:], self._reversed_labels[skip:] - last
        shift = self.centred[i - 1] - self.centred_mean  # from the last label to the mean
        mass = np.cumsum(p)
        mean = np.cumsum(p * y) / mass
        within = np.zeros(i)  # each label r adds p_r m / (p_r + m) times its squared distance
        np.cumsum(p[1:] * (mass[:-1] / mass[1:]) * (y[1:] - mean[:-1]) ** 2, out=within[1:])
        between = c * mass / (1 + c * mass) * (mean + shift) ** 2
        return np.asarray(self.spread + c * within + between)[::-1]


class _PoissonCosts(_MeanCosts):
    """As squared loss with the divergence D(y, ŷ) = ŷ - y + y ln(y/ŷ) in the square's place.

    ℓ(ŷ, y) is D(y, ŷ) plus y - y ln y, which no ŷ can change: L(S) is the cost in D plus the
    entropy term (E[y - y ln y] and c times its part in the bin). That term adds the same amount to
    the ratio N/D of every partition, so it is left out here and returned by :attr:`offset`.
    """

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        super().__init__(labels, prior, boost)
        logs = np.log(np.where(labels > 0, labels, 1.0))
        self.offset = float(prior @ (labels - labels * logs))
        self._mean = np.full(labels.size, self.mean)
        self.spread = float(
            np.dot(prior, _divergence(labels, self._mean, self.centred_mean - self.centred))
        )
        with np.errstate(divide="ignore"):
            self._reversed_steps = np.log1p(np.diff(labels) / labels[:-1])[::-1].copy()

    def ending_at(self, i: int) -> Floats:
        c, skip, last = self.boost, self.size - i, self.labels[i - 1]
        p, y = self._reversed_prior[skip:], self._reversed_labels[skip:]
        mass = np.cumsum(p)
        if last == 0:  # the bin that holds the label 0 alone
            return np.asarray(self.spread + self.mean * np.log1p(c * mass))
        total = np.cumsum(p * y)
        below = np.cumsum(p * (y - last)) / mass  # the bin's mean less its last label
        mean = total / mass
        logs = np.zeros(i)  # ln(y / last); a label 0 counts for nothing below
        np.cumsum(-self._reversed_steps[skip:], out=logs[1:])
        logs[y == 0] = 0.0
        within = np.cumsum(p * y * logs) - total * _log_ratio(below / last, mean / last)
        centre = (self.mean + c * total) / (1 + c * mass)
        apart = (below + (self.centred[i - 1] - self.centred_mean)) / (1 + c * mass)
        between = _divergence(self._mean[:i], centre, c * mass * apart)
        between += c * mass * _divergence(mean, centre, -apart)
        return np.asarray(self.spread + c * np.maximum(within, 0.0) + between)[::-1]


def _log_ratio(excess: Floats, ratio: Floats) -> Floats:
    """ln(ratio), where ``excess`` is ratio - 1 without cancellation."""
    logs = np.log1p(np.maximum(excess, -0.5))
    far = excess < -0.5
    if far.any():
        logs[far] = np.log(ratio[far])
    return np.asarray(logs)


def _divergence(a: Floats, b: Floats, difference: Floats) -> Floats:
    """D(a, b) = b - a + a ln(a/b) for a >= 0 and b > 0, from an exact b - a; D(0, b) = b."""
    safe = np.where(a > 0, a, 1.0)
    return np.asarray(difference - a * _log_ratio(difference / safe, b / safe))


class _AbsoluteCosts(IntervalCosts):
    """Weighted median, found by one vectorised search in the prior's cumulative sums."""

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        super().__init__(labels, prior, boost)
        self.mass = np.concatenate([[0.0], np.cumsum(prior)])
        gaps = np.diff(labels)
        # overall[j] = Σ_y p_y |y_j - y|, gap by gap from the left and from the right
        below, above = np.zeros(labels.size), np.zeros(labels.size)
        np.cumsum(self.mass[1:-1] * gaps, out=below[1:])
        np.cumsum(np.cumsum(self._reversed_prior)[:-1] * gaps[::-1], out=above[1:])
        self.overall = below + above[::-1]

    def _medians(self, r: Indices, i: int) -> Indices:
        """Indices of the weighted medians of bins (r, i)."""
        c, mass = self.boost, self.mass
        start, end = mass[r], mass[i]
        half = (mass[-1] + c * (end - start)) / 2  # of the bin's total weight
        # cumulative weight: the mass up to r, then 1 + c times as steep, then mass + c·inside
        own = c * (end - start)
        inside = (start < half) & (end + own >= half)
        target = np.where(inside, start + (half - start) / (1 + c), half)
        target -= np.where(end + own < half, own, 0.0)
        found = np.searchsorted(mass[1:], target, side="left")
        # rounding must not move a median out of the bin that holds it
        found = np.where(inside, np.minimum(np.maximum(found, r), i - 1), found)
        return np.asarray(np.minimum(found, self.size - 1), dtype=np.int64)

    def ending_at(self, i: int) -> Floats:
        r = np.arange(i)
        median = self._medians(r, i)
        skip, last = self.size - i, self.labels[i - 1]
        p = self._reversed_prior[skip:]
        mass, short = np.zeros(i + 1), np.zeros(i + 1)  # of labels r … i - 1, by r
        mass[:i] = np.cumsum(p)[::-1]
        short[:i] = np.cumsum(p * (last - self.labels[:i][::-1]))[::-1]
        cut = np.minimum(np.maximum(median + 1, r), i)
        gap = last - self.labels[median]
        left = (short[:i] - short[cut]) - gap * (mass[:i] - mass[cut])
        right = gap * mass[cut] - short[cut]
        own = np.maximum(left, 0.0) + np.maximum(right, 0.0)
        return np.asarray(self.overall[median] + self.boost * own)

    def minimiser(self, r: int, i: int) -> float:
        return float(self.labels[self._medians(np.array([r]), i)[0]])


class _ConvexCosts(IntervalCosts):
    """Any convex loss, by golden-section search for all bins at once; O(k³), cached.

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
        self._table: dict[int, tuple[Floats, Floats]] = {}

    def _solve(self, i: int) -> tuple[Floats, Floats]:
        if i not in self._table:
            self._table[i] = self._search(i)
        return self._table[i]

    def _search(self, i: int) -> tuple[Floats, Floats]:
        inside = np.tri(i, self.size, -1) == 0  # row r: labels from r on
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
            at_left, at_right = (
                np.where(go_left, value, at_right),
                np.where(go_left, at_left, value),
            )
        best, cost = left, at_left
        above = np.clip(np.searchsorted(self.labels, best), 1, self.size - 1)
        for candidate in (self.labels[above - 1], self.labels[above]):
            value = self._value(candidate, weights)
            best, cost = np.where(value < cost, candidate, best), np.minimum(cost, value)
        return cost, best

    def _value(self, predictions: Floats, weights: Floats) -> Floats:
        return np.asarray((self.loss.matrix(predictions, self.labels) * weights).sum(axis=1))

    def ending_at(self, i: int) -> Floats:
        return self._solve(i)[0]

    def minimiser(self, r: int, i: int) -> float:
        return float(self._solve(i)[1][r])


def interval_costs(labels: Floats, prior: Floats, boost: float, loss: Loss) -> IntervalCosts:
    """Pick the cheapest exact cost table for a loss."""
    if loss.name == "squared":
        return _SquaredCosts(labels, prior, boost)
    if loss.name == "poisson":
        return _PoissonCosts(labels, prior, boost)
    if loss.name == "absolute":
        return _AbsoluteCosts(labels, prior, boost)
    return _ConvexCosts(labels, prior, boost, loss)
