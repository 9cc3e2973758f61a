"""The private part of DP-SGD: noisy sums of clipped gradients over random samples, exactly.

Each step draws a sample of m of n records, clips every sampled record's gradient to norm C, rounds
it to a grid of C/G, and adds integer noise to the sum: what leaves a step is integers, so that no
float rounding tells anything (Mironov 2012), and what is learned from them is post-processing.

- *Gaussian noise,* gradients clipped in L2. The noise is discrete Gaussian, σ a multiple of C. For
  neighbours z steps apart, z an integer vector, and an integer l the moments ``E_Q[(P/Q)^l] =
  exp((l² − l)‖z‖²/(2σ²G²))`` are those of the continuous Gaussian: the sum over the grid shifted by
  lz is the same sum. The formula for Poisson samples
  (:func:`labelveil.common.guarantees.subsampled_gaussian`) is made of these moments alone and so
  holds as it is, at integer orders; its other direction costs less, because reflecting exchanges P
  and Q (Mironov, Talwar, Zhang 2019, Theorem 5).
- *Laplace noise,* gradients clipped in L1, discrete Laplace noise: a step is pure ε₀-DP on its
  sample.
- *Random directions* in place of gradients (:class:`RandomDirections`): each report is ε₀-DP by
  itself, ε₀ one over ``scale``. Samples are of a fixed size.

Samples are *Poisson* (each record with probability m/n; for adding or removing one record) or of a
*fixed* size (for replacing one, whose gradient moves the sum by 2C). The latter with m = 1 is the
random selection of one record's gradient. n is taken to be public.

Source: Song, Chaudhuri, Sarwate, *Stochastic gradient descent with differentially private updates*,
GlobalSIP 2013 (pure ε); Bassily, Smith, Thakurta, FOCS 2014 (one random record a step); Abadi et
al., *Deep Learning with Differential Privacy*, CCS 2016 (Gaussian noise, clipping).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, Self, get_args

import numpy as np
import scipy
from numpy.typing import NDArray

from labelveil.common.arrays import Floats, Integers, Words
from labelveil.common.entropy import Entropy, WordSource, unit_floats
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.noise import discrete_gaussian, discrete_laplace, uniform_below
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    Guarantee,
    PureDP,
    calibrate,
    fixed_size_gaussian,
    fixed_size_subsample,
    poisson_subsample,
    subsampled_gaussian,
    to_approximate,
    to_renyi,
)
from labelveil.common.guarantees.limits import at_least, positive, within
from labelveil.common.mechanisms.clipping import rounded_within, rounding_length
from labelveil.common.noncopyable import NonCopyable

Noise = Literal["gaussian", "laplace", "direction"]
Sampling = Literal["poisson", "fixed"]

_GRAIN = Fraction(1, 1024)
_BLOCK = 1 << 18
"""Numbers of noise that are drawn at once."""
_WORDS = 1 << 64


@dataclass(frozen=True)
class GradientSteps:
    """Parameters of all steps; of the records they depend on their number n alone."""

    rows: int  # n >= 1
    sample: int  # m in 1 … n: a sample's size, or the mean of it
    steps: int  # T >= 1
    noise: Noise = "gaussian"
    sampling: Sampling = "poisson"
    # σ of Gaussian noise, or scale of Laplace noise, as a multiple of C, or 1/ε₀ of directions: a
    # multiple of 1/1024
    scale: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        for name, kind in (("noise", Noise), ("sampling", Sampling)):
            if getattr(self, name) not in get_args(kind):
                known = " or ".join(get_args(kind))
                raise ConfigError(f"{name}={getattr(self, name)!r} must be {known}")
        if self.noise == "direction" and self.sampling == "poisson":
            raise ConfigError("noise='direction' shows how many took part; set sampling='fixed'")
        within(f"[1, {self.rows}]", sample=self.sample)
        at_least(1, steps=self.steps)
        if self.scale <= 0 or self.scale % _GRAIN:
            raise PrivacyError(f"scale={self.scale} must be a multiple of 1/1024 above 0")

    @property
    def rate(self) -> Fraction:
        """m/n."""
        return Fraction(self.sample, self.rows)

    @property
    def step(self) -> Guarantee:
        """The guarantee of one step: an RDP curve with Gaussian noise, otherwise ε-DP."""
        if self.noise == "gaussian" and self.sampling == "poisson":
            return subsampled_gaussian(self.scale, self.rate)
        if self.noise == "gaussian":
            return fixed_size_gaussian(self.scale, self.rate)
        if self.sampling == "poisson":
            return poisson_subsample(PureDP.of(1 / self.scale, Adjacency.ADD_REMOVE), self.rate)
        shift = 1 if self.noise == "direction" else 2
        whole = PureDP.of(shift / self.scale, Adjacency.REPLACE_RECORD)
        return fixed_size_subsample(whole, self.rate)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all steps, of the same kind."""
        return self.step.repeat(self.steps)

    def approximate(self, delta: float) -> PureDP | ApproximateDP:
        """The least (ε, δ) of all steps; at δ = 0 Gaussian noise guarantees nothing."""
        whole = self.guarantee
        if not isinstance(whole, PureDP):
            return to_approximate(whole, delta)
        if delta == 0:
            return whole
        curve = to_renyi(self.step).repeat(self.steps)
        return min(
            to_approximate(whole, delta),
            to_approximate(curve, delta),
            key=lambda stated: stated.exact_epsilon,
        )

    def calibrated(self, epsilon: float, delta: float) -> Self:
        """These parameters with the least noise that is (ε, δ)-DP after all steps."""
        positive(epsilon=epsilon)
        within("[0, 1)", delta=delta)
        if delta == 0 and self.noise == "gaussian":
            raise PrivacyError("Gaussian noise needs delta > 0; set it, or take noise='laplace'")
        return replace(self, scale=_least_scale(self, epsilon, delta))

    def samples(self, entropy: Entropy) -> Iterator[Integers]:
        """Yield the rows of each step's sample, ascending."""
        source = entropy.source("samples")
        for _ in range(self.steps):
            if self.sampling == "fixed":
                yield _distinct(self.rows, self.sample, source)
            else:
                taken = uniform_below(self.rows, self.rows, source) < self.sample
                yield np.flatnonzero(taken)

    def sums(self, size: int, entropy: Entropy) -> Callable[[Floats], NDArray[Any]]:
        """What leaves of each step in turn: from (m, p) gradients in units of C, (p,) in C/G."""
        if self.noise == "direction":
            return RandomDirections(1 / self.scale, size, entropy).sum
        noises = self.noises(size, entropy)
        return lambda gradients: self.rounded(gradients).sum(axis=0) + next(noises)

    def noises(self, size: int, entropy: Entropy) -> Iterator[Integers]:
        """Yield (size,) integers of noise for each step."""
        source, grid = entropy.source("gradients"), self.grid(size)
        block = max(1, _BLOCK // size)
        for first in range(0, self.steps, block):
            count = min(block, self.steps - first)
            if self.noise == "gaussian":
                drawn = discrete_gaussian((self.scale * grid) ** 2, count * size, source)
            else:
                drawn = discrete_laplace(self.scale * grid, count * size, source)
            yield from drawn.reshape(count, size)

    def grid(self, size: int) -> int:
        """G: steps of the grid in C, a power of two, for gradients of that many numbers."""
        if self.noise == "direction":
            return 1
        grid = 1 << 24
        if self.noise == "gaussian":
            grid = 1024
            while grid > 16 and self.scale * grid > 1 << 16:
                grid //= 2
        most = 1 << (16 if self.noise == "gaussian" else 48)
        if rounding_length(size, self._order) > grid // 4 or self.scale * grid > most:
            raise ConfigError(
                f"noise of scale {float(self.scale):g} on {size} weights passes what the exact"
                " sampler takes; raise epsilon or sample, or train fewer weights"
            )
        return grid

    def rounded(self, gradients: Floats) -> Integers:
        """Gradients, (m, p) in units of C, as integers of norm G at most, a record by itself."""
        return rounded_within(gradients, self.grid(gradients.shape[1]), self._order)

    @property
    def _order(self) -> int:
        """1 or 2, of the norm in which gradients are clipped."""
        return 1 if self.noise == "laplace" else 2


class RandomDirections(NonCopyable):
    """Gradients as random directions: of each record one bit, ε-DP by itself and unbiased.

    A direction v is uniform on the sphere and says nothing of a record, and ``b = ±1`` says on
    which side of it the gradient g lies, ‖g‖ <= 1, for certain never:

        P(b = 1 | v, g) = 1/2 + (1/2 − l) sign(v·g) ‖g‖,   l >= 1/(e^ε + 1).

    *Private.* Whatever v and g, either answer has a chance of l to 1 − l, a ratio of e^ε at most:
    in integers, a word is compared with a threshold of L to 2⁶⁴ − L. What floats make of v·g is a
    function of this record.

    *Unbiased.* ``E[b v | v] = (1 − 2l) ‖g‖ sign(v·g) v``, and ``E[sign(v·g) v] = c g/‖g‖`` with
    ``c = E|v₁| = Γ(d/2)/(√π Γ((d + 1)/2))``, so that ``b v/(c (1 − 2l))`` has the mean g. It always
    has the same length, about √(πd/2) (e^ε + 1)/(e^ε − 1), and points the wrong way now and then.
    No ε-DP report of a vector has an error of a smaller order.

    ``size`` is the number of a gradient's components.

    Source: Duchi, Jordan, Wainwright, *Minimax Optimal Procedures for Locally Private Estimation*,
    JASA 2018, Section 4.2.3 (there v is drawn on g's side, which is the same law).
    """

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
        uniform = unit_floats(self._directions.take(gradients.size))
        normal = scipy.special.ndtri(uniform).reshape(gradients.shape)
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


@lru_cache(maxsize=64)
def _least_scale(made: GradientSteps, epsilon: float, delta: float) -> Fraction:
    def guarantee(scale: Fraction) -> Guarantee:
        return replace(made, scale=scale).approximate(delta)

    return calibrate(guarantee, epsilon, delta, grain=_GRAIN)


def _distinct(rows: int, count: int, source: WordSource) -> Integers:
    """A uniformly random set of ``count`` of 0 … rows - 1: the first distinct of many draws."""
    if 2 * count > rows:
        kept = np.ones(rows, dtype=np.bool_)
        kept[_distinct(rows, rows - count, source)] = False
        return np.flatnonzero(kept)
    draws = np.empty(0, dtype=np.int64)
    while True:
        _, first = np.unique(draws, return_index=True)
        if first.size >= count:
            return np.sort(draws[np.sort(first)[:count]])
        draws = np.append(draws, uniform_below(rows, count, source))
