"""Zero-concentrated differential privacy and its approximate form, with exact parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

from common.errors import PrivacyError
from common.exact.rational import parse_rational
from common.exact.rounding import float_above
from common.guarantees.approximate import check_delta
from common.guarantees.base import Adjacency, Guarantee, Unit, register


@register("zcdp")
@dataclass(frozen=True)
class ZeroConcentratedDP(Guarantee):
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

    def __post_init__(self) -> None:
        if self.exact_rho < 0:
            raise PrivacyError(f"rho={float(self.exact_rho)} must be >= 0")
        check_delta(self.exact_delta)

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

    def compose(self, other: Self) -> Self:
        self.same_neighbours(other)
        return self._with(self.exact_rho + other.exact_rho, self.exact_delta + other.exact_delta)

    def repeat(self, times: int) -> Self:
        if times < 0:
            raise PrivacyError(f"times={times} must be >= 0")
        return self._with(self.exact_rho * times, self.exact_delta * times)

    def scale(self, group: int) -> Self:
        """``g²ρ``; refused with a failure probability, for which no group theorem is known."""
        if group < 1:
            raise PrivacyError(f"group={group} must be >= 1")
        if group > 1 and self.exact_delta > 0:
            raise PrivacyError(
                f"zCDP with a failure probability ({float(self.exact_delta)}) has no group"
                " property; convert it to (epsilon, delta) first, or calibrate the noise to the"
                " group"
            )
        return self._with(self.exact_rho * group * group, self.exact_delta)

    def within(self, limit: Self) -> bool:
        self.same_neighbours(limit)
        return (
            self.exact_rho <= limit.exact_rho and self.exact_delta <= limit.exact_delta
        ) or limit.exact_delta == 1

    def parameters(self) -> dict[str, Any]:
        return {"rho": str(self.exact_rho), "delta": str(self.exact_delta)}

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, Any], adjacency: Adjacency, unit: Unit
    ) -> Self:
        rho, delta = (parse_rational(parameters[name]) for name in ("rho", "delta"))
        return cls(adjacency, unit, rho, delta)

    def _with(self, rho: Fraction, delta: Fraction) -> Self:
        return type(self)(self.adjacency, self.unit, rho, min(delta, Fraction(1)))

    def __str__(self) -> str:
        failure = f", failure probability {self.delta:.3g}" if self.exact_delta else ""
        return f"ρ = {self.rho:.6g}{failure} ({self.adjacency}, per {self.unit})"
