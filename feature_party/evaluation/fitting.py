"""Figures that fit the label: log loss, AUC, calibration error of 0/1; the deviance of counts.

Each comes from privatized labels decoded without bias, or from true ones where they are at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.arrays import Floats
from feature_party.evaluation.decoded_labels import DecodedLabels
from feature_party.evaluation.explained import explained
from feature_party.evaluation.intervals import Measured
from feature_party.evaluation.losses import fitting_loss
from feature_party.evaluation.ranking import area_under_curve, calibration_error
from feature_party.evaluation.spread import ReleasedCodes, label_spread
from feature_party.evaluation.unseen import Unseen
from feature_party.learning.problem import LabelProblem
from feature_party.learning.support import Support

_WORDS = {"log_loss": "log loss", "auc": "AUC", "calibration_error": "calibration error"}


@dataclass(frozen=True)
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
    estimate = compared.loss
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
        f"test_{loss.name}": float(loss.of(points, labels).mean()),
        f"constant_{loss.name}": float(loss.of(np.array([constant]), labels).mean()),
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
