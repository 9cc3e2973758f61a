"""The mean absolute error, estimated without true labels.

Labels that share a channel row are one group. Decoding the indicators of the groups gives the mean
of any function of the label that is constant within them, without bias; within a group the error is
taken from the model's own distribution, and the estimate says so.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Floats
from labelveil.feature_party.evaluation.intervals import Estimate, Method
from labelveil.feature_party.learning.decoding import indicator_decoder
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Predictions

_CHUNK_ELEMENTS = 1 << 22
_TINY = 1e-12


def estimate_absolute_error(
    problem: LabelProblem, support: Support, predicted: Predictions, codes: NDArray[np.integer]
) -> Estimate:
    """Estimate the mean absolute error of n predictions for events that were not trained on.

    The (n,) codes are their privatized labels.
    """
    # every row is decoded by its own release's channel; the estimate is as sure as the least sure
    errors, methods = np.empty(codes.size), []
    for part, mine, own in problem.by_release(codes):
        if own.size:
            errors[mine], method = _by_groups(part, support, predicted.select(mine), own)
            methods.append(method)
    method = max(methods, key=get_args(Method).index)
    estimate = replace(Estimate.of_terms(errors), method=method)
    return replace(estimate, low=math.nan, high=math.nan) if method == "model" else estimate


def _by_groups(
    problem: LabelProblem, support: Support, predicted: Predictions, codes: NDArray[np.integer]
) -> tuple[Floats, Method]:
    groups = indicator_decoder(problem)
    grid, count = problem.grid, problem.rows.shape[0]
    membership = np.zeros((grid.size, count))
    membership[np.arange(grid.size), problem.row_of] = 1.0
    terms = np.empty(codes.size)
    size = max(1, _CHUNK_ELEMENTS // grid.size)
    for start in range(0, codes.size, size):
        part = slice(start, start + size)
        if predicted.distributions is None:
            belief = np.broadcast_to(problem.prior + _TINY, (codes[part].size, grid.size))
        else:
            belief = predicted.distributions[part][:, support.cell_of] * support.within + _TINY
        losses = np.abs(predicted.points[part, None] - grid)
        if groups.exact:
            # which group of labels is decoded without bias; where in it, the model says
            within = ((losses * belief) @ membership) / (belief @ membership)
            terms[part] = (within * groups.values[codes[part]]).sum(axis=1)
        else:
            posterior = belief * problem.channel[:, codes[part]].T
            terms[part] = (losses * posterior).sum(axis=1) / posterior.sum(axis=1)
    if not groups.exact:
        return terms, "model"
    return terms, "unbiased" if count == grid.size else "model-within-groups"
