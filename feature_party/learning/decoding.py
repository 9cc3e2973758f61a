"""Decoders: functions of the output whose expectation given the label is a function of the label.

For a target h(y) a decoder is a vector u with Σ_z K[y, z] u_z = h(y). Where several exist the one
of least variance under the released prior is

    u = D⁻¹ Kᵀ (K D⁻¹ Kᵀ)⁺ h,    D = diag(P(z)),  P(z) = Σ_y p_y K[y, z],

the weighted minimum-norm solution. Labels that share a channel row cannot be distinguished, so h is
first averaged within rows under the prior. A target outside the range of K is replaced by the
nearest decodable one, in the mean square under the prior: its bias is 0 on average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.feature_party.learning.problem import LabelProblem, Leg, sums

_RELATIVE_RANK = 1e-10
_EXACT = 1e-6


@dataclass(frozen=True, eq=False)
class Decoder:
    """Decoding values for one or more targets."""

    values: Floats  # (d, m) decoding values u
    bias: Floats  # (k, m) expected decoded value minus the target, for every grid point
    # whether every target is decoded without bias, up to 1e-6 of its range. One that is not has
    # bias 0 on average under the prior.
    exact: bool


def decoder(
    problem: LabelProblem, targets: Floats, ridge: float = 0.0, weights: Floats | None = None
) -> Decoder:
    """Minimum-variance decoder of functions of the label, unbiased where the channel allows it.

    ``targets`` are (k,) or (k, m) values of the functions on the grid. ``ridge`` >= 0 says how much
    bias is traded for variance: the decoder minimises Σ_y w_y (Σ_z K[y, z] u_z − h(y))² + ridge ·
    Σ_z P(z) (u_z − E h)², with (k,) ``weights`` w > 0 of the labels' biases, by default the prior,
    and E h the mean of the target under them.
    """
    # by each channel alone: labels may have drifted from release to release, or hang on the stratum
    parts = [_decoder(leg, targets, ridge, weights) for leg in problem.legs]
    shares = [leg.share for leg in problem.legs]
    return Decoder(
        values=np.concatenate([part.values for part in parts]),
        bias=np.einsum("e,ekm->km", shares, np.stack([part.bias for part in parts])),
        exact=all(part.exact for part in parts),
    )


def _decoder(leg: Leg, targets: Floats, ridge: float, weights: Floats | None) -> Decoder:
    targets = targets.reshape(targets.shape[0], -1).astype(np.float64)
    if leg.ends is not None:  # no label of this release is beyond them
        targets = targets[np.clip(np.arange(targets.shape[0]), *leg.ends)]
    span = np.maximum(np.ptp(targets, axis=0), 1e-300)
    weights = leg.prior if weights is None else weights
    of_rows = sums(leg.row_of, weights, leg.rows.shape[0])
    root = np.sqrt(np.maximum(of_rows, 1e-9 / leg.rows.shape[0]))[:, None]
    means = np.zeros((leg.rows.shape[0], targets.shape[1]))
    of_labels = weights + 1e-12
    np.add.at(means, leg.row_of, of_labels[:, None] * targets)
    means /= np.bincount(leg.row_of, weights=of_labels)[:, None]

    # With v = √P · u and rows scaled by √(row prior), u solves an ordinary (ridge) least squares.
    marginal = np.maximum(leg.output_prior, 1e-300)
    centre = of_rows @ means / of_rows.sum()
    means -= centre
    scaled = leg.rows / np.sqrt(marginal)
    if ridge > 0:
        left = root * scaled
        gram = left.T @ left + ridge * np.eye(left.shape[1])
        solution = np.linalg.solve(gram, left.T @ (root * means))
    else:
        solution = np.linalg.lstsq(scaled, means, rcond=_RELATIVE_RANK)[0]
        inexact = np.abs(scaled @ solution - means).max(axis=0) > _EXACT * span
        if inexact.any():
            # the constant is always decodable, so that the weighted residual has prior mean 0
            left, right = root * scaled, root * means[:, inexact]
            solution[:, inexact] = np.linalg.lstsq(left, right, rcond=_RELATIVE_RANK)[0]
    values = solution / np.sqrt(marginal)[:, None] + centre
    bias = (leg.rows @ values)[leg.row_of] - targets
    return Decoder(values, bias, bool(np.all(np.abs(bias) <= _EXACT * span)))


def indicator_decoder(problem: LabelProblem) -> Decoder:
    """Decoder of the indicators of the channel's distinct rows: values are (d, r)."""
    count = problem.rows.shape[0]
    targets = np.zeros((problem.grid.size, count))
    targets[np.arange(problem.grid.size), problem.row_of] = 1.0
    return decoder(problem, targets)


def convex_targets(problem: LabelProblem, function: Callable[[Floats], Floats]) -> Floats:
    """(k,) targets that stand for a convex function of labels rounded to the grid without bias.

    Rounding replaces the function between neighbours by its chord, whose mean excess, a sixth of
    the squared gap for y², is taken off. A grid of consecutive whole numbers, or of two values, is
    taken to hold the labels themselves, which need no correction.
    """
    grid, values = problem.values, function(problem.values)
    gaps = np.diff(grid)
    if grid.size == 2 or (np.allclose(gaps, 1.0) and float(grid[0]).is_integer()):
        return values[problem.value_of]
    # mean of the function between two neighbours, exact for polynomials up to degree 15
    nodes, weights = np.polynomial.legendre.leggauss(8)
    inside = grid[:-1, None] + gaps[:, None] * (1 + nodes) / 2
    excess = (values[1:] + values[:-1] - function(inside) @ weights) / 2
    # a point takes half of either side; the end ones have a single side, which is theirs alone
    share = np.zeros(grid.size)
    share[:-1] += excess / 2
    share[1:] += excess / 2
    share[0], share[-1] = excess[0], excess[-1]
    return np.asarray((values - share)[problem.value_of])
