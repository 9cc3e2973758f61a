"""A regularised linear model on privatized labels: for few events, or many columns.

The parameters of a law are linear functions of the inputs, and so additive ones where a column's
range is cut into pieces; but for the scale, of which few labels say more than one number. Ridge
regression by Fisher scoring: all rows start alike, so that one matrix XᵀX serves every step, and
its eigenvectors serve every strength of the penalty. One model a fold leaves that fold out; the
loss of the rows left out, pooled over the folds, chooses the strength.

Source: Green, *Iteratively Reweighted Least Squares for Maximum Likelihood Estimation*, 1984.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from labelveil.common.arrays import Floats
from labelveil.feature_party.learning.derivatives import Derivatives, ValuesTable
from labelveil.feature_party.learning.objectives import LikelihoodObjective
from labelveil.feature_party.model.network import EMBEDDING, Ensemble, NetworkShape
from labelveil.feature_party.training.fitting import EpochRecord, Fit
from labelveil.feature_party.training.folds import FoldedRows

PENALTIES = tuple(10.0 ** (0.25 - half / 2) for half in range(8))
"""Strengths in units of the information of all rows, the strongest first."""
_STEPS = 4
_PATIENCE = 2
_WEIGHED = 2 * 10**8
"""Multiplications that weighing rows by their own information may take; some rows stand for all."""
_LONGEST = 1.0
"""How far a step moves a row's outputs at most, on average."""


class _Ridge:
    """The model that leaves one fold out."""

    def __init__(self, rows: FoldedRows, fold: int, table: Derivatives) -> None:
        inputs = rows.matrix(fold, range(rows.encoder.inputs))
        kept, held = rows.fold_of != fold, rows.folds[fold]
        self.table, self.codes, self.held_codes = table, rows.codes[kept], rows.codes[held]
        self.centre = inputs[kept].mean(axis=0)
        self.inputs, self.held = inputs[kept] - self.centre, inputs[held] - self.centre
        self.values, self.vectors = np.linalg.eigh(self.inputs.T @ self.inputs)
        self.slopes = np.zeros((inputs.shape[1], table.outputs))
        self.starts = np.zeros(table.outputs)

    def fit(self, penalty: float) -> tuple[float, float]:
        """Go on from the last, stronger penalty; mean losses of its rows and of the fold."""
        ridge = penalty * self.codes.size
        for _ in range(_STEPS):
            raw = self.inputs @ self.slopes + self.starts
            losses, gradient, information = self.table.derivatives(raw, self.codes)
            if isinstance(self.table, ValuesTable):
                step, start = self._weighted(gradient, information, ridge)
            else:
                step, start = self._even(gradient, information, ridge)
            moved = np.sqrt(np.mean((self.inputs @ step) ** 2, axis=0)) + np.abs(start)
            share = np.minimum(1.0, _LONGEST / np.maximum(moved, 1e-12))
            self.slopes = self.slopes - share * step
            self.starts = self.starts - share * start
        held = self.table.loss(self.outputs, self.held_codes)
        return float(losses.mean()), float(held.mean())

    def _even(self, gradient: Floats, information: Floats, ridge: float) -> tuple[Floats, Floats]:
        """Step of slopes and starts, all rows having the average information."""
        weight = information.mean(axis=0)
        pull = (self.inputs.T @ gradient) / weight + ridge * self.slopes
        shrunk = (self.vectors.T @ pull) / (np.maximum(self.values, 0)[:, None] + ridge)
        step = self.vectors @ shrunk
        if self.table.scale is not None:
            step[:, self.table.scale] = 0.0
        return step, gradient.mean(axis=0) / weight

    def _weighted(
        self, gradient: Floats, information: Floats, ridge: float
    ) -> tuple[Floats, Floats]:
        """The same by each row's own information, which a rare value has where it is likely."""
        rows, width = self.inputs.shape
        some = slice(None, None, max(1, rows // max(_WEIGHED // width**2, 4 * width)))
        inputs = np.concatenate([np.ones((rows, 1)), self.inputs], axis=1)
        before = np.concatenate([self.starts[None], self.slopes])
        steps = np.empty_like(before)
        for output, weights in enumerate(information.T):
            penalty = np.full(width + 1, ridge * weights.mean())
            penalty[0] = 0.0  # the start is free
            hessian = inputs[some].T @ (weights[some, None] * inputs[some])
            hessian *= rows / len(weights[some])
            hessian[np.diag_indices(width + 1)] += penalty + 1e-9 * hessian[0, 0]
            pull = inputs.T @ gradient[:, output] + penalty * before[:, output]
            steps[:, output] = np.linalg.solve(hessian, pull)
        return steps[1:], steps[0]

    @property
    def outputs(self) -> Floats:
        """(v, p) outputs for the fold's rows."""
        return np.asarray(self.held @ self.slopes + self.starts)

    @property
    def coefficients(self) -> tuple[Floats, Floats]:
        """(q, p) slopes and (p,) outputs of a row of zeros."""
        return self.slopes, self.starts - self.centre @ self.slopes


def fit_linear(
    objective: LikelihoodObjective,
    table: Derivatives,
    rows: FoldedRows,
    on_epoch: Callable[[EpochRecord], None] | None = None,
) -> Fit:
    """Fit linear models for a law; the parameters are those of :func:`fit_trees`."""
    models = [_Ridge(rows, fold, table) for fold in range(len(rows.folds))]
    history: list[EpochRecord] = []
    least, waited = np.inf, 0
    best, outputs = [model.coefficients for model in models], [model.outputs for model in models]
    for number, penalty in enumerate(PENALTIES, start=1):
        training, held = np.mean([model.fit(penalty) for model in models], axis=0)
        better = bool(held < least)
        waited += 1
        if better:
            least, waited, best = held, 0, [model.coefficients for model in models]
            outputs = [model.outputs for model in models]
        ended = "no better with a weaker penalty" if waited >= _PATIENCE else ""
        losses = float(training), float(held)
        history.append(EpochRecord(number, len(PENALTIES), *losses, better, ended))
        if on_epoch is not None:
            on_epoch(history[-1])
        if ended:
            break
    learned = _as_network(best, rows, objective.outputs)
    return rows.fit(objective, learned, history, outputs)


def _as_network(
    coefficients: list[tuple[Floats, Floats]], rows: FoldedRows, outputs: int
) -> Ensemble:
    """A network without hidden layers; a category's embedding is what it adds to each output."""
    encoder, encodings = rows.encoder, rows.encodings
    shape = NetworkShape(encoder.inputs, encoder.cardinalities, (), outputs, len(coefficients))
    network = Ensemble(shape, torch.Generator().manual_seed(0))
    columns = np.repeat(np.arange(len(encoder.cardinalities)), encoder.cardinalities)
    weight = np.zeros((shape.members, *network.weights[0].shape[1:]))
    embeddings = np.zeros((shape.members, columns.size, EMBEDDING))
    for member, (slopes, start) in enumerate(coefficients):
        numbers, categories = np.split(slopes, [encoder.inputs])
        weight[member, : encoder.inputs] = numbers
        for column in range(len(categories)):
            at = encoder.inputs + EMBEDDING * column
            weight[member, at : at + outputs] = np.eye(outputs)
        if columns.size:
            embeddings[member, :, :outputs] = encodings[member][:, None] * categories[columns]
        network.biases[0].data[member, 0] = torch.as_tensor(start)
    network.weights[0].data = torch.as_tensor(weight, dtype=torch.float32)
    flat = torch.as_tensor(embeddings.reshape(-1, EMBEDDING), dtype=torch.float32)
    network.embeddings.data = flat
    return network
