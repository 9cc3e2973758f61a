"""(ε, δ)-differential privacy with exact, rational parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from common.exact.rounding import above, float_above
from common.guarantees.base import Additive, Adjacency, Unit, register
from common.guarantees.limits import at_least


@register("approximate")
@dataclass(frozen=True)
class ApproximateDP(Additive):
    """(ε, δ)-DP: ``P[M(D) in S] <= e^ε P[M(D') in S] + δ`` for all neighbours D, D' and all S.

    Source: Dwork, Kenthapadi, McSherry, Mironov, Naor, EUROCRYPT 2006; the composition is Theorem
    3.16 and the group property Theorem 2.2 with its remark of Dwork and Roth (2014).

    Attributes
    ----------
    exact_epsilon
        ε >= 0 as a rational number.
    exact_delta
        δ in 0 … 1 as a rational number. Sums of δ stop at 1, where the guarantee is empty.
    """

    exact_epsilon: Fraction
    exact_delta: Fraction

    @classmethod
    def of(
        cls,
        epsilon: float | Fraction,
        delta: float | Fraction,
        adjacency: Adjacency = Adjacency.REPLACE_LABEL,
        unit: Unit = Unit.RECORD,
    ) -> Self:
        """Build the guarantee from two numbers, floats taken at their exact values."""
        return cls(adjacency, unit, Fraction(epsilon), Fraction(delta))

    @property
    def epsilon(self) -> float:
        """ε as a float, rounded up."""
        return float_above(self.exact_epsilon)

    @property
    def delta(self) -> float:
        """δ as a float, rounded up."""
        return float_above(self.exact_delta)

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
