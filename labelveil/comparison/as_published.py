"""The network of *Regression with Label Differential Privacy*, trained as the paper trained it.

One network on the labels as they are sent: categories embedded in 8 numbers, hidden layers of 128
and 64 units with ReLU, RMSProp from a learning rate of 10⁻³ down along a cosine, 50 passes in
batches of 8,192 (census: 200 passes), squared or Poisson loss. Nothing is held out to stop early.
Targets are standardised, which the paper does not say: without it the few steps that a smaller
data set has would not reach the labels' mean.
"""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import torch

from labelveil.common.arrays import Floats
from labelveil.feature_party.config.sections import TrainingSection
from labelveil.feature_party.learning.objectives import PointObjective
from labelveil.feature_party.learning.optimizers import Optimizer
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.model.network import Ensemble, NetworkShape
from labelveil.feature_party.schema import Stated
from labelveil.feature_party.training.batches import Rows

EPOCHS, BATCH_SIZE, LEARNING_RATE = 50, 8192, 1e-3


def published_predictions(
    features: pl.DataFrame,
    targets: Floats,
    queries: pl.DataFrame,
    *,
    key: str,
    training: TrainingSection,
    loss: str,
    bounds: tuple[float, float],
) -> Floats:
    """Train on n events with (n,) randomized labels, and return (m,) predictions for ``queries``.

    Of ``training`` its seed and hidden layers count and, where they are set, epochs, batch size,
    learning rate, optimizer and weight decay; ``bounds`` are the labels' public ones.
    """
    encoder = Encoder.fit(features, stated=Stated(ignored=(key,)))
    centre, scale = float(targets.mean()), max(float(targets.std()), 1e-9)
    if loss == "poisson":
        scale = max(centre, 1e-9)
    objective = PointObjective("raw", loss, np.zeros(0), centre, scale, *bounds)
    device = torch.device("cpu")
    rows = Rows.on_device(encoder.encode(features), objective.value_targets(targets), device)
    queried = Rows.on_device(encoder.encode(queries), torch.zeros(queries.height), device)
    generator = torch.Generator().manual_seed(training.seed)
    shape = NetworkShape(encoder.inputs, encoder.cardinalities, tuple(training.hidden), 1, 1)
    network = Ensemble(shape, generator)
    _fit(network, rows, objective, training, generator)
    with torch.no_grad():
        outputs = _outputs(network, queried.take(torch.arange(queries.height)[None]))
    return np.asarray(objective.points(outputs)[0].double().numpy())


def _fit(
    network: Ensemble,
    rows: Rows,
    objective: PointObjective,
    training: TrainingSection,
    generator: torch.Generator,
) -> None:
    epochs = EPOCHS if training.epochs == "auto" else training.epochs
    batch = BATCH_SIZE if training.batch_size == "auto" else training.batch_size
    chosen = training.model_fields_set
    rate = training.learning_rate if "learning_rate" in chosen else LEARNING_RATE
    name = training.optimizer if "optimizer" in chosen else "rmsprop"
    decay = 0.0 if training.weight_decay == "auto" else training.weight_decay
    optimizer = Optimizer(name, [([*network.parameters()], decay)], rate)
    count = rows.targets.shape[0]
    steps, taken = epochs * -(-count // batch), 0
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator)
        for start in range(0, count, batch):
            sample = rows.take(order[start : start + batch][None])
            optimizer.zero_grad()
            loss = objective.loss(_outputs(network, sample), sample.targets).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            taken += 1
            optimizer.learning_rate = rate * (1 + math.cos(math.pi * taken / steps)) / 2


def _outputs(network: Ensemble, rows: Rows) -> torch.Tensor:
    outputs: torch.Tensor = network(rows.numeric, rows.categories)
    return outputs
