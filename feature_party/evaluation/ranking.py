"""Probabilities of a 0/1 label: how well they rank, and how far off they are.

*AUC*: the probability that an event with label 1 is ranked above one with label 0. Decodings u of
different events' labels are independent, so Σ u_i (1 − u_j) over pairs i ≠ j ranked so is unbiased
for the number of such pairs, as is Σ u_i (1 − u_j) for all pairs of a 1 and a 0; the error of their
ratio comes from its linear part (Hoeffding 1948; Sen 1960).

*Calibration error*: the root mean square, over tenths, of mean prediction less mean label. Noise
adds its variance to each square and is taken off (Kumar, Liang, Ma, *Verified Uncertainty
Calibration*, NeurIPS 2019); the interval inverts the noncentral χ² law of the sum.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import chndtr

from common.arrays import Floats
from feature_party.evaluation.breakdown import tenths
from feature_party.evaluation.intervals import NORMAL_95, Measured, mean_error


def area_under_curve(scores: Floats, labels: Floats) -> Measured:
    """AUC of (n,) predictions, n >= 2, for labels 0 and 1 or their decodings."""
    n, ones = scores.size, labels.sum()
    values, place = np.unique(scores, return_inverse=True)
    count = np.bincount(place)
    share = np.bincount(place, weights=labels)
    # of all events: how many lie below each, and their labels' sum; ties count half
    below, labels_below = np.cumsum(count) - count / 2, np.cumsum(share) - share / 2
    zeros_below = (below - labels_below)[place] - (1 - labels) / 2
    ones_above = (ones - labels_below)[place] - labels / 2
    ranked = labels * zeros_below + (1 - labels) * ones_above
    pairs = labels * (n - ones - (1 - labels)) + (1 - labels) * (ones - labels)
    total = float(pairs.sum())
    if not values.size > 1 or total <= 0:
        return Measured(0.5, 0.0, 1.0)
    value = float(ranked.sum()) / total
    half = NORMAL_95 * 2 * mean_error(ranked - value * pairs) * n / total
    return Measured(value, max(0.0, value - half), min(1.0, value + half))


def calibration_error(points: Floats, labels: Floats) -> Measured:
    """Root mean square of mean prediction less mean label over tenths of n >= 4 predictions."""
    off = [points[rows] - labels[rows] for _, rows in tenths(points)]
    squares = np.array([float(gaps.mean()) ** 2 for gaps in off])
    variance = float(np.mean([mean_error(gaps) ** 2 for gaps in off]))
    k, observed = len(off), float(squares.mean()) / variance * len(off) if variance > 0 else 0.0

    def bound(probability: float) -> float:
        """The noncentrality at which a sum as small as the one seen has this probability."""

        def excess(noncentral: float) -> float:
            return float(chndtr(observed, k, noncentral)) - probability

        return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, 4 * observed + 100))

    value, *ends = (
        math.sqrt(max(noncentral, 0.0) * variance / k)
        for noncentral in (observed - k, bound(0.975), bound(0.025))
    )
    return Measured(value, *ends)
