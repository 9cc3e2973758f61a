"""Data-dependent privacy cost of a vote whose outcome was nearly certain.

The bounds look at the votes. They are costs that were *incurred*, not guarantees given in advance,
and they are private themselves: only the curator may look at them, and a ledger never
charges them in place of a guarantee. Noise in proportion to their smooth sensitivity hides them
over real numbers only: on a computer it lies on a lattice whose offset and pitch tell the votes.

Source: Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson, *Scalable Private Learning with
PATE*, ICLR 2018: Theorem 6 and Proposition 10.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats

ORDERS: Floats = np.concatenate(
    [np.arange(1.25, 4, 0.25), np.arange(4, 16, 1.0), np.geomspace(16, 256, 17)]
)
"""Orders α of data-dependent curves."""

_ROWS = 1 << 14
_ROUNDING = 1e-10


def difference_tails(variance: Fraction, reach: int) -> Floats:
    """``P[Z − Z' >= d]`` for d = 0 … reach, of two discrete Gaussians, rounded up.

    Exact by convolution within 12 σ; farther out their sub-Gaussian bound ``e^{−d²/(4σ²)}``
    (Canonne, Kamath, Steinke 2020, Corollary 17).
    """
    v = float(variance)
    points = np.arange(-math.ceil(12 * math.sqrt(v)) - 2, math.ceil(12 * math.sqrt(v)) + 3)
    mass = np.exp(-(points.astype(np.float64) ** 2) / (2 * v))
    mass /= mass.sum()
    # beyond 12 σ of either lies e^-72 of each of four tails
    both = np.convolve(mass, mass)
    middle = len(both) // 2
    tails = np.cumsum(both[::-1])[::-1][middle:]
    d = np.arange(reach + 1.0)
    bound = np.exp(-(d**2) / (4 * v))
    inside = min(reach + 1, len(tails))
    bound[:inside] = np.minimum(
        bound[:inside], tails[:inside] * (1 + _ROUNDING) + 4 * math.exp(-72)
    )
    return bound


def error_probability(votes: ArrayLike, variance: Fraction) -> Floats:
    """Bound the chance that noisy votes elect another class than the votes do.

    ``q <= Σ_{i≠i*} P[Z_i − Z_{i*} >= n_{i*} − n_i]`` (Proposition 10, with the discrete law), (n,),
    for (n, classes) votes with noise of variance σ² on each count.
    """
    counts = np.asarray(votes, dtype=np.int64)
    tails = difference_tails(variance, int(counts.max(initial=0) - counts.min(initial=0)))
    behind = counts.max(axis=1, keepdims=True) - counts
    return np.asarray(np.minimum(tails[behind].sum(axis=1) - tails[0], 1.0), dtype=np.float64)


def data_dependent_curve(errors: ArrayLike, rate: float, orders: Floats = ORDERS) -> Floats:
    """RDP of answers that are wrong with small probability, summed over the queries.

    Theorem 6: for a mechanism with RDP ``ε(μ) = μ · rate`` whose likeliest outcome fails with
    probability at most q, with ``μ₂ = √(ln(1/q)/rate)``, ``μ₁ = μ₂ + 1``,

        ε'(α) = ln[(1−q) A^{α−1} + q B^{α−1}] / (α − 1),
        A = (1−q) / (1 − (q e^{ε₂})^{(μ₂−1)/μ₂}),   B = e^{ε₁} / q^{1/(μ₁−1)},

    wherever ``q <= e^{(μ₂−1)ε₂} / (μ₁/(μ₁−1) · μ₂/(μ₂−1))^{μ₂}``, μ₂ > 1 and α <= μ₁; never above
    ``α · rate``. For GNMax the rate is 1/σ², for one threshold 1/(2σ²).

    From the (n,) q of each query to the (a,) sum of the smaller bound at each order, rounded up.
    """
    q = np.clip(np.asarray(errors, dtype=np.float64).ravel(), 0.0, 1.0)
    distinct, counts = np.unique(q, return_counts=True)
    total = np.zeros(len(orders))
    for start in range(0, distinct.size, _ROWS):
        part = slice(start, start + _ROWS)
        total += counts[part] @ per_query(distinct[part], rate, orders)
    return np.asarray(total * (1 + _ROUNDING))


def per_query(errors: Floats, rate: float, orders: Floats = ORDERS) -> Floats:
    """The bound of :func:`data_dependent_curve` for each query, (n, a)."""
    plain = np.broadcast_to(orders * rate, (errors.size, orders.size))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # the orders that Proposition 10 chooses for a likeliest output missed with probability q
        log_q = np.log(np.maximum(errors, 1e-300))[:, None]
        mu2 = np.sqrt(-log_q / rate)
        mu1 = mu2 + 1
        e1, e2 = mu1 * rate, mu2 * rate
        limit = (mu2 - 1) * e2 - mu2 * (np.log(mu1 / (mu1 - 1)) + np.log(mu2 / (mu2 - 1)))
        # Theorem 6 holds only where q is small enough; elsewhere the plain bound stands
        usable = (mu2 > 1) & (log_q <= limit) & (orders <= mu1) & (errors[:, None] < 1)
        log_a = np.log1p(-np.exp(log_q)) - np.log1p(-np.exp((log_q + e2) * (mu2 - 1) / mu2))
        log_b = e1 - log_q / (mu1 - 1)
        power = orders - 1
        moment = np.logaddexp(np.log1p(-np.exp(log_q)) + power * log_a, log_q + power * log_b)
        bound = moment / power
    usable &= np.isfinite(bound)
    return np.where(usable, np.clip(bound, 0.0, plain), plain)
