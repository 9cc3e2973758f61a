"""Bounded range: what the exponential mechanism has and pure ε-DP does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

from common.errors import PrivacyError
from common.guarantees.base import Adjacency, Guarantee, Unit, register
from common.guarantees.rounding import float_above


@register("bounded-range")
@dataclass(frozen=True)
class BoundedRange(Guarantee):
    """ε-bounded range: ``ln(P[M(D)=y] / P[M(D')=y])`` varies by at most ε over the outcomes y.

    Since both laws sum to one the log ratio takes both signs, so ε-bounded range implies ε-DP, and
    it implies ε²/8-zCDP where ε-DP alone gives ε²/2.

    Source: Durfee and Rogers, *Practical Differentially Private Top-k Selection with
    Pay-what-you-get Composition*, NeurIPS 2019, Definition 4.1; the zCDP bound is Lemma 3.4 of
    Cesar and Rogers, *Bounding, Concentrating, and Truncating*, ALT 2021.

    Attributes
    ----------
    exact_epsilon
        The range >= 0 as a rational number.
    """

    exact_epsilon: Fraction

    def __post_init__(self) -> None:
        if self.exact_epsilon < 0:
            raise PrivacyError(f"epsilon={float(self.exact_epsilon)} must be >= 0")

    @classmethod
    def of(
        cls,
        epsilon: float | Fraction,
        adjacency: Adjacency = Adjacency.REPLACE_LABEL,
        unit: Unit = Unit.RECORD,
    ) -> Self:
        """Build the guarantee from a number, a float taken at its exact value."""
        return cls(adjacency, unit, Fraction(epsilon))

    @property
    def epsilon(self) -> float:
        """The range as a float, rounded up."""
        return float_above(self.exact_epsilon)

    def compose(self, other: Self) -> Self:
        """Ranges add; many of them compose far better as zCDP (``common.guarantees.to_zcdp``)."""
        self.same_neighbours(other)
        return type(self)(self.adjacency, self.unit, self.exact_epsilon + other.exact_epsilon)

    def repeat(self, times: int) -> Self:
        if times < 0:
            raise PrivacyError(f"times={times} must be >= 0")
        return type(self)(self.adjacency, self.unit, self.exact_epsilon * times)

    def scale(self, group: int) -> Self:
        if group < 1:
            raise PrivacyError(f"group={group} must be >= 1")
        return type(self)(self.adjacency, self.unit, self.exact_epsilon * group)

    def within(self, limit: Self) -> bool:
        self.same_neighbours(limit)
        return self.exact_epsilon <= limit.exact_epsilon

    def parameters(self) -> dict[str, Any]:
        return {"epsilon": str(self.exact_epsilon)}

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, Any], adjacency: Adjacency, unit: Unit
    ) -> Self:
        return cls(adjacency, unit, Fraction(parameters["epsilon"]))

    def __str__(self) -> str:
        return f"range ε = {self.epsilon:.6g} ({self.adjacency}, per {self.unit})"
