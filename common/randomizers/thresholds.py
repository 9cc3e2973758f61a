"""Randomized thresholds: a public random threshold, and one randomized bit about it.

A threshold t is drawn with probability w_t, independently of the label, and sent together with
b = 1[y > t] put through binary randomized response. The pair is ε-DP because t carries nothing
about y. As a finite channel it has two outputs a threshold, K[y, (t, b)] = w_t · RR(b | y > t).

With uniform w, summing t out leaves exactly the two-point randomizer, so by data processing these
outputs can only be more informative. There is no program to solve, whatever the grid and prior.

Several bins: instead of one threshold draw a *partition* with at most d bins, and send the label's
bin through randomized response over that partition's bins. Partitions come from systematic
sampling: with C the cumulative threshold weights and s uniform on (0, 1), the d - 1 thresholds are
those at which C passes (s + j)/(d - 1), j = 0 … d - 2. For d = 2 this is the mixture above.

Decoding (Horvitz and Thompson 1952): let π_t be the probability that the drawn partition contains
threshold t, G_t the jump of the label across t, and f the step function with jumps G_t / π_t at the
drawn thresholds. Unbiased indicators of the bins are β_z = ((c + d) 1[z sent] - 1) / c with
c = e^ε - 1, and the output decodes to

    u = μ + Σ_z β_z f(z) - E f,        μ and E f under the prior,

so that E[u | y] = y. For d = 2 this is the unbiased decoding of least variance under the prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from labelveil.common.arrays import Floats, Indices
from labelveil.common.errors import ConfigError
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers.base import Problem, Randomizer, register
from labelveil.common.randomizers.exact_rows import sorted_channel
from labelveil.common.randomizers.knots import MOST_KNOTS, rows_between, thinned

Weighting = Literal["uniform", "prior", "sqrt", "prior-label"]

_OUTPUTS = 256
_MANY_OUTPUTS = 512
_NEGLIGIBLE = 1e-12


Partition = tuple[int, ...]
"""One way to cut the grid: ascending thresholds, of which i lies between cells i and i + 1."""


@dataclass(frozen=True, eq=False)
class _Cells:
    """What thresholds tell apart: m cells, m - 1 thresholds, and each label's cell."""

    levels: Floats  # (m,) what a cell decodes to
    mass: Floats  # (m,) prior
    cuts: Floats  # (m - 1,) threshold positions
    weights: Floats  # (m - 1,) > 0, summing to 1
    row_of: Indices  # (k,) cells; BETWEEN for labels between knots


@register(
    "randomized-thresholds",
    weights=Weighting | Literal["explicit"],
    bins=int,
    thresholds=list[float],
    threshold_weights=list[float],
    partitions=list[list[int]],
    partition_weights=list[float],
    output_partition=list[int],
    output_bin=list[int],
)
def build_randomized_thresholds(
    problem: Problem,
    *,
    weights: Weighting | list[float] = "uniform",
    bins: int = 2,
    thresholds: int | None = None,
) -> Randomizer:
    """Build the randomized-thresholds channel, in which the loss plays no part.

    Parameters
    ----------
    weights
        How often each threshold is drawn: ``uniform`` (in proportion to its gap), ``prior`` (the
        prior mass beside it), ``sqrt`` (the root of the product of those two), ``prior-label``
        (prior mass times distance from the lower end), or (k - 1,) numbers >= 0 for the thresholds
        between neighbouring grid points. A threshold of weight 0 is never drawn; the labels on its
        two sides then share a row and decode, on average, to their mean under the prior.
    bins
        The most bins that a partition has, >= 2.
    thresholds
        The most thresholds in use when ``weights`` is a name, 1 … 512. A longer grid is thinned to
        ``thresholds`` + 1 knots, and labels between knots are rounded at random without bias, as
        part of the channel. The default keeps codes to one byte (for two bins).

    Returns
    -------
    A randomizer whose ``details`` give the thresholds, their weights, the partitions and, for each
    output, its partition and bin. With every weight > 0 it is unbiased at every label.

    Raises
    ------
    ConfigError
        If a weight, the bins or the thresholds are outside their ranges.
    """
    if bins < 2:
        raise ConfigError(f"bins={bins} must be at least 2")
    if isinstance(weights, str):
        if thresholds is None:
            thresholds = max((_OUTPUTS if bins == 2 else _MANY_OUTPUTS) // bins, 8)
        if not 1 <= thresholds < MOST_KNOTS:
            raise ConfigError(f"thresholds={thresholds} must lie in 1 … {MOST_KNOTS - 1}")
        cells = _named_cells(problem, weights, thresholds)
    else:
        cells = _merged_cells(problem.labels, problem.prior, np.asarray(weights, dtype=np.float64))
    partitions = systematic_partitions(cells.weights, bins)
    matrix, values, codes = _columns(cells, partitions, problem.epsilon)
    channel, order = sorted_channel(problem.labels, values, matrix, problem.epsilon, cells.row_of)
    details: dict[str, Any] = {
        "weights": weights if isinstance(weights, str) else "explicit",
        "bins": bins,
        "thresholds": cells.cuts.tolist(),
        "threshold_weights": cells.weights.tolist(),
        "partitions": [list(cuts) for cuts in partitions],
        "partition_weights": list(partitions.values()),
        "output_partition": [codes[z][0] for z in order.tolist()],
        "output_bin": [codes[z][1] for z in order.tolist()],
    }
    return Randomizer("randomized-thresholds", channel, problem.prior, problem.loss, details)


def threshold_weights(labels: Floats, prior: Floats, weighting: str) -> Floats:
    """(k - 1,) weights of the thresholds between neighbouring labels, by name, summing to 1.

    Uniform where the named ones are all zero.

    Raises
    ------
    ConfigError
        If there are no weights of that name, or not one for each threshold.
    """
    gaps = np.diff(labels)
    mass = (prior[:-1] + prior[1:]) / 2
    if weighting not in get_args(Weighting):
        raise ConfigError(
            f"weights={weighting!r} must be one of {', '.join(get_args(Weighting))}, or one number"
            " for each threshold between neighbouring grid points"
        )
    raw = {
        "uniform": gaps,
        "prior": mass,
        "sqrt": np.sqrt(gaps * mass),
        "prior-label": mass * ((labels[:-1] + labels[1:]) / 2 - labels[0]),
    }[weighting]
    return np.asarray(raw / raw.sum() if raw.sum() > 0 else gaps / gaps.sum())


def systematic_partitions(weights: Floats, bins: int) -> dict[Partition, float]:
    """List the partitions that systematic sampling of ``bins`` - 1 >= 1 thresholds can draw.

    Of (T,) weights > 0 that sum to 1. A threshold whose weight exceeds 1 / (bins - 1) may be met
    twice; the partition then has fewer bins. Returns at most T + 1, each with the probability of
    drawing it, which sum to 1; each threshold is in at least one.
    """
    if bins == 2:
        return {(t,): float(w) for t, w in enumerate(weights)}
    strata = bins - 1
    cumulative = np.cumsum(weights)[:-1]
    offsets = np.unique(np.concatenate([[0.0, 1.0], (cumulative * strata) % 1.0]))
    drawn: dict[Partition, float] = {}
    for start, end in pairwise(offsets.tolist()):
        positions = ((start + end) / 2 + np.arange(strata)) / strata
        cuts = tuple(np.unique(np.searchsorted(cumulative, positions)).tolist())
        drawn[cuts] = drawn.get(cuts, 0.0) + end - start
    missing = set(range(weights.size)) - {cut for cuts in drawn for cut in cuts}
    for cut in missing:  # lost between two equal floats: draw it on its own
        drawn[(cut,)] = float(weights[cut])
    total = sum(drawn.values())
    return {cuts: weight / total for cuts, weight in drawn.items()}


def _named_cells(problem: Problem, weighting: str, most: int) -> _Cells:
    labels, prior = problem.labels, problem.prior
    if labels.size - 1 <= most:
        return _merged_cells(labels, prior, threshold_weights(labels, prior, weighting))
    knots, places, mass = thinned(labels, prior, most + 1)
    cells = _merged_cells(places, mass, threshold_weights(places, mass, weighting))
    row_of = rows_between(labels.size, knots)
    row_of[knots] = cells.row_of
    return replace(cells, row_of=row_of)


def _merged_cells(labels: Floats, prior: Floats, weights: Floats) -> _Cells:
    """Join the labels on the two sides of every threshold of weight 0."""
    if weights.shape != (labels.size - 1,):
        raise ConfigError(
            f"weights of shape {weights.shape} must give the {labels.size - 1} thresholds between"
            " neighbouring grid points one number each"
        )
    if not np.all(np.isfinite(weights)) or weights.min() < 0 or weights.sum() <= 0:
        raise ConfigError("threshold weights must be finite, >= 0 and not all zero")
    weights = weights / weights.sum()
    active = np.flatnonzero(weights > _NEGLIGIBLE)
    starts = np.concatenate([[0], active + 1])
    sizes = np.diff(np.append(starts, labels.size))
    mass = np.add.reduceat(prior, starts)
    with np.errstate(invalid="ignore"):
        # from the first label on, so that a far offset loses no digits
        means = np.add.reduceat(prior * (labels - labels[0]), starts) / mass + labels[0]
    plain = np.add.reduceat(labels - labels[0], starts) / sizes + labels[0]
    levels = np.where(mass > 0, means, plain)
    levels = np.where(sizes == 1, labels[starts], levels)
    cuts = (labels[active] + labels[active + 1]) / 2
    row_of = np.repeat(np.arange(starts.size), sizes)
    kept = weights[active] / weights[active].sum()
    return _Cells(levels, mass, cuts, kept, row_of)


def _columns(
    cells: _Cells, partitions: Mapping[Partition, float], epsilon: float
) -> tuple[Floats, Floats, list[tuple[int, int]]]:
    """Probabilities (m, d) of every (partition, bin), what each decodes to, and what it is."""
    c = float(exp_lower_bound(epsilon) - 1)
    m, total = cells.levels.size, float(cells.mass.sum())
    included = np.zeros(m - 1)
    for partition, weight in partitions.items():
        included[list(partition)] += weight
    # a threshold's step over how often it is drawn: on average the steps add up to the levels
    jumps = np.diff(cells.levels) / included
    mean = float(cells.mass @ cells.levels) / total
    columns, values, codes = [], [], []
    for index, (partition, weight) in enumerate(partitions.items()):
        cuts = np.array(partition)
        d = cuts.size + 1
        bin_of = np.searchsorted(cuts, np.arange(m), side="left")
        steps = np.concatenate([[0.0], np.cumsum(jumps[cuts])])
        centred = steps - float(cells.mass @ steps[bin_of]) / total
        # randomized response inverted: values are on average mean + centred[bin] of the label's bin
        for z in range(d):
            columns.append(weight * (1 + c * (bin_of == z)) / (c + d))
            values.append(mean + ((c + d) * centred[z] - centred.sum()) / c)
            codes.append((index, z))
    return np.column_stack(columns), np.array(values), codes
