"""Figures that fit the label: log loss, AUC, calibration error of 0/1; the deviance of counts.

Each comes from privatized labels decoded without bias, or from true ones where they are at hand.

*AUC*: the probability that an event with label 1 is ranked above one with label 0. Decodings u of
different events' labels are independent, so Σ u_i (1 − u_j) over pairs i ≠ j ranked so is unbiased
for the number of such pairs, as is Σ u_i (1 − u_j) for all pairs of a 1 and a 0; the error of their
ratio comes from its linear part (Hoeffding 1948; Sen 1960).

*Calibration error*: the root mean square, over tenths, of mean prediction less mean label. Noise
adds its variance to each square and is taken off (Kumar, Liang, Ma, *Verified Uncertainty
Calibration*, NeurIPS 2019); the interval inverts the noncentral χ² law of the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import chndtrinc

from labelveil.common.arrays import Floats
from labelveil.feature_party.evaluation.breakdown import tenths
from labelveil.feature_party.evaluation.decoded_labels import DecodedLabels
from labelveil.feature_party.evaluation.explained import explained
from labelveil.feature_party.evaluation.intervals import NORMAL_95, Measured, mean_error
from labelveil.feature_party.evaluation.losses import fitting_loss
from labelveil.feature_party.evaluation.spread import ReleasedCodes, label_spread
from labelveil.feature_party.evaluation.unseen import Unseen
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support

_LEAST_NONCENTRAL = 1e-9
_WORDS = {"log_loss": "log loss", "auc": "AUC", "calibration_error": "calibration error"}


@dataclass(frozen=True, eq=False)
class Fitting:
    """Estimates by their names in ``metrics.json``, the loss first; and the constant's loss.

    The intervals assume nothing about the model.
    """

    figures: Mapping[str, Measured]
    constant: float

    def to_json(self) -> dict[str, Any]:
        """Under the names of ``metrics.json``."""
        figures: dict[str, Any] = {}
        for name, figure in self.figures.items():
            figures |= figure.to_json(f"estimated_{name}")
        return {**figures, f"estimated_constant_{next(iter(self.figures))}": self.constant}

    @property
    def sentence(self) -> str:
        """All of them in a line."""
        phrases = [
            f"{_WORDS.get(name, name)} {r.value:.4g} (95%: {r.low:.4g} … {r.high:.4g})"
            for name, r in self.figures.items()
        ]
        phrases[0] += f", the constant's {self.constant:.4g}"
        return f"estimated {'; '.join(phrases)}"


def estimate_fitting(
    problem: LabelProblem,
    sources: Sequence[ReleasedCodes],
    support: Support,
    unseen: Unseen,
    labels: DecodedLabels,
) -> Fitting | None:
    """Estimate what fits the label, by the problem of all releases; None where the squared error
    is all."""
    loss = fitting_loss(problem)
    if loss is None:
        return None
    scored, held_out = unseen.judged_by(loss), unseen.scored.held_out
    compared = explained(sources, support, scored, label_spread(sources, loss), labels, loss)
    estimate = compared.assumption_free_loss
    figures = {loss.name: Measured(estimate.value, estimate.low, estimate.high)}
    if loss.name == "log_loss":
        points = _as_shares(problem, scored.predicted.points)
        decoded = _as_shares(problem, labels.unbiased)
        # scores of different networks do not rank events against each other
        figures["auc"] = area_under_curve(points[held_out], decoded[held_out])
        figures["calibration_error"] = calibration_error(points, decoded)
    return Fitting(figures, compared.constant)


def measure_fitting(
    problem: LabelProblem, points: Floats, labels: Floats, constant: float
) -> dict[str, float]:
    """The same against (h,) true labels, under the names of ``metrics.json``."""
    loss = fitting_loss(problem)
    if loss is None:
        return {}
    figures = {
        f"test_{loss.name}": float(loss.losses(points, labels).mean()),
        f"constant_{loss.name}": float(loss.losses(np.array([constant]), labels).mean()),
    }
    if loss.name == "log_loss":
        points, labels = _as_shares(problem, points), _as_shares(problem, labels)
        figures["test_auc"] = area_under_curve(points, labels).value
        figures["test_calibration_error"] = calibration_error(points, labels).value
    return figures


def true_sentence(figures: Mapping[str, float]) -> str:
    """What was measured, in a line."""
    kinds = {"test": "true", "constant": "the constant's"}
    phrases = []
    for name, value in figures.items():
        kind, _, rest = name.partition("_")
        phrases.append(f"{kinds[kind]} {_WORDS.get(rest, rest)} {value:.4g}")
    return "; ".join(phrases)


def _as_shares(problem: LabelProblem, values: Floats) -> Floats:
    return np.asarray((values - problem.grid[0]) / np.ptp(problem.grid))


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
    # at which noncentralities a sum as small as the one seen has these probabilities
    ends = chndtrinc(observed, k, [0.975, 0.025])
    noncentral = np.array([observed - k, *ends])
    # not a number, or all but 0, where even a central law lies above what was seen
    noncentral = np.where(noncentral > _LEAST_NONCENTRAL, noncentral, 0.0)
    return Measured(*np.sqrt(noncentral * variance / k).tolist())
