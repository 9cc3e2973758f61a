"""Columns of an unbiased randomizer: exact sums and means, few columns, given output positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from common.arrays import Booleans, Floats, Indices
from common.errors import PrivacyError
from common.randomizers.unbiased.program import Solution

_ROUNDS = 60
_REDUCED = 1e-9
_EMPTY = 1e-12


@dataclass(frozen=True)
class Columns:
    """n columns u (1 + c·1[y in S]) with their outputs, labels scaled to -1 … 1."""

    members: Booleans  # (n, k) which labels are in S
    mass: Floats  # (n,) u > 0
    outputs: Floats  # (n,) o

    def heights(self, boost: float) -> Floats:
        """(n, k) 1 + c·1[y in S]."""
        return np.asarray(1 + boost * self.members)

    def probabilities(self, boost: float) -> Floats:
        """(k, n) channel."""
        return np.asarray((self.mass[:, None] * self.heights(boost)).T)

    def bias(self, targets: Floats, boost: float) -> float:
        """The largest error of a row's sum or mean; infinite where a mass is not positive."""
        if not self.mass.size or self.mass.min() <= 0:
            return float("inf")
        channel = self.probabilities(boost)
        sums = np.abs(channel.sum(axis=1) - 1).max()
        return float(max(sums, np.abs(channel @ self.outputs - targets).max()))

    def reduced(self, boost: float) -> Columns:
        """Drop to at most 2k columns; sums, means and (for an optimum) the cost stay.

        Carathéodory: more columns than equations leave directions along which all equations still
        hold. Walk along each until a column's mass is gone, and go on with those directions that
        leave that column alone.
        """
        heights = self.heights(boost).T
        system = np.vstack([heights, heights * self.outputs]) * self.mass
        free = scipy.linalg.null_space(system, rcond=1e-11)  # orthonormal, of relative masses
        share = np.ones(self.mass.size)
        while free.shape[1]:
            way = free[:, 0]
            falls = way > 0
            limits = np.full(way.size, np.inf)
            limits[falls] = share[falls] / way[falls]
            gone = int(limits.argmin())
            share = np.maximum(share - limits[gone] * way, 0.0)
            share[gone] = 0.0
            turn = np.linalg.qr(free[gone][:, None], mode="complete").Q
            free = (free @ turn)[:, 1:]
            free[gone] = 0.0
        keep = self.mass * share > _EMPTY * self.mass.max()
        return Columns(self.members[keep], (self.mass * share)[keep], self.outputs[keep])

    def corrected(self, targets: Floats, boost: float) -> Columns:
        """Move u and u·o as little as possible so that rows sum to 1 and have the target means.

        Both are linear systems in the same (k, n) matrix; columns whose mass is lost are dropped.
        """
        columns = self
        while True:
            heights = columns.heights(boost).T
            mass, first = columns.mass, columns.mass * columns.outputs
            # relative moves: a column of little mass must move little
            inverse = np.linalg.pinv(heights * mass, rcond=1e-12)
            for _ in range(3):
                mass = mass + columns.mass * (inverse @ (1 - heights @ mass))
                first = first + columns.mass * (inverse @ (targets - heights @ first))
            keep = mass > _EMPTY
            if keep.all():
                return Columns(columns.members, mass, first / mass)
            columns = Columns(columns.members[keep], mass[keep], (first / mass)[keep])


def cheapest_columns(
    places: Floats, targets: Floats, prior: Floats, boost: float, start: Solution
) -> Columns:
    """Solve the linear program with outputs only at given places, by column generation.

    For duals α, β the best set for output o is {y : p_y o² - α_y - β_y o < 0}, so that pricing is
    exact. It starts from the duals of the solution with free outputs, ``start``.

    ``places`` are (d,) ascending and reach beyond ± (e^ε + 1)/(e^ε - 1); ``targets`` and ``prior``
    are (k,) labels scaled to -1 … 1 and their prior; ``boost`` is c = e^ε - 1.
    """
    k = targets.size
    stairs = np.tri(k + 1, k, -1) > 0  # S = the first 0 … k labels: a feasible start
    ends = np.repeat(places[[0, -1]], k + 1)
    near, where = _neighbours(_costs(places, prior, start.alpha, start.beta) < 0)
    members = np.vstack([stairs, ~stairs, near])
    outputs = np.concatenate([ends, places[where]])
    for _ in range(_ROUNDS):
        mass, alpha, beta = _master(members, outputs, targets, prior, boost)
        cost = _costs(places, prior, alpha, beta)
        sets = cost < 0
        reduced = (cost * (1 + boost * sets)).sum(axis=1)
        optimum = float(mass @ (outputs**2 * (1 + boost * (members @ prior))))
        if reduced.min() > -_REDUCED * (optimum - float(prior @ targets**2)):
            break
        near, where = _neighbours(sets[reduced < 0])
        members = np.vstack([members[: mass.size], near])
        outputs = np.concatenate([outputs[: mass.size], places[np.flatnonzero(reduced < 0)[where]]])
    keep = mass > _EMPTY
    columns = Columns(members[: mass.size][keep], mass[keep], outputs[: mass.size][keep])
    # refine the masses alone, outputs being given: both sets of equations at once
    heights = columns.heights(boost).T
    system = np.vstack([heights, heights * columns.outputs])
    right = np.concatenate([np.ones(k), targets])
    refined = columns.mass
    inverse = np.linalg.pinv(system * refined, rcond=1e-13)
    for _ in range(3):
        refined = refined + columns.mass * (inverse @ (right - system @ refined))
    return Columns(columns.members, np.maximum(refined, _EMPTY), columns.outputs)


def _neighbours(sets: Booleans) -> tuple[Booleans, Indices]:
    """The sets, and those with an end one label further in or out; and where each came from."""
    up, down = np.zeros_like(sets), np.zeros_like(sets)  # moved by one label, empty beyond the end
    up[:, 1:], down[:, :-1] = sets[:, :-1], sets[:, 1:]
    first, last = sets.copy(), sets.copy()
    first[:, 1:] &= sets[:, :-1]
    last[:, :-1] &= sets[:, 1:]
    family = [sets, sets | up, sets | down, sets | up | down, first, last]
    return np.vstack(family), np.tile(np.arange(len(sets)), len(family))


def _costs(places: Floats, prior: Floats, alpha: Floats, beta: Floats) -> Floats:
    """(d, k) p_y o² - α_y - β_y o."""
    return np.asarray(prior * places[:, None] ** 2 - alpha - beta * places[:, None])


def _master(
    members: Booleans, outputs: Floats, targets: Floats, prior: Floats, boost: float
) -> tuple[Floats, Floats, Floats]:
    """Solve for the (n,) masses of given columns, with the duals α and β, (k,) each.

    Differences of neighbouring rows keep it sparse.
    """
    k = targets.size
    inside = members.astype(np.float64)
    rows = np.hstack([1 + boost * inside[:, :1], boost * np.diff(inside, axis=1)])
    scale = 1 + boost * (inside @ prior)
    rows /= scale[:, None]
    matrix = scipy.sparse.csc_matrix(np.hstack([rows, rows * outputs[:, None]]).T)
    right: Floats = np.concatenate([[1.0], np.zeros(k - 1), targets[:1], np.diff(targets)])
    result = scipy.optimize.linprog(  # type: ignore[call-overload]  # stubs lack sparse
        outputs**2,
        A_eq=matrix,
        b_eq=right,
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if result.x is None:
        raise PrivacyError(f"the unbiased program was not solved: {result.message}")
    duals = np.asarray(result.eqlin.marginals, dtype=np.float64)
    alpha, beta = duals[:k].copy(), duals[k:].copy()
    alpha[:-1] -= duals[1:k]
    beta[:-1] -= duals[k + 1 :]
    return np.asarray(result.x) / scale, alpha, beta
