"""Figures with their 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
import scipy
from scipy.special import chndtrix, ndtri

from labelveil.common.arrays import Floats

NORMAL_95 = 1.959963984540054

NEGLIGIBLE = 0.01
"""A model that explains less than this share of the variance is no better than a constant."""

_ONE_SIDED = 5.0

_NOTHING_BEYOND = 60.0
"""Deviations beyond which nothing lies, be it Laplace noise: less than 1e-36."""
_AT = np.linspace(0, 6, 61)[:60]
_HYPERBOLA = (np.cosh(_AT) - 1) / 2 + 1j * math.sqrt(0.75) * np.sinh(_AT)
_ALONG = (np.sinh(_AT) / 2 + 1j * math.sqrt(0.75) * np.cosh(_AT)) * _AT[1]
_ALONG[0] /= 2


@dataclass(frozen=True)
class Measured:
    """A figure and its confidence interval, of 95% unless it says otherwise."""

    value: float
    low: float
    high: float

    @classmethod
    def of_terms(
        cls, terms: Floats, extra: float = 0.0, level: float = NORMAL_95, least: float = 0.0
    ) -> Self:
        """Mean of (n,) terms, n >= 2, with a normal interval and one more standard error.

        ``least`` is what the standard error of the terms is known to be at least.
        """
        error = math.hypot(max(mean_error(terms), least), extra)
        value, half = float(terms.mean()), level * error
        return cls(value, value - half, value + half)

    @property
    def is_bound(self) -> bool:
        """Whether the figure is an end of its own interval, so that it says no more than this; a
        figure that is NaN is none."""
        return self.value == self.low or self.value == self.high

    def within(self, lowest: float, highest: float) -> Measured:
        """The same for readers, of a figure that cannot lie elsewhere: noise may take it there."""
        value, low, high = (
            min(max(end, lowest), highest) for end in (self.value, self.low, self.high)
        )
        return Measured(value, low, high)

    def to_json(self, name: str) -> dict[str, Any]:
        """Under names of ``metrics.json``, ``name``, ``name_low`` and so on; None for NaN."""
        fields = {name if key == "value" else f"{name}_{key}": x for key, x in asdict(self).items()}
        return {key: None if x != x else x for key, x in fields.items()}

    @classmethod
    def of_json(cls, figures: Mapping[str, Any], name: str) -> Self:
        """What :meth:`to_json` made."""
        ends = (figures[key] for key in (name, f"{name}_low", f"{name}_high"))
        return cls(*(math.nan if end is None else end for end in ends))


Verdict = Literal["better", "not better", "cannot tell"]


def compared(share: Measured) -> Verdict:
    """Whether a model is better than a constant, by the share of the variance that it explains."""
    if share.low > 0:
        return "better"
    return "not better" if share.high < NEGLIGIBLE else "cannot tell"


Method = Literal["unbiased", "bounded-bias", "model-assisted", "model-within-groups", "model"]


@dataclass(frozen=True)
class Estimate(Measured):
    """An error estimated from privatized labels, in its own units.

    A noisy estimate of a small error may be negative. The interval is NaN for the method ``model``,
    whose own error nobody knows. The methods:

    ``unbiased``: right on average whatever the labels are. ``bounded-bias``: off on average by no
    more than the interval has room for, whatever the labels are. ``model-assisted``: off by what
    the model's word errs by, which counts as one more standard error. ``model-within-groups``:
    unbiased between groups of labels that the channel tells apart, the model's word within them.
    ``model``: the model's word, given the privatized labels.
    """

    method: Method = "unbiased"


def mean_error(terms: Floats) -> float:
    """Standard error of the mean of (n,) independent terms."""
    return float(terms.std(ddof=1)) / math.sqrt(terms.size)


def half_width(error: float, bias: float) -> float:
    """Half of a 95% interval around a normal estimate of this standard error and at most this bias.

    It is the 95% quantile of |error · Z + bias| (Armstrong and Kolesár 2018), Z standard normal:
    shorter than 1.96 standard errors and the bias, as an estimate is off to one side alone.
    """
    ratio = bias / max(error, 1e-300)
    if ratio > _ONE_SIDED:  # the other side is out of reach
        return bias - error * float(ndtri(0.05))
    return error * math.sqrt(float(chndtrix(0.95, 1, ratio**2)))


def noise_beyond(reach: float, error: float, *scales: float) -> float:
    """Probability that a normal error and independent Laplace noises are off together by more.

    ``error`` is the normal one's standard deviation, ``scales`` are the noises', in the unit of
    ``reach``. Numerical, right to six digits where it is below a half: what the moment generating
    function M of their sum S says, P(S > t) = 1/(2πi) ∫ M(s) exp(-st)/s ds, along a line that
    crosses the real axis between 0 and where M is infinite.
    """
    spread = math.hypot(error, *(math.sqrt(2) * scale for scale in scales))
    if reach <= 0 or not spread:
        return float(reach <= 0)
    t, squares = reach / spread, np.square(np.array([0.0, *scales]) / spread)
    if t > _NOTHING_BEYOND:
        return 0.0
    normal, noise = (error / spread) ** 2, 1 - (error / spread) ** 2
    pole = 1 / math.sqrt(max(squares.max(), 1e-30))
    # The integrand is least on the axis near where its logarithm has no slope; were all noise of
    # the largest scale, here. Beyond it a hyperbola towards large s leaves little to integrate.
    crossing = scipy.optimize.brentq(
        lambda s: s * (normal + noise / (1 - (s / pole) ** 2)) - t - 1 / s,
        0.5,
        min(t + 2, pole * (1 - 1e-9)),
    )
    inner = 1 - squares * crossing**2
    curved = normal + (2 * squares * (2 - inner) / inner**2).sum() + crossing**-2
    s = crossing + _HYPERBOLA / math.sqrt(curved)
    moments = normal / 2 * s**2 - np.log1p(-np.multiply.outer(squares, s**2)).sum(axis=0)
    along = (np.exp(moments - s * t) / s * _ALONG).imag.sum() / math.sqrt(curved)
    return float(2 / math.pi * along)


def noisy_half_width(error: float, *scales: float, chance: float = 0.05) -> float:
    """How far a normal error and Laplace noises of some scales are off together, but for a chance.

    As :func:`noise_beyond`, whose inverse it is.
    """
    spread = math.hypot(error, *(math.sqrt(2) * scale for scale in scales))
    # one Laplace noise has the longest tail of these laws, but for the normal one's shoulders
    most = (-float(ndtri(chance / 2)) - math.log(chance)) * spread
    if not spread:
        return 0.0
    return float(
        scipy.optimize.brentq(
            lambda reach: noise_beyond(reach, error, *scales) - chance, 0.0, most, xtol=1e-9 * most
        )
    )
