"""Bounded range: what the exponential mechanism has and pure ε-DP does not say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import parse_rational, rational
from labelveil.common.exact.rounding import float_above
from labelveil.common.guarantees.base import Adjacency, Guarantee, Unit
from labelveil.common.guarantees.limits import at_least


@dataclass(frozen=True)
class BoundedRange(Guarantee, kind="bounded-range"):
    """Releases i = 1, 2, …, each of ε_i-bounded range, chosen adaptively or not.

    ε-bounded range: ``ln(P[M(D)=y] / P[M(D')=y])`` varies by at most ε over the outcomes y. Since
    both laws sum to one the log ratio takes both signs, so it implies ε-DP, and it implies
    ε²/8-zCDP where ε-DP alone gives ε²/2. Ranges themselves do not add under *adaptive* composition
    (the later interval's position may depend on the earlier outcome), so the parts are kept apart:
    their pure ε and their ρ add.

    Source: Durfee and Rogers, *Practical Differentially Private Top-k Selection with
    Pay-what-you-get Composition*, NeurIPS 2019, Definition 4.1; the zCDP bound is Lemma 3.4 of
    Cesar and Rogers, *Bounding, Concentrating, and Truncating*, ALT 2021.
    """

    ranges: tuple[tuple[Fraction, int], ...]
    """Descending ranges ε_i > 0, each with the number of releases that have it."""

    exact_delta: ClassVar[Fraction] = Fraction(0)

    def __post_init__(self) -> None:
        sizes = [epsilon for epsilon, _ in self.ranges]
        if any(epsilon <= 0 for epsilon in sizes):
            raise PrivacyError(f"epsilon={float(min(sizes))} must be >= 0, and 0 is left out")
        if any(count < 1 for _, count in self.ranges) or sizes != sorted(set(sizes), reverse=True):
            raise PrivacyError("bounded ranges must be distinct, descending and each counted once")

    @classmethod
    def of(
        cls,
        epsilon: float | Fraction,
        adjacency: Adjacency = Adjacency.REPLACE_LABEL,
        unit: Unit = Unit.RECORD,
    ) -> Self:
        """Build the guarantee of one release, a float taken at its exact value."""
        exact = rational(epsilon)
        return cls(adjacency, unit, ((exact, 1),) if exact else ())

    @property
    def exact_epsilon(self) -> Fraction:
        """Pure ε of all parts."""
        return sum((epsilon * count for epsilon, count in self.ranges), Fraction(0))

    @property
    def epsilon(self) -> float:
        """Pure ε of all together as a float, rounded up."""
        return float_above(self.exact_epsilon)

    def compose(self, other: Self) -> Self:
        self.same_neighbours(other)
        return self._with(Counter(dict(self.ranges)) + Counter(dict(other.ranges)))

    def repeat(self, times: int) -> Self:
        at_least(0, times=times)
        return self._with({epsilon: count * times for epsilon, count in self.ranges if times})

    def scale(self, group: int) -> Self:
        at_least(1, group=group)
        return self._with({epsilon * group: count for epsilon, count in self.ranges})

    def within(self, limit: Self) -> bool:
        """Whether each range, from the largest down, is at most the limit's of that rank."""
        self.same_neighbours(limit)
        ranks = {sum(count for _, count in self.ranges[: i + 1]) for i in range(len(self.ranges))}
        return all(self._ranked(rank) <= limit._ranked(rank) for rank in ranks)

    def _ranked(self, rank: int) -> Fraction:
        for epsilon, count in self.ranges:
            rank -= count
            if rank <= 0:
                return epsilon
        return Fraction(0)

    def parameters(self) -> dict[str, Any]:
        return {"parts": [[str(epsilon), count] for epsilon, count in self.ranges]}

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, Any], adjacency: Adjacency, unit: Unit
    ) -> Self:
        ranges = parameters["parts"]
        return cls(adjacency, unit, tuple((parse_rational(e), int(count)) for e, count in ranges))

    def _with(self, counts: Mapping[Fraction, int]) -> Self:
        return type(self)(*self.neighbours, tuple(sorted(counts.items(), reverse=True)))

    def __str__(self) -> str:
        return f"bounded range, ε = {self.epsilon:.6g} ({self.adjacency}, per {self.unit})"
