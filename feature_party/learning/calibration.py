"""Is the head right? Regress the unbiased decoding of privatized labels on predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Floats
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.problem import LabelProblem

_FAR = 0.1
_STANDARD_ERRORS = 3.0


@dataclass(frozen=True)
class Slope:
    """Least-squares slope of the decoded label on the prediction; 1 is right. Its standard error is
    robust to unequal variances."""

    value: float
    error: float

    @property
    def interval(self) -> tuple[float, float]:
        """Where the slope lies with 95% probability."""
        half = NormalDist().inv_cdf(0.975) * self.error
        return self.value - half, self.value + half

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

    (n,) ``predictions`` of the label's mean are of rows that the models had not seen.
    """
    decoded = decoder(problem, problem.grid)
    return slope(predictions, decoded.values[codes, 0]) if decoded.exact else None


def slope(predictions: Floats, values: Floats) -> Slope | None:
    """Regress (n,) labels, or their unbiased decoding, on predictions; None if these are alike."""
    x, y = predictions - predictions.mean(), values - values.mean()
    square = float(x @ x)
    if predictions.size < 3 or square <= 1e-12 * max(float(predictions @ predictions), 1e-300):
        return None
    value = float(x @ y) / square
    # HC0: the noise of a decoded label depends on the label
    error = math.sqrt(float(np.sum((x * (y - value * x)) ** 2))) / square
    return Slope(value, error)
