"""Codes beside sums: what each tells of a prediction, as a number with a variance.

A label is taken to be normal around its prediction f with a deviation σ, at the nearest point of
its grid. A code z then has the likelihood L_z(f) = Σ_y K[y, z] P(y | f), and near f₀

    ln L_z(f) ≈ ln L_z(f₀) + s (f - f₀) - I/2 (f - f₀)²,   s = d ln L_z/df,   I = Σ_z L_z s²

as if f₀ + s/I had been seen with the variance 1/I: one step of Fisher scoring. Of a channel with
two outputs, whose likelihood is nearly a line in f, that is the decoding without bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from labelveil.common.arrays import Floats, Indices
from labelveil.feature_party.learning.problem import LabelProblem

_NODES = 257
"""Predictions at which likelihoods are computed, from the lower bound to the upper one."""
_LEAST = 1e-9
"""Of what a code may tell of a prediction, relative to a label seen within a deviation."""


@dataclass(frozen=True, eq=False)
class CodeRows:
    """Events whose labels went through channels."""

    rows: Indices
    """(m,) of the features."""
    codes: Indices
    """(m,) places among the outputs of all channels."""
    grid: Floats
    """(k,) points of the label."""
    channels: Sequence[Floats]
    """(k, d) probabilities of each one's outputs, in the order of the codes."""
    mean: float
    """Of labels, as it was released."""

    @classmethod
    def from_problem(cls, problem: LabelProblem, codes: Indices, rows: Indices) -> CodeRows:
        """Those of (m,) codes of a release, or of several, about (m,) rows."""
        channels = [leg.channel for leg in problem.legs]
        return cls(rows, codes.astype(np.int64), problem.grid, channels, problem.mean)

    def seen(
        self, predictions: Floats, deviations_at: Callable[[Floats], Floats]
    ) -> tuple[Floats, Floats, Floats]:
        """What codes tell of (m,) predictions, near these: numbers, variances, and by how much the
        codes are likelier, in logarithms, than such numbers would be.

        ``deviations_at`` says how labels deviate from (k,) predictions.
        """
        nodes = np.linspace(self.grid[0], self.grid[-1], _NODES)
        deviation = deviations_at(nodes)[:, None]
        edges = (self.grid[1:] + self.grid[:-1]) / 2
        z = (edges - nodes[:, None]) / deviation
        ends = np.zeros((_NODES, 1))
        below = np.concatenate([ends, ndtr(z), ends + 1], axis=1)
        density = np.exp(-0.5 * z**2) / (np.sqrt(2 * np.pi) * deviation)
        slope = np.concatenate([ends, -density, ends], axis=1)
        law, change = np.diff(below, axis=1), np.diff(slope, axis=1)
        logs, scores, informations = [], [], []
        for channel in self.channels:
            # above 0, but of outputs that no label has: of these no code tells anything
            likely = np.maximum(law @ channel, 1e-300)
            score = (change @ channel) / likely
            told = np.sum(likely * score**2, axis=1, keepdims=True)
            logs.append(np.log(likely))
            scores.append(score)
            informations.append(np.broadcast_to(told, score.shape))
        at = np.rint((predictions - nodes[0]) / (nodes[1] - nodes[0]))
        place = np.clip(at, 0, _NODES - 1).astype(np.int64), self.codes
        log, score, told = (
            np.concatenate(each, axis=1)[place] for each in (logs, scores, informations)
        )
        told = np.maximum(told, _LEAST / deviation[place[0], 0] ** 2)
        likelier = log + score**2 / (2 * told) - np.log(told) / 2
        return nodes[place[0]] + score / told, 1 / told, likelier
