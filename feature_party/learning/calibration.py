"""Is the head right? Regress the unbiased decoding of privatized labels on predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.arrays import Floats
from feature_party.learning.decoding import decoder
from feature_party.learning.problem import LabelProblem

_FAR = 0.1
_STANDARD_ERRORS = 3.0


@dataclass(frozen=True)
class Slope:
    """Least-squares slope of the decoded label on the prediction; 1 is right.

    Attributes
    ----------
    value, error
        The slope and its standard error, robust to unequal variances.
    """

    value: float
    error: float

    @property
    def misspecified(self) -> bool:
        """Whether the slope is far from 1, and certainly so."""
        distance = abs(self.value - 1)
        return distance > _FAR and distance > _STANDARD_ERRORS * self.error

    @property
    def sentence(self) -> str:
        """What a person should know about a slope that is far from 1."""
        direction = "too flat" if self.value > 1 else "too steep"
        return (
            f"predictions are {direction}: labels decoded without bias rise by {self.value:.2f}"
            f" ± {self.error:.2f} per unit predicted; try another head"
        )


def decoding_slope(
    problem: LabelProblem, codes: NDArray[np.integer], predictions: Floats
) -> Slope | None:
    """Regress decoded labels on predictions; None if the channel or the predictions forbid it.

    Parameters
    ----------
    codes
        (n,) privatized labels of rows that the predictions have not seen.
    predictions
        (n,) predictions of the label's mean.
    """
    decoded = decoder(problem, problem.grid)
    centred = predictions - predictions.mean()
    square = float(centred @ centred)
    if not decoded.exact or square <= 1e-12 * max(problem.deviation**2, 1e-300) * codes.size:
        return None
    values = decoded.values[codes, 0]
    slope = float(centred @ values) / square
    residuals = values - values.mean() - slope * centred
    error = float(np.sqrt(np.sum((centred * residuals) ** 2))) / square
    return Slope(slope, error)
