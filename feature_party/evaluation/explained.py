"""What share of the label's variance predictions explain, and whether they beat a constant.

For a prediction f of a row that f has not seen and a constant c

    G = E[(y − c)² − (y − f)²] = E[(f − c)(2y − f − c)]

is linear in y, as for every loss of :mod:`labelveil.feature_party.evaluation.losses`, so that a
label's decoding takes its place (see :mod:`labelveil.feature_party.evaluation.decoded_labels`) and
y² never enters. Then R² = G / V, with V = E(y − c)². *Model-assisted*: from labels decoded with the
model's help; what it may err by counts as one more standard error. This interval is shown, and
decides. *Assumption-free*, a detail beside it: from labels decoded with a bias b whose largest
effect, |E[s b(y)]|² <= E s² · E b² for a slope s, the interval has room for.

Sources: for intervals of a ratio, Fieller, *Some Problems in Interval Estimation*, JRSS B 1954; for
intervals with room for a bias, Armstrong and Kolesár, *Optimal Inference in a Class of Regression
Models*, Econometrica 2018. docs/appendix/evaluation.md derives all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.feature_party.evaluation.decoded_labels import (
    MISFIT,
    DecodedLabels,
    Scored,
    believed,
)
from labelveil.feature_party.evaluation.intervals import (
    NEGLIGIBLE,
    NORMAL_95,
    Estimate,
    Measured,
    Method,
    Verdict,
    compared,
    half_width,
    mean_error,
)
from labelveil.feature_party.evaluation.losses import SQUARED, MeanLoss
from labelveil.feature_party.evaluation.spread import ReleasedCodes, Spread
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.support import Support

_EXACT, _BEYOND = 1e-3, 1e4


@dataclass(frozen=True)
class Explained:
    """How predictions compare with a constant.

    About ``events`` events, or ``epsilon`` times this ε, would tell; they are None if these do, or
    next to nothing would.
    """

    # R², in −∞ … 1, model-assisted; from 0 at most where the features are not seen to tell anything
    share: Measured
    assumption_free: Measured  # the same, without the model's word
    loss: Estimate  # the loss V − G, model-assisted
    assumption_free_loss: Estimate  # the same, without it
    constant: float  # the constant's loss V: of the squared error, the label's variance
    association: float  # of predictions and codes: about standard normal if there is none
    events: int | None
    epsilon: float | None
    # what codes and histogram say of the loss of the constant that sums compare predictions with
    spread: Spread | None = None
    sums: int = 0  # events whose sums tell it, in place of codes
    codes: Measured | None = None  # what these tell of R² then

    @property
    def verdict(self) -> Verdict:
        """Whether predictions are better than the constant."""
        return compared(self.share)

    @property
    def possible(self) -> bool:
        """Whether the estimate of R² is below 1, as every R² is: noise may take it there."""
        return self.share.value < 1

    @property
    def associated(self) -> bool:
        """Whether the features predict the label: if not, this errs once in 40 times."""
        return self.association > NORMAL_95 or (self.sums > 0 and self.share.low > 0)

    def by_sums(self, share: Measured, mse: Measured, constant: float, events: int) -> Explained:
        """The same where sums over ``events`` events that no code was sent of decide: R², the
        squared error and the constant's."""
        return replace(
            self,
            share=share,
            loss=Estimate(mse.value, mse.low, mse.high, "unbiased"),
            constant=constant,
            events=None,
            epsilon=None,
            sums=events,
            codes=self.share,
        )

    @property
    def error(self) -> Estimate:
        """The loss that goes with the estimate of R², >= 0."""
        value = self.constant * (1 - self.share.value)
        low, high = min(max(self.loss.low, 0.0), value), max(self.loss.high, value)
        return Estimate(value, low, high, self.loss.method)

    def to_json(self) -> dict[str, Any]:
        """As in ``metrics.json``."""
        return {
            "verdict": self.verdict,
            **self.share.to_json("estimated_r2"),
            "estimated_r2_is_bound": self.share.is_bound,
            **self.error.to_json("estimated_mse"),
            "estimated_constant_mse": self.constant,
            "told_by": "sums" if self.sums else "codes",
            **(self.codes.to_json("codes_r2") if self.codes else {}),
            **self.assumption_free.to_json("assumption_free_r2"),
            **self.assumption_free_loss.to_json("assumption_free_mse"),
        }


@dataclass(frozen=True, eq=False)
class _Gain:
    """(n,) terms whose mean is G, and what else G may err by."""

    terms: Floats
    dependence: float  # factor between the variance of the mean and that of independent terms
    bias: float = 0.0  # the most that the mean is off by in either direction
    error: float = 0.0  # one more standard error
    model_assisted: bool = False  # whether the model's word is in it

    @property
    def mean(self) -> float:
        return float(self.terms.mean())

    @property
    def noise(self) -> float:
        """Standard error of the mean."""
        return math.sqrt(self.dependence) * mean_error(self.terms)


def explained(
    sources: Sequence[ReleasedCodes],
    support: Support,
    scored: Scored,
    spread: Spread,
    labels: DecodedLabels,
    loss: MeanLoss = SQUARED,
) -> Explained:
    """Compare the predictions of n >= 2 rows with a constant, whose loss is ``spread``."""
    offset, slope = loss.gain(scored.predicted.points, spread.centre)
    reach = math.sqrt(float(np.mean(slope**2)))
    known = offset + ~scored.held_out * scored.averaging
    dependence = scored.dependence(spread.centre)
    unbiased, bias_bounded, model_assisted = (
        _Gain(known + slope * decoded, dependence)
        for decoded in (labels.unbiased, labels.bias_bounded, labels.model_assisted)
    )
    assumption_free = replace(bias_bounded, bias=reach * labels.limit, error=reach * labels.unsure)
    word = reach * labels.misfit * labels.trusted
    # what the codes themselves show of the error in the model's word, beyond their own noise
    apart = unbiased.terms - model_assisted.terms
    gap = max(abs(float(apart.mean())) - reach * labels.hidden, 0.0)
    shown = math.sqrt(max(gap**2 - dependence * mean_error(apart) ** 2, 0.0))
    differ = abs(float(np.mean(slope * (labels.model_assisted - labels.plain))))
    assisted = replace(model_assisted, error=max(word, shown, differ), model_assisted=True)
    ratio = assisted.mean / spread.shown
    constant = loss.losses(np.array([spread.centre]), support.values)
    between = _between_samples(support, scored, offset, slope, ratio * constant)
    share, of_free = (_share(gain, spread, between) for gain in (assisted, assumption_free))
    lost, free_lost = (_loss(gain, spread, between) for gain in (assisted, assumption_free))
    association = _association(sources, scored)
    # where what assumes nothing contradicts the model's word, or sees nothing, it has the last
    low = min(share.low, of_free.high, math.inf if association > NORMAL_95 else 0.0)
    share = Measured(share.value, low, max(share.high, of_free.low))
    of_constant = spread.shown, association, None, None, spread
    found = Explained(share, of_free, lost, free_lost, *of_constant)
    if found.verdict == "cannot tell":
        width = NORMAL_95 * math.hypot(assisted.noise, assisted.error) / spread.shown
        times = max(width / max(share.value, 5 * NEGLIGIBLE), 1.1)
        if times < _BEYOND:  # of labels that hardly differ, no number is advice
            found = replace(found, events=round(slope.size * times**2), epsilon=times)
    return found


def _share(gain: _Gain, spread: Spread, between: float) -> Measured:
    """R² = G / V, at most 1."""
    covariance = float(np.cov(gain.terms, spread.terms)[0, 1]) / gain.terms.size
    variance = gain.noise**2 + gain.error**2 + between
    return spread.share(gain.mean, variance, covariance, gain.bias, most=1.0)


def _loss(gain: _Gain, spread: Spread, between: float) -> Estimate:
    value = spread.value - gain.mean
    own = mean_error(spread.terms - gain.terms)
    more = (gain.dependence - 1) * mean_error(gain.terms) ** 2 + gain.error**2 + between
    half = half_width(math.hypot(own, spread.histogram_error, math.sqrt(more)), gain.bias)
    method: Method = "unbiased" if gain.bias <= _EXACT * half else "bounded-bias"
    if gain.model_assisted:
        method = "model-assisted"
    return Estimate(value, value - half, value + half, method)


def _between_samples(
    support: Support, scored: Scored, offset: Floats, slope: Floats, constant: Floats
) -> float:
    """Variance of G between all rows and those held out, which a test on true labels is about.

    The gain of a row with label y is ``offset + slope * y``; (m,) ``constant`` has the constant's
    loss in each cell, times R².
    """
    tested = int(scored.held_out.sum())
    if tested in (0, scored.held_out.size):
        return 0.0
    y, w = support.values, constant
    moments = np.stack([y, y**2, w, w**2, y * w], axis=1)
    first, second, loss, losses, both = (believed(support, scored.predicted) @ moments).T
    # E_q of (r + s y − w)²
    squared = offset**2 + slope**2 * second + losses
    squared += 2 * (offset * slope * first - offset * loss - slope * both)
    return float(squared.mean()) * (1 / tested - 1 / scored.held_out.size)


def _association(sources: Sequence[ReleasedCodes], scored: Scored) -> float:
    """Standardised covariance of predictions and codes; about normal where they are independent.

    Networks of other folds were trained on a row's code, which may double the variance of a sum
    over rows that are not held out: both of a pair's codes are in both predictions.
    """
    total = variance = 0.0
    for source in sources:
        ridge = 1 / (source.rows.size * MISFIT**2)
        values = decoder(source.problem, source.problem.grid, ridge).values[source.codes, 0]
        points = scored.predicted.points[source.rows]
        terms = (points - points.mean()) * (values - values.mean())
        total += float(terms.sum())
        variance += float(np.where(scored.held_out[source.rows], 1.0, 2.0) @ terms**2)
    return total / math.sqrt(variance) if variance > 0 else 0.0
