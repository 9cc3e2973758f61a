"""Publishing the data-dependent cost of GNMax with noise scaled to its smooth sensitivity.

Source: Papernot et al., *Scalable Private Learning with PATE*, ICLR 2018, Appendix B; smooth
sensitivity: Nissim, Raskhodnikova, Smith, STOC 2007. Here the cost as a function of the error bound
q is replaced by its monotone hull on a grid, and steps of one vote are bounded by two steps of a
chain through q, so that nothing has to be assumed about the cost's shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfc, erfcinv

from common.arrays import Floats, Integers
from common.entropy import Entropy
from common.errors import PrivacyError
from common.exact.noise import discrete_gaussian
from common.exact.rounding import above
from common.mechanisms.pate.data_dependent import per_query

_GRID = np.concatenate([[0.0], np.geomspace(1e-280, 1.0, 1 << 13)])
_NOISE_GRAIN = 1 << 10


@dataclass(frozen=True)
class SmoothCost:
    """A data-dependent cost that may be published.

    Attributes
    ----------
    value
        RDP at ``order`` plus noise; unbiased, so it may lie below the true cost.
    order
        The order α.
    deviation
        Standard deviation of the noise. It depends on the votes: for the curator's eyes only.
    release_cost
        RDP at that order of publishing ``value``; add it.
    """

    value: float
    order: float
    deviation: float
    release_cost: float


def smooth_gnmax_cost(
    votes: ArrayLike,
    variance: Fraction,
    order: float,
    beta: float,
    sigma: float,
    entropy: Entropy,
) -> SmoothCost:
    """Publish what GNMax's answers cost at one order.

    Parameters
    ----------
    votes
        (n, classes) counts of the answered queries.
    variance
        σ² of GNMax.
    order, beta
        α > 1 and the smoothing β, with ``α (1 − e^{−2β}) < 1``.
    sigma
        Noise in units of the smooth sensitivity. The noise is a discrete Gaussian on a grid of
        1/1024 of the smooth sensitivity.
    entropy
        Fresh for each release.
    """
    if order <= 1 or beta <= 0 or sigma <= 0 or order * -math.expm1(-2 * beta) >= 1:
        raise PrivacyError(
            f"order={order} must be above 1, beta={beta} and sigma={sigma} above 0, and"
            " order*(1 - exp(-2*beta)) below 1"
        )
    counts = np.asarray(votes, dtype=np.int64)
    classes, scale = counts.shape[1], math.sqrt(float(variance))
    cost = _MonotoneCost(1 / float(variance), order)
    bounds = continuous_error(counts, scale)
    sensitivity = _smooth_sensitivity(bounds, classes, scale, beta, cost)
    truth = float(cost(bounds).sum())
    grid_variance = Fraction(math.ceil((sigma * _NOISE_GRAIN) ** 2))
    drawn = int(discrete_gaussian(grid_variance, 1, entropy.source("smooth-cost"))[0])
    value = truth + sensitivity * drawn / _NOISE_GRAIN
    release = gaussian_smooth_cost(order, beta, sigma)
    return SmoothCost(value, order, sensitivity * sigma, release)


def continuous_error(counts: Integers, scale: float) -> Floats:
    """``Σ_{i≠i*} ½ erfc((n_{i*} − n_i − 1)/(2σ))``: above the discrete law's bound, and smooth."""
    behind = counts.max(axis=1, keepdims=True) - counts
    each = 0.5 * erfc((behind - 1) / (2 * scale))
    return np.asarray(np.minimum(each.sum(axis=1) - 0.5 * erfc(-1 / (2 * scale)), 1.0))


class _MonotoneCost:
    """RDP of one query as a non-decreasing step function of its error bound."""

    def __init__(self, rate: float, order: float) -> None:
        values = per_query(_GRID, rate, np.array([order]))[:, 0]
        self._values = np.maximum.accumulate(values)

    def __call__(self, bounds: Floats) -> Floats:
        right = np.minimum(np.searchsorted(_GRID, bounds, side="left"), len(_GRID) - 1)
        return np.asarray(self._values[right])


def _smooth_sensitivity(
    bounds: Floats, classes: int, scale: float, beta: float, cost: _MonotoneCost
) -> float:
    """``max_d e^{−βd} LS(d)``: the queries' local sensitivities at distance d, added up.

    One vote moves ``erfc⁻¹(2q/(m−1))`` by at most 1/σ (Papernot et al., Proposition 12), so d votes
    keep q within d links of a chain; one vote from anywhere in a link spans at most two of them.
    """
    ceiling = float(cost(np.ones(1))[0]) * bounds.size
    start = erfcinv(np.clip(2 * bounds / (classes - 1), 1e-300, 2 - 1e-16))

    def link(j: int) -> Floats:
        moved = 0.5 * (classes - 1) * erfc(start - j / scale)
        return cost(np.minimum(moved, 1.0))

    up = [link(0), link(1), link(2)]
    down = [link(0), link(-1)]
    local = np.maximum(up[2] - up[0], up[1] - down[1])
    best, distance = float(local.sum()), 0
    while math.exp(-beta * (distance + 1)) * ceiling > best and distance < 100_000:
        distance += 1
        up = [up[1], up[2], link(distance + 2)]
        down = [down[1], link(-distance - 1)]
        before = link(-distance + 1)
        local = np.maximum(local, np.maximum(up[2] - up[0], before - down[1]))
        best = max(best, math.exp(-beta * distance) * float(local.sum()))
    return best


def gaussian_smooth_cost(order: float, beta: float, sigma: float) -> float:
    """Rényi divergence of N(0, s²) from N(Δ, s'²), Δ <= s/σ, s'/s within e^{±β}, rounded up.

    ``αΔ²/(2 s_α²) + ln(s'/s) + ln(s'²/s_α²)/(2(α−1))``, ``s_α² = αs'² + (1−α)s²`` (Gil, Alajaji,
    Linder 2013). The larger of the two ends; deviations in between diverge less.
    """
    costs = []
    for ratio in (math.exp(-beta), math.exp(beta)):
        mixed = order * ratio**2 + 1 - order
        costs.append(
            order / (2 * sigma**2 * mixed)
            + math.log(ratio)
            + math.log(ratio**2 / mixed) / (2 * (order - 1))
        )
    return above(max(costs))
