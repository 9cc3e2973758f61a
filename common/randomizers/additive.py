"""Additive noise as finite channels, so that it may leave: Laplace, staircase, discrete versions,
and the exponential mechanism, Laplace noise within the range.

Adding noise of these laws to a label is ε-DP for labels at most Δ apart, Δ being the grid's range,
and everything after that is post-processing.

All laws are symmetric. Each is given by its upper tail, from which a channel's probabilities follow
as differences: ``survival``, P(N > x) for x >= 0, on the integers P(N >= x) for whole x >= 1; and
``excess``, G(x) = E max(N - x, 0).

*Continuous laws* are rounded to a lattice at random and without bias, which has a closed form: the
probability of lattice point x_j is the second difference of max(x - y, 0) + G(|x - y|) over the
lattice. *Discrete laws* live on an equally spaced lattice.

Beyond the range the lattice continues for 16 noise scales (blocks of equal width, for the discrete
laws), and what lies further out goes to one last output on each side. Its value is the mean of what
it stands for. Laplace tails have no memory, so that mean is the same for every label and both
Laplace channels are exactly unbiased. ``clip`` moves everything outside the range to its ends, as
published: that lowers the label error, and makes the models worse.

Grids of more than 513 points are thinned first
(:func:`labelveil.common.randomizers.knots.over_knots`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError
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


@dataclass(frozen=True)
class Laplace:
    """Density e^{-|x|/b} / (2b), b = Δ/ε (Dwork, McSherry, Nissim and Smith 2006).

    The variance is 2b², E|N| = b.
    """

    scale: float  # b > 0, in the label's units

    def survival(self, x: Floats) -> Floats:
        return np.asarray(np.exp(-x / self.scale) / 2)

    def excess(self, x: Floats) -> Floats:
        return np.asarray(self.scale * np.exp(-x / self.scale) / 2)


@dataclass(frozen=True)
class Staircase:
    """The staircase density of Geng and Viswanath (*The Optimal Mechanism in DP*, ISIT 2014).

    With b = e^{-ε}: a on [0, γΔ), a·b on [γΔ, Δ), times b on each further Δ, symmetric, and
    a = (1 - b) / (2Δ(γ + b(1 - γ))).
    """

    span: float  # Δ > 0
    epsilon: float  # ε > 0
    gamma: float  # γ in 0 … 1

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise ConfigError(f"gamma={self.gamma:g} must lie in 0 … 1; leave it out for the best")

    @property
    def decay(self) -> float:
        """b = e^{-ε}."""
        return math.exp(-self.epsilon)

    @property
    def height(self) -> float:
        """The density at 0, a(γ)."""
        b = self.decay
        return -math.expm1(-self.epsilon) / (2 * self.span * (self.gamma + b * (1 - self.gamma)))

    def _step(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """The period of x, and how far x lies on the period's high and low stair."""
        period = np.floor(x / self.span)
        rest = np.clip(x - period * self.span, 0.0, self.span)
        edge = self.gamma * self.span
        return period, np.minimum(rest, edge), np.maximum(rest - edge, 0.0)

    def survival(self, x: Floats) -> Floats:
        period, high, low = self._step(x)
        b, a = self.decay, self.height
        return np.asarray(b**period * (0.5 - a * high - a * b * low))

    def excess(self, x: Floats) -> Floats:
        period, high, low = self._step(x)
        whole = self._area(np.array(self.gamma * self.span), np.array((1 - self.gamma) * self.span))
        return np.asarray(self.decay**period * (whole / (1 - self.decay) - self._area(high, low)))

    def _area(self, high: Floats, low: Floats) -> Floats:
        """∫ survival over the first ``high`` of the high stair and ``low`` of the low one."""
        a, b = self.height, self.decay
        edge = 0.5 - a * self.gamma * self.span
        return np.asarray(high / 2 - a * high**2 / 2 + edge * low - a * b * low**2 / 2)


@dataclass(frozen=True)
class DiscreteStaircase:
    """The staircase law on the integers (Geng and Viswanath 2014), Δ whole steps wide.

    With b = e^{-ε}: P(i) = a for 0 <= i < r, a·b for r <= i < Δ, times b on each further Δ,
    symmetric, and a = (1 - b) / (2r + 2b(Δ - r) - (1 - b)).
    """

    steps: int  # Δ >= 1
    epsilon: float  # ε > 0
    stair: int  # r in 1 … Δ

    def __post_init__(self) -> None:
        if not 1 <= self.stair <= self.steps:
            raise ConfigError(f"r={self.stair} must lie in 1 … {self.steps}; leave it out for best")

    @property
    def decay(self) -> float:
        return math.exp(-self.epsilon)

    @property
    def height(self) -> float:
        """P(0), a(r)."""
        b, gone = self.decay, -math.expm1(-self.epsilon)
        return gone / (2 * self.stair + 2 * b * (self.steps - self.stair) - gone)

    def _tails(self) -> tuple[Floats, Floats]:
        """P(N >= i) for i = 0 … Δ - 1, counting N = 0 whole, and E max(N - i, 0)."""
        a, b, size = self.height, self.decay, self.steps
        law = np.where(np.arange(size) < self.stair, a, a * b)
        period = law.sum() / (1 - b)
        tail = np.concatenate([law[::-1].cumsum()[::-1] + b * period, [b * period]])
        beyond = tail[1:]  # E max(N - i, 0) = Σ_{j > i} P(N >= j)
        whole = beyond.sum() / (1 - b)
        excess = whole - np.concatenate([[0.0], beyond[:-1].cumsum()])
        return np.asarray(tail[:-1]), np.asarray(excess)

    def survival(self, n: Floats) -> Floats:
        period, rest = np.divmod(np.asarray(n), self.steps)
        return np.asarray(self.decay**period * self._tails()[0][rest.astype(np.int64)])

    def excess(self, n: Floats) -> Floats:
        period, rest = np.divmod(np.asarray(n), self.steps)
        return np.asarray(self.decay**period * self._tails()[1][rest.astype(np.int64)])

    def moment(self, power: int) -> float:
        """E|N|^power for power 1 or 2, in steps: with e_i = E max(N - i, 0) it is 2 e_0, or
        2 Σ (e_i + e_(i+1)) over all i >= 0."""
        excess = self._tails()[1]
        if power == 1:
            return 2 * float(excess[0])
        return 4 * float(excess.sum()) / -math.expm1(-self.epsilon) - 2 * float(excess[0])


@dataclass(frozen=True)
class DiscreteLaplace:
    """P(i) = (1 - q)/(1 + q) · q^|i| with q = e^{-ε/Δ} (Ghosh, Roughgarden, Sundararajan 2012)."""

    steps: int  # Δ >= 1, in grid steps
    epsilon: float  # ε > 0

    def survival(self, n: Floats) -> Floats:
        rate = self.epsilon / self.steps
        return np.asarray(np.exp(-rate * np.asarray(n)) / (1 + math.exp(-rate)))

    def excess(self, n: Floats) -> Floats:
        rate = self.epsilon / self.steps
        return np.asarray(self.survival(np.asarray(n) + 1) / -math.expm1(-rate))


def best_gamma(epsilon: float, *, squared: bool) -> float:
    """The γ of the staircase of least variance, or of least E|N| (Geng and Viswanath 2014)."""
    if not squared:
        return 1 / (1 + math.exp(epsilon / 2))
    b, gone = math.exp(-epsilon), -math.expm1(-epsilon)
    # b - 2b² + 2b⁴ - b⁵ = b (1 - b)³ (1 + b), without the cancellation
    return -b / gone + math.cbrt(b * (1 + b) / 2) / gone


def best_stair(steps: int, epsilon: float, *, squared: bool) -> int:
    """The r in 1 … Δ of least variance, or of least E|N|, by search."""
    power = 2 if squared else 1
    moments = [DiscreteStaircase(steps, epsilon, r).moment(power) for r in range(1, steps + 1)]
    return 1 + int(np.argmin(moments))


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
        survival, excess = law.survival(far), law.excess(far)
        # what the second differences put on the ends stands for all that lies further out as well:
        # that goes to outputs of its own, whose value is the mean of what it stands for
        matrix[:, 0] = np.maximum(matrix[:, 0] - survival[0], 0.0)
        matrix[:, -1] = np.maximum(matrix[:, -1] - survival[1], 0.0)
        matrix = np.column_stack([survival[0], matrix, survival[1]])
        mean = (excess @ problem.prior) / (survival @ problem.prior)
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
    upper = law.survival(np.arange(1.0, m + 1))  # P(N >= 1 … m)
    noise = np.concatenate([[1 - 2 * upper[0]], upper[:-1] - upper[1:]])  # P(N = 0 … m - 1)
    matrix = noise[np.abs(position[:, None] - position)]
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
        blocks, below, above = _outside(law, lattice, problem.prior @ rounding, width, tails)
        matrix = np.hstack([blocks[:, ::-1], matrix, blocks[::-1]])
        places = np.concatenate([below[::-1], lattice, above])
    check_size(problem.labels.size, places.size)
    matrix = rounding @ matrix
    matrix /= matrix.sum(axis=1, keepdims=True)
    channel, _ = sorted_channel(problem.labels, places, matrix, problem.epsilon)
    facts = {**details, "steps": m - 1, "clip": clip}
    return Randomizer(name, channel, problem.prior, problem.loss, facts)


def _outside(
    law: DiscreteLaplace | DiscreteStaircase,
    lattice: Floats,
    weights: Floats,
    width: int,
    tails: int,
) -> tuple[Floats, Floats, Floats]:
    """Outputs beyond a lattice of m points, in ``tails`` blocks of ``width`` steps on either side.

    (m, t) the probability of each block below, the nearest first, from each point; above, it is
    that of the points in reverse, as the law is symmetric. (t,) what blocks below and (t,) above
    stand for: the mean of what falls into them, under the points' (m,) ``weights``.
    """
    position, step = np.arange(lattice.size), (lattice[-1] - lattice[0]) / (lattice.size - 1)
    # noise that leads from a point to each block's first step; the last block never ends
    edges = (position[:, None] + 1 + width * np.arange(tails)).astype(np.float64)
    survival, excess = law.survival(edges), law.excess(edges)
    total = excess + edges * survival  # E[N; N >= edge]
    blocks = -np.diff(survival, axis=1, append=0.0)
    first = -np.diff(total, axis=1, append=0.0)
    # those so far out that floats hold no mass of them stand for nothing
    held = np.flatnonzero(np.minimum(weights @ blocks, weights[::-1] @ blocks) > 0)
    blocks, first = blocks[:, : held[-1] + 1], first[:, : held[-1] + 1]
    # steps beyond the end, on average: the noise less what leads to the end
    depth = weights @ (first - position[:, None] * blocks)
    height = weights[::-1] @ (first - position[:, None] * blocks)
    below = lattice[0] - step * depth / (weights @ blocks)
    above = lattice[-1] + step * height / (weights[::-1] @ blocks)
    return blocks, below, above
