"""Pure ε-differential privacy with an exact, rational ε."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

from common.errors import PrivacyError
from common.exact.channel import FiniteChannel
from common.exact.rational import parse_rational
from common.guarantees.base import Adjacency, Guarantee, Unit, register


@register("pure")
@dataclass(frozen=True)
class PureDP(Guarantee):
    """ε-DP: ``P[M(D) in S] <= e^ε P[M(D') in S]`` for all neighbours D, D' and all S.

    Source: Dwork, McSherry, Nissim, Smith, *Calibrating Noise to Sensitivity*, TCC 2006; the
    composition is Theorem 3.14 of Dwork and Roth (2014).

    Attributes
    ----------
    exact_epsilon
        ε >= 0 as a rational number; a float given to :meth:`of` is taken at its exact value.
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
        """Build the guarantee from a number, by default for replacing one label of one record."""
        if not 0 <= epsilon < math.inf:  # refuses NaN too
            raise PrivacyError(f"epsilon={float(epsilon):g} must be a finite number >= 0")
        return cls(adjacency, unit, Fraction(epsilon))

    @classmethod
    def of_channel(cls, channel: FiniteChannel, unit: Unit = Unit.RECORD) -> Self:
        """Derive the guarantee of randomizing every label from the channel's own integers."""
        return cls.of(channel.epsilon, Adjacency.REPLACE_LABEL, unit)

    @property
    def epsilon(self) -> float:
        """ε as a float, rounded up."""
        nearest = float(self.exact_epsilon)
        if Fraction(nearest) >= self.exact_epsilon:
            return nearest
        return math.nextafter(nearest, math.inf)

    def compose(self, other: Self) -> Self:
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
        return cls(adjacency, unit, parse_rational(parameters["epsilon"]))

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.6g} ({self.adjacency}, per {self.unit})"
