"""The law of a noisy sum of clipped labels, given what is predicted of its events.

A label is taken to be normal around its prediction f with a variance σ². Clipped around an offset
o to a width h its mean is a function of f, which near f₀ is a line:

    E clip(y - o) ≈ c₀ + p (f - f₀),    p = P(|y - o| < h)

so that a sum is linear in predictions, with the variance of what is clipped and of the noise.
What is clipped is nearly normal in sum, the noise is Laplace's: where it is most of what varies, a
sum tells up to twice as much as a normal number of the same variance. One that is far off says
little, and one that is near says more. The density p of both together is a mixture of normal ones,
so that with η = -r p(r)/p'(r) it is nowhere less than c(r) times a normal one of variance η, and as
much at ±r. With r² the expected square of how far a sum is off, that is a step of variational
Bayes.

Source: Palmer, Wipf, Kreutz-Delgado and Rao, *Variational EM Algorithms for Non-Gaussian Latent
Variable Models*, NIPS 2005.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from scipy.special import log_ndtr, ndtr

from labelveil.common.arrays import Booleans, Floats, Indices
from labelveil.common.mechanisms.group_sums import NO_GROUP, PrivateSums

_LEAST_NORMAL = 1e-6
"""Variance of what is normal in a sum, at least, as a share of its noise's; and how far a sum is
off, at least, in deviations of that."""
_LEAST_NOISE = 1e-6
"""Variance of noise, at least, as a share of what is normal beside it."""
_ROWS_AT_ONCE = 1 << 14


def clipped_moments(
    means: Floats, deviation: Floats | float, widths: Floats
) -> tuple[Floats, Floats]:
    """Mean and variance of ``clip(u, -h, h)`` for normal u: (n,) of each, h > 0."""
    low, high = (-widths - means) / deviation, (widths - means) / deviation
    below, above = ndtr(low), ndtr(-high)
    inside = np.maximum(1 - below - above, 0.0)
    at_low, at_high = (np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) for z in (low, high))
    # moments of a truncated normal, and the mass beyond either end at that end
    mean = widths * (above - below) + means * inside + deviation * (at_low - at_high)
    square = widths**2 * (above + below) + (means**2 + deviation**2) * inside
    square += deviation**2 * (low * at_low - high * at_high)
    square += 2 * means * deviation * (at_low - at_high)
    return mean, np.maximum(square - mean**2, 0.0)


def inside_share(means: Floats, deviation: Floats | float, widths: Floats) -> Floats:
    """(n,) probabilities that a normal number is not clipped."""
    return np.asarray(ndtr((widths - means) / deviation) - ndtr((-widths - means) / deviation))


def as_normal(misses: Floats, within: Floats, noise: Floats) -> tuple[Floats, Floats]:
    """(G,) variances η of normal numbers that stand for sums which miss by so much, and
    logarithms of c.

    ``within`` are variances of what is normal in them, ``noise`` those of Laplace's.
    """
    # of less noise the two sides below are alike to the last digits
    size = np.sqrt(np.maximum(noise, _LEAST_NOISE * within) / 2)
    within = np.maximum(within, _LEAST_NORMAL * noise)
    # that of no event may miss by nothing, where the ratio below is 0 / 0
    misses = np.maximum(misses, _LEAST_NORMAL * np.sqrt(within))
    deviation = np.sqrt(within)
    high = -misses / size + log_ndtr((misses - within / size) / deviation)
    low = misses / size + log_ndtr(-(misses + within / size) / deviation)
    density = np.logaddexp(high, low) + within / (2 * size**2) - np.log(2 * size)
    variance = misses * size / np.tanh((high - low) / 2)
    likelier = density + (misses**2 / variance + np.log(2 * np.pi * variance)) / 2
    return variance, likelier


@dataclass(frozen=True, eq=False)
class SumRows:
    """Events whose labels were summed, in units of the label, of one answer or of several."""

    rows: Indices
    """(m,) of the features: events that are in no group are left out."""
    groups: Indices
    """(m,) 0 … G - 1."""
    offsets: Floats
    """(m,)"""
    widths: Floats
    """(m,) half-widths."""
    open_ended: Booleans
    """(m,) whether no label is clipped at all."""
    weights: Floats
    """(m,)"""
    sums: Floats
    """(G,)"""
    noise: Floats
    """(G,) variances of the exact noise."""

    @classmethod
    def none(cls) -> SumRows:
        """Those of no answer, where codes alone are learned from."""
        no_rows, no_numbers = np.zeros(0, dtype=np.int64), np.zeros(0)
        of_rows = no_rows, no_rows, no_numbers, no_numbers, np.zeros(0, dtype=np.bool_), no_numbers
        return cls(*of_rows, no_numbers, no_numbers)

    @classmethod
    def from_answers(cls, answers: Sequence[PrivateSums]) -> SumRows:
        """Those of answers about rows that lie one behind the other's."""
        parts, row, group = [], 0, 0
        for answer in answers:
            parts.append(cls._of_one(answer, row, group))
            row, group = row + len(answer.question), group + answer.sums.size
        columns = (
            np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(cls)
        )
        return cls(*columns)

    @classmethod
    def _of_one(cls, answer: PrivateSums, first_row: int, first_group: int) -> SumRows:
        question, lattice = answer.question, answer.question.lattice
        rows = np.flatnonzero(question.groups != NO_GROUP)
        groups = question.groups[rows].astype(np.int64)
        level = 0 if question.levels is None else question.levels[rows]
        places = np.broadcast_to(question.offsets[level], rows.shape)
        widths = question.half_widths[groups]
        weights = np.ones(rows.size) if question.weights is None else question.weights[rows]
        return cls(
            rows=first_row + rows,
            groups=first_group + groups,
            offsets=lattice.points(places),
            widths=np.asarray(lattice.step * widths, dtype=np.float64),
            open_ended=widths >= np.maximum(places, lattice.steps - places),
            weights=weights.astype(np.float64),
            sums=answer.values,
            noise=answer.deviations**2,
        )

    def select(self, groups: Indices) -> SumRows:
        """Those of some groups, (g,) of ascending numbers, which are counted anew."""
        place = np.full(self.sums.size, -1, dtype=np.int64)
        place[groups] = np.arange(groups.size)
        numbers = place[self.groups]
        (events,) = np.nonzero(numbers >= 0)
        return SumRows(
            rows=self.rows[events],
            groups=numbers[events],
            offsets=self.offsets[events],
            widths=self.widths[events],
            open_ended=self.open_ended[events],
            weights=self.weights[events],
            sums=self.sums[groups],
            noise=self.noise[groups],
        )

    def moments(self, predictions: Floats, deviations: Floats) -> tuple[Floats, Floats, Floats]:
        """Mean, variance and slope of each (m,) event's part, given the predictions of all rows and
        how labels deviate from them."""
        mean, deviations = predictions[self.rows] - self.offsets, deviations[self.rows]
        variance, slope = deviations**2, np.ones(mean.shape)
        clipped = np.flatnonzero(~self.open_ended)  # all others are what they are
        for start in range(0, clipped.size, _ROWS_AT_ONCE):
            some = clipped[start : start + _ROWS_AT_ONCE]
            means, deviation, widths = mean[some], deviations[some], self.widths[some]
            mean[some], variance[some] = clipped_moments(means, deviation, widths)
            slope[some] = inside_share(means, deviation, widths)
        return self.weights * mean, self.weights**2 * variance, self.weights * slope

    @property
    def average(self) -> float:
        """About the mean label: of clipped ones offsets say most of it. NaN if no sum says any."""
        whole, there = self.by_group(self.weights), self.by_group(self.weights * self.offsets)
        told = float(np.sum(whole**2 / self.noise))
        return float(np.sum(whole * (self.sums + there) / self.noise)) / told if told else np.nan

    def by_group(self, values: Floats) -> Floats:
        """(G,) sums of (m,) numbers."""
        sums = np.bincount(self.groups, values, minlength=self.sums.size)
        return np.asarray(sums, dtype=np.float64)
