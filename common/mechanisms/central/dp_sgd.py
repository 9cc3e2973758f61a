"""DP-SGD as scikit-learn estimators, on exact noise (needs ``labelveil[central]``).

A network of rectifiers, or without hidden layers a linear model, is trained by the noisy sums of
:mod:`labelveil.common.mechanisms.central.gradient_steps`. Weights start from public numbers;
everything after a step's integers is post-processing. What is said there of samples holds here: the
number of rows is public, and so are features' bounds, labels' bounds and the set of classes. The
time that a fit takes depends on the sizes of Poisson samples, and on what floats cost for these
rows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from labelveil.common.arrays import Floats, with_nan
from labelveil.common.entropy import seeded_entropy, unit_floats
from labelveil.common.guarantees.limits import positive
from labelveil.common.mechanisms.central.estimators import (
    BoundedRegressor,
    PrivateEstimator,
    fresh_entropy,
)
from labelveil.common.mechanisms.central.gradient_steps import GradientSteps, Noise, Sampling

_AVERAGED = 0.5
"""Share of the steps, at the end, whose weights are averaged."""

Layers = list[Floats]
"""Weights of each layer, (inputs, outputs); hidden layers have a constant beside their outputs."""


def start(sizes: tuple[int, ...]) -> Layers:
    """Public weights to start from: 0 in the last layer, normal numbers before it."""
    layers = []
    for index, (inputs, outputs) in enumerate(list(pairwise(sizes))[:-1]):
        rows = inputs + (index > 0)
        words = seeded_entropy(0).words(f"layer {index}", 0, rows * outputs)
        normal = scipy.special.ndtri(unit_floats(words)).reshape(rows, outputs)
        layers.append(normal * math.sqrt(2 / rows if index else 2))
    return [*layers, np.zeros((sizes[-2] + (len(sizes) > 2), sizes[-1]))]


def activations(layers: Layers, rows: Floats) -> list[Floats]:
    """(n, ·) inputs of each layer, and the outputs of the last."""
    inputs = [rows]
    for weights in layers[:-1]:
        hidden = np.maximum(each_by_itself(inputs[-1], weights), 0.0)
        inputs.append(np.column_stack([hidden, np.ones(len(rows))]))
    return [*inputs, each_by_itself(inputs[-1], layers[-1])]


def each_by_itself(rows: Floats, weights: Floats) -> Floats:
    """``rows @ weights`` such that a row's result is a function of that row to the last bit.

    BLAS cuts a product into blocks by the number of rows, so that one record more changes how
    others are rounded, and a gradient of theirs may then fall on another point of the grid:
    neighbours' sums would be further apart than one clipped gradient.
    """
    product = np.zeros((len(rows), weights.shape[1]))
    for column, row in zip(rows.T, weights, strict=True):
        product += column[:, None] * row
    return product


def gradients(layers: Layers, inputs: list[Floats], slopes: Floats) -> Floats:
    """(n, p) gradient of each row's loss in all weights, from (n, k) slopes in the outputs."""
    parts: list[Floats] = []
    for index in range(len(layers) - 1, -1, -1):
        outer = inputs[index][:, :, None] * slopes[:, None]
        # numpy cannot work a size out where a sample is empty, as Poisson samples may be
        parts.insert(0, outer.reshape(len(slopes), outer.shape[1] * outer.shape[2]))
        if index:
            slopes = each_by_itself(slopes, layers[index].T)[:, :-1] * (inputs[index][:, :-1] > 0)
    return np.concatenate(parts, axis=1)


@dataclass(eq=False, repr=False)
class _DPSGD(PrivateEstimator):
    """The fit and its parameters, for both estimators.

    After a fit they have the private ``layers_``, and ``noise_scale_``, which is σ, or the Laplace
    scale, as a multiple of C.
    """

    epsilon: float = 1.0  # ε > 0 of one fit
    delta: float = 1e-6  # δ of one fit; 0 needs Laplace noise
    _: KW_ONLY
    # gradients are clipped in L2, with "laplace" in L1; "direction" needs "fixed" samples
    noise: Noise = "gaussian"
    sampling: Sampling = "poisson"  # for adding or removing a record; "fixed" is for replacing one
    # m, the (mean) size of a step's sample; None is a sixteenth of the rows, 64 at least. 1 with
    # fixed samples selects one random record a step.
    sample: int | None = None
    steps: int | None = None  # T; None passes over the rows ten times
    hidden: tuple[int, ...] = ()  # sizes of hidden layers; none is a linear model
    clip: float = 1.0  # C, of a record's gradient
    # of the first step, falling along a cosine; the weights of the last half are averaged
    learning_rate: float = 4.0

    @abstractmethod
    def _slopes(self, outputs: Floats, targets: Floats) -> Floats:
        """Derivatives of each row's loss in its outputs."""

    def _learn(self, features: Floats, targets: Floats) -> None:
        positive(clip=self.clip, learning_rate=self.learning_rate)
        entropy, rows, n = fresh_entropy(self.entropy), self._rows(features), len(features)
        size = min(max(64, n // 16), n) if self.sample is None else self.sample
        steps = 10 * n // max(size, 1) if self.steps is None else self.steps
        mechanism = GradientSteps(n, size, steps, self.noise, self.sampling)
        mechanism = mechanism.calibrated(self.epsilon, self.delta)
        targets = targets.reshape(len(rows), -1)
        layers = start((rows.shape[1], *self.hidden, targets.shape[1]))
        ends = np.cumsum([weights.size for weights in layers])
        flat = np.concatenate([weights.ravel() for weights in layers])
        average, averaged = np.zeros(flat.size), 0
        unit = self.clip / mechanism.grid(flat.size) / mechanism.sample
        noisy_sum = mechanism.sums(flat.size, entropy)
        for step, sample in enumerate(mechanism.samples(entropy)):
            layers = _shaped(flat, layers, ends)
            inputs = activations(layers, rows[sample])
            slopes = self._slopes(inputs[-1], targets[sample])
            each = gradients(layers, inputs, slopes) / self.clip
            # cosine annealing, and the mean of the last iterates: both lower the noise that is left
            # at the end, and cost no privacy
            rate = self.learning_rate * (1 + math.cos(math.pi * step / mechanism.steps)) / 2
            flat = flat - rate * unit * noisy_sum(each)
            if step >= (1 - _AVERAGED) * mechanism.steps - 1:
                average, averaged = average + flat, averaged + 1
        self.layers_ = _shaped(average / averaged, layers, ends)
        self.noise_scale_ = float(mechanism.scale)
        self.guarantee_ = mechanism.approximate(self.delta)

    def _outputs(self, X: ArrayLike) -> Floats:
        rows = self._new_rows(X)
        return activations(self.layers_, rows)[-1]


def _shaped(flat: Floats, layers: Layers, ends: NDArray[np.int64]) -> Layers:
    parts = np.split(flat, ends[:-1])
    return [part.reshape(like.shape) for part, like in zip(parts, layers, strict=True)]


class DPSGDClassifier(ClassifierMixin, _DPSGD):  # type: ignore[misc]
    """A classifier of two or more classes, cross-entropy of a softmax, by DP-SGD."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from records: (n, d) features and (n,) classes.

        Raises
        ------
        ValueError
            If the classes are fewer than two.
        """
        features, labels = validate_data(self, with_nan(X), with_nan(y), dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if self.classes_.size < 2:
            raise ValueError(f"The labels are all of one class, {self.classes_[0]!r}; two needed.")
        self._learn(features, np.eye(self.classes_.size)[codes])
        return self

    def _slopes(self, outputs: Floats, targets: Floats) -> Floats:
        return np.asarray(scipy.special.softmax(outputs, axis=1) - targets)

    def predict_proba(self, X: ArrayLike) -> Floats:
        """(n, k) probabilities of the classes."""
        return np.asarray(scipy.special.softmax(self._outputs(X), axis=1))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """(n,) classes."""
        outputs = self._outputs(X)
        return np.asarray(self.classes_[outputs.argmax(axis=1)])


@dataclass(eq=False, repr=False)
class DPSGDRegressor(BoundedRegressor, _DPSGD):
    """Regression on labels within public ``label_bounds``, squared loss, by DP-SGD."""

    learning_rate: float = field(default=1.0, kw_only=True)

    def _slopes(self, outputs: Floats, targets: Floats) -> Floats:
        return np.asarray(outputs - targets)
