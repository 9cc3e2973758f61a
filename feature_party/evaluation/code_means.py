"""Mean labels of groups of events, told from their codes with the help of a law of their labels.

A group's labels are taken to have the released prior's law p, tilted: q(y) ∝ p(y) exp(θ·h(y)). h
are what the channel tells best of a label, and θ is what the group's codes say, and what it may
well be. Each code z is decoded to a number u(z), and what this is off by on average, b(y) =
E[u | y] − y, is taken off as the law has it: the group's mean is that of its u less E_q b.

Decoders that are right whatever the labels are have noise of several times the labels' range. The u
here have the least ``E b(y)² + E u² / (n κ²)``, as κ times the root of E_q b² is what the law's
word may err by, one standard error. The law itself may be wrong: how likely that is, the gap says
between this mean and one without bias, which takes no law for granted. The error counts both cases,
and where the gap is too much for chance the mean without bias is taken. Noise puts the latter far
beyond all labels where a group of a few sent a code that few do, which says no more than one at the
end of the range.
:mod:`labelveil.feature_party.evaluation.decoded_labels` has κ and the sources,
docs/appendix/coverage.md how often intervals hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from labelveil.common.arrays import Booleans, Floats, Indices, Integers
from labelveil.feature_party.evaluation.decoded_labels import MISFIT
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.heads import canonical_tilts
from labelveil.feature_party.learning.problem import LabelProblem, Leg

_FAR = 2.0
"""How far a group may well be from all events: the deviation of each θ before any code is seen."""
_OPEN = 0.2
"""Share of the prior in what a group's decoder expects."""
_RIGHT = 0.9
"""How likely a group's law is right before any code is seen."""
_WRONG = 4.0
"""How far a wrong law's mean may well be from one that takes no law for granted: the deviation, in
standard errors of the latter. What is further is surely wrong."""


@dataclass(frozen=True, eq=False)
class _Tilted:
    """A leg's labels and codes as a tilted prior has them."""

    law: Floats  # (k,) probabilities of the grid's points
    outputs: Floats  # (d,) probabilities of the codes
    centred: Floats  # (r, k) h, less their means
    scores: Floats  # (r, d) derivatives of the logarithms of ``outputs`` by θ

    @classmethod
    def from_leg(cls, leg: Leg, tilts: Floats, theta: Floats) -> Self:
        logits = np.log(np.maximum(leg.prior, 1e-300)) + theta @ tilts
        law = np.exp(logits - logits.max())
        law /= law.sum()
        outputs = np.maximum(law @ leg.channel, 1e-300)
        centred = tilts - (tilts @ law)[:, None]
        return cls(law, outputs, centred, (centred * law) @ leg.channel / outputs)


@dataclass(frozen=True, eq=False)
class GroupCodes:
    """Codes of n events, of which groups are taken."""

    problem: LabelProblem
    codes: Indices
    """(n,) as the problem numbers them."""
    told: Booleans
    """(n,) which of them tell means: others were asked about what a model did not know."""

    @classmethod
    def from_codes(
        cls, problem: LabelProblem, codes: NDArray[np.integer[Any]], asked: Sequence[bool]
    ) -> Self:
        """Take (n,) codes of releases of which some were ``asked`` about what is not known."""
        told = np.ones(codes.size, dtype=np.bool_)
        for (_, mine, _), left_out in zip(problem.by_release(codes), asked, strict=True):
            if left_out and not all(asked):
                told[mine] = False
        return cls(problem, codes.astype(np.int64), told)

    @property
    def ends(self) -> tuple[float, float]:
        """Between which labels lie."""
        return float(self.problem.grid.min()), float(self.problem.grid.max())

    @property
    def exact(self) -> bool:
        """Whether the channels tell all labels apart, so that codes can contradict a law."""
        return decoder(self.problem, self.problem.grid).exact

    @cached_property
    def _tilts(self) -> Floats:
        """(r, k) functions of the label."""
        likely = np.maximum(self.problem.prior, 1e-9)
        return canonical_tilts(likely / likely.sum(), self.problem.channel).T

    def mean(self, rows: Indices) -> tuple[float, float]:
        """Mean label of events like these, of which some are told, and its standard error."""
        problem = self.problem
        sizes = np.cumsum([leg.outputs.size for leg in problem.legs])
        counts = np.bincount(self.codes[rows][self.told[rows]], minlength=int(sizes[-1]))
        parts = np.split(counts, sizes[:-1])
        own = [(leg, each) for leg, each in zip(problem.legs, parts, strict=True) if each.any()]

        def unlikely(theta: Floats) -> tuple[float, Floats]:
            value, slope = float(theta @ theta) / (2 * _FAR**2), theta / _FAR**2
            for leg, count in own:
                tilted = _Tilted.from_leg(leg, self._tilts, theta)
                value -= float(count @ np.log(tilted.outputs))
                slope = slope - tilted.scores @ count
            return value, slope

        start = np.zeros(len(self._tilts))
        theta = scipy.optimize.minimize(unlikely, start, jac=True, method="BFGS").x
        found = [(leg, each, _Tilted.from_leg(leg, self._tilts, theta)) for leg, each in own]
        information = np.eye(start.size) / _FAR**2
        for _, count, tilted in found:
            information += count.sum() * (tilted.scores * tilted.outputs) @ tilted.scores.T
        covariance = np.asarray(np.linalg.inv(information), np.float64)
        total = int(counts.sum())
        free, helped = (
            _corrected(problem, found, covariance, ridge)
            for ridge in (0.0, 1 / (total * MISFIT**2))
        )
        mean, error = free
        # beyond the ends no mean lies: what noise has put there contradicts a law as far as the end
        gap = abs(helped[0] - min(max(free[0], self.ends[0]), self.ends[1]))
        if helped[1] < free[1] and gap <= _WRONG * free[1]:
            right = _still_right(gap / free[1])
            mean, error = (
                helped[0],
                math.sqrt(right * helped[1] ** 2 + (1 - right) * (free[1] ** 2 + gap**2)),
            )
        # a small group's law may look narrow by chance
        return mean, max(error, problem.deviation / math.sqrt(total))


def _still_right(gap: float) -> float:
    """How likely a law is right whose mean is that far, in standard errors, from one without bias.

    Of a right law the gap has a deviation of at most 1: the mean without bias errs by that.
    """
    wrong = 1 + _WRONG**2
    against = (1 - _RIGHT) / _RIGHT * math.exp(gap**2 / 2 * (1 - 1 / wrong)) / math.sqrt(wrong)
    return 1 / (1 + against)


def _corrected(
    problem: LabelProblem,
    found: Sequence[tuple[Leg, Integers, _Tilted]],
    covariance: Floats,
    ridge: float,
) -> tuple[float, float]:
    """The mean of decoded codes less their bias under the group's law, and its standard error."""
    rows = sum(int(count.sum()) for _, count, _ in found)
    mean, squares, slope, decoded = 0.0, 0.0, np.zeros(len(covariance)), []
    for leg, count, tilted in found:
        share = count.sum() / rows
        expected = _OPEN * leg.prior + (1 - _OPEN) * tilted.law
        alone = replace(problem, legs=(replace(leg, prior=expected, share=1.0, release=0),))
        solved = decoder(alone, problem.grid, ridge)
        values, bias = solved.values[:, 0], solved.bias[:, 0]
        mean += float(count @ values) / rows - share * float(tilted.law @ bias)
        squares += share * float(tilted.law @ bias**2)
        slope += share * (tilted.centred * tilted.law) @ bias
        decoded.append(values / rows)
    # θ errs by its covariance times the sum of the codes' scores, and by where it was expected
    moved = covariance @ slope
    variance = float(moved @ moved) / _FAR**2 + MISFIT**2 * squares
    for (_, count, tilted), values in zip(found, decoded, strict=True):
        each = values - moved @ tilted.scores
        variance += count.sum() * float(tilted.outputs @ (each - tilted.outputs @ each) ** 2)
    return mean, math.sqrt(variance)
