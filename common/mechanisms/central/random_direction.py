"""Gradients as random directions: of each record one bit, ε-DP by itself and unbiased.

A direction v is uniform on the sphere and says nothing of a record, and ``b = ±1`` says on which
side of it the gradient g lies, ‖g‖ <= 1, for certain never:

    P(b = 1 | v, g) = 1/2 + (1/2 − l) sign(v·g) ‖g‖,   l >= 1/(e^ε + 1).

*Private.* Whatever v and g, either answer has a chance of l to 1 − l, a ratio of e^ε at most: in
integers, a word is compared with a threshold of L to 2⁶⁴ − L. What floats make of v·g is a function
of this record.

*Unbiased.* ``E[b v | v] = (1 − 2l) ‖g‖ sign(v·g) v``, and ``E[sign(v·g) v] = c g/‖g‖`` with
``c = E|v₁| = Γ(d/2)/(√π Γ((d + 1)/2))``, so that ``b v/(c (1 − 2l))`` has the mean g. It always has
the same length, about √(πd/2) (e^ε + 1)/(e^ε − 1), and points the wrong way now and then. No ε-DP
report of a vector has an error of a smaller order.

Source: Duchi, Jordan, Wainwright, *Minimax Optimal Procedures for Locally Private Estimation*, JASA
2018, Section 4.2.3 (there v is drawn on g's side, which is the same law).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import scipy

from labelveil.common.arrays import Floats, Words
from labelveil.common.entropy import Entropy
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.sole import Sole

_WORDS = 1 << 64


class RandomDirections(Sole):
    """Reports of gradients of ``size`` numbers, each ε-DP in its record."""

    def __init__(self, epsilon: Fraction, size: int, entropy: Entropy) -> None:
        super().__init__()
        self.least = math.ceil(_WORDS / (exp_lower_bound(epsilon) + 1))
        """L, of 2⁶⁴: the chance of the less likely answer at most."""
        half = size / 2
        side = math.exp(math.lgamma(half) - math.lgamma(half + 0.5)) / math.sqrt(math.pi)
        self.length = 1 / side / (1 - 2 * self.least / _WORDS)
        """Of every report."""
        self._directions, self._answers = entropy.source("directions"), entropy.source("answers")

    def sum(self, gradients: Floats) -> Floats:
        """(p,) sum of the reports of (m, p) gradients; longer ones than 1 are clipped."""
        uniform = (self._directions.take(gradients.size) >> np.uint64(11)) + 0.5
        normal = scipy.special.ndtri(uniform / 2.0**53).reshape(gradients.shape)
        directions = normal / np.sqrt(np.sum(normal * normal, axis=1))[:, None]
        thresholds = self.thresholds(gradients, directions)
        signs = np.where(self._answers.take(len(gradients)) < thresholds, 1.0, -1.0)
        return np.asarray(self.length * (signs @ directions))

    def thresholds(self, gradients: Floats, directions: Floats) -> Words:
        """(m,) integers in L … 2⁶⁴ − L: of 2⁶⁴ words, how many say that a gradient is on v's side.

        What is no number, or too long to have a norm, counts as 0.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(np.sum(gradients * gradients, axis=1))
            sides = np.sign(np.sum(gradients * directions, axis=1))
        known, most = np.isfinite(norms) & np.isfinite(sides), (_WORDS >> 1) - self.least
        steps = np.where(known, np.minimum(norms, 1.0), 0.0) * float(most)
        offsets = np.minimum(steps.astype(np.uint64), np.uint64(most))
        half = np.uint64(_WORDS >> 1)
        return np.where(sides > 0, half + offsets, half - offsets)
