"""Additive noise as finite channels, so that it may leave: Laplace, staircase, discrete versions,
and the exponential mechanism, Laplace noise within the range.

Adding noise of these laws to a label is ε-DP for labels at most Δ apart, Δ being the grid's range,
and everything after that is post-processing.

*Continuous laws* are rounded to a lattice at random and without bias, which has a closed form: with
G(x) = E max(N - x, 0), the probability of lattice point x_j is the second difference of
max(x - y, 0) + G(|x - y|) over the lattice. *Discrete laws* live on an equally spaced lattice.

Beyond the range the lattice continues for 16 noise scales (blocks of equal width, for the discrete
laws), and what lies further out goes to one last output on each side. Its value is the mean of what
it stands for. Laplace tails have no memory, so that mean is the same for every label and both
Laplace channels are exactly unbiased. ``clip`` moves everything outside the range to its ends, as
published: that lowers the label error, and makes the models worse.

Grids of more than 513 points are thinned first
(:func:`labelveil.common.randomizers.knots.over_knots`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.additive.laws import (
    DiscreteLaplace,
    DiscreteStaircase,
    Laplace,
    Staircase,
    best_gamma,
    best_stair,
)
from labelveil.common.randomizers.base import Problem, Randomizer, register
from labelveil.common.randomizers.exact_rows import check_size, sorted_channel
from labelveil.common.randomizers.knots import choose_knots, interpolation, over_knots

MAX_LATTICE = 512
"""The most steps of a discrete law's lattice; finer grids are rounded to it without bias."""

_POINTS = 129
_CELLS = 256
_TAILS = 64
_FEWEST_STEPS = 32
_REACH = 16.0
_EVEN = 1e-9


@register("laplace", scale=float, clip=bool)
@over_knots
def build_laplace(
    problem: Problem, *, clip: bool = False, points: int = _POINTS, tails: int = _TAILS
) -> Randomizer:
    """Laplace noise of scale Δ/ε (Dwork, McSherry, Nissim and Smith 2006), rounded to a lattice.

    Prior and loss play no part, except that a long grid's lattice follows the prior: it has
    ``points`` >= 2 inside the range at most, which are grid points, and where those are fewer than
    33, equal parts of their gaps. ``clip`` moves outputs to the range of the labels; without it
    there are ``tails`` lattice points, >= 0, beyond each end.
    """
    law = Laplace(_span(problem) / problem.epsilon)
    return _continuous("laplace", problem, law, clip, points, tails, {"scale": law.scale})


@register("staircase", gamma=float, clip=bool)
@over_knots
def build_staircase(
    problem: Problem,
    *,
    clip: bool = False,
    gamma: float | None = None,
    points: int = _POINTS,
    tails: int = _TAILS,
) -> Randomizer:
    """Staircase noise (Geng and Viswanath 2014), rounded to a lattice.

    ``clip``, ``points`` and ``tails`` are as for ``laplace``. γ = ``gamma`` lies in 0 … 1; None for
    the best in closed form: of least E|N| for the absolute loss, else of least variance.
    """
    if gamma is None:
        gamma = best_gamma(problem.epsilon, squared=problem.loss.name != "absolute")
    law = Staircase(_span(problem), problem.epsilon, gamma)
    return _continuous("staircase", problem, law, clip, points, tails, {"gamma": gamma})


@register("discrete-laplace", steps=int, clip=bool)
@over_knots
def build_discrete_laplace(
    problem: Problem, *, clip: bool = False, tails: int = _TAILS
) -> Randomizer:
    """Discrete Laplace noise, P(i) ∝ e^{-ε|i|/Δ} with Δ in lattice steps.

    The lattice is the grid where that is equally spaced with at most 512 steps. Otherwise it is the
    coarsest equally spaced one that holds every grid point, or else one of 512 steps; labels
    between lattice points are rounded at random without bias, as part of the channel.

    Prior and loss play no part. ``clip`` moves outputs to the range of the labels; without it there
    are ``tails`` blocks of outputs, >= 1, beyond each end.
    """
    lattice = _lattice(problem.labels)
    law = DiscreteLaplace(lattice.size - 1, problem.epsilon)
    return _discrete("discrete-laplace", problem, lattice, law, clip, tails, {})


@register("discrete-staircase", r=int, steps=int, clip=bool)
@over_knots
def build_discrete_staircase(
    problem: Problem, *, clip: bool = False, r: int | None = None, tails: int = _TAILS
) -> Randomizer:
    """Discrete staircase noise (Geng and Viswanath 2014).

    Lattice, ``clip`` and ``tails`` are as for ``discrete-laplace``. ``r`` is the width of the high
    stair in lattice steps; None for the best of 1 … Δ, by search: of least E|N| for the absolute
    loss, else of least variance.
    """
    lattice = _lattice(problem.labels)
    steps = lattice.size - 1
    if r is None:
        r = best_stair(steps, problem.epsilon, squared=problem.loss.name != "absolute")
    law = DiscreteStaircase(steps, problem.epsilon, r)
    return _discrete("discrete-staircase", problem, lattice, law, clip, tails, {"r": r})


@register("exponential", scale=float)
@over_knots
def build_exponential(problem: Problem, *, points: int = _CELLS) -> Randomizer:
    """The exponential mechanism (McSherry and Talwar, FOCS 2007) with score -|o - y|.

    Its sensitivity is the range Δ, and so its law Laplace noise conditioned on the label range:
    density ∝ e^{-ε|o - y| / (2Δ)}. The normalisation costs the factor 2, so that the realised ε is
    well below the one asked for; see the channel's own. Each output stands for the cell around a
    grid point. The loss plays no part; where the grid is longer than ``points``, the most outputs,
    the prior chooses them.

    Raises
    ------
    ConfigError
        If ``points`` is below 2.
    """
    if points < 2:
        raise ConfigError(f"points={points} must be at least 2")
    labels = problem.labels
    places = labels[choose_knots(labels, problem.prior, points)]
    check_size(labels.size, places.size)
    middles = (places[:-1] + places[1:]) / 2
    edges = np.concatenate([labels[:1], middles, labels[-1:]]) - labels[:, None]
    lower, upper = edges[:, :-1], edges[:, 1:]
    law = Laplace(2 * _span(problem) / problem.epsilon)
    below, above = law.survival(np.abs(lower)), law.survival(np.abs(upper))
    # one-sided cells as differences of tails: no cancellation far from the label
    one_sided = np.where(lower >= 0, below - above, above - below)
    mass = np.where((lower < 0) & (upper > 0), 1 - below - above, one_sided)
    mass /= mass.sum(axis=1, keepdims=True)
    channel, _ = sorted_channel(labels, places, mass, problem.epsilon)
    return Randomizer("exponential", channel, problem.prior, problem.loss, {"scale": law.scale})


def _span(problem: Problem) -> float:
    return float(problem.labels[-1] - problem.labels[0])


def _continuous(
    name: str,
    problem: Problem,
    law: Laplace | Staircase,
    clip: bool,
    points: int,
    tails: int,
    details: dict[str, Any],
) -> Randomizer:
    if points < 2 or tails < 0:
        raise ConfigError(f"points={points} must be at least 2 and tails={tails} at least 0")
    labels = problem.labels
    places = labels[choose_knots(labels, problem.prior, points)]
    # where there are few, gaps are cut into equal parts: rounding should add little to the law
    parts = -(-_FEWEST_STEPS // (places.size - 1))
    count = (places.size - 1) * parts
    places = np.interp(np.arange(count + 1) / parts, np.arange(places.size), places)
    if not clip:
        reach = _REACH * _span(problem) / problem.epsilon
        outside = reach * np.arange(1, tails + 1) / max(tails, 1)
        places = np.concatenate([labels[0] - outside[::-1], places, labels[-1] + outside])
    check_size(labels.size, places.size + 2)
    slopes = np.diff(law.excess(np.abs(places - labels[:, None])), axis=1) / np.diff(places)
    bend = np.diff(slopes, axis=1, prepend=0.0, append=0.0)
    matrix = np.maximum(interpolation(labels, places) + bend, 0.0)
    if not clip:
        far = np.stack([labels - places[0], places[-1] - labels])
        beyond, excess = law.survival(far), law.excess(far)
        matrix[:, 0] = np.maximum(matrix[:, 0] - beyond[0], 0.0)
        matrix[:, -1] = np.maximum(matrix[:, -1] - beyond[1], 0.0)
        matrix = np.column_stack([beyond[0], matrix, beyond[1]])
        mean = (excess @ problem.prior) / (beyond @ problem.prior)
        places = np.concatenate([[places[0] - mean[0]], places, [places[-1] + mean[1]]])
    matrix /= matrix.sum(axis=1, keepdims=True)
    channel, _ = sorted_channel(labels, places, matrix, problem.epsilon)
    return Randomizer(name, channel, problem.prior, problem.loss, {**details, "clip": clip})


def _lattice(labels: Floats) -> Floats:
    """(m,) equally spaced points over the labels' range: holding every label where m <= 513."""
    gaps = np.diff(labels)
    span = labels[-1] - labels[0]
    for divisor in range(1, 5):  # gaps such as 2, 3, 5 need steps finer than the least gap
        steps = round(float(span / gaps.min())) * divisor
        if steps > MAX_LATTICE:
            break
        position = (labels - labels[0]) / span * steps
        if np.all(np.abs(position - np.round(position)) < _EVEN * steps):
            return np.linspace(labels[0], labels[-1], steps + 1)
    return np.linspace(labels[0], labels[-1], MAX_LATTICE + 1)


def _discrete(
    name: str,
    problem: Problem,
    lattice: Floats,
    law: DiscreteLaplace | DiscreteStaircase,
    clip: bool,
    tails: int,
    details: dict[str, Any],
) -> Randomizer:
    if tails < 1:
        raise ConfigError(f"tails={tails} must be at least 1")
    m = lattice.size
    position = np.arange(m)
    distance = np.arange(1, m + 1)
    upper = law.survival(distance.astype(np.float64))  # P(N >= 1 … m)
    noise = np.concatenate([[1 - 2 * upper[0]], upper[:-1] - upper[1:]])  # P(N = 0 … m - 1)
    matrix = noise[np.abs(position[:, None] - position)]
    step = (lattice[-1] - lattice[0]) / (m - 1)
    # labels that float error moved off the lattice are put back
    nearest = lattice[np.abs(problem.labels[:, None] - lattice).argmin(axis=1)]
    close = np.abs(problem.labels - nearest) < _EVEN * (lattice[-1] - lattice[0])
    rounding = interpolation(np.where(close, nearest, problem.labels), lattice)
    places = lattice
    if clip:
        matrix[:, 0] += upper  # leaving the range on either side
        matrix[:, -1] += upper[::-1]
    else:
        width = int(np.ceil(_REACH * (m - 1) / problem.epsilon / tails))
        edges = (position[:, None] + 1 + width * np.arange(tails)).astype(np.float64)
        survival, excess = law.survival(edges), law.excess(edges)
        total = excess + edges * survival  # E[N; N >= edge]
        blocks = -np.diff(survival, axis=1, append=0.0)
        first = -np.diff(total, axis=1, append=0.0)
        # steps below the lower end that a block's output stands for, on average over the prior
        weights = problem.prior @ rounding
        # those so far out that floats hold no mass of them stand for nothing
        held = np.flatnonzero(np.minimum(weights @ blocks, weights[::-1] @ blocks) > 0)
        blocks, first = blocks[:, : held[-1] + 1], first[:, : held[-1] + 1]
        depth = weights @ (first - position[:, None] * blocks)
        height = weights[::-1] @ (first - position[:, None] * blocks)
        below = lattice[0] - step * depth / (weights @ blocks)
        above = lattice[-1] + step * height / (weights[::-1] @ blocks)
        matrix = np.hstack([blocks[:, ::-1], matrix, blocks[::-1]])
        places = np.concatenate([below[::-1], lattice, above])
    check_size(problem.labels.size, places.size)
    matrix = rounding @ matrix
    matrix /= matrix.sum(axis=1, keepdims=True)
    channel, _ = sorted_channel(problem.labels, places, matrix, problem.epsilon)
    facts = {**details, "steps": m - 1, "clip": clip}
    return Randomizer(name, channel, problem.prior, problem.loss, facts)
