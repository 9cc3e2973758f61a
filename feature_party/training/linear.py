"""A regularised linear model on privatized labels: for few events, or many columns.

The parameters of a law are linear functions of the inputs, and so additive ones where a column's
range is cut into pieces; but for the scale, of which few labels say more than one number. Ridge
regression by Fisher scoring: all rows start alike, so that one matrix XᵀX serves every step, and
its eigenvectors serve every strength of the penalty. One model a fold leaves that fold out; the
loss of the rows left out, pooled over the folds, chooses the strength.

Source: Green, *Iteratively Reweighted Least Squares for Maximum Likelihood Estimation*, 1984.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from labelveil.common.arrays import Floats, Indices
from labelveil.feature_party.learning.derivatives import Derivatives, ValuesTable
from labelveil.feature_party.learning.objectives import LikelihoodObjective
from labelveil.feature_party.model.network import EMBEDDING, Ensemble, NetworkShape
from labelveil.feature_party.training.fitting import EpochRecord, Fit
from labelveil.feature_party.training.folds import FoldedRows

_STEPS = 4
PENALTIES = tuple((10.0 ** (0.25 - half / 2), _STEPS) for half in range(8))
"""Strengths in units of the information of all rows, the strongest first, and steps with each."""
_PATIENCE = 2
_WEIGHED = 2 * 10**8
"""Multiplications that weighing rows by their own information may take; some rows stand for all."""
_LONGEST = 1.0
"""How far a step moves a row's outputs at most, on average."""


Singles = NDArray[np.float32]
Coefficients = list[tuple[Floats, Floats]]
"""Each model's (w, p) slopes and (p,) outputs of a row of zeros."""


class Design:
    """The inputs of all rows, for the models of all folds at once, whatever law they are of.

    Of w inputs (n, N) ``numbers`` are the same for every model, and the encodings of categories are
    not. One product with the former serves all models: they are read once instead of once a model.
    """

    def __init__(self, rows: FoldedRows, numbers: Singles) -> None:
        folds, size = range(len(rows.folds)), len(rows.inputs)
        self.numbers = numbers
        self.encoded = np.zeros((len(folds), size, len(rows.encoder.cardinalities)), np.float32)
        for fold in folds if rows.encoder.categorical else ():
            self.encoded[fold] = rows.encoded(fold)
        self.kept = [np.flatnonzero(rows.fold_of != fold) for fold in folds]
        self.width = self.numbers.shape[1] + self.encoded.shape[2]
        self.centres, self.values = np.zeros((2, len(folds), self.width))
        self.vectors = np.zeros((len(folds), self.width, self.width))
        for fold in folds:
            inputs = self.inputs(fold, self.kept[fold])
            self.centres[fold] = inputs.mean(axis=0, dtype=np.float64)
            inputs -= self.centres[fold].astype(np.float32)
            squares = (inputs.T @ inputs).astype(np.float64)
            self.values[fold], self.vectors[fold] = np.linalg.eigh(squares)

    def inputs(self, fold: int, rows: Indices) -> Singles:
        """(r, w) inputs of some rows, as they are for the model without a fold."""
        return np.concatenate([self.numbers[rows], self.encoded[fold, rows]], axis=1)

    def outputs(self, slopes: Floats) -> Floats:
        """(K, n, p) what (K, w, p) slopes make of all rows, from the centres of those kept."""
        models, _, outputs = slopes.shape
        numbers, words = np.split(slopes.astype(np.float32), [self.numbers.shape[1]], axis=1)
        together = self.numbers @ numbers.transpose(1, 0, 2).reshape(-1, models * outputs)
        found = together.reshape(-1, models, outputs).transpose(1, 0, 2).astype(np.float64)
        if words.size:
            found += self.encoded @ words
        return np.asarray(found - self.centres[:, None] @ slopes)

    def pulls(self, gradients: Floats) -> Floats:
        """(K, w, p) sums of the centred inputs, each weighted with a row's (K, n, p) gradients; of
        rows that a model leaves out they are 0."""
        models, rows, outputs = gradients.shape
        single = gradients.astype(np.float32)
        together = self.numbers.T @ single.transpose(1, 0, 2).reshape(rows, models * outputs)
        numbers = together.reshape(-1, models, outputs).transpose(1, 0, 2)
        words = self.encoded.transpose(0, 2, 1) @ single
        sums = gradients.sum(axis=1, keepdims=True)
        return np.asarray(np.concatenate([numbers, words], axis=1) - self.centres[..., None] * sums)


class LinearModels:
    """The models of one law, one leaving out each fold; they start from the law's own outputs.

    Penalties are in units of the information of all rows, or of a ``precision`` that slopes have
    before anything is known.
    """

    def __init__(
        self, design: Design, rows: FoldedRows, table: Derivatives, precision: float | None
    ) -> None:
        self.design, self.rows, self.table, self.precision = design, rows, table, precision
        models = len(rows.folds)
        self.slopes = np.zeros((models, design.width, table.outputs))
        self.starts = np.zeros((models, 1, table.outputs))
        self.raw = np.zeros((models, len(rows.codes), table.outputs))

    def start(self, output: int, targets: Floats, penalty: float) -> None:
        """Begin near (n,) numbers of one output, of which no model may know its own fold."""
        design = self.design
        for fold, kept in enumerate(design.kept):
            inputs = design.inputs(fold, kept) - design.centres[fold].astype(np.float32)
            mean = targets[kept].mean()
            pull = inputs.T @ (targets[kept] - mean).astype(np.float32)
            vectors, ridge = design.vectors[fold], penalty * self._unit(np.ones((kept.size, 1)))
            shrunk = (vectors.T @ pull) / (np.maximum(design.values[fold], 0) + ridge)
            self.slopes[fold, :, output], self.starts[fold, 0, output] = vectors @ shrunk, mean
        self.raw = design.outputs(self.slopes) + self.starts

    def fit(self, penalty: float, count: int) -> tuple[float, float]:
        """Go on from the last, stronger penalty, so many steps; mean losses of their rows and of
        the folds."""
        design, rows = self.design, self.rows
        steps, starts = np.empty_like(self.slopes), np.empty_like(self.starts)
        gradients, losses = np.zeros_like(self.raw), np.zeros(len(rows.folds))
        for _ in range(count):
            information = list[Floats]()
            for fold, kept in enumerate(design.kept):
                found = self.table.derivatives(self.raw[fold, kept], rows.codes[kept])
                losses[fold], gradients[fold, kept] = found[0].mean(dtype=np.float64), found[1]
                information.append(np.ascontiguousarray(found[2], np.float64))
            pulls = design.pulls(gradients)
            find = self._weighted if isinstance(self.table, ValuesTable) else self._even
            for fold, told in enumerate(information):
                pull, start = pulls[fold], gradients[fold].sum(axis=0)
                steps[fold], starts[fold] = find(fold, pull, start, told, penalty)
            # a scoring step is right only near its start: none moves outputs further than that
            along = design.outputs(steps)
            for fold, kept in enumerate(design.kept):
                moved = np.sqrt(np.mean(along[fold, kept] ** 2, axis=0)) + np.abs(starts[fold, 0])
                share = np.minimum(1.0, _LONGEST / np.maximum(moved, 1e-12))
                self.slopes[fold] -= share * steps[fold]
                self.starts[fold] -= share * starts[fold]
                self.raw[fold] -= share * (along[fold] + starts[fold])
        held = [
            self.table.loss(outputs, rows.codes[left_out]).mean()
            for outputs, left_out in zip(self.outputs, rows.folds, strict=True)
        ]
        return float(losses.mean()), float(np.mean(held))

    def _even(
        self, fold: int, pull: Floats, start: Floats, information: Floats, penalty: float
    ) -> tuple[Floats, Floats]:
        """Step of slopes and starts, all rows having the average information."""
        weight, rows = information.mean(axis=0), len(information)
        values, vectors = self.design.values[fold], self.design.vectors[fold]
        ridge = penalty * self._unit(information) / weight
        pull = pull / weight + ridge * self.slopes[fold]
        shrunk = (vectors.T @ pull) / (np.maximum(values, 0)[:, None] + ridge)
        step = vectors @ shrunk
        if self.table.scale is not None:
            step[:, self.table.scale] = 0.0
        return step, start / (rows * weight)

    def _weighted(
        self, fold: int, pull: Floats, start: Floats, information: Floats, penalty: float
    ) -> tuple[Floats, Floats]:
        """The same by each row's own information, which a rare value has where it is likely."""
        rows, width = len(information), self.design.width
        some = slice(None, None, max(1, rows // max(_WEIGHED // width**2, 4 * width)))
        inputs = self.design.inputs(fold, self.design.kept[fold][some]) - self.design.centres[fold]
        inputs = np.concatenate([np.ones((len(inputs), 1)), inputs], axis=1)
        pull = np.concatenate([start[None], pull])
        before = np.concatenate([self.starts[fold], self.slopes[fold]])
        steps = np.empty_like(before)
        for output, (weights, unit) in enumerate(
            zip(information.T, self._unit(information), strict=True)
        ):
            ridge = np.full(width + 1, penalty * unit)
            ridge[0] = 0.0  # the start is free
            hessian = inputs.T @ (weights[some, None] * inputs)
            hessian *= rows / len(weights[some])
            hessian[np.diag_indices(width + 1)] += ridge + 1e-9 * hessian[0, 0]
            steps[:, output] = np.linalg.solve(hessian, pull[:, output] + ridge * before[:, output])
        return steps[1:], steps[0]

    def _unit(self, information: Floats) -> Floats:
        """(p,) what penalties of each output's slopes are multiples of."""
        if self.precision is None:
            return np.asarray(len(information) * information.mean(axis=0))
        return np.full(information.shape[1], self.precision)

    @property
    def outputs(self) -> list[Floats]:
        """Each model's (v, p) outputs for the rows of its fold."""
        return [raw[held] for raw, held in zip(self.raw, self.rows.folds, strict=True)]

    @property
    def coefficients(self) -> Coefficients:
        moved = self.starts - self.design.centres[:, None] @ self.slopes
        return list(zip(self.slopes.copy(), moved[:, 0], strict=True))


def fit_linear(
    objective: LikelihoodObjective,
    table: Derivatives,
    rows: FoldedRows,
    design: Design,
    on_epoch: Callable[[EpochRecord], None],
) -> Fit:
    """Fit linear models for a law, which has a table, to the rows of a design; one leaves each fold
    out. ``on_epoch`` is called after every strength of the penalty."""
    best, history, outputs = fit_path(LinearModels(design, rows, table, None), PENALTIES, on_epoch)
    return rows.fit(objective, _as_network(best, rows, objective.outputs), history, outputs)


def fit_path(
    models: LinearModels, path: Sequence[tuple[float, int]], on_epoch: Callable[[EpochRecord], None]
) -> tuple[Coefficients, list[EpochRecord], list[Floats]]:
    """Fit models with one penalty after another, until weaker ones help no more: the best
    coefficients, what happened, and each model's (v, p) outputs for the rows of its fold."""
    history: list[EpochRecord] = []
    least, waited = np.inf, 0
    best, outputs = models.coefficients, models.outputs
    for number, (penalty, steps) in enumerate(path, start=1):
        training, held = models.fit(penalty, steps)
        better = held < least
        waited += 1
        if better:
            least, waited, best, outputs = held, 0, models.coefficients, models.outputs
        ended = "no better with a weaker penalty" if waited >= _PATIENCE else ""
        history.append(EpochRecord(number, len(path), training, held, better, ended))
        on_epoch(history[-1])
        if ended:
            break
    return best, history, outputs


def _as_network(coefficients: Coefficients, rows: FoldedRows, outputs: int) -> Ensemble:
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
