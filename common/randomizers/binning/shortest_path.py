"""The cheapest partition into bins, from O(k log k) costs of bins instead of all O(k²).

For a trial ratio λ the best partition is a shortest path over edges 0 … k,

    F[i] = min over r < i of  F[r] + L(r, i) - λ.

L itself violates the quadrangle inequality. The *confined* cost L̃(r, i), with ŷ kept between the
bin's neighbours y_{r-1} and y_i (labels r … i - 1 are the bin's own), satisfies it and has the same
optimum. Both need that ℓ(ŷ, y) grows strictly with the distance of ŷ from y on either side, y
fixed, and of y from ŷ, ŷ fixed: Assumption 4 of Ghazi et al. (ICLR 2023).

*The quadrangle inequality* L̃(r, i) + L̃(s, j) <= L̃(r, j) + L̃(s, i) for r < s < i < j. Let v attain
L̃(r, j) and u attain L̃(s, i); one way to use these two on the left is feasible and no dearer.

- u <= v: u for (r, i) and v for (s, j). The right side less the left is c times
  Σ p_y (ℓ(v, y) - ℓ(u, y)) over labels r … s - 1, all of which are at most y_{s-1} <= u <= v.
- u > v: v for (r, i) and u for (s, j). It is c times Σ p_y (ℓ(v, y) - ℓ(u, y)) over labels
  i … j - 1, all of which are at least y_i >= u > v.

No term is negative: of two predictions on one side of a label the nearer costs less.

*The same optimum.* L̃ >= L. Conversely let bins with values v_j minimise
Σ (G(v_j) - λ) + c Σ p_y ℓ(v(y), y), and be the fewest that do. G >= λ, so no bin can be spared: if
one's labels cost no more elsewhere, it would not be there. For two values v < v',
ℓ(v', y) - ℓ(v, y) is positive up to v, falls from v to v' and is negative from there: labels up to
some point are better off with v, those behind it with v'.

- Values rise from bin to bin. If a bin S had a larger value than S' behind it, or the same, then
  either all of S' would be better off with the value of S, or all of S with that of S'.
- Give each label the value at which it costs least. By the same argument the labels of a value
  stay consecutive; no cost rises, and no value is left without labels. A label below v_j costs less
  at v_j than at any larger value, so no later bin has one; nor has an earlier bin one above v_j.
  So v_j lies between the neighbours of its bin, and L̃ of these bins is what they cost.

*The search.* Because of the inequality the best r never falls as i rises, and a later r that beats
all earlier ones at i still does at every later i. So: take the r up to an edge a as known and find
the best of them for the edges after a, by halving (the best r for the middle one bounds those on
either side). That is final up to the last edge e at which no r between a and e does better. Each
such sweep passes about one bin of the partition, whatever its length. Where bins are short it is
quicker to take the costs of all pairs of a block of edges at once.
"""

from __future__ import annotations

import numpy as np

from common.arrays import Floats, Indices
from common.randomizers.binning.interval_costs import IntervalCosts

_BLOCK = 48


def cheapest_path(costs: IntervalCosts, penalty: float, edges: Indices) -> Indices:
    """Find the partition that minimises Σ (L(S_j) - penalty).

    Parameters
    ----------
    costs
        Costs of bins over k labels.
    penalty
        λ, at most the loss of the best constant.
    edges
        (e + 1,) where bins may begin and end, ascending from 0 to k.

    Returns
    -------
    The chosen edges, from 0 to k.
    """
    search = _Search(costs, penalty, edges) if costs.ordered else _Exhaustive(costs, penalty, edges)
    previous = search.run()
    path = [edges.size - 1]
    while path[-1] > 0:
        path.append(int(previous[path[-1]]))
    return np.asarray(edges[path[::-1]])


class _Exhaustive:
    """Every r for every i."""

    def __init__(self, costs: IntervalCosts, penalty: float, edges: Indices) -> None:
        self._costs, self._penalty, self._edges = costs, penalty, edges

    def run(self) -> Indices:
        """Return the best last edge before each edge, as indices."""
        count = self._edges.size
        best, previous = np.zeros(count), np.zeros(count, dtype=np.int64)
        for i in range(1, count):
            found = best[:i] + self._costs.cost(self._edges[:i], self._edges[i])
            previous[i] = found.argmin()
            best[i] = found[previous[i]] - self._penalty
        return previous


class _Search:
    """As the module's docstring says."""

    def __init__(self, costs: IntervalCosts, penalty: float, edges: Indices) -> None:
        self._costs, self._penalty, self._edges = costs, penalty, edges
        self._best = np.zeros(edges.size)
        self._previous = np.zeros(edges.size, dtype=np.int64)

    def run(self) -> Indices:
        """Return the best last edge before each edge, as indices."""
        known, reach, last = 0, _BLOCK, self._edges.size - 1
        while known < last:
            if known - self._previous[known] <= _BLOCK:
                known = self._block(known, min(known + _BLOCK, last))
                reach = _BLOCK
                continue
            end = min(known + reach, last)
            values, origins = self._from_known(known, end)
            new = slice(known + 1, end + 1)
            self._best[new], self._previous[new] = values - self._penalty, origins
            final = self._final(known, end)
            reach = 2 * (final - known)
            known = final
        return self._previous

    def _value(self, r: Indices, i: Indices | np.int64) -> Floats:
        return np.asarray(self._best[r] + self._costs.confined(self._edges[r], self._edges[i]))

    def _block(self, known: int, end: int) -> int:
        """Settle the edges after ``known`` up to ``end`` from the costs of all pairs."""
        first = int(self._previous[known])
        r, i = np.meshgrid(np.arange(first, end), np.arange(known + 1, end + 1), indexing="ij")
        table = np.full(r.shape, np.inf)
        pair = r < i
        table[pair] = self._costs.confined(self._edges[r[pair]], self._edges[i[pair]])
        for column, edge in enumerate(range(known + 1, end + 1)):
            found = self._best[first:edge] + table[: edge - first, column]
            origin = int(found.argmin())
            self._best[edge] = found[origin] - self._penalty
            self._previous[edge] = first + origin
        return end

    def _from_known(self, known: int, end: int) -> tuple[Floats, Indices]:
        """Best cost, and origin up to ``known``, of each edge after ``known`` up to ``end``."""
        count = end - known
        step = 1 << (count.bit_length() - 1)
        values = np.empty(count)
        # origins[1 + row], between a first one that no row goes below and a last one
        origins = np.full(count + 2 * step + 1, known, dtype=np.int64)
        origins[0] = self._previous[known]
        while step:
            rows = np.arange(step, count + 1, 2 * step)
            low, high = origins[rows - step], origins[rows + step]
            sizes = high - low + 1
            starts = np.cumsum(sizes) - sizes
            r = np.arange(starts[-1] + sizes[-1]) - np.repeat(starts - low, sizes)
            found = self._value(r, np.repeat(known + rows, sizes))
            least = np.minimum.reduceat(found, starts)
            hits = np.flatnonzero(found == np.repeat(least, sizes))
            values[rows - 1] = least
            origins[rows] = r[hits[np.searchsorted(hits, starts)]]
            step //= 2
        return values, origins[1 : count + 1]

    def _final(self, known: int, end: int) -> int:
        """The last edge up to ``end`` at which no origin after ``known`` does better."""
        low, high = known + 1, end
        while low < high:
            middle = (low + high + 1) // 2 if high < end else end
            rivals = self._value(np.arange(known + 1, middle), np.int64(middle)) - self._penalty
            if rivals.size and rivals.min() < self._best[middle]:
                high = middle - 1
            else:
                low = middle
        return low
