"""Continuous Laplace and staircase noise, for comparison only: these labels cannot leave.

A sum in floating point shows in its last bits which labels could have led to it: the noise values
that a float sampler can return have gaps, and the gaps move with the label (Mironov, *On
Significance of the Least Significant Bits for Differential Privacy*, CCS 2012). So ε holds for the
real numbers below and not for the floats that :meth:`ContinuousNoise.simulate` returns. There is no
``channel`` here, and nothing that a release could be made from; the randomizers ``laplace`` and
``staircase`` are the same laws, rounded to integer weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from common.arrays import Floats
from common.entropy import Entropy
from common.randomizers.additive.laws import Laplace, Staircase, best_gamma
from common.randomizers.base import check_epsilon

CONTINUOUS_NOISE = ("laplace", "staircase")
"""Randomizers whose law there is here."""


@dataclass(frozen=True)
class ContinuousNoise:
    """Additive noise on real labels, to compare with."""

    law: Laplace | Staircase
    lower: float  # labels are clipped to this range first
    upper: float
    clip: bool  # whether outputs are clipped to it too

    @classmethod
    def of(
        cls, name: str, lower: float, upper: float, epsilon: float, *, clip: bool = False
    ) -> ContinuousNoise:
        """Laplace noise of scale (upper - lower)/ε, or the staircase of least variance."""
        check_epsilon(epsilon)
        span = upper - lower
        if name == "laplace":
            return cls(Laplace(span / epsilon), lower, upper, clip)
        return cls(Staircase(span, epsilon, best_gamma(epsilon, squared=True)), lower, upper, clip)

    def simulate(self, values: ArrayLike, entropy: Entropy) -> Floats:
        """Add noise to (n,) labels for an experiment: floats, not private whatever ε is.

        One word a label is read of the stream ``simulation`` of ``entropy``.
        """
        labels = np.clip(np.asarray(values, dtype=np.float64), self.lower, self.upper)
        words = entropy.words("simulation", 0, labels.size)
        sign = np.where(words & np.uint64(1), 1.0, -1.0)
        # the upper 53 bits, centred in their cell: a tail probability in (0, 1/2)
        tail = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-54
        noisy = labels + sign * self._quantile(tail)
        return np.clip(noisy, self.lower, self.upper) if self.clip else np.asarray(noisy)

    def _quantile(self, tail: Floats) -> Floats:
        """The x >= 0 with P(N > x) = tail."""
        law = self.law
        if isinstance(law, Laplace):
            return np.asarray(-law.scale * np.log(2 * tail))
        b, a, edge = law.decay, law.height, law.gamma * law.span
        period = np.floor(-np.log(2 * tail) / law.epsilon)
        before = 0.5 - tail / b**period  # probability within the period, before x
        high = before / a
        low = edge + (before - a * edge) / (a * b)
        return np.asarray(period * law.span + np.where(high <= edge, high, low))
