"""The private prior: a noisy histogram of the labels over the grid.

Source: Algorithm 4 of Ghazi, Kamath, Kumar, Leeman, Manurangsi, Varadarajan, Zhang, *Regression
with Label Differential Privacy*, ICLR 2023, with discrete instead of continuous Laplace noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats, Indices, Integers, counted
from labelveil.common.entropy import Entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.channel import TOTAL, FiniteChannel
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.exact.rational import rational
from labelveil.common.guarantees import PureDP, Unit
from labelveil.common.guarantees.limits import positive, within
from labelveil.common.randomizers.denoising import denoise_histogram

PRIOR_STREAM = "prior"
SENSITIVITY = 2
"""Replacing one label moves one unit between two cells: the L1 distance is 2."""

MAX_GROUP = 1 << 20
"""The most records that one privacy unit may have."""

_RESOLUTION = 1 << 24
LEAST_EPSILON = Fraction(1, _RESOLUTION)
"""The least ε that a histogram can have."""
_MOST = 1 << 53
_FARTHEST = 30.0  # deviations below 0, in double precision
_EXPECTED = 1 << 40
"""What the counts of expected labels add up to."""


@dataclass(frozen=True, eq=False)
class NoisyPrior:
    """A histogram that has been released with noise on every cell."""

    noisy_counts: Integers
    """(k,) int64, the released integers, possibly negative."""
    exact_epsilon: Fraction
    """ε₁ as a rational number, for one privacy unit."""
    rows: int
    """Number of labels counted, which is public."""
    group: int = 1
    """Records of one privacy unit: 1, or the most records that one user may have."""
    code_noise: float | None = None
    """For counts that were decoded from codes, which spends nothing: the standard deviation of
    their noise on each cell. 0 for the weights of a public prior, which counts nobody's labels.
    None for a histogram with noise of its own."""
    shape: tuple[int, ...] = ()
    """Of cells of several labels: how many values each label has, the last one's side by side."""
    order: Indices | None = None
    """(k,) which of these cells each count is of; None where they are in order."""
    start: Integers | None = None
    """(k,) weights of these cells in a public prior, which may explain the counts; None without."""

    @property
    def expected(self) -> Floats | None:
        """(k,) the same as probabilities, each of the cell that its count is of."""
        return None if self.start is None else np.asarray(self.start / self.start.sum())

    @property
    def noisy(self) -> bool:
        """Whether labels were counted, with noise of its own, and paid for it."""
        return self.code_noise is None

    @property
    def public(self) -> bool:
        """Whether it was expected beforehand: no label was counted, and none paid for it."""
        return self.code_noise == 0.0

    def reordered(self, order: Indices) -> NoisyPrior:
        """Return the same histogram with its cells in another order."""
        start = None if self.start is None else self.start[order]
        return replace(self, noisy_counts=self.noisy_counts[order], order=order, start=start)

    @property
    def scale(self) -> Fraction:
        """Scale 2·group/ε₁ of the discrete Laplace noise on each cell; 0 if there is none."""
        if not self.noisy:
            return Fraction(0)
        return SENSITIVITY * self.group / self.exact_epsilon

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each cell, in counts: with t = 1/scale it is
        √(2e^−t)/(1 − e^−t)."""
        if self.code_noise is not None:
            return self.code_noise
        t = 1 / float(self.scale)
        return math.sqrt(2 * math.exp(-t)) / -math.expm1(-t)

    @cached_property
    def probabilities(self) -> Floats:
        """(k,) float64 >= 0, summing to 1: an estimate of the histogram from the noisy one.

        Clipping at 0 and normalising, as in the paper, keeps the positive half of the noise on
        every empty cell, which is a heavy spurious tail on a long grid;
        :func:`labelveil.common.randomizers.denoising.denoise_histogram` says what is done instead.
        Two cells have no tail, and noise would take a rare one to 0: they are expected, given the
        counts.
        """
        if self.code_noise and self.noisy_counts.size == 2:
            return _expected_of_two(self.noisy_counts / self.rows, self.code_noise / self.rows)
        order = np.arange(self.noisy_counts.size) if self.order is None else self.order
        noisy, start = np.empty(order.size), self.expected
        noisy[order] = self.noisy_counts
        if start is not None:
            start = start[np.argsort(order)]
        found = denoise_histogram(noisy, self.rows, self.deviation, shape=self.shape, start=start)
        return found[order]

    @property
    def clipped(self) -> Floats:
        """The same as the paper has it: clipped at 0 and normalised; even if nothing is left."""
        positive = np.maximum(self.noisy_counts, 0).astype(np.float64)
        if not positive.any():
            positive += 1
        return np.asarray(positive / positive.sum())

    @property
    def guarantee(self) -> PureDP:
        """ε₁-DP for replacing the labels of one privacy unit."""
        return PureDP.of(self.exact_epsilon, unit=Unit.RECORD if self.group == 1 else Unit.USER)


def _expected_of_two(shares: Floats, deviation: float) -> Floats:
    """Two shares given noisy ones, (2,), with normal noise, where all are as likely before.

    Opposite errors of the two are half the variance of independent ones.
    """
    spread = deviation / math.sqrt(2)
    rare = int(shares.argmin())
    noisy = max(float(shares[rare]), -_FARTHEST * spread)
    ends = np.array([-noisy, 1 - noisy]) / spread
    low, high = np.exp(-(ends**2) / 2) * math.sqrt(2 / math.pi)
    inside = math.erfc(ends[0] / math.sqrt(2)) - math.erfc(ends[1] / math.sqrt(2))
    expected = noisy + spread * float(low - high) / inside
    return np.array([expected, 1 - expected] if rare == 0 else [1 - expected, expected])


def decoded_prior(channel: FiniteChannel, codes: Integers, group: int = 1) -> NoisyPrior:
    """Decode the histogram that the codes of randomized response tell: it costs no further ε.

    With keep and lie the integer weights of the label itself and of any other, and N codes of which
    c are y, (2⁶⁴ c − N lie)/(keep − lie) is unbiased for the number of labels y. With q = lie/2⁶⁴
    and p = keep/2⁶⁴, its variance is about N q (1 − q)/(p − q)²; the cells' errors add up to 0, so
    that functions centred over the cells see k/(k − 1) times as much.

    ``codes`` are (k,) int64, how many codes there are of each label; ``channel`` is randomized
    response over these, ``group`` as in :class:`NoisyPrior`.
    """
    own, other = channel.stated_of[:2].tolist()  # one row where ε is so small that all are alike
    lie = int(channel.stated[other, 0])
    gap, rows, k = int(channel.stated[own, 0]) - lie, int(codes.sum()), codes.size
    if gap <= 0:  # ε is so small that codes say nothing
        even = np.diff(np.arange(k + 1) * rows // k)
        return NoisyPrior(even, Fraction(0), max(rows, 1), group, float(max(rows, 1)))
    exact = [round(Fraction(TOTAL * code - rows * lie, gap)) for code in codes.tolist()]
    counts = np.array([min(max(count, -_MOST), _MOST) for count in exact], dtype=np.int64)
    q = lie / TOTAL
    spread = math.sqrt(max(rows, 1) * q * (1 - q) * k / (k - 1)) / (gap / TOTAL)
    return NoisyPrior(counts, Fraction(0), max(rows, 1), group, spread)


def expected_prior(weights: Floats, group: int = 1) -> NoisyPrior:
    """A histogram that nobody counted or pays for: what is expected of labels, without noise.

    ``weights`` are (k,) >= 0, not all 0; ``group`` is as in :class:`NoisyPrior`.
    """
    counts = np.rint(weights * (_EXPECTED / weights.sum())).astype(np.int64)
    return NoisyPrior(counts, Fraction(0), int(counts.sum()), group, code_noise=0.0)


def rational_epsilon(epsilon: float | Fraction) -> Fraction:
    """Round ε down to a multiple of 2**-24, so that exact noise stays in 64-bit integers."""
    positive(epsilon=epsilon)
    value = Fraction(int(rational(epsilon) * _RESOLUTION), _RESOLUTION)
    if value <= 0:
        raise PrivacyError(f"epsilon={float(epsilon):g} must be at least 2**-24, about 6e-8")
    return value


def private_prior(
    counts: ArrayLike,
    epsilon: float | Fraction,
    entropy: Entropy,
    *,
    group: int = 1,
    words: str = PRIOR_STREAM,
    shape: tuple[int, ...] = (),
    start: Integers | None = None,
) -> NoisyPrior:
    """Release a histogram under ε-DP for one replaced label (or ``group`` of them).

    Discrete Laplace noise of scale 2·group/ε is added to *every* cell, the empty ones included:
    noise on the occupied cells alone would show which labels occur.

    Counts are (k,) integers >= 0: how many labels lie on each grid point. ``epsilon`` is ε₁ > 0,
    rounded down to a multiple of 2**-24. ``group`` records >= 1 of one privacy unit may change
    their labels together. ``words`` is the stream of ``entropy``: no two histograms share one.
    ``shape`` is, of cells of several labels, how many values each label has; ``start`` has (k,)
    weights of a public prior, if there is one.
    """
    within(f"[1, {MAX_GROUP}]", group=group)
    histogram = counted(counts, "counts of labels")
    exact = rational_epsilon(epsilon)
    scale = SENSITIVITY * group / exact
    noise = discrete_laplace(scale, histogram.size, entropy.source(words))
    rows = max(int(histogram.sum()), 1)
    return NoisyPrior(histogram + noise, exact, rows, group, shape=shape, start=start)
