"""Boosted trees on privatized labels: LightGBM, with a law's likelihood as the objective.

Every round adds a tree for each of the law's parameters, fitted to the first derivatives of the
codes' likelihood and its Fisher information. One model a fold leaves that fold out; all take their
rounds together, and the loss of the rows left out, pooled over the folds, says when to stop.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import methodcaller
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError
from labelveil.feature_party.learning.derivatives import Derivatives, row_blocks
from labelveil.feature_party.learning.objectives import Objective
from labelveil.feature_party.model.trees import Trees, TreesShape
from labelveil.feature_party.threads import at_once
from labelveil.feature_party.training.fitting import EpochRecord, Fit
from labelveil.feature_party.training.folds import FoldedRows

ROUNDS = 400
_PATIENCE = 8
_REPORTED = 10
"""Rounds from one report to the next."""
_SCALE_PACE = 0.07
"""How much slower a scale is learned than a location: few privatized labels say much of it."""
_LEAST_IN_LEAF = 20
_WORTH_OF_LEAF = 3.0
"""True labels' worth of information that a leaf has at least."""
_PARAMETERS = {
    "objective": "none",
    "learning_rate": 0.3,
    "min_data_in_leaf": _LEAST_IN_LEAF,
    "feature_pre_filter": False,  # LightGBM fails where it filters all
    "use_missing": False,
    "boost_from_average": False,
    "deterministic": True,
    "force_col_wise": True,
    "verbosity": -1,
}


Single = NDArray[np.float32]


@dataclass(frozen=True)
class _Size:
    """How much a tree may say: its leaves, its depth, and the true labels' worth of information
    that a leaf's pull to 0 stands for."""

    leaves: int
    depth: int
    pull: float
    pace: float = 1.0
    """Of learning, as a share of that of the others."""


SMALL, LARGE = _Size(12, 6, 30.0), _Size(24, 8, 5.0)
EXACT = _Size(31, 12, 1.0, 0.4)
"""Of true labels."""


@cache
def lightgbm() -> Any:
    """The package; ``ConfigError`` with the remedy if it cannot be loaded here."""
    try:
        import lightgbm as package
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"boosted trees are left out, LightGBM cannot be loaded ({error}); install the"
            " system's OpenMP library, on Debian and Ubuntu libgomp1"
        ) from error
    return package


def load_lightgbm() -> None:
    """Load the package early, if it can be, and alone: for programs, which use none of its own
    estimators.

    It imports scikit-learn and pandas for these, which take two seconds of CPU, and does without
    where there are none.
    """
    others = [name for name in ("sklearn", "pandas") if name not in sys.modules]
    halted: dict[str, Any] = dict.fromkeys(others)
    sys.modules.update(halted)
    try:
        with suppress(ConfigError):
            lightgbm()
    finally:
        for name in others:
            del sys.modules[name]


_NOTHING = (np.zeros(1, np.int64), np.zeros(1), np.zeros((1, 2), np.int64), np.zeros(1))
"""A tree of one leaf that adds nothing."""


class Fold:
    """The rows of one fold, and the others, on which models that leave it out are boosted.

    Both are sorted by their codes; ``places`` has where the fold's rows are in that order.
    """

    def __init__(self, rows: FoldedRows, fold: int) -> None:
        inputs = rows.matrix(fold, rows.encoder.plain_inputs)
        # by code: what a table has of a code is in the cache when the next row asks for it
        kept, held = np.flatnonzero(rows.fold_of != fold), rows.folds[fold]
        # in an order that no processor's way of sorting changes, and with it the trees' last bits
        order = np.argsort(rows.codes[held], kind="stable")
        kept = kept[np.argsort(rows.codes[kept], kind="stable")]
        self.places, held = np.argsort(order), held[order]
        inputs, left_out = inputs[kept], inputs[held]
        if len(inputs) < 2 * _LEAST_IN_LEAF or not np.ptp(inputs, axis=0).any():
            raise ConfigError(
                f"boosted trees are left out, {len(inputs)} events to train on bear no branch of"
                f" {_LEAST_IN_LEAF} each; use learner=auto, networks or linear"
            )
        self.parameters = {**_PARAMETERS, "seed": rows.seed, "num_threads": torch.get_num_threads()}
        self.data = lightgbm().Dataset(inputs, params=self.parameters)
        self.codes, self.held = rows.codes[kept], rows.codes[held]
        self.left_out = self.data.create_valid(left_out, params=self.parameters)
        self.left_out.construct()  # of both: they let go of what they were made from


def folds_of(rows: FoldedRows) -> list[Fold]:
    """Each fold's rows, for :func:`fit_trees`."""
    return [Fold(rows, fold) for fold in range(len(rows.folds))]


class _Booster:
    """A model that leaves one fold out, a round at a time."""

    def __init__(self, fold: Fold, table: Derivatives, size: _Size) -> None:
        parameters = {
            **fold.parameters,
            "num_leaves": size.leaves,
            "max_depth": size.depth,
            "min_sum_hessian_in_leaf": _WORTH_OF_LEAF * table.of_a_label,
            "lambda_l2": size.pull * table.of_a_label,
            "num_class": table.outputs,
        }
        self.fold, self.table = fold, table
        self.pace = np.full(table.outputs, size.pace)
        if table.scale is not None:
            self.pace[table.scale] *= _SCALE_PACE
        # first derivatives and information: single precision, an output after another, as LightGBM
        # takes them
        rows = fold.codes.size
        self.slopes, self.information = np.empty((2, table.outputs, rows), np.float32)
        self.losses, self.held_losses = np.empty(rows), np.empty(fold.held.size)
        self.held_outputs, self.best_outputs = np.empty((2, fold.held.size, table.outputs))
        self.booster = lightgbm().Booster(parameters, fold.data)
        self.booster.add_valid(fold.left_out, "held out")

    def round(self) -> tuple[float, float]:
        """Add a tree for each output; mean losses before it on its rows, after it on the fold."""
        table, fold = self.table, self.fold

        def derivatives(raw: Floats, _: object) -> tuple[Single, Single]:
            for rows in row_blocks(fold.codes.size):
                outputs, codes = self._rows(raw)[rows], fold.codes[rows]
                self.losses[rows], slopes, information = table.derivatives(outputs, codes)
                # an output after another: to turn a table takes several times as long
                for output, pace in enumerate(self.pace):
                    np.multiply(slopes[:, output], pace, out=self.slopes[output, rows])
                    self.information[output, rows] = information[:, output]
            return self.slopes.T.reshape(raw.shape), self.information.T.reshape(raw.shape)

        def loss(raw: Floats, _: object) -> tuple[str, float, bool]:
            for rows in row_blocks(fold.held.size):
                outputs, codes = self._rows(raw)[rows], fold.held[rows]
                self.held_losses[rows] = table.loss(outputs, codes)
                self.held_outputs[rows] = outputs
            return "loss", float(self.held_losses.mean()), False

        self.booster.update(fobj=derivatives)
        self.booster.eval_valid(loss)
        return float(self.losses.mean()), float(self.held_losses.mean())

    def keep(self) -> None:
        """Take this round for the best so far."""
        self.best_outputs[:] = self.held_outputs

    def _rows(self, raw: Floats) -> Floats:
        return raw.reshape(-1, self.table.outputs)  # one output comes as a vector


def fit_trees(
    objective: Objective,
    table: Derivatives,
    rows: FoldedRows,
    folds: Sequence[Fold],
    on_epoch: Callable[[EpochRecord], None],
    sizes: Sequence[_Size],
) -> Fit:
    """Boost trees for a law, which has a table; one model leaves each fold of the rows out.

    Trees of the first of ``sizes``, or of a later one where these explain codes out of fold better.
    ``on_epoch`` is called every few rounds.
    """

    def boosted(size: _Size, rival: Sequence[float] = ()) -> _Boosted:
        boosters = [_Booster(fold, table, size) for fold in folds]
        return _Boosted.run(size, boosters, rival, on_epoch)

    best = boosted(sizes[0])
    for size in sizes[1:]:
        best = min(best, boosted(size, best.least), key=lambda boosted: boosted.least[-1])
    columns, cardinalities = rows.encoder.plain_inputs, rows.encoder.cardinalities
    largest = objective.outputs, best.size.depth
    learned = as_tensors(best.models, columns, cardinalities, rows.encodings, *largest)
    return rows.fit(objective, learned, best.history, best.outputs)


@dataclass(frozen=True, eq=False)
class _Boosted:
    """Trees of one size, a model for each fold, in the best round."""

    size: _Size
    models: list[str]  # as LightGBM writes them
    outputs: list[Floats]  # (v, p) of each for the rows of its fold
    least: list[float]  # out-of-fold loss of the best round so far, by round
    history: list[EpochRecord]

    @classmethod
    def run(
        cls,
        size: _Size,
        boosters: list[_Booster],
        rival: Sequence[float],
        on_epoch: Callable[[EpochRecord], None],
    ) -> _Boosted:
        """Add rounds until they help no more, or are behind as many of the ``rival``'s."""
        least, history, best = list[float](), list[EpochRecord](), 0
        ended = ""
        with ThreadPoolExecutor(at_once(), initializer=_quiet) as threads:
            while not ended and len(least) < ROUNDS:
                losses = list(threads.map(methodcaller("round"), boosters))
                training, held = np.mean(losses, axis=0).tolist()
                number, better = len(least) + 1, not least or held < least[-1]
                if better:
                    best = number
                    for booster in boosters:
                        booster.keep()
                least.append(held if better else least[-1])
                reported = number % _REPORTED == 0
                if number - best >= _PATIENCE:
                    ended = f"no better for {_PATIENCE} rounds"
                elif reported and rival and least[-1] > rival[min(number, len(rival)) - 1]:
                    ended = "behind smaller trees"
                if reported or ended or number == ROUNDS:
                    record = EpochRecord(number, ROUNDS, training, held, better, ended)
                    history.append(record)
                    on_epoch(record)
        models = [each.booster.model_to_string(num_iteration=best) for each in boosters]
        outputs = [each.best_outputs[each.fold.places] for each in boosters]
        return cls(size, models, outputs, least, history)


def _quiet() -> None:
    """Let LightGBM say nothing in this thread: how much it says is each one's own, and is set with
    any data's parameters."""
    lightgbm().Dataset(np.zeros((2, 1)), params=_PARAMETERS).construct()


def as_tensors(
    models: Sequence[str],
    columns: tuple[int, ...],
    cardinalities: tuple[int, ...],
    encodings: torch.Tensor | Floats,
    outputs: int,
    depth: int,
    one_of: Sequence[range] = (),
) -> Trees:
    """Trees of ``models``, as LightGBM writes them, that predict without it.

    ``columns`` are the numeric inputs that may be asked; (M, V) ``encodings`` are what each of M
    models takes the values of all categories for, of which ``cardinalities`` says how many each
    has. A tree has ``outputs`` outputs and is of ``depth`` steps at most. ``one_of`` is that of
    :class:`Trees`.
    """
    trees = [[_nodes(text) for text in model.split("\nTree=")[1:]] for model in models]
    longest = max(map(len, trees))
    for model in trees:  # a model that finds nothing to split any more ends before the others
        model += [_NOTHING] * (longest - len(model))
    sizes = [nodes[0].size for model in trees for nodes in model]
    roots = np.concatenate([[0], np.cumsum(sizes)])
    members, rounds, nodes = len(models), longest // outputs, int(roots[-1])
    shape = TreesShape(columns, cardinalities, outputs, members, rounds, nodes, depth)
    learned = Trees(shape, one_of)
    parts = zip(*(nodes for model in trees for nodes in model), strict=True)
    asked, thresholds, branches, values = (np.concatenate(part) for part in parts)
    state = {
        "encodings": encodings,
        "asked": asked,
        "thresholds": thresholds,
        "branches": branches + np.repeat(roots[:-1], sizes)[:, None],
        "values": values,
        "roots": roots[:-1].reshape(len(models), -1),
    }
    learned.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
    return learned


def _nodes(text: str) -> tuple[NDArray[Any], ...]:
    """Inputs, thresholds, branches and values of one tree's nodes, the leaves last.

    Source: LightGBM, ``src/io/tree.cpp``: a child below 0 is the leaf −1 − child.
    """
    entries = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))

    def array(name: str, kind: type) -> NDArray[Any]:
        return np.array(entries.get(name, "").split(), dtype=kind)

    leaves = array("leaf_value", np.float64)
    asked, thresholds = array("split_feature", np.int64), array("threshold", np.float64)
    branches = np.stack([array("left_child", np.int64), array("right_child", np.int64)], axis=1)
    inner, places = asked.size, np.arange(asked.size + leaves.size)
    branches = np.where(branches < 0, inner - 1 - branches, branches)
    return (
        np.concatenate([asked, np.zeros(leaves.size, np.int64)]),
        np.concatenate([thresholds, np.zeros(leaves.size)]),
        np.concatenate([branches, np.repeat(places[inner:, None], 2, axis=1)]),
        np.concatenate([np.zeros(inner), leaves]),
    )
