"""The cost of a bin in RR-on-bins, for every loss, from prefix sums.

For a bin S of consecutive labels and c = e^ε - 1,

    L(S) = min over ŷ of  Σ_{all y} p_y ℓ(ŷ, y) + c Σ_{y in S} p_y ℓ(ŷ, y),

a weighted version of "best constant" with weights p_y (1 + c·1[y in S]). Bins are half-open index
ranges (r, i): labels r … i - 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from common.losses import Loss

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

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
    """

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        self.labels = labels
        self.prior = prior
        self.boost = boost
        self.mass = _prefix(prior)

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


class _SquaredCosts(IntervalCosts):
    """Weighted mean; labels are centred on the prior mean and scaled, for precision."""

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        super().__init__(labels, prior, boost)
        self.mean = float(prior @ labels)
        centred = labels - self.mean
        self.first = _prefix(prior * centred)
        self.second = _prefix(prior * centred**2)

    def ending_at(self, i: int) -> Floats:
        c = self.boost
        inside = self.mass[i] - self.mass[:i]
        first = self.first[i] - self.first[:i]
        second = self.second[i] - self.second[:i]
        return np.asarray(
            self.second[-1] + c * second - (self.first[-1] + c * first) ** 2 / (1 + c * inside)
        )

    def minimiser(self, r: int, i: int) -> float:
        c = self.boost
        first = self.first[-1] + c * (self.first[i] - self.first[r])
        return float(self.mean + first / (1 + c * (self.mass[i] - self.mass[r])))


class _PoissonCosts(IntervalCosts):
    """Weighted mean again: with w the weights and Y = Σ w y, the cost is Y - Y ln(Y / Σ w)."""

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        super().__init__(labels, prior, boost)
        self.first = _prefix(prior * labels)

    def ending_at(self, i: int) -> Floats:
        weight = 1 + self.boost * (self.mass[i] - self.mass[:i])
        total = self.first[-1] + self.boost * (self.first[i] - self.first[:i])
        with np.errstate(divide="ignore", invalid="ignore"):
            cost = total - total * np.log(total / weight)
        return np.where(total > 0, cost, 0.0)

    def minimiser(self, r: int, i: int) -> float:
        total = self.first[-1] + self.boost * (self.first[i] - self.first[r])
        return float(total / (1 + self.boost * (self.mass[i] - self.mass[r])))


class _AbsoluteCosts(IntervalCosts):
    """Weighted median, found by one vectorised search in the prior's cumulative sums."""

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        super().__init__(labels, prior, boost)
        self.first = _prefix(prior * labels)
        # overall[j] = Σ_y p_y |y_j - y|
        below = self.mass[1:] * labels - self.first[1:]
        above = (self.first[-1] - self.first[1:]) - (self.mass[-1] - self.mass[1:]) * labels
        self.overall = below + above

    def _medians(self, r: Indices, i: int) -> Indices:
        """Indices of the weighted medians of bins (r, i)."""
        c, mass = self.boost, self.mass
        inside = mass[i] - mass[r]
        half = (mass[-1] + c * inside) / 2
        # cumulative weight: the mass up to r, then 1 + c times as steep, then mass + c·inside
        target = np.where(
            mass[r] >= half,
            half,
            np.where(
                (1 + c) * mass[i] - c * mass[r] >= half,
                (half + c * mass[r]) / (1 + c),
                half - c * inside,
            ),
        )
        found = np.searchsorted(mass[1:], target, side="left")
        return np.asarray(np.minimum(found, self.size - 1), dtype=np.int64)

    def _costs(self, r: Indices, i: int) -> Floats:
        median = self._medians(r, i)
        value = self.labels[median]
        cut = np.clip(median + 1, r, i)
        mass, first = self.mass, self.first
        left = value * (mass[cut] - mass[r]) - (first[cut] - first[r])
        right = (first[i] - first[cut]) - value * (mass[i] - mass[cut])
        return np.asarray(self.overall[median] + self.boost * (left + right))

    def ending_at(self, i: int) -> Floats:
        return self._costs(np.arange(i), i)

    def minimiser(self, r: int, i: int) -> float:
        return float(self.labels[self._medians(np.array([r]), i)[0]])


class _ConvexCosts(IntervalCosts):
    """Any convex loss, by golden-section search for all bins at once; O(k³), cached.

    For k beyond a few hundred prefer a loss with a closed form.
    """

    def __init__(self, labels: Floats, prior: Floats, boost: float, loss: Loss) -> None:
        super().__init__(labels, prior, boost)
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
        low = np.full(i, self.labels[0])
        high = np.full(i, self.labels[-1])
        for _ in range(_GOLDEN_ROUNDS):
            width = _GOLDEN * (high - low)
            left, right = high - width, low + width
            go_left = self._value(left, weights) <= self._value(right, weights)
            high = np.where(go_left, right, high)
            low = np.where(go_left, low, left)
        best = (low + high) / 2
        return self._value(best, weights), best

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


def _prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])
