"""Privacy-loss distributions: the tightest numbers for many releases of known mechanisms.

This is an optional back end over the low-level objects of Google's ``dp-accounting`` (install
``labelveil[pld]``), which discretise a loss law pessimistically and convolve it. What they do not
do is kept here: pure ε is tracked exactly beside the discretised law, so that δ = 0 has its true
answer, ε never exceeds the pure sum, and repeating really counts.

Source: Meiser and Mohammadi 2018; Koskela, Jälkö, Honkela 2020; Doroshenko et al., *Connect the
Dots*, PETS 2022.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Self

from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import above, float_above
from labelveil.common.guarantees.additive import ApproximateDP, PureDP
from labelveil.common.guarantees.base import Adjacency, Unit
from labelveil.common.guarantees.limits import at_least

STEP = 1e-4
"""Width of a cell of the discretised loss; every loss is rounded up to the next cell."""


def available() -> bool:
    """Whether dp-accounting is installed."""
    return importlib.util.find_spec("dp_accounting") is not None


def _backend() -> Any:
    try:
        return importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
    except ModuleNotFoundError as error:
        raise PrivacyError(
            "privacy-loss distributions need dp-accounting; in the folder that"
            " labelveil was installed from, run: pip install '.[pld]'"
        ) from error


@dataclass(frozen=True)
class PrivacyLoss:
    """The privacy-loss law of one or more releases, for fixed neighbours."""

    adjacency: Adjacency
    """Which data sets are neighbours, and of whose data, as in every guarantee."""
    unit: Unit
    law: Any
    """The back end's object."""
    pure: Fraction | None
    """Pure ε of the same releases, exactly; None if there is none."""

    @classmethod
    def of_pair(
        cls,
        upper: dict[Any, float],
        lower: dict[Any, float],
        pure: Fraction | None = None,
        adjacency: Adjacency = Adjacency.REPLACE_LABEL,
        unit: Unit = Unit.RECORD,
    ) -> Self:
        """Build the law of a mechanism from its output laws, outcome → probability.

        ``upper`` and ``lower`` are those under two neighbours, a pair that is the worst one at
        every ε. Both directions count, and with a law that this is composed with, ``upper`` is
        about the same one of the two.

        Raises
        ------
        PrivacyError
            If the probabilities are negative or do not sum to 1.
        """
        for name, mass in (("upper", upper), ("lower", lower)):
            whole = abs(sum(mass.values()) - 1) <= 1e-9
            if not (whole and all(one >= 0 for one in mass.values())):  # nor where one is NaN
                raise PrivacyError(
                    f"{name} masses sum to {sum(mass.values())}; they must be >= 0 and sum to 1"
                )
        log_upper, log_lower = (
            {z: math.log(p) for z, p in mass.items() if p > 0} for mass in (upper, lower)
        )
        law = _backend().from_two_probability_mass_functions(
            log_lower, log_upper, value_discretization_interval=STEP, symmetric=False
        )
        return cls(adjacency, unit, law, pure)

    @classmethod
    def of_pure(cls, guarantee: PureDP) -> Self:
        """Build the law of binary randomized response, which dominates every ε-DP mechanism."""
        truth = 1 / (1 + math.exp(-guarantee.epsilon))
        lie = math.exp(-guarantee.epsilon) * truth
        upper, lower = {0: truth, 1: lie}, {0: lie, 1: truth}
        return cls.of_pair(upper, lower, guarantee.exact_epsilon, *guarantee.neighbours)

    @classmethod
    def of_discrete_laplace(cls, scale: Fraction) -> Self:
        """Build the law of discrete Laplace noise on a count, adding or removing one record."""
        law = _backend().from_discrete_laplace_mechanism(
            float(1 / scale), sensitivity=1, value_discretization_interval=STEP
        )
        return cls(Adjacency.ADD_REMOVE, Unit.RECORD, law, 1 / Fraction(scale))

    @classmethod
    def of_gaussian(cls, sigma: float, rate: float = 1.0) -> Self:
        """Build the law of N(0, σ²) on a count of a Poisson sample, adding or removing a record."""
        law = _backend().from_gaussian_mechanism(
            sigma, sensitivity=1.0, sampling_prob=rate, value_discretization_interval=STEP
        )
        return cls(Adjacency.ADD_REMOVE, Unit.RECORD, law, None)

    def compose(self, other: Self) -> Self:
        """Return the law of releasing both.

        Raises
        ------
        PrivacyError
            If the two are about different neighbours.
        """
        if (self.adjacency, self.unit) != (other.adjacency, other.unit):
            raise PrivacyError(
                f"laws for {self.adjacency} per {self.unit} and {other.adjacency} per {other.unit}"
                " do not compose"
            )
        pure = None if self.pure is None or other.pure is None else self.pure + other.pure
        return replace(self, law=self.law.compose(other.law), pure=pure)

    def repeat(self, times: int) -> Self:
        """Return the law of ``times`` >= 1 independent releases."""
        at_least(1, times=times)
        if times == 1:
            return self
        pure = None if self.pure is None else self.pure * times
        return replace(self, law=self.law.self_compose(times), pure=pure)

    def epsilon(self, delta: float) -> float:
        """ε at δ, at most the pure ε; infinite at δ = 0 if there is no pure ε."""
        bound = math.inf if self.pure is None else float_above(self.pure)
        if delta <= 0:
            return bound
        return min(bound, max(0.0, above(float(self.law.get_epsilon_for_delta(delta)))))

    def delta(self, epsilon: float) -> float:
        """δ at ε; 0 from the pure ε on."""
        if self.pure is not None and rational(epsilon) >= self.pure:
            return 0.0
        return min(1.0, above(float(self.law.get_delta_for_epsilon(epsilon))))

    def guarantee(self, delta: float) -> ApproximateDP:
        """Return (ε, δ) as a guarantee that the ledger can store."""
        return ApproximateDP.of(self.epsilon(delta), delta, self.adjacency, self.unit)
