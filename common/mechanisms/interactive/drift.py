"""Has a day's label distribution moved away from a prior that is public already?

*Statistic.* ``D = max_c |Σ_{j<=c} h_j − E_c|`` over a histogram h of n labels on the prior's grid,
with ``E_c = round(n Σ_{j<=c} p_j)`` public: n times the largest distance of the two distribution
functions, in whole events. Replacing one label moves one unit between two cells and hence every
cumulative count by at most 1, all in the same direction, so D has sensitivity 1 (m for the m labels
of one user). With discrete Laplace noise of scale m/ε the test "D >= threshold" is ε-DP, and
"drifted" is a not-prior target (:mod:`labelveil.common.mechanisms.interactive.thresholds`).

*Threshold.* Without drift D/n exceeds ``√(ln(2/β)/2 · v)`` with probability about β at most
(Dvoretzky, Kiefer, Wolfowitz 1956, with Massart's constant 2), where v adds up what n labels, the
n₀ labels of the prior and the noise on its k cells contribute: ``v = 1/n + 1/n₀ + k s²/n₀²``, s
being the noise's standard deviation. (Sums of the noise, normalised, are a bridge like the others;
the prior is denoised, so this is more than enough.) Drift up to ``tolerance`` is not worth paying
for. The test's own noise takes the other half of the false alarms. None of this bears on privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Integers
from labelveil.common.entropy import WordSource
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.guarantees.limits import at_least, within
from labelveil.common.mechanisms.interactive.session import Outcome
from labelveil.common.mechanisms.interactive.targets import Target, not_prior
from labelveil.common.randomizers.prior import NoisyPrior, rational_epsilon


@dataclass(frozen=True)
class DriftTest:
    """A private test of one day's histogram against the prior in force."""

    prior: NoisyPrior
    """What was released, over its own grid of k points."""
    rows: int
    """n >= 1: labels of the day, which is public."""
    epsilon: Fraction
    """ε of the test, for all labels of one privacy unit."""
    group: int = 1
    """m >= 1: labels of one privacy unit."""
    tolerance: float = 0.05
    """Largest distance of the distribution functions, in 0 … 1, that is let pass."""
    false_alarm: float = 0.01
    """Probability, about, with which a day without drift beyond the tolerance pays for a prior."""

    def __post_init__(self) -> None:
        at_least(1, rows=self.rows, group=self.group)
        within("[0, 1)", tolerance=self.tolerance)
        within("(0, 1)", false_alarm=self.false_alarm)

    @property
    def scale(self) -> Fraction:
        """Scale m/ε of the noise on the statistic, in events."""
        return self.group / self.epsilon

    @property
    def threshold(self) -> int:
        """The least noisy statistic, in events, that counts as drift."""
        half = self.false_alarm / 2
        return math.ceil(
            self.rows * (self.tolerance + self._chance(half)) + _tail(self.scale, half)
        )

    def noticed(self, missed: float = 0.01) -> float:
        """The least drift, in 0 … 1, that a test notices but for probability ``missed``, about.

        A number above 1 says that nothing would be noticed for certain.
        """
        half = missed / 2
        noise = _tail(self.scale, half)
        return (self.threshold + noise) / self.rows + self._chance(half)

    def statistic(self, counts: ArrayLike) -> int:
        """D of a histogram, (k,) integers that add up to n."""
        histogram = np.asarray(counts, dtype=np.int64)
        return int(np.abs(np.cumsum(histogram) - self.expected).max())

    @property
    def expected(self) -> Integers:
        """(k,) cumulative counts that the prior would give, in whole events."""
        share = np.minimum(np.cumsum(self.prior.probabilities), 1.0)
        return np.asarray(np.rint(self.rows * share), dtype=np.int64)

    @property
    def target(self) -> Target:
        """Drifted: ``q = 1/(e^ε + 1)``."""
        return not_prior(self.epsilon)

    def draw(self, counts: ArrayLike, source: WordSource) -> Outcome[bool]:
        """Whether a day's histogram, (k,) integers that add up to n, has drifted."""
        noise = int(discrete_laplace(self.scale, 1, source)[0])
        drifted = self.statistic(counts) + noise >= self.threshold
        return Outcome(drifted, (drifted,))

    def _chance(self, probability: float) -> float:
        cells, before = self.prior.noisy_counts.size, max(self.prior.rows, 1)
        noise = cells * (self.prior.deviation / before) ** 2
        variance = 1 / self.rows + 1 / before + noise
        return math.sqrt(math.log(2 / probability) / 2 * variance)


def affordable_epsilon(
    prior_epsilon: Fraction, rows: int, tolerance: float, false_alarm: float, group: int = 1
) -> Fraction:
    """ε of a test whose noise is half of the tolerance; at most a quarter of a new prior's ε₁."""
    most = prior_epsilon / 4
    if not tolerance:
        return rational_epsilon(most)
    wanted = 2 * group * math.log(1 / false_alarm) / (tolerance * rows)
    return rational_epsilon(min(wanted, float(most)))


def _tail(scale: Fraction, probability: float) -> float:
    """What Laplace noise exceeds with a probability below a half."""
    return float(scale) * math.log(1 / (2 * probability))
