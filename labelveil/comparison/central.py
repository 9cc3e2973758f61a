"""Baselines in which one party holds features and labels: what the separation costs.

The encoding of features is fitted on them as everywhere else in this package, and is the same for
all baselines; they take it, and the number of events, to be public.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from common.arrays import Floats
from common.entropy import system_entropy
from common.errors import ConfigError, present
from common.guarantees import Guarantee
from common.mechanisms.central.gaussian_regression import LabelProcess
from common.mechanisms.central.label_ridge import LabelRidge
from common.mechanisms.central.names import DP_SGD, FEATURE_AWARE_GAUSSIAN, NEED_DELTA
from common.mechanisms.central.scaling import LabelScaling
from feature_party.model.encoding import Encoded, Encoder

_PIECES = 8  # pieces of a numeric column's range
MOST_VALUES = 64
"""Values of a category with an indicator of their own; vocabularies are sorted by frequency."""


@dataclass(frozen=True)
class Central:
    """Predictions of a baseline, in label units, with what it chose and what it guarantees."""

    predictions: Floats
    chosen: str
    guarantee: Guarantee


def central_predictions(
    name: str,
    features: pl.DataFrame,
    labels: Floats,
    queries: pl.DataFrame,
    *,
    key: str,
    hidden: Sequence[int],
    bounds: tuple[float, float],
    epsilon: float,
    delta: float | None,
) -> Central:
    """Train a baseline on events with true labels, within public bounds, and predict others.

    ``name`` is one of :data:`common.mechanisms.central.names.CENTRAL`; δ is for those of
    :data:`common.mechanisms.central.names.NEED_DELTA`, ``hidden`` for networks.
    """
    encoder = Encoder.fit(features, ignore=[key], pieces=_PIECES)
    rows = dense_features(encoder, encoder.encode(features))
    queried = dense_features(encoder, encoder.encode(queries))
    scaling = LabelScaling(*bounds)
    entropy = system_entropy()
    scaled = scaling.apply(labels)
    if name in NEED_DELTA and delta is None:
        raise ConfigError(f"{name} needs a delta above 0; pass --delta 1e-6")
    if name == DP_SGD:
        from labelveil.comparison.dp_sgd import train_privately

        network = train_privately(rows, scaled, epsilon, present(delta), entropy, tuple(hidden))
        chosen = f"DP-SGD, noise multiplier {network.noise_multiplier:.3g}"
        return Central(scaling.invert(network.predict(queried)), chosen, network.guarantee)
    if name == FEATURE_AWARE_GAUSSIAN:
        process = LabelProcess(epsilon, present(delta))
        curve = process.draw(rows, scaled, entropy)
        measured = curve.measurement
        chosen = f"{measured.vectors.shape[1]} directions, quantile {measured.quantile:g}"
        return Central(scaling.invert(curve.predict(queried)), chosen, process.guarantee)
    ridge = LabelRidge(epsilon)
    line = ridge.draw(rows, scaled, entropy)
    chosen = f"ridge, shape {line.design.shape:g}, quantile {line.design.quantile:g}"
    return Central(scaling.invert(queried @ line.weights), chosen, ridge.guarantee)


def dense_features(encoder: Encoder, encoded: Encoded) -> Floats:
    """(n, d) one dense matrix: numbers as they are, categories as indicators, a constant last."""
    parts = [encoded.numeric.astype(np.float64)]
    for column, cardinality in enumerate(encoder.cardinalities):
        size = min(cardinality, 1 + MOST_VALUES)
        index = encoded.categories[:, column]
        parts.append(np.eye(size)[np.where(index < size, index, 0)])
    parts.append(np.ones((len(encoded), 1)))
    return np.hstack(parts)
