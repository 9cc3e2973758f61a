"""Labels randomized to the letter of *Regression with Label Differential Privacy* (ICLR 2023).

Labels are rounded down to integers, k of them, but for continuous noise, which needs none:
Algorithm 2 on all amounts would be expensive. What needs a prior spends ε₁ = √(4k/n) on it,
however small ε is, clips the noisy histogram at 0 and normalises it; what needs none spends all of
ε on the labels. Under Poisson loss, too, bins are those of the squared error. For comparisons: what
a release does says :mod:`labelveil.common.randomizers.message.plan`.

Nor may labels with continuous noise leave. A sum in floating point shows in its last bits which
labels could have led to it: the noise values that a float sampler can return have gaps, and the
gaps move with the label (Mironov, *On Significance of the Least Significant Bits for Differential
Privacy*, CCS 2012). So ε holds for real numbers and not for the floats that :func:`with_noise`
returns, which no channel has; the randomizers ``laplace`` and ``staircase`` are the same laws,
rounded to integer weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats
from labelveil.common.entropy import Entropy, unit_floats
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import float_below
from labelveil.common.randomizers.additive import Laplace, Staircase, best_gamma
from labelveil.common.randomizers.base import build_randomizer, check_epsilon
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.common.randomizers.prior import private_prior, rational_epsilon

WITHOUT_PRIOR = (
    "discrete-laplace",
    "discrete-staircase",
    "exponential",
    "laplace",
    "randomized-response",
    "staircase",
)
CONTINUOUS_NOISE = ("laplace", "staircase")
"""Randomizers whose noise may be continuous."""

_MOST_INTEGERS = 4096


@dataclass(frozen=True, eq=False)
class PublishedLabels:
    """Randomized labels."""

    sent: Floats  # (n,) numbers to train on
    epsilon_prior: Fraction  # ε₁; 0 without a prior
    outputs: int | None  # how many different values may be sent; None for continuous noise


def with_noise(labels: Floats, law: Laplace | Staircase, entropy: Entropy) -> Floats:
    """Add noise to (n,) labels for an experiment: floats, not private whatever ε is.

    One word a label is read of the stream ``simulation`` of ``entropy``.
    """
    words = entropy.words("simulation", 0, labels.size)
    sign = np.where(words & np.uint64(1), 1.0, -1.0)
    return np.asarray(labels + sign * _quantile(law, unit_floats(words) / 2))


def _quantile(law: Laplace | Staircase, tail: Floats) -> Floats:
    """The x >= 0 with P(N > x) = tail."""
    if isinstance(law, Laplace):
        return np.asarray(-law.scale * np.log(2 * tail))
    b, a, edge = law.decay, law.height, law.gamma * law.span
    period = np.floor(-np.log(2 * tail) / law.epsilon)
    before = 0.5 - tail / b**period  # probability within the period, before x
    high = before / a
    low = edge + (before - a * edge) / (a * b)
    return np.asarray(period * law.span + np.where(high <= edge, high, low))


def integers(lower: float, upper: float) -> Grid:
    """All integers from ``lower`` to ``upper``."""
    first, last = math.ceil(lower), math.floor(upper)
    if not 1 <= last - first < _MOST_INTEGERS:
        raise ConfigError(
            f"as published, labels are rounded down to integers, and from {lower:g} to {upper:g}"
            f" there are {last - first + 1:,} of them, not 2 to {_MOST_INTEGERS:,}; change the"
            " label's unit"
        )
    return Grid.from_step(first, last, 1.0)


def randomize_as_published(
    labels: ArrayLike,
    terms: LabelTerms,
    epsilon: float,
    entropy: Entropy,
    *,
    continuous: bool = False,
) -> PublishedLabels:
    """Randomize (n,) labels by the bounds, randomizer, options and loss of ``terms`` alone.

    ``epsilon`` is the whole budget of a label; ``PrivacyError`` if the prior takes all of it, as
    the data set is too small for the paper's split. ``continuous`` asks for Laplace or staircase
    noise as floats, as published, which is no label that may leave.
    """
    grid = integers(terms.lower, terms.upper)
    values = np.asarray(labels, dtype=np.float64)
    if continuous:
        return PublishedLabels(_with_noise(values, terms, epsilon, entropy), Fraction(0), None)
    whole = np.clip(np.floor(values), grid.lower, grid.upper)
    rows, k = whole.size, len(grid)
    indices = (whole - grid.lower).astype(np.int64)
    first, prior = Fraction(0), np.ones(k)
    if terms.randomizer not in WITHOUT_PRIOR:
        share = math.sqrt(4 * k / rows)
        if share >= epsilon:
            raise PrivacyError(
                f"as published, the prior takes √(4·{k}/{rows:,}) = {share:.3g}, which leaves"
                f" nothing of epsilon={epsilon:g}; use more rows, or an objective that caps it"
            )
        first = rational_epsilon(share)
        prior = private_prior(np.bincount(indices, minlength=k), first, entropy).clipped
    made = build_randomizer(
        terms.randomizer,
        labels=grid.points,
        prior=prior,
        epsilon=float_below(rational(epsilon) - first),
        loss="squared" if terms.loss == "poisson" else terms.loss,
        rows=rows,
        **terms.options,
    )
    outputs = made.channel.outputs
    return PublishedLabels(outputs[made.randomize_indices(indices, entropy)], first, outputs.size)


def _with_noise(values: Floats, terms: LabelTerms, epsilon: float, entropy: Entropy) -> Floats:
    """Labels within their bounds with Laplace or staircase noise, clipped if options say so."""
    low, high = terms.lower, terms.upper
    check_epsilon(epsilon)
    law: Laplace | Staircase = Laplace((high - low) / epsilon)
    if terms.randomizer == "staircase":
        law = Staircase(high - low, epsilon, best_gamma(epsilon, squared=True))
    sent = with_noise(np.clip(values, low, high), law, entropy)
    return np.clip(sent, low, high) if terms.options.get("clip") else sent
