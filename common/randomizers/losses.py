"""Losses ℓ(ŷ, y) by which randomizers and predictions are judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.arrays import Floats
from common.errors import ConfigError

LossFunction = Callable[[Any, Any], Any]
"""Takes predictions ŷ and labels y that broadcast against each other; convex in ŷ."""


@dataclass(frozen=True)
class Loss:
    """A loss that is convex in the prediction."""

    name: str  # ``squared``, ``absolute``, ``poisson`` or ``custom``
    function: LossFunction = field(repr=False)  # ℓ(ŷ, y), vectorised

    def __call__(self, predictions: Any, labels: Any) -> Floats:
        return np.asarray(self.function(predictions, labels), dtype=np.float64)

    def matrix(self, predictions: Floats, labels: Floats) -> Floats:
        """(d, k) losses of every prediction at every label."""
        return self(predictions[:, None], labels[None, :])


# functions with names, as those of estimators are pickled
def _squared(prediction: Any, label: Any) -> Any:
    return (prediction - label) ** 2


def _absolute(prediction: Any, label: Any) -> Any:
    return np.abs(prediction - label)


def _poisson(prediction: Any, label: Any) -> Any:
    prediction, label = np.broadcast_arrays(prediction, label)
    with np.errstate(divide="ignore", invalid="ignore"):
        product = np.where(label == 0, 0.0, label * np.log(prediction))
    return np.where(prediction < 0, np.inf, prediction - product)


SQUARED = Loss("squared", _squared)
"""(ŷ - y)²; the best constant is the mean."""
ABSOLUTE = Loss("absolute", _absolute)
"""|ŷ - y|; the best constant is the median."""
POISSON = Loss("poisson", _poisson)
"""ŷ - y ln ŷ for labels >= 0, infinite for predictions < 0; the best constant is the mean."""

_LOSSES = {loss.name: loss for loss in (SQUARED, ABSOLUTE, POISSON)}
LOSS_NAMES = tuple(_LOSSES)


def get_loss(loss: str | Loss | LossFunction) -> Loss:
    """Look a loss up by name, or wrap a callable ℓ(ŷ, y) that is convex in ŷ."""
    if isinstance(loss, Loss):
        return loss
    if callable(loss):
        return Loss("custom", loss)
    if loss not in _LOSSES:
        raise ConfigError(f"loss={loss!r} must be one of {', '.join(LOSS_NAMES)}, or a callable")
    return _LOSSES[loss]
