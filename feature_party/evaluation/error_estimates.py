"""An error estimated without true labels, and the estimate of the absolute one.

Labels that share a channel row are one group. Decoding the indicators of the groups gives the mean
of any function of the label that is constant within them, without bias; within a group the error is
taken from the model's own distribution, and the estimate says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from common.arrays import Floats
from common.errors import DataError
from feature_party.evaluation.spread import NORMAL_95, mean_error
from feature_party.learning.decoding import indicator_decoder
from feature_party.learning.problem import LabelProblem
from feature_party.learning.support import Support
from feature_party.model.model import Predictions

Method = Literal["unbiased", "bounded-bias", "model-within-groups", "model"]

_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Estimate:
    """An error estimated from privatized labels, with its 95% confidence interval.

    Attributes
    ----------
    value
        In units of the error; a noisy estimate of a small error may be negative.
    low, high
        95% confidence interval; None for the method ``model``, whose own error nobody knows.
    method
        ``unbiased``: right on average whatever the labels are. ``bounded-bias``: off on average by
        no more than the interval has room for, whatever the labels are. ``model-within-groups``:
        unbiased between groups of labels that the channel tells apart, the model's word within
        them. ``model``: the model's word, given the privatized labels.
    """

    value: float
    low: float | None
    high: float | None
    method: Method

    @classmethod
    def of_terms(cls, terms: Floats, method: Method) -> Estimate:
        """Mean of (n,) independent terms, with a normal interval from their own spread."""
        if terms.size < 2:
            raise DataError(
                f"{terms.size} held-out events cannot estimate an error; raise [training] holdout"
            )
        value = float(terms.mean())
        if method == "model":
            return cls(value, None, None, method)
        half = NORMAL_95 * mean_error(terms)
        return cls(value, value - half, value + half, method)


def estimate_absolute_error(
    problem: LabelProblem,
    support: Support,
    predicted: Predictions,
    codes: NDArray[np.integer],
) -> Estimate:
    """Estimate the mean absolute error of predictions for events that were not trained on.

    Parameters
    ----------
    problem, support
        The release's public facts, and the cells of predicted distributions.
    predicted
        (n,) predictions of the held-out events.
    codes
        (n,) their privatized labels.
    """
    # every row is decoded by its own release's channel; the estimate is as sure as the least sure
    errors, methods = np.empty(codes.size), []
    for part, mine, own in problem.by_release(codes):
        if own.size:
            errors[mine], method = _by_groups(part, support, predicted.of(mine), own)
            methods.append(method)
    return Estimate.of_terms(errors, max(methods, key=get_args(Method).index, default="unbiased"))


def _by_groups(
    problem: LabelProblem,
    support: Support,
    predicted: Predictions,
    codes: NDArray[np.integer],
) -> tuple[Floats, Method]:
    groups = indicator_decoder(problem)
    grid, count = problem.grid, problem.rows.shape[0]
    membership = np.zeros((grid.size, count))
    membership[np.arange(grid.size), problem.row_of] = 1.0
    tiny = 1e-12
    terms = np.empty(codes.size)
    size = max(1, _CHUNK_ELEMENTS // grid.size)
    for start in range(0, codes.size, size):
        part = slice(start, start + size)
        if predicted.distributions is None:
            belief = np.broadcast_to(problem.prior + tiny, (codes[part].size, grid.size))
        else:
            belief = predicted.distributions[part][:, support.cell_of] * support.within + tiny
        losses = np.abs(predicted.points[part, None] - grid[None, :])
        if groups.exact:
            within = ((losses * belief) @ membership) / (belief @ membership)
            terms[part] = (within * groups.values[codes[part]]).sum(axis=1)
        else:
            posterior = belief * problem.channel[:, codes[part]].T
            terms[part] = (losses * posterior).sum(axis=1) / posterior.sum(axis=1)
    method: Method = "model"
    if groups.exact:
        method = "unbiased" if count == grid.size else "model-within-groups"
    return terms, method
