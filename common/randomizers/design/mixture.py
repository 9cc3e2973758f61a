"""The channel for several labels: a public mixture of randomized responses over partitions.

Each event draws one of a few *partitions* of the cells with public probabilities w_Π, and answers
by randomized response which of its d bins the cell lies in. The drawn partition is public, so the
channel is exactly as private as each of its parts, and their Fisher information adds up:

    I_θ(w) = Σ_Π w_Π I_θ(Π),    I_θ(Π) = c²/(c + d) Σ_S ∂q_θ(S) ∂q_θ(S)ᵀ / (1 + c q_θ(S)),

with c = e^ε − 1 and S the bins of Π. The weighted sum over labels j of the excess errors,

    Σ_j ω_j mean_θ g_jᵀ (Λ + effective · I_θ(w))⁻¹ g_j,

is convex in w: a Bayesian A-optimal design with several targets. It is minimised by adding the
partition along which it falls fastest and weighing all that are kept anew, until no partition that
is found lowers it by more than the stated gap.

*The partition sought* maximises Σ_S Σ_i (h_i(S))²/(1 + c q_i(S)) over c + d, where i runs over
draws of θ and labels, and h_i = ∂q_θ (Λ + effective · I_θ)⁻¹ g_j. As a²/b is convex in (a, b), it
lies above its tangents, so that putting every cell where the tangent at the present bins is largest
never lowers it: Lloyd's algorithm, with this in place of the distance. It starts from bins along
the main directions of h and from the partitions in use. The gap is therefore with respect to the
partitions that this search finds; over one label it meets the optimum of the linear program over
intervals, and over few cells that of all channels.

*The weights* follow w_Π ← w_Π √(slope_Π), normalised, which lowers an A-optimal criterion at every
step (Yu, *Monotonic Convergence of a General Algorithm for Computing Optimal Designs*, Annals of
Statistics 2010).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from labelveil.common.arrays import Floats, Indices
from labelveil.common.randomizers.design.conditionals import ConditionalFamily

_STEPS = 40
_GAP = 5e-3
_BINS = (2, 3, 4, 5, 6, 8, 11, 16)
_DIRECTIONS = 3
_MOVES = 12
_WEIGHINGS = 300
_SETTLED = 1e-3
"""Relative difference of the steepest slope from the average at which weights are kept."""
_DROP = 1e-3


@dataclass(frozen=True, eq=False)
class Mixture:
    """Partitions of the cells and how often each is drawn."""

    partitions: Indices  # (p, k) bin of every cell, numbered from 0 in each partition
    weights: Floats  # (p,) > 0, summing to 1
    gap: float  # bound on how far the criterion is above the least that the search finds, relative

    def channel(self, boost: float) -> Floats:
        """(k, Σ d) probabilities of the answers, e^ε = 1 + ``boost``."""
        parts = []
        for partition, weight in zip(self.partitions, self.weights, strict=True):
            bins = _indicators(partition)
            parts.append(weight / (boost + bins.shape[1]) * (1.0 + boost * bins))
        return np.concatenate(parts, axis=1)


def best_mixture(
    targets: Sequence[ConditionalFamily],
    boost: float,
    effective: float,
    known: Floats | float = 0.0,
    start: Mixture | None = None,
) -> Mixture:
    """Minimise the sum of the targets' excess errors over public mixtures of partitions.

    The targets are of one family over k cells; scaled gradients weigh the sum. ``boost`` is
    c = e^ε − 1 > 0, ``effective`` the number of randomized events that bear on one prediction,
    ``known`` has (m, r, r) precision of θ besides its prior's, and ``start`` may be a mixture of
    another program over the same cells.
    """
    program = _Program(targets, boost, effective, known)
    partitions = [] if start is None else list(start.partitions)
    weights = np.ones(0) if start is None else start.weights
    pieces = [program.information(partition) for partition in partitions]
    gap = np.inf
    for _ in range(_STEPS):
        value, solved = program.solve(weights, pieces)
        partition = program.search(solved, partitions)
        piece = program.information(partition)
        slopes = program.slopes(solved, [*pieces, piece])
        # Frank and Wolfe: no mixture can be better by more than the best single step promises
        gap = float(slopes[-1] - weights @ slopes[:-1]) / value
        if partitions and gap <= _GAP:
            break
        partitions.append(partition)
        pieces.append(piece)
        # the new one starts as an equal of the others, and weighing goes on from there
        share = 1.0 / len(partitions)
        weights = program.weigh(np.append((1.0 - share) * weights, share), pieces)
        kept = weights > _DROP
        weights = weights[kept] / weights[kept].sum()
        partitions = list(compress(partitions, kept))
        pieces = list(compress(pieces, kept))
    return Mixture(np.array(partitions), weights, gap)


class _Program:
    """The criterion, its slopes, and the search for the partition of the steepest slope."""

    def __init__(
        self,
        targets: Sequence[ConditionalFamily],
        boost: float,
        effective: float,
        known: Floats | float,
    ) -> None:
        first = targets[0]
        self._distributions, self._scores = first.distributions, first.scores
        self._gradients = np.stack([target.gradients for target in targets], axis=2)
        self._boost, self._effective = boost, effective
        self._base = np.diag(first.precision) + known
        self._members = np.repeat(self._distributions, len(targets), axis=0)

    def information(self, partition: Indices) -> Floats:
        """(m, r, r) Fisher information of randomized response over one partition."""
        bins = _indicators(partition)
        moved = np.matmul(bins.T, self._scores)
        scaled = moved / (1.0 + self._boost * (self._distributions @ bins))[:, :, None]
        factor = self._boost**2 / (self._boost + bins.shape[1])
        return np.asarray(factor * np.matmul(moved.transpose(0, 2, 1), scaled))

    def solve(self, weights: Floats, pieces: Sequence[Floats] | Floats) -> tuple[float, Floats]:
        """Return the criterion and the (m, r, t) solutions of its linear systems."""
        matrix = np.broadcast_to(self._base, (self._gradients.shape[0], *self._base.shape[-2:]))
        if len(pieces):
            matrix = matrix + self._effective * np.tensordot(weights, np.asarray(pieces), 1)
        solved = np.linalg.solve(matrix, self._gradients)
        return float(np.sum(self._gradients * solved)) / solved.shape[0], np.asarray(solved)

    def slopes(self, solved: Floats, pieces: Sequence[Floats] | Floats) -> Floats:
        """(p,) how fast the criterion falls with each weight."""
        moved = np.matmul(np.asarray(pieces), solved)
        return np.asarray(self._effective * np.sum(moved * solved, axis=(1, 2, 3))) / len(solved)

    def weigh(self, weights: Floats, pieces: Sequence[Floats]) -> Floats:
        """Weigh the partitions by the multiplicative rule."""
        stacked = np.array(pieces)
        for _ in range(_WEIGHINGS):
            _, solved = self.solve(weights, stacked)
            slopes = self.slopes(solved, stacked)
            if slopes.max() <= (1 + _SETTLED) * float(weights @ slopes):
                break
            weights = weights * np.sqrt(slopes)
            weights /= weights.sum()
        return weights

    def search(self, solved: Floats, used: Sequence[Indices]) -> Indices:
        """Return the partition of the steepest slope that Lloyd's algorithm finds."""
        moves = np.matmul(self._scores, solved).transpose(0, 2, 1)
        moves = moves.reshape(-1, moves.shape[2])
        best, most = np.zeros(moves.shape[1], dtype=np.int64), -np.inf
        for start in (*self._starts(moves), *used):
            partition, slope = self._lloyd(moves, start)
            if slope > most:
                best, most = partition, slope
        return best

    def _starts(self, moves: Floats) -> Iterator[Indices]:
        """Bins along the main directions of ``moves`` a unit of mass, finer where these are."""
        mass = self._distributions.mean(axis=0)
        _, _, main = np.linalg.svd(moves / np.sqrt(mass), full_matrices=False)
        share = np.cbrt(np.square(moves).sum(axis=0) * mass)
        for direction in main[:_DIRECTIONS] / np.sqrt(mass):
            order = np.argsort(direction, kind="stable")
            position = (np.cumsum(share[order]) - share[order] / 2) / share.sum()
            for bins in _BINS:
                if bins <= order.size:
                    partition = np.empty(order.size, dtype=np.int64)
                    partition[order] = (position * bins).astype(np.int64)
                    yield _numbered(partition)

    def _lloyd(self, moves: Floats, partition: Indices) -> tuple[Indices, float]:
        boost, members = self._boost, self._members
        slope = -np.inf
        for _ in range(_MOVES):
            bins = _indicators(partition)
            moved, size = moves @ bins, 1.0 + boost * (members @ bins)
            ratio = moved / size
            now = float(np.sum(moved * ratio)) / (boost + bins.shape[1])
            if now <= slope * (1 + 1e-9):
                break
            slope, best = now, partition
            # of a²/b at the present bins: 2 (a/b) for what a cell adds to a, −(a/b)² for b; every
            # cell moves to the bin where that is most
            tangent = 2.0 * (moves.T @ ratio) - boost * (members.T @ np.square(ratio))
            partition = _numbered(tangent.argmax(axis=1))
        return best, slope


def _indicators(partition: Indices) -> Floats:
    """(k, d) one-hot bins."""
    return np.asarray(np.arange(partition.max() + 1) == partition[:, None], dtype=np.float64)


def _numbered(partition: Indices) -> Indices:
    """Number the bins in use from 0, by the first cell of each."""
    _, first, bins = np.unique(partition, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[bins].astype(np.int64)
