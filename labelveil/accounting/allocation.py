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

from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.guarantees.calibration import largest_rho


@dataclass(frozen=True)
class Stage:
    """One kind of noisy release."""

    name: str  # for people
    weight: float = 1.0  # w > 0: what a unit of variance costs in the end
    sensitivity: float = 1.0  # Δ > 0, in L1 for Laplace noise and in L2 for Gaussian noise
    times: int = 1  # m >= 1

    def __post_init__(self) -> None:
        for field in ("weight", "sensitivity"):
            value = getattr(self, field)
            if not 0 < value < math.inf:
                raise ConfigError(f"stage {self.name!r}: {field}={value} must be above 0")
        if self.times < 1:
            raise ConfigError(f"stage {self.name!r}: times={self.times} must be at least 1")

    @classmethod
    def parse(cls, text: str) -> Stage:
        name, *rest = text.split(":")
        try:
            numbers = [parse(part) for parse, part in zip((float, float, int), rest, strict=False)]
        except ValueError:
            numbers = []
        if not name or len(numbers) != len(rest):
            raise ConfigError(
                f"stage {text!r} must look like NAME[:WEIGHT[:SENSITIVITY[:TIMES]]], in numbers"
            )
        return cls(name, *numbers)


@dataclass(frozen=True)
class Allotment:
    """A stage's share."""

    stage: Stage  # whose
    budget: Fraction  # ε (pure) or ρ (zCDP) of each of its releases
    scale: float  # scale of the Laplace noise, or standard deviation of the Gaussian noise
    cost: float  # w V of each release

    def to_json(self) -> dict[str, Any]:
        own = {"budget": float(self.budget), "scale": self.scale, "cost": self.cost}
        return {**asdict(self.stage), **own}


def allocate(stages: Sequence[Stage], epsilon: float, delta: float = 0.0) -> list[Allotment]:
    """Divide a total among one or more stages so that the weighted variances' sum is least.

    δ = 0 takes Laplace noise and adds ε up; δ > 0 takes Gaussian noise and adds ρ up to the largest
    zCDP that is (ε, δ)-DP. Budgets times repetitions never sum to more than the total.
    """
    if not stages:
        raise ConfigError("no stage is given; name at least one with --stage")
    if not 0 < epsilon < math.inf or not 0 <= delta < 1:
        raise PrivacyError(f"epsilon={epsilon} must be > 0 and delta={delta} must lie in [0, 1)")
    pure = delta == 0
    total = rational(epsilon) if pure else largest_rho(epsilon, delta)
    power = 1 / 3 if pure else 1 / 2
    # Lagrange: least Σ t_i w_i Δ_i²/b_i² (Laplace) or Σ t_i w_i Δ_i²/b_i (zCDP), Σ t_i b_i given
    shares = [Fraction((s.weight * s.sensitivity**2) ** power) for s in stages]
    whole = sum((share * s.times for share, s in zip(shares, stages, strict=True)), Fraction(0))
    allotments = []
    for stage, share in zip(stages, shares, strict=True):
        budget = total * share / whole
        size = stage.sensitivity / float(budget) if float(budget) else math.inf
        scale = size if pure else math.sqrt(stage.sensitivity * size / 2)
        variance = (2 if pure else 1) * scale * scale
        if not math.isfinite(variance):
            raise PrivacyError(
                f"stage {stage.name!r} has so small a share of epsilon={epsilon} that no number is"
                " its noise; set a larger --epsilon"
            )
        allotments.append(Allotment(stage, budget, scale, stage.weight * variance))
    return allotments
