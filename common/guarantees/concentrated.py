"""Zero-concentrated differential privacy and its approximate form, with exact parameters."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from common.exact.rounding import float_above
from common.guarantees.base import Additive, Adjacency, Unit, check_group, register


@register("zcdp")
@dataclass(frozen=True)
class ZeroConcentratedDP(Additive):
    """δ-approximate ρ-zCDP: but for events of probability δ, ``D_α(M(D) ‖ M(D')) <= αρ``, α > 1.

    Source: Bun and Steinke, *Concentrated Differential Privacy*, TCC 2016: Definitions 1.1 and 8.1,
    composition Lemmas 1.7 and 8.2, group privacy Proposition 1.9.

    Attributes
    ----------
    exact_rho
        ρ >= 0 as a rational number.
    exact_delta
        The failure probability, in 0 … 1 as a rational number; 0 for plain zCDP.
    """

    exact_rho: Fraction
    exact_delta: Fraction

    @classmethod
    def of(
        cls,
        rho: float | Fraction,
        delta: float | Fraction = 0,
        adjacency: Adjacency = Adjacency.REPLACE_LABEL,
        unit: Unit = Unit.RECORD,
    ) -> Self:
        """Build the guarantee from its numbers, floats taken at their exact values."""
        return cls(adjacency, unit, Fraction(rho), Fraction(delta))

    @property
    def rho(self) -> float:
        """ρ as a float, rounded up."""
        return float_above(self.exact_rho)

    @property
    def delta(self) -> float:
        """The failure probability as a float, rounded up."""
        return float_above(self.exact_delta)

    def scale(self, group: int) -> Self:
        """``g²ρ``; refused with a failure probability, for which no group theorem is known."""
        check_group(group, "zCDP", self.exact_delta)
        return self._with((self.exact_rho * group * group, self.exact_delta))

    def __str__(self) -> str:
        failure = f", failure probability {self.delta:.3g}" if self.exact_delta else ""
        return f"ρ = {self.rho:.6g}{failure} ({self.adjacency}, per {self.unit})"
