"""Guarantees of rational numbers that add up: ε-DP, (ε, δ)-DP, and (approximate) ρ-zCDP."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from operator import add, le
from typing import ClassVar, Self

from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import above, float_above
from labelveil.common.guarantees.base import Adjacency, Guarantee, Unit, check_group
from labelveil.common.guarantees.limits import at_least, within


@dataclass(frozen=True)
class Additive(Guarantee):
    """A guarantee of rational numbers that add up: ε or ρ, and for some kinds δ, stopping at 1."""

    def __post_init__(self) -> None:
        first, *delta = self._names()
        within("[0, ∞)", **{first.removeprefix("exact_"): getattr(self, first)})
        for name in delta:
            within("[0, 1]", delta=getattr(self, name))

    @property
    def delta(self) -> float:
        """δ, or the failure probability, as a float, rounded up."""
        return float_above(sum(self._numbers()[1:], Fraction(0)))

    def compose(self, other: Self) -> Self:
        self.same_neighbours(other)
        return self._with(map(add, self._numbers(), other._numbers()))

    def repeat(self, times: int) -> Self:
        at_least(0, times=times)
        return self._with(number * times for number in self._numbers())

    def within(self, limit: Self) -> bool:
        self.same_neighbours(limit)
        bounds = limit._numbers()
        return bounds[1:] == (Fraction(1),) or all(map(le, self._numbers(), bounds))

    def _numbers(self) -> tuple[Fraction, ...]:
        return tuple(getattr(self, name) for name in self._names())

    def _with(self, numbers: Iterable[Fraction]) -> Self:
        first, *delta = numbers
        capped = [first, *(min(value, Fraction(1)) for value in delta)]
        return type(self)(*self.neighbours, *capped)


@dataclass(frozen=True)
class PureDP(Additive, kind="pure"):
    """ε-DP: ``P[M(D) in S] <= e^ε P[M(D') in S]`` for all neighbours D, D' and all S.

    Source: Dwork, McSherry, Nissim, Smith, *Calibrating Noise to Sensitivity*, TCC 2006; the
    composition is Theorem 3.14 of Dwork and Roth (2014).
    """

    exact_epsilon: Fraction
    """ε >= 0 as a rational number; a float given to :meth:`of` is taken at its exact value."""

    exact_delta: ClassVar[Fraction] = Fraction(0)

    @classmethod
    def of(
        cls,
        epsilon: float | Fraction,
        adjacency: Adjacency = Adjacency.REPLACE_LABEL,
        unit: Unit = Unit.RECORD,
    ) -> Self:
        """Build the guarantee from a number, by default for replacing one label of one record."""
        within("[0, ∞)", epsilon=epsilon)
        return cls(adjacency, unit, rational(epsilon))

    @classmethod
    def of_channel(cls, channel: FiniteChannel, unit: Unit = Unit.RECORD) -> Self:
        """Derive the guarantee of randomizing every label from the channel's own integers."""
        return cls.of(channel.epsilon, Adjacency.REPLACE_LABEL, unit)

    @property
    def epsilon(self) -> float:
        """ε as a float, rounded up."""
        return float_above(self.exact_epsilon)

    def scale(self, group: int) -> Self:
        at_least(1, group=group)
        return self.repeat(group)

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.6g} ({self.adjacency}, per {self.unit})"


@dataclass(frozen=True)
class ApproximateDP(Additive, kind="approximate"):
    """(ε, δ)-DP: ``P[M(D) in S] <= e^ε P[M(D') in S] + δ`` for all neighbours D, D' and all S.

    Source: Dwork, Kenthapadi, McSherry, Mironov, Naor, EUROCRYPT 2006; the composition is Theorem
    3.16 and the group property Theorem 2.2 with its remark of Dwork and Roth (2014).
    """

    exact_epsilon: Fraction
    """ε >= 0 as a rational number."""
    exact_delta: Fraction
    """δ in 0 … 1 as a rational number. Sums of δ stop at 1, where the guarantee is empty."""

    @classmethod
    def of(
        cls,
        epsilon: float | Fraction,
        delta: float | Fraction,
        adjacency: Adjacency = Adjacency.REPLACE_LABEL,
        unit: Unit = Unit.RECORD,
    ) -> Self:
        """Build the guarantee from two numbers, floats taken at their exact values."""
        return cls(adjacency, unit, rational(epsilon), rational(delta))

    @property
    def epsilon(self) -> float:
        """ε as a float, rounded up."""
        return float_above(self.exact_epsilon)

    def scale(self, group: int) -> Self:
        """``(gε, δ (1 + e^ε + … + e^{(g-1)ε}))``."""
        at_least(1, group=group)
        delta = self.exact_delta
        if delta > 0 and (group - 1) * self.epsilon > 700:
            delta = Fraction(1)
        elif delta > 0:
            powers = (above(math.exp(above(step * self.epsilon))) for step in range(1, group))
            delta *= 1 + sum(map(Fraction, powers))
        return self._with((self.exact_epsilon * group, delta))

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.6g}, δ = {self.delta:.3g} ({self.adjacency}, per {self.unit})"


@dataclass(frozen=True)
class ZeroConcentratedDP(Additive, kind="zcdp"):
    """δ-approximate ρ-zCDP: but for events of probability δ, ``D_α(M(D) ‖ M(D')) <= αρ``, α > 1.

    Source: Bun and Steinke, *Concentrated Differential Privacy*, TCC 2016: Definitions 1.1 and 8.1,
    composition Lemmas 1.7 and 8.2, group privacy Proposition 1.9.
    """

    exact_rho: Fraction
    """ρ >= 0 as a rational number."""
    exact_delta: Fraction
    """The failure probability, in 0 … 1 as a rational number; 0 for plain zCDP."""

    @classmethod
    def of(
        cls,
        rho: float | Fraction,
        delta: float | Fraction = 0,
        adjacency: Adjacency = Adjacency.REPLACE_LABEL,
        unit: Unit = Unit.RECORD,
    ) -> Self:
        """Build the guarantee from its numbers, floats taken at their exact values."""
        return cls(adjacency, unit, rational(rho), rational(delta))

    @property
    def rho(self) -> float:
        """ρ as a float, rounded up."""
        return float_above(self.exact_rho)

    def scale(self, group: int) -> Self:
        """``g²ρ``; refused with a failure probability, for which no group theorem is known."""
        check_group(group, "zCDP", self.exact_delta)
        return self._with((self.exact_rho * group * group, self.exact_delta))

    def __str__(self) -> str:
        failure = f", failure probability {self.delta:.3g}" if self.exact_delta else ""
        return f"ρ = {self.rho:.6g}{failure} ({self.adjacency}, per {self.unit})"
