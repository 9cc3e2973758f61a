"""What the labels of one event may look like given its features: a family around the prior.

The labels party sees no feature, so a channel is judged over *plausible* conditional distributions:
those of an ordered probit model. A latent standard normal variable, cut at the quantiles of the
released prior p, gives the label, and features explain the share ρ of its variance. Where they put
it at √ρ x, with x standard normal,

    q_x(y) = Φ((b_y − √ρ x) / √(1 − ρ)) − Φ((a_y − √ρ x) / √(1 − ρ)),   p_y = Φ(b_y) − Φ(a_y).

Whatever ρ is, these add up to the prior, E q_x = p: the more features explain, the farther apart
they are and the narrower is each. What a model has yet to learn of one is an exponential tilt,

    q_θ(y) ∝ q_x(y) exp(Σ_i θ_i φ_i(y)),    θ_i ~ N(0, τ² / 4^(i-1)),    τ = √ρ / (1 − ρ),

along polynomials φ_i in the label's normal score that are orthonormal under p: the first moves the
centre, the second the width, the others the shape. (For a normal label a step of x is one of τ.)

The *excess error* of a channel K is then what a model suffers that must learn θ locally from
``effective`` randomized labels. Its Fisher information about θ is

    I_θ(K) = Σ_z ∂P_θ(z) ∂P_θ(z)ᵀ / P_θ(z),    P_θ = q_θ K,

and, with the prior precision Λ of θ, the posterior covariance is (Λ + effective · I_θ)⁻¹ (van
Trees; Bernstein and von Mises). The loss of predicting the conditional optimum with that
uncertainty exceeds the least loss by gᵀ (Λ + effective · I_θ)⁻¹ g, where g is the gradient of the
optimum over θ, scaled by the curvature of the loss. With little information this is the whole
variance that the features could have explained (bias); with much of it, it is variance over the
effective sample size.

With several labels p is over cells, and the φ_i are those of each label and, for each pair, the
product of their first ones, so that features may also change how two labels go together. Their
distributions are still such tilts of p itself; τ is common to all, set by the average over labels
of the variance explained. What a channel tells of θ
is the same whatever label is wanted: the families of the labels differ in g alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import scipy

from labelveil.common.arrays import Floats
from labelveil.common.exact.search import bisected
from labelveil.common.randomizers.cells import Cells
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.losses import Loss

EXPLAINED = 0.3
"""Share of the variance of the label's normal score that features are taken to explain, where
nothing is known."""

ORDER = 4
"""Number of tilts φ_i."""

TEMPER = 0.75
"""Power of what a draw's features could explain by which its error is divided in a design."""

_DRAWS = 16
_TILTS = 32
_LOCALITY = 50.0
_SATURATION = 350.0
_TINY = 1e-9


@dataclass(frozen=True, eq=False)
class ConditionalFamily:
    """Plausible conditional distributions of a label and how predictions move with them."""

    labels: Floats  # (k,) the label in each cell: ascending if there is no other label
    distributions: Floats  # (m, k) probabilities q_x for m draws of x
    scores: Floats  # (m, k, r) derivatives ∂q_θ(y) / ∂θ_i at θ = 0
    gradients: Floats  # (m, r) of the best prediction over θ, times √(half the loss's curvature)
    precision: Floats  # (r,) prior precision of θ
    least_loss: float  # average loss of the best predictions, which no channel changes

    def information(self, channel: Floats) -> Floats:
        """(m, r, r) Fisher information of one randomized label about θ, for a (k, d) channel."""
        pieces = []
        for scores, outputs in zip(self.scores, self.distributions @ channel, strict=True):
            moved = scores.T @ channel
            pieces.append((moved / outputs) @ moved.T)
        return np.array(pieces)

    def excess_error(self, channel: Floats, effective: float) -> float:
        """Predicted excess error of a model, in units of the loss, for a (k, d) channel.

        The identity stands for true labels; ``effective`` is the number of randomized labels that
        bear on one prediction, > 0.
        """
        used = channel[:, channel.sum(axis=0) > 0]
        return self.excess_given(effective * self.information(used))

    def excess_given(self, information: Floats) -> float:
        """As :meth:`excess_error`, for (m, r, r) information of all events that bear on it."""
        precision = information + np.diag(self.precision)
        solved = np.linalg.solve(precision, self.gradients[:, :, None])[:, :, 0]
        return float(np.mean(np.sum(self.gradients * solved, axis=1)))

    def tempered(self, power: float = TEMPER) -> ConditionalFamily:
        """Return the family with each draw's error divided by a power of the most it can be.

        With no label at all a draw suffers gᵀ Λ⁻¹ g. Under a heavy-tailed prior a few draws whose
        means lie far out suffer thousands of times as much as the others and would decide alone
        where a channel looks, at a tail that features seldom explain and that is the least certain
        part of a released prior. Power 0 leaves it at that, 1 gives all draws the same say.
        """
        most = np.sum(np.square(self.gradients) / self.precision, axis=1)
        scale = np.maximum(most / most.mean(), _TINY) ** (-power / 2)
        return replace(self, gradients=self.gradients * scale[:, None])


def effective_rows(rows: int) -> float:
    """Number of events that bear on one prediction, of ``rows`` in all.

    A model with d effective parameters learns each prediction from about rows / d events. Small
    networks behave like d ≈ 50; larger data sets bring features with more levels, and the number
    saturates. (Both constants reproduce the ranking of channels that trained models give.)
    """
    return 1.0 / (_LOCALITY / max(rows, 1) + 1.0 / _SATURATION)


def plausible_conditionals(
    labels: Floats, prior: Floats, loss: Loss, explained: float = EXPLAINED
) -> ConditionalFamily:
    """Build the family of one label, with (k,) ascending values, around a prior.

    ``explained`` is the share ρ of the variance of the label's normal score that features explain,
    in 0 … 1.
    """
    (family,) = joint_conditionals(Cells((Grid(labels),)), prior, (loss,), explained)
    return family


def joint_conditionals(
    cells: Cells, prior: Floats, losses: Sequence[Loss], explained: float = EXPLAINED
) -> tuple[ConditionalFamily, ...]:
    """Build the family of several labels around a (k,) prior of cells, once for each label.

    They differ in labels, gradients and least loss only. ``losses`` judge the predictions of each
    label; ``explained`` is the share of the labels' variances that the conditional means are to
    explain, in 0 … 1.
    """
    prior = (prior + _TINY) / (1 + _TINY * prior.size)
    basis, shape = _basis(cells, prior)
    if len(cells.grids) == 1:
        width = math.sqrt(explained) / (1 - explained)
        distributions = _conditionals(prior, explained)
    else:
        directions = _normal_points(shape.size, _TILTS * len(cells.grids)) * shape
        width = _spread(cells.points, prior, basis, directions, explained)
        distributions = _tilted(prior, basis, width * directions)
    # the slope of a tilted p ∝ p e^{b·t} at t = 0 is p (b − E b)
    centred = basis[None] - (distributions @ basis)[:, None, :]
    scores = distributions[:, :, None] * centred
    precision: Floats = 1.0 / np.square(width * shape)
    families = []
    for j, (grid, loss) in enumerate(zip(cells.grids, losses, strict=True)):
        own = cells.marginal(distributions, j)
        moved = cells.marginal(scores.transpose(0, 2, 1), j).transpose(0, 2, 1)
        gradients, least = _gradients(grid.points, own, moved, loss)
        values = cells.points[:, j]
        family = ConditionalFamily(values, distributions, scores, gradients, precision, least)
        families.append(family)
    return tuple(families)


def _basis(cells: Cells, prior: Floats) -> tuple[Floats, Floats]:
    """(k, r) tilts of all labels and of pairs of them, and their (r,) relative sizes."""
    indices = cells.indices(np.arange(len(cells)))
    columns, sizes = [], []
    for j, grid in enumerate(cells.grids):
        own = _tilts(cells.marginal(prior, j), min(ORDER, len(grid) - 1))
        columns.append(own[indices[:, j]])
        sizes.append(0.5 ** np.arange(own.shape[1]))
    pairs = [first[:, :1] * second[:, :1] for first, second in combinations(columns, 2)]
    shape = np.concatenate([*sizes, np.full(len(pairs), 0.5)])
    return np.concatenate(columns + pairs, axis=1), shape


def _conditionals(prior: Floats, explained: float) -> Floats:
    """(m, k) distributions of a latent normal variable cut at the prior's quantiles, given x."""
    draws = scipy.special.ndtri((np.arange(_DRAWS) + 0.5) / _DRAWS)
    centres = math.sqrt(explained) * draws / draws.std()
    cuts = scipy.special.ndtri(np.minimum(np.cumsum(prior[:-1]), 1 - _TINY))
    below = scipy.special.ndtr((cuts - centres[:, None]) / math.sqrt(1 - explained))
    masses = np.diff(below, axis=1, prepend=0.0, append=1.0) + _TINY * prior
    return np.asarray(masses / masses.sum(axis=1, keepdims=True))


def _tilts(prior: Floats, order: int) -> Floats:
    """(k, r) polynomials in the normal score, orthonormal under the prior and without constant."""
    middle = np.clip(np.cumsum(prior) - prior / 2, 1e-6, 1 - 1e-6)
    powers = np.vander(scipy.special.ndtri(middle), order + 1, increasing=True)
    _, triangle = np.linalg.qr(powers * np.sqrt(prior)[:, None])
    basis = powers @ np.linalg.pinv(triangle)
    return np.asarray(basis[:, 1:])


def _normal_points(dimensions: int, count: int) -> Floats:
    """(m, r) spread-out standard normal points: Kronecker's sequence on powers of a root."""
    root = 2.0
    for _ in range(50):  # the positive root of x^(r+1) = x + 1
        root = (1 + root) ** (1 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1)
    uniform = (0.5 + np.arange(1, count + 1)[:, None] * steps[None, :]) % 1.0
    return np.asarray(scipy.special.ndtri(uniform))


def _tilted(prior: Floats, basis: Floats, thetas: Floats) -> Floats:
    exponent = np.log(prior) + thetas @ basis.T
    weights = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _spread(
    labels: Floats, prior: Floats, basis: Floats, directions: Floats, explained: float
) -> float:
    """Find τ by bisection: the means' variances grow with it up to the ranges' limit."""
    variances = prior @ (labels - prior @ labels) ** 2

    def explains(spread: float) -> bool:
        means = _tilted(prior, basis, spread * directions) @ labels
        return not float(np.mean(np.var(means, axis=0) / variances)) < explained

    return sum(bisected(explains, 1e-3, 4.0, steps=40)) / 2


def _gradients(
    labels: Floats, distributions: Floats, scores: Floats, loss: Loss
) -> tuple[Floats, float]:
    """Return the scaled gradients of the best predictions and their average loss."""
    if loss.name in ("squared", "poisson"):
        best = distributions @ labels
        moved = np.einsum("k,mkr->mr", labels, scores)
        # half the second derivative of the expected loss: 1, and 1 / (2 ŷ)
        curvature = np.ones_like(best) if loss.name == "squared" else 0.5 / np.maximum(best, _TINY)
        gradients = moved * np.sqrt(curvature)[:, None]
    else:  # central differences of any convex loss, wide enough to smooth a kink over the grid
        fine = np.linspace(labels[0], labels[-1], 4 * labels.size + 1)
        best = fine[np.argmin(distributions @ loss.matrix(fine, labels).T, axis=1)]
        step = (labels[-1] - labels[0]) / labels.size
        above, here, below = (loss.matrix(best + shift, labels) for shift in (step, 0.0, -step))
        bend = np.sum(distributions * (above - 2 * here + below), axis=1) / step**2
        moved = np.einsum("mk,mkr->mr", (above - below) / (2 * step), scores)
        gradients = moved / np.sqrt(2 * np.maximum(bend, _TINY))[:, None]
    values = np.where(distributions > 0, loss.matrix(best, labels) * distributions, 0.0)
    return np.asarray(gradients), float(values.sum(axis=1).mean())
