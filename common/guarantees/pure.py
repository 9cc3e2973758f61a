"""Pure ε-differential privacy with an exact, rational ε."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from common.exact.channel import FiniteChannel
from common.exact.rounding import float_above
from common.guarantees.base import Additive, Adjacency, Unit, register
from common.guarantees.limits import at_least, within


@register("pure")
@dataclass(frozen=True)
class PureDP(Additive):
    """ε-DP: ``P[M(D) in S] <= e^ε P[M(D') in S]`` for all neighbours D, D' and all S.

    Source: Dwork, McSherry, Nissim, Smith, *Calibrating Noise to Sensitivity*, TCC 2006; the
    composition is Theorem 3.14 of Dwork and Roth (2014).

    Attributes
    ----------
    exact_epsilon
        ε >= 0 as a rational number; a float given to :meth:`of` is taken at its exact value.
    """

    exact_epsilon: Fraction

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
        return cls(adjacency, unit, Fraction(epsilon))

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
