"""What a round of select–measure–project costs and how much noise it buys, in two currencies.

The score of a marginal is the L1 distance between its true and its modelled counts; both it and the
marginal itself (in L1) move by at most 2 when a record is replaced, the marginal's squared L2 norm
by at most 2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from common.arrays import Integers
from common.entropy import WordSource
from common.errors import PrivacyError
from common.exact.noise import discrete_gaussian, discrete_laplace
from common.exact.rounding import multiple_above
from common.guarantees import Adjacency, Guarantee, PureDP, Unit, ZeroConcentratedDP

_GRAIN = 1 << 24


@dataclass(frozen=True)
class Budget(ABC):
    """A total to spend on selections and measurements, chosen as earlier outputs suggest.

    Both currencies add up however amounts are chosen, as long as the total is fixed beforehand
    (Rogers, Roth, Ullman, Vadhan, *Privacy Odometers and Filters*, NeurIPS 2016, for ε;
    Feldman and Zrnic, *Individual Privacy Accounting via a Rényi Filter*, NeurIPS 2021, for ρ).
    """

    total: Fraction
    """ε or ρ, > 0."""

    doubling: ClassVar[int]
    """By how much a round's amount grows when its noise is to be halved."""

    def __post_init__(self) -> None:
        if self.total * _GRAIN < 1 << 10:
            raise PrivacyError(f"a budget of {float(self.total):g} must be at least 2**-14")

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """The guarantee of spending it all."""

    @abstractmethod
    def rate(self, amount: Fraction) -> Fraction:
        """Rate r of a selection with weights ``exp(r · score)`` that costs at most ``amount``."""

    @abstractmethod
    def noise(self, amount: Fraction, size: int, source: WordSource) -> Integers:
        """Noise of a measured marginal that costs at most ``amount``."""

    @abstractmethod
    def expected(self, amount: Fraction) -> float:
        """Mean absolute value of that noise, of the Gaussian kind to within a few percent."""

    @abstractmethod
    def variance(self, amount: Fraction) -> float | Fraction:
        """Variance of that noise."""

    def share(self, part: Fraction) -> Fraction:
        """Round an amount down to a multiple of 2**-24, at least one."""
        return Fraction(max(1, int(part * _GRAIN)), _GRAIN)


@dataclass(frozen=True)
class PureBudget(Budget):
    """ε: exponential mechanism, discrete Laplace noise."""

    doubling = 2

    @property
    def guarantee(self) -> PureDP:
        return PureDP.of(self.total, Adjacency.REPLACE_RECORD, Unit.RECORD)

    def rate(self, amount: Fraction) -> Fraction:
        """``ε/(2Δ)``, Δ = 2."""
        return amount / 4

    def noise(self, amount: Fraction, size: int, source: WordSource) -> Integers:
        return discrete_laplace(2 / amount, size, source)

    def expected(self, amount: Fraction) -> float:
        return 1 / math.sinh(amount / 2)

    def variance(self, amount: Fraction) -> float:
        return 1 / (2 * math.sinh(amount / 4) ** 2)


@dataclass(frozen=True)
class ConcentratedBudget(Budget):
    """ρ: exponential mechanism by its bounded range, discrete Gaussian noise."""

    doubling = 4

    @property
    def guarantee(self) -> ZeroConcentratedDP:
        return ZeroConcentratedDP.of(
            self.total, adjacency=Adjacency.REPLACE_RECORD, unit=Unit.RECORD
        )

    def rate(self, amount: Fraction) -> Fraction:
        """``ε/(2Δ)`` with ε²/8 <= ρ (the mechanism has ε-bounded range), Δ = 2."""
        epsilon = Fraction(math.isqrt(int(8 * amount * _GRAIN**2)), _GRAIN)
        return epsilon / 4

    def noise(self, amount: Fraction, size: int, source: WordSource) -> Integers:
        return discrete_gaussian(self.variance(amount), size, source)

    def expected(self, amount: Fraction) -> float:
        return math.sqrt(2 * float(self.variance(amount)) / math.pi)

    def variance(self, amount: Fraction) -> Fraction:
        """``Δ²/(2ρ)`` with Δ² = 2, rounded up to what the sampler takes."""
        return multiple_above(1 / amount)
