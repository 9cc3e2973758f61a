"""A few grid points that stand for many: labels between them are rounded at random, unbiased.

A label y between knots a < b becomes b with probability (y - a) / (b - a), else a. Inside a channel
this makes row y a mixture of rows a and b, and a mixture of rows of an ε-DP channel is ε-DP.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from labelveil.common.arrays import Floats, Indices
from labelveil.common.exact.channel import BETWEEN, FiniteChannel
from labelveil.common.randomizers.base import Builder, Problem, Randomizer

MOST_KNOTS = 513
"""The most rows of its own that a channel states: as many points as whole labels to 512 have. What
rounding to that number adds is far below what any noise does."""

_UNIFORM_SHARE = 0.1


@np.errstate(over="ignore", invalid="ignore")  # of gaps that are hardly numbers
def choose_knots(labels: Floats, prior: Floats, count: int) -> Indices:
    """Choose grid points among which rounding adds little variance under the prior.

    Rounding to knots h apart adds variance up to h²/4, so the best knot density is proportional to
    the cube root of the label density (Bennett's companding rule, 1948). A tenth of the density is
    uniform, so that noise in the prior cannot leave a stretch without knots. Returns
    (min(count, k),) strictly ascending indices into ``labels``, both ends among them.
    """
    k = labels.size
    if count >= k:
        return np.arange(k)
    gaps = np.diff(labels)
    mass = (prior[:-1] + prior[1:]) / 2
    share = gaps / gaps.sum()
    density = (1 - _UNIFORM_SHARE) * mass / max(mass.sum(), 1e-300) + _UNIFORM_SHARE * share
    position = np.concatenate([[0.0], np.cumsum(np.cbrt(density / gaps) * gaps)])
    goals = np.linspace(0.0, position[-1], count)
    nearest = np.searchsorted((position[:-1] + position[1:]) / 2, goals)
    chosen = np.zeros(k, dtype=np.bool_)
    chosen[[0, k - 1, *nearest]] = True
    while (missing := count - int(chosen.sum())) > 0:  # several goals met one point
        inside = np.flatnonzero(chosen)
        # one is chosen in every gap with points in it, and there is one: the search ends
        gaps_left = np.flatnonzero(np.diff(inside) > 1)
        width = np.diff(position[inside])[gaps_left]
        for gap in gaps_left[np.argsort(-width, kind="stable")][:missing]:
            chosen[(inside[gap] + inside[gap + 1]) // 2] = True
    return np.flatnonzero(chosen)


def thinned(labels: Floats, prior: Floats, count: int) -> tuple[Indices, Floats, Floats]:
    """The knots of :func:`choose_knots`, their labels, and the prior of what is rounded to them."""
    knots = choose_knots(labels, prior, count)
    places = labels[knots]
    return knots, places, np.asarray(prior @ interpolation(labels, places))


def rows_between(labels: int, knots: Indices) -> Indices:
    """(k,) row of each label in a channel that has one row for each knot, in their order."""
    row_of = np.full(labels, BETWEEN)
    row_of[knots] = np.arange(knots.size)
    return row_of


def over_knots(builder: Builder) -> Builder:
    """Decorator: on a grid of more than 513 points, build over 513 that the prior chooses.

    The builder sees those alone; labels between them are rounded to them as part of the channel.
    """

    @wraps(builder)
    def build(problem: Problem, **options: Any) -> Randomizer:
        labels = problem.labels
        if labels.size <= MOST_KNOTS:
            return builder(problem, **options)
        knots, places, prior = thinned(labels, problem.prior, MOST_KNOTS)
        built = builder(replace(problem, labels=places, prior=prior), **options)
        row_of = rows_between(labels.size, knots)
        row_of[knots] = built.channel.stated_of
        channel = FiniteChannel(labels, built.channel.outputs, built.channel.stated, row_of)
        return replace(built, channel=channel, prior=problem.prior)

    return build


def interpolation(labels: Floats, points: Floats) -> Floats:
    """(k, m) rounding probabilities from labels to ascending points that enclose them.

    A row has at most two entries and sums to 1, and ``interpolation @ points`` is ``labels``.
    """
    below = np.clip(np.searchsorted(points, labels, side="right") - 1, 0, points.size - 2)
    fraction = (labels - points[below]) / (points[below + 1] - points[below])
    matrix = np.zeros((labels.size, points.size))
    rows = np.arange(labels.size)
    matrix[rows, below] = 1 - fraction
    matrix[rows, below + 1] = fraction
    return matrix
