"""(ε, δ)-differential privacy with exact, rational parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

from common.errors import PrivacyError
from common.exact.rational import parse_rational
from common.exact.rounding import above, float_above
from common.guarantees.base import Adjacency, Guarantee, Unit, register


def check_delta(delta: Fraction) -> None:
    """Raise ``PrivacyError`` unless 0 <= δ <= 1."""
    if not 0 <= delta <= 1:
        raise PrivacyError(f"delta={float(delta)} must lie in 0 … 1")


@register("approximate")
@dataclass(frozen=True)
class ApproximateDP(Guarantee):
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

    def __post_init__(self) -> None:
        if self.exact_epsilon < 0:
            raise PrivacyError(f"epsilon={float(self.exact_epsilon)} must be >= 0")
        check_delta(self.exact_delta)

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

    def compose(self, other: Self) -> Self:
        self.same_neighbours(other)
        return self._with(
            self.exact_epsilon + other.exact_epsilon, self.exact_delta + other.exact_delta
        )

    def repeat(self, times: int) -> Self:
        if times < 0:
            raise PrivacyError(f"times={times} must be >= 0")
        return self._with(self.exact_epsilon * times, self.exact_delta * times)

    def scale(self, group: int) -> Self:
        """``(gε, δ (1 + e^ε + … + e^{(g-1)ε}))``."""
        if group < 1:
            raise PrivacyError(f"group={group} must be >= 1")
        delta = self.exact_delta
        if delta > 0 and group > 1:
            largest = (group - 1) * self.epsilon
            if largest > 700:
                return self._with(self.exact_epsilon * group, Fraction(1))
            delta *= 1 + sum(
                Fraction(above(math.exp(above(step * self.epsilon)))) for step in range(1, group)
            )
        return self._with(self.exact_epsilon * group, delta)

    def within(self, limit: Self) -> bool:
        self.same_neighbours(limit)
        return (
            self.exact_epsilon <= limit.exact_epsilon and self.exact_delta <= limit.exact_delta
        ) or limit.exact_delta == 1

    def parameters(self) -> dict[str, Any]:
        return {"epsilon": str(self.exact_epsilon), "delta": str(self.exact_delta)}

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, Any], adjacency: Adjacency, unit: Unit
    ) -> Self:
        epsilon, delta = (parse_rational(parameters[name]) for name in ("epsilon", "delta"))
        return cls(adjacency, unit, epsilon, delta)

    def _with(self, epsilon: Fraction, delta: Fraction) -> Self:
        return type(self)(self.adjacency, self.unit, epsilon, min(delta, Fraction(1)))

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.6g}, δ = {self.delta:.3g} ({self.adjacency}, per {self.unit})"
