"""How to divide a budget among stages of noise whose errors matter differently.

Stage i releases something of sensitivity Δ_i, m_i times, and its noise's variance V_i adds
``w_i V_i`` to the final error. Discrete Laplace noise has V = 2(Δ/ε)², about, discrete Gaussian
noise V = Δ²/(2ρ). Under a total ``Σ m_i ε_i = ε`` or ``Σ m_i ρ_i = ρ`` the sum ``Σ m_i w_i V_i`` is
convex; where its Lagrangian's derivative vanishes,

    ε_i ∝ (w_i Δ_i²)^{1/3},        ρ_i ∝ (w_i Δ_i²)^{1/2}.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from common.errors import ConfigError, PrivacyError
from common.guarantees.calibration import largest_rho


@dataclass(frozen=True)
class Stage:
    """One kind of noisy release.

    Attributes
    ----------
    name
        For people.
    weight
        w > 0: what a unit of variance costs in the end.
    sensitivity
        Δ > 0, in L1 for Laplace noise and in L2 for Gaussian noise.
    times
        m >= 1.
    """

    name: str
    weight: float = 1.0
    sensitivity: float = 1.0
    times: int = 1

    def __post_init__(self) -> None:
        for field in ("weight", "sensitivity"):
            value = getattr(self, field)
            if not 0 < value < math.inf:
                raise ConfigError(f"stage {self.name!r}: {field}={value} must be above 0")
        if self.times < 1:
            raise ConfigError(f"stage {self.name!r}: times={self.times} must be at least 1")

    @classmethod
    def parse(cls, text: str) -> Stage:
        """Read ``NAME[:WEIGHT[:SENSITIVITY[:TIMES]]]``."""
        name, *rest = text.split(":")
        weight, sensitivity, times = [*rest, "1", "1", "1"][:3]
        try:
            read = float(weight), float(sensitivity), int(times)
        except ValueError:
            read = None
        if not name or len(rest) > 3 or read is None:
            raise ConfigError(
                f"stage {text!r} must look like NAME[:WEIGHT[:SENSITIVITY[:TIMES]]], in numbers"
            )
        return cls(name, *read)


@dataclass(frozen=True)
class Allotment:
    """A stage's share.

    Attributes
    ----------
    stage
        Whose.
    budget
        ε (pure) or ρ (zCDP) of each of its releases.
    scale
        Scale of the Laplace noise, or standard deviation of the Gaussian noise.
    cost
        w V of each release.
    """

    stage: Stage
    budget: Fraction
    scale: float
    cost: float

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        own = {"budget": float(self.budget), "scale": self.scale, "cost": self.cost}
        return {**asdict(self.stage), **own}


def allocate(stages: Sequence[Stage], epsilon: float, delta: float = 0.0) -> list[Allotment]:
    """Divide a total among stages so that the weighted variances' sum is least.

    Parameters
    ----------
    stages
        One or more.
    epsilon, delta
        The total. δ = 0 takes Laplace noise and adds ε up; δ > 0 takes Gaussian noise and adds ρ up
        to the largest zCDP that is (ε, δ)-DP.

    Returns
    -------
    One share a stage; budgets times repetitions never sum to more than the total.
    """
    if not stages:
        raise ConfigError("no stage is given; name at least one with --stage")
    if not 0 < epsilon < math.inf or not 0 <= delta < 1:
        raise PrivacyError(f"epsilon={epsilon} must be > 0 and delta={delta} must lie in [0, 1)")
    pure = delta == 0
    total = Fraction(epsilon) if pure else largest_rho(epsilon, delta)
    power = 1 / 3 if pure else 1 / 2
    shares = [Fraction((s.weight * s.sensitivity**2) ** power) for s in stages]
    whole = sum((share * s.times for share, s in zip(shares, stages, strict=True)), Fraction(0))
    found = []
    for stage, share in zip(stages, shares, strict=True):
        budget = total * share / whole
        size = stage.sensitivity / float(budget)
        scale = size if pure else math.sqrt(stage.sensitivity * size / 2)
        variance = 2 * scale**2 if pure else scale**2
        found.append(Allotment(stage, budget, scale, stage.weight * variance))
    return found
