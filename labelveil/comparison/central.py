"""Baselines in which one party holds features and labels: what the separation costs.

The encoding of features is fitted on them as everywhere else in this package, and is the same for
all baselines; they take it, and the number of events, to be public.

*DP-SGD.* Every step draws a Poisson sample of the rows, clips each row's gradient to norm C, and
adds Gaussian noise of standard deviation σC to their sum (Abadi et al., *Deep Learning with
Differential Privacy*, CCS 2016); σ is the least with which Opacus's PRV accountant (Gopi, Lee,
Wutschitz, *Numerical Composition of Differential Privacy*, NeurIPS 2021) gives (ε, δ) after all
steps, for adding or removing one row. Iterates are averaged, which is post-processing. It is no
release: noise and samples come from torch's generator, keyed by the operating system but not
cryptographic, and in floats (Mironov 2012).

It stays beside :mod:`labelveil.common.mechanisms.central.dp_sgd`, whose noise is exact, because a
rival is shown at its best: on housing at ε = 1 that took 181 s for one hidden layer of 64 and left
0.36 of the best constant's error, this 119 s for two of 128 and 64 and 0.26.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import nn

from labelveil.common.arrays import Floats
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.errors import ConfigError, PrivacyError, not_none
from labelveil.common.extras import install_command
from labelveil.common.guarantees import Adjacency, ApproximateDP, Guarantee
from labelveil.common.mechanisms.central.gaussian_regression import LabelProcess
from labelveil.common.mechanisms.central.label_ridge import LabelRidge
from labelveil.common.mechanisms.clipping import LabelScaling
from labelveil.comparison.names import DP_SGD, FEATURE_AWARE_GAUSSIAN, NEED_DELTA
from labelveil.feature_party.model.encoding import Encoded, Encoder
from labelveil.feature_party.schema import Stated

_PIECES = 8  # pieces of a numeric column's range
MOST_VALUES = 64
"""Values of a category with an indicator of their own; vocabularies are sorted by frequency."""


@dataclass(frozen=True)
class PrivateSteps:
    """How one network is trained; nothing here may depend on labels."""

    rate: float  # probability with which a row takes part in a step
    steps: int
    clip: float = 1.0  # C
    learning_rate: float = 4e-3  # of Adam, falling along a cosine

    @classmethod
    def suited_to(cls, rows: int) -> PrivateSteps:
        """A sixteenth of the rows a step, but 256 to 4096; 25 passes over them, at most 1000 steps.

        Large samples and many passes cost little privacy: noise is added once a step, whatever
        the sample's size.
        """
        sample = min(max(256, rows // 16), 4096, rows)
        rate = sample / rows
        return cls(rate, min(1000, round(25 / rate)))


@dataclass(frozen=True)
class PrivateNetwork:
    """A trained network, from (n, d) float32 features to (n, 1) labels scaled to -1 … 1."""

    module: nn.Module
    guarantee: ApproximateDP  # for adding or removing one row, as the accountant has it
    noise_multiplier: float

    @torch.no_grad()
    def predict(self, rows: Floats) -> Floats:
        """(n,) labels, scaled and clipped to -1 … 1."""
        outputs = self.module(torch.as_tensor(rows, dtype=torch.float32))
        return np.asarray(outputs.squeeze(1).clamp(-1, 1).double().numpy())


def noise_multiplier(steps: PrivateSteps, epsilon: float, delta: float) -> float:
    """Least σ, to one part in a hundred of ε, that gives (ε, δ) after all steps."""
    try:
        from opacus.accountants.utils import get_noise_multiplier
    except ImportError as error:
        raise ConfigError(
            f"DP-SGD needs Opacus, which is not installed; {install_command('central')}"
        ) from error
    if not 0 < epsilon < np.inf or not 0 < delta < 1:
        raise PrivacyError(f"epsilon={epsilon} must be > 0 and delta={delta} must lie in (0, 1)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(
            get_noise_multiplier(
                target_epsilon=epsilon,
                target_delta=delta,
                sample_rate=steps.rate,
                steps=steps.steps,
                accountant="prv",
                epsilon_tolerance=0.01 * epsilon,
            )
        )


def spent_epsilon(steps: PrivateSteps, sigma: float, delta: float) -> float:
    """ε at δ of all steps with noise multiplier σ, by the PRV accountant."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(sigma, steps.rate, steps.steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta))


def train_privately(
    rows: Floats,
    labels: Floats,
    epsilon: float,
    delta: float,
    entropy: Entropy,
    hidden: tuple[int, ...],
    steps: PrivateSteps | None = None,
) -> PrivateNetwork:
    """Train a network by DP-SGD on the squared loss, within (ε, δ).

    Takes (n, d) encoded features, (n,) labels scaled to -1 … 1, and fresh entropy, which keys
    torch's generator. ``steps`` are by default chosen by the number of rows.
    """
    steps = steps or PrivateSteps.suited_to(len(rows))
    sigma = noise_multiplier(steps, epsilon, delta)
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    key, weights_key = entropy.words("DP-SGD", 0, 2) >> np.uint64(1)
    generator = torch.Generator().manual_seed(int(key))
    inputs = torch.as_tensor(rows, dtype=torch.float32)
    targets = torch.as_tensor(np.clip(labels, -1, 1), dtype=torch.float32)[:, None]
    module = _network(inputs.shape[1], hidden, int(weights_key))
    keep = max(0.0, 1 - 10 / steps.steps)
    averaging = torch.optim.swa_utils.get_ema_multi_avg_fn(keep)  # type: ignore[no-untyped-call]
    average = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=averaging)
    sampled = GradSampleModule(module, loss_reduction="sum")
    adam = torch.optim.Adam(module.parameters(), lr=steps.learning_rate)
    optimizer = DPOptimizer(
        adam,
        noise_multiplier=sigma,
        max_grad_norm=steps.clip,
        expected_batch_size=max(1, round(steps.rate * len(rows))),
        loss_reduction="mean",
        generator=generator,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps.steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps.steps):
            chosen = torch.rand(len(rows), generator=generator) < steps.rate
            optimizer.zero_grad()
            errors = sampled(inputs[chosen]) - targets[chosen]
            (errors**2).sum().backward()
            optimizer.step()
            schedule.step()
            average.update_parameters(module)
    spent = spent_epsilon(steps, sigma, delta)
    guarantee = ApproximateDP.of(spent, delta, Adjacency.ADD_REMOVE)
    return PrivateNetwork(average.module, guarantee, sigma)


def _network(inputs: int, hidden: tuple[int, ...], seed: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(inputs, size), nn.ReLU()]
            inputs = size
        return nn.Sequential(*layers, nn.Linear(inputs, 1))


@dataclass(frozen=True, eq=False)
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

    ``name`` is one of :data:`labelveil.comparison.names.CENTRAL`; δ is for those of
    :data:`labelveil.comparison.names.NEED_DELTA`, ``hidden`` for networks.
    """
    encoder = Encoder.fit(features, stated=Stated(ignored=(key,)), pieces=_PIECES)
    rows = dense_features(encoder, encoder.encode(features))
    queried = dense_features(encoder, encoder.encode(queries))
    scaling = LabelScaling(*bounds)
    entropy = system_entropy()
    scaled = scaling.apply(labels)
    if name in NEED_DELTA and delta is None:
        raise ConfigError(f"{name} needs a delta above 0; pass --delta 1e-6")
    if name == DP_SGD:
        network = train_privately(rows, scaled, epsilon, not_none(delta), entropy, tuple(hidden))
        chosen = f"DP-SGD, noise multiplier {network.noise_multiplier:.3g}"
        return Central(scaling.invert(network.predict(queried)), chosen, network.guarantee)
    if name == FEATURE_AWARE_GAUSSIAN:
        process = LabelProcess(epsilon, not_none(delta))
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
