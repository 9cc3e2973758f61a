"""Boosted trees from noisy sums, beside ridges: where predictions have edges these do not see.

Near the ridges' predictions sums are linear in predictions f, as the law of sums has it: S_g is
normal around Σ p_i f_i, up to what is known, with a variance V_g. A tree is fitted to the gradient
of that, -p_i (S_g - Σ p f)/V_g of each event of g. In place of the Hessian, which is not diagonal,
stands p_i² n_g/V_g, no smaller (Gershgorin). Each of five models leaves a fifth of the groups out,
so that they differ and their mean is steadier than any.

How much trees count for is no result of sums. Of groups that were left out a sum says how well the
mean of a group is told, and not what is told apart within it: by that trees would count for less
than they are worth, and sometimes for nothing where they are the better learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from labelveil.common.arrays import Floats, Indices, Singles
from labelveil.feature_party.model.trees import Trees
from labelveil.feature_party.ridge.law import SumRows, as_normal
from labelveil.feature_party.training.trees import as_tensors, lightgbm

_FOLDS = 5
_ROUNDS = 130
_LEAVES, _DEPTH = 24, 12
_GROUPS_IN_LEAF = 5
"""The information of this many groups is the least that a leaf must have."""
_MOST_GROUPS = 20_000
"""That a model learns from: what a tree costs grows with their events. Of more, each of the models
draws its own."""
_ROWS_AT_ONCE = 1 << 15
_AS_GOOD = 1_000
"""Sums by which trees predict about as well as ridges: of fewer they count for less."""
_NEXT_TO_NOTHING = 1e-9
"""As a share of the most that is told."""
_PARAMETERS = {
    "objective": "none",
    "learning_rate": 0.3,
    "num_leaves": _LEAVES,
    "max_depth": _DEPTH,
    "max_bin": 63,
    "min_data_in_leaf": 1,
    "feature_fraction": 0.5,
    "feature_pre_filter": False,
    "use_missing": False,
    "boost_from_average": False,
    "deterministic": True,
    "force_col_wise": True,
    "verbosity": -1,
}


class Boosted(NamedTuple):
    """Trees for what is left of labels after a constant, in units of the label."""

    trees: Trees
    constant: float
    share: float
    """What they count for in predictions, 0 … 1; ridges for the rest."""

    def predict(self, inputs: Floats | Singles) -> Floats:
        """(n,) expected labels of (n, F) rows; not clipped to any bounds."""
        points = np.empty(len(inputs))
        for start in range(0, len(inputs), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            numeric = torch.as_tensor(inputs[part], dtype=torch.float32)[None]
            categories = torch.zeros((1, numeric.shape[1], 0), dtype=torch.int64)
            with torch.no_grad():
                outputs = self.trees(numeric, categories).mean(dim=0)[:, 0]
            points[part] = self.constant + outputs.numpy()
        return points


def boost(
    inputs: Floats | Singles,
    data: SumRows,
    near: Floats,
    deviations: Floats,
    seed: int,
    far: Floats | None = None,
    one_of: Sequence[range] = (),
) -> Boosted | None:
    """Learn from sums over (n, F) rows.

    (n,) ``near`` are predictions of all rows, around which sums are lines and labels have these
    (n,) ``deviations``, and (G,) ``far`` is by how much sums miss these, if that is to say what
    each tells, as Laplace's law has it. Of each range of ``one_of`` one column at most is 1, and
    all others are 0. None where no sum has a slope, all labels being clipped. ``ConfigError`` if
    LightGBM cannot be loaded.
    """
    moments, variances, slopes = data.moments(near, deviations)
    targets = data.sums - data.by_group(moments - slopes * near[data.rows])
    within = data.by_group(variances)
    variances = within + data.noise if far is None else as_normal(far, within, data.noise)[0]
    whole = data.by_group(slopes)
    sizes = np.bincount(data.groups, minlength=data.sums.size)
    curvatures = (sizes / variances)[data.groups] * slopes**2
    told = data.by_group(curvatures)
    if not curvatures.any():
        return None
    constant = float(np.sum(whole * targets / variances) / np.sum(whole**2 / variances))
    targets = targets - constant * whole
    # of clipped labels sums tell next to nothing, or nothing at all: they set no measure
    least = _GROUPS_IN_LEAF * float(np.median(told[told > _NEXT_TO_NOTHING * told.max()]))
    usual = float(np.median(curvatures[curvatures > _NEXT_TO_NOTHING * curvatures.max()]))
    rng = np.random.default_rng(seed)
    folds = rng.permutation(data.sums.size) % _FOLDS
    package = lightgbm()
    # as single precision reads them, as those that predict do
    table = inputs.astype(np.float32, copy=False)
    if not np.array_equal(data.rows, np.arange(len(inputs))):
        table = table[data.rows]
    parameters = {**_PARAMETERS, "num_threads": torch.get_num_threads(), "seed": seed}
    rows = package.Dataset(table, params=parameters).construct()
    unit = usual**-0.5  # so that single precision holds all numbers
    parameters["min_sum_hessian_in_leaf"] = least * unit**2
    models = []
    for fold in range(_FOLDS):
        taken = np.sort(rng.permutation(np.flatnonzero(folds != fold))[:_MOST_GROUPS])
        there = np.zeros(data.sums.size, dtype=np.bool_)
        there[taken] = True
        (events,) = np.nonzero(there[data.groups])
        groups = (np.cumsum(there) - 1)[data.groups[events]]
        sloped, curved = slopes[events] * unit, curvatures[events] * unit**2

        def derivatives(
            found: Floats,
            _: object,
            taken: Indices = taken,
            groups: Indices = groups,
            sloped: Floats = sloped,
            curved: Floats = curved,
        ) -> tuple[Floats, Floats]:
            left = targets[taken] - np.bincount(groups, sloped * found, taken.size)
            return -sloped * (left / variances[taken])[groups], curved

        booster = package.Booster({**parameters, "seed": seed + fold}, rows.subset(events))
        for _ in range(_ROUNDS):
            if booster.update(fobj=derivatives):
                break
        models.append(booster.model_to_string())
    columns = tuple(range(inputs.shape[1]))
    encodings = torch.zeros((_FOLDS, 0), dtype=torch.float64)
    trees = as_tensors(models, columns, (), encodings, 1, _DEPTH, one_of)
    with torch.no_grad():
        trees.values.mul_(unit)
    return Boosted(trees, constant, data.sums.size / (data.sums.size + _AS_GOOD))
