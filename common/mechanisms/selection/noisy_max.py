"""Report noisy max with Gumbel, exponential, Laplace and Gaussian noise, all exact.

Utilities are integers (or integers over a common denominator), each of sensitivity 1. *Monotone*
utilities all move in one direction, as counts do when a user comes or goes; gaps between counts do
not. Monotone ones need half the noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

import numpy as np

from labelveil.common.arrays import Integers
from labelveil.common.entropy import WordSource
from labelveil.common.errors import PrivacyError, not_none
from labelveil.common.exact.exponential_choice import exponential_choice, permute_and_flip
from labelveil.common.exact.noise import discrete_gaussian, discrete_laplace
from labelveil.common.exact.rounding import above
from labelveil.common.guarantees import DEFAULT_ORDERS, BoundedRange, Guarantee, PureDP, RenyiDP
from labelveil.common.mechanisms.selection.base import UNIT, neighbours


class Law(StrEnum):
    """The law of the noise."""

    GUMBEL = "gumbel"
    EXPONENTIAL = "exponential"
    LAPLACE = "laplace"
    GAUSSIAN = "gaussian"


@dataclass(frozen=True)
class NoisyMax:
    """The index of the largest utility plus noise.

    ============  =========================================  =====================================
    law           noise for ε (monotone: half the scale)     guarantee
    ============  =========================================  =====================================
    gumbel        Gumbel(2/ε): the exponential mechanism     ε-bounded range, so ε²/8-zCDP
    exponential   Exp(2/ε): permute-and-flip                 ε-DP
    laplace       discrete Laplace(2/ε)                      ε-DP
    gaussian      discrete Gaussian of variance σ²           RDP ``2α/σ² + ln(m)/(α−1)``
    ============  =========================================  =====================================

    Sources: McSherry and Talwar 2007; McKenna and Sheldon 2020, Theorem 2; Dwork and Roth 2014,
    Claim 3.9; Zhu and Wang 2022, Theorem 8 (monotone: the shift is 1 instead of 2, which gives
    ``α/(2σ²)``). With discrete noise the winner is still decided by whether one noise value reaches
    an integer threshold that moves by at most 2 (monotone: 1), so the proofs for continuous noise
    carry over; ties go to the lower index, which is public. With Laplace noise Theorem 8 gives the
    Laplace mechanism's own RDP plus ``ln(m)/(α−1)``, which is nowhere below the curve of ε-DP.
    """

    law: Law
    epsilon: Fraction | None = None
    """ε > 0 for the first three laws."""
    variance: Fraction | None = None
    """σ² > 0 for Gaussian noise, with a denominator of at most 4096."""
    monotone: bool = False
    """Whether all utilities move in one direction."""
    step: int = 1
    """By how much one utility can move: 1, or 2 if one user's votes are replaced."""

    def __post_init__(self) -> None:
        gaussian = self.law == Law.GAUSSIAN
        wanted, other = (self.variance, self.epsilon) if gaussian else (self.epsilon, self.variance)
        name = "variance" if gaussian else "epsilon"
        if self.step not in (1, 2) or (self.step == 2 and self.monotone):
            raise PrivacyError(
                f"step={self.step} must be 1, or 2 for utilities that are not monotone"
            )
        if wanted is None or wanted <= 0 or other is not None:
            raise PrivacyError(f"{self.law} noise needs {name} > 0 and nothing else")

    @property
    def reach(self) -> int:
        """By how much two utilities can move apart: ``step`` if monotone, otherwise twice that."""
        return self.step if self.monotone else 2 * self.step

    def guarantee(self, candidates: int) -> Guarantee:
        """The guarantee of one draw among that many candidates."""
        if self.law == Law.GAUSSIAN:
            shift = Fraction(self.reach**2) / (2 * not_none(self.variance))
            log_m = Fraction(above(float(np.log(candidates)))) if candidates > 1 else Fraction(0)
            values = tuple(order * shift + log_m / (order - 1) for order in DEFAULT_ORDERS)
            return RenyiDP(neighbours(self.step), UNIT, DEFAULT_ORDERS, values, Fraction(0))
        epsilon = not_none(self.epsilon)
        if self.law == Law.GUMBEL:
            return BoundedRange.of(epsilon, neighbours(self.step), UNIT)
        return PureDP.of(epsilon, neighbours(self.step), UNIT)

    def draw(self, utilities: Integers, source: WordSource, denominator: int = 1) -> int:
        """Return the noisy argmax of ``utilities / denominator``."""
        if self.law in (Law.GUMBEL, Law.EXPONENTIAL):
            choose = exponential_choice if self.law == Law.GUMBEL else permute_and_flip
            return choose(utilities, not_none(self.epsilon) / self.reach / denominator, source)
        if self.law == Law.GAUSSIAN:
            noise = discrete_gaussian(not_none(self.variance), utilities.size, source)
        else:
            scale = self.reach / not_none(self.epsilon)
            noise = discrete_laplace(scale, utilities.size, source)
        return int(np.argmax(utilities + noise * denominator))
