"""Figures with their 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import scipy
from scipy.special import chndtrix, log_ndtr, ndtr, ndtri

from labelveil.common.arrays import Floats

NORMAL_95 = 1.959963984540054

NEGLIGIBLE = 0.01
"""A model that explains less than this share of the variance is no better than a constant."""

_ONE_SIDED = 5.0
_NEXT_TO_NOTHING = 1e-3


@dataclass(frozen=True)
class Measured:
    """A figure and its confidence interval, of 95% unless it says otherwise."""

    value: float
    low: float
    high: float

    @classmethod
    def of_terms(cls, terms: Floats, extra: float = 0.0, level: float = NORMAL_95) -> Self:
        """Mean of (n,) terms, n >= 2, with a normal interval and one more standard error."""
        value, half = float(terms.mean()), level * math.hypot(mean_error(terms), extra)
        return cls(value, value - half, value + half)

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


def noisy_half_width(error: float, *scales: float, chance: float = 0.05) -> float:
    """How far a normal error and Laplace noises of some scales are off together, but for a chance.

    The largest scale keeps its law; the others' variances go into the normal one.
    """
    scale, *rest = sorted(map(abs, scales), reverse=True)
    error = math.sqrt(error**2 + 2 * sum(other**2 for other in rest))
    if scale <= _NEXT_TO_NOTHING * error:
        return -float(ndtri(chance / 2)) * math.hypot(error, math.sqrt(2) * scale)
    if error <= _NEXT_TO_NOTHING * scale:
        return -scale * math.log(chance)
    ratio = error / scale

    def tail(t: float) -> float:
        z = t / error
        down = math.exp(ratio**2 / 2 - t / scale + float(log_ndtr(z - ratio)))
        up = math.exp(ratio**2 / 2 + t / scale + float(log_ndtr(-z - ratio)))
        return 2 * float(ndtr(-z)) + down - up - chance

    # at three times the normal noise's reach and that of the Laplace noise next to nothing is left
    most = 3 * -float(ndtri(chance / 2)) * error - 3 * scale * math.log(chance)
    return float(scipy.optimize.brentq(tail, 0.0, most, xtol=1e-12 * most))
