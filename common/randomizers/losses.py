"""Losses ℓ(ŷ, y) by which randomizers and predictions are judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError

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


_ROUNDING = 1e-9
"""Of the largest loss: a smaller fall is one of the last digits."""


def check_monotone(loss: Loss, labels: Floats) -> None:
    """Raise ``ConfigError`` unless a loss grows on both sides as prediction and label part.

    That is Assumption 4 of Ghazi et al., *Regression with Label Differential Privacy*, ICLR 2023,
    on (k,) ascending labels, each a prediction, too: ℓ(·, y) falls up to y and rises from there,
    and so does ℓ(ŷ, ·) around ŷ. What depends on the label alone changes no choice, so ℓ may be
    short of such a loss by any f(y): -y ln ŷ + ŷ is, by y - y ln y. Between neighbours y < z an f
    must have

        ℓ(ŷ, y) - ℓ(ŷ, z) <= f(z) - f(y) for ŷ <= y,    and >= for ŷ >= z,

    and of neighbours each such difference can be chosen by itself. The named losses hold it.
    """
    if loss in _LOSSES.values():
        return
    with np.errstate(invalid="ignore"):
        losses = loss.matrix(labels, labels)
        finite = losses[np.isfinite(losses)]
        least = _ROUNDING * float(np.abs(finite).max(initial=0.0))
        steps = np.diff(losses, axis=0)  # from each prediction to the next
        between = losses[:, :-1] - losses[:, 1:]  # from each label to the next, of a prediction
    above = np.arange(labels.size)[:, None] >= np.arange(labels.size)  # predictions ŷ >= y
    falls = np.where(above[:-1], -steps, steps) > least
    if falls.any():
        at, label = np.argwhere(falls)[0]
        raise ConfigError(
            f"the loss of label {labels[label]:g} falls away from it, between the predictions"
            f" {labels[at]:g} and {labels[at + 1]:g}; {_ASSUMED}"
        )
    below = ~above[:, 1:]  # ŷ <= y < z
    most = np.where(below, between, -np.inf)
    fewest = np.where(below, np.inf, between)
    apart = np.nanmax(most, axis=0, initial=-np.inf) - np.nanmin(fewest, axis=0, initial=np.inf)
    if (apart > least).any():
        at = int(np.argmax(apart > least))
        raise ConfigError(
            f"the loss of labels {labels[at]:g} and {labels[at + 1]:g} does not grow with their"
            f" distance from every prediction; {_ASSUMED}"
        )


_ASSUMED = (
    "RR-on-bins is the best only for losses that grow as prediction and label part: take such a"
    " loss, or another randomizer, such as optimal-design"
)


def get_loss(loss: str | Loss | LossFunction) -> Loss:
    """Look a loss up by name, or wrap a callable ℓ(ŷ, y) that is convex in ŷ."""
    if isinstance(loss, Loss):
        return loss
    if callable(loss):
        return Loss("custom", loss)
    if loss not in _LOSSES:
        raise ConfigError(f"loss={loss!r} must be one of {', '.join(LOSS_NAMES)}, or a callable")
    return _LOSSES[loss]
