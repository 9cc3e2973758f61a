"""How good predictions are, as two sums of their errors tell it, with intervals.

Names are those of :mod:`labelveil.feature_party.groups.scoring`, which asks for the sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import scipy

from labelveil.common.mechanisms.group_sums import Lattice
from labelveil.feature_party.evaluation.intervals import Measured, noise_beyond

_KURTOSIS = 10.0
_ENDLESS, _STEP = 1e3, 1e-6

Kind = Literal["errors", "gain"]


class Known(NamedTuple):
    """V as releases about other events tell it, in units of the label, squared."""

    value: float
    error: float
    """Its standard error."""


@dataclass(frozen=True)
class Score:
    """How good predictions are, with 95% intervals; errors in units of the label, squared."""

    r2: Measured
    """Share of the reference's squared error that is saved, at most 1; -inf where nothing tells."""
    mse: Measured
    """M, at least 0."""
    reference_mse: Measured
    """V, at least 0."""
    events: int

    @property
    def sentence(self) -> str:
        """The same in a line."""
        mse = self.mse
        return (
            f"R² {_shown(self.r2, '.3f')}; mean squared error {_shown(mse, '.4g')}, the reference's"
            f" {self.reference_mse.value:.4g}; {self.events:,} events"
        )


def _shown(figure: Measured, form: str) -> str:
    value, low, high = (
        format(end, form).replace("-", "−").replace("inf", "∞")
        for end in (figure.value, figure.low, figure.high)
    )
    return f"{value} (95%: {low} … {high})"


@dataclass(frozen=True)
class EventVariances:
    """What one event adds, in variances: they follow from M and V, and from predictions."""

    squares: float  # E(f - g)²
    fourth: float  # E(f - g)⁴
    widest: tuple[float, float]  # the largest |y - f| and |y - g| that there may be
    dithered: tuple[float, float]  # mean squares by which f and g were moved to levels
    assisted: bool  # whether E(f - g)² assists in estimating V

    @property
    def _apart(self) -> float:
        """Of (f - g)(y - f), as a multiple of M."""
        return (self.squares + self.fourth / self.squares) / 2 if self.squares > 0 else 0.0

    def of_squares(self, error: float, place: int = 0) -> float:
        """Of the squares of residuals with this mean square, and of moving what they are from."""
        most = max(self.widest[place] ** 2 - error, 0.0) * error  # squares are at most widest²
        return min((_KURTOSIS - 1) * error**2, most) + 4 * self.dithered[place] * error

    def first(self, kind: Kind, error: float) -> float:
        """Of what the first sum tells."""
        return self.of_squares(error) if kind == "errors" else 4 * self._apart * error

    def second(self, error: float, reference: float) -> float:
        """Of (y - g)² - (f - g)², or of (y - g)² alone."""
        if not self.assisted:
            return self.of_squares(reference, place=1)
        moved = 4 * self.dithered[1] * reference
        return self.of_squares(error) + 4 * self._apart * error + moved

    @property
    def sampled(self) -> float:
        """Of (f - g)²."""
        return max(self.fourth - self.squares**2, 0.0)


@dataclass(frozen=True)
class TwoSums:
    """What both sums say, with the scales of their noise, in units of the label."""

    kind: Kind
    first: float  # M, or V - M
    second: float  # V
    noise: tuple[float, float]
    rows: tuple[int, int]
    terms: EventVariances
    share: float = 1.0  # what the second sum counts for in V, beside what is known
    beside: float = 0.0  # standard error of what is known

    def score(self, lattice: Lattice) -> Score:
        # labels between two points went to one at random: that adds so much to squares, at most
        more = (lattice.step / 2) ** 2
        first, second = (self.ratio(added) for added in (0.0, more))
        r2 = Measured(first.value, min(first.low, second.low), max(first.high, second.high))
        return Score(r2, self.error, self.reference, sum(self.rows))

    def _excess(
        self, off: float, own: float, ratio: float, error: float, reference: float
    ) -> float:
        """Whether ``own first - ratio second`` is surely not off by so much, if these are M and V:
        how far the chance of that is below 5%."""
        error, reference = max(error, 0.0), max(reference, 0.0)
        first = own**2 * self.terms.first(self.kind, error) / self.rows[0]
        second = (ratio * self.share) ** 2 * self.terms.second(error, reference) / self.rows[1]
        second += (ratio * (1 - self.share) * self.beside) ** 2
        # E(f - g)² is in the gain, and in V where it assists
        common = own if self.kind == "gain" else 0.0
        common -= ratio * self.share if self.terms.assisted else 0.0
        sampled = common**2 * self.terms.sampled / sum(self.rows)
        scales = own * self.noise[0], ratio * self.noise[1]
        return 0.05 - noise_beyond(abs(off), math.sqrt(first + second + sampled), *scales)

    def ratio(self, added: float) -> Measured:
        """R², if labels' places have so much more variance than labels."""
        top = self.first - (added if self.kind == "errors" else 0.0)
        below = self.second - added
        best = top / below if below > 0 else math.nan

        # Fieller: the interval has every ratio r that the noise of top - r below does not rule out.
        # Unlike the quotient's own error that holds where below is hardly distinguishable from 0.
        def excess(ratio: float) -> float:
            left = ratio if self.kind == "errors" else 1 - ratio
            return self._excess(top - ratio * below, 1.0, ratio, left * below, below)

        low, high = _roots(excess, best, 1.0)
        if self.kind == "errors":
            best, low, high = 1 - best, 1 - high, 1 - low
        low, high = min(low, 1.0), min(high, 1.0)
        value = best if best == best else low
        return Measured(float(np.clip(value, low, high)), low, high)

    @property
    def error(self) -> Measured:
        """M."""
        ratio = 0.0 if self.kind == "errors" else 1.0
        value = self.first if self.kind == "errors" else self.second - self.first

        # the noise depends on M itself: every M that the sums do not rule out is in the interval
        def excess(error: float) -> float:
            return self._excess(value - error, 1.0, ratio, error, self.second)

        low, high = _roots(excess, value, abs(self.second))
        return Measured(value, low, high).within(0.0, math.inf)

    @property
    def reference(self) -> Measured:
        """V."""
        error = self.first if self.kind == "errors" else self.second - self.first

        def excess(reference: float) -> float:
            return self._excess(self.second - reference, 0.0, 1.0, error, reference)

        low, high = _roots(excess, self.second, abs(self.second))
        return Measured(self.second, low, high).within(0.0, math.inf)


def _roots(excess: Callable[[float], float], best: float, unit: float) -> tuple[float, float]:
    """Where a function that is negative at ``best`` becomes positive, below it and above; endless
    if nowhere near, in these units."""
    if not math.isfinite(best):
        return -math.inf, math.inf
    ends = []
    furthest = _ENDLESS * max(abs(best), unit, 1e-300)
    for sign in (-1.0, 1.0):
        # twice as far each time until there is a change of sign for Brent's method to close in on
        step = _STEP * furthest
        while excess(best + sign * step) < 0 and step < furthest:
            step *= 2
        end = sign * math.inf
        if step < furthest:
            end = scipy.optimize.brentq(
                excess, best, best + sign * step, xtol=1e-12 * furthest / _ENDLESS
            )
        ends.append(float(end))
    return ends[0], ends[1]
