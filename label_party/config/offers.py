"""Sections of label_party.toml for what comes on top of single releases: answers, a watch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from common.config import Section
from common.errors import ConfigError
from common.randomizers.base import MAX_EPSILON


class EvaluationSection(Section):
    """Whether, and for how much, models are scored on true labels."""

    offered: bool = False
    epsilon: float = 0.5
    answers: int = Field(default=10, ge=1, le=10_000)
    questions: int = Field(default=1000, ge=1, le=1_000_000)
    tolerance: float = Field(default=0.05, ge=0, le=1)
    loss: Literal["squared", "absolute"] = "squared"
    largest_loss: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not 0 < self.epsilon <= MAX_EPSILON:
            raise ConfigError(
                f"epsilon={self.epsilon:g} must be above 0 and at most {MAX_EPSILON:g};"
                " set [evaluation] epsilon"
            )
        return self


class WatchSection(Section):
    """How `watch` decides whether a new epoch pays for a prior of its own."""

    epsilon: float | Literal["auto"] = "auto"
    tolerance: float = Field(default=0.05, ge=0, lt=1)
    false_alarm: float = Field(default=0.01, gt=0, lt=1)
    hits: int | None = Field(default=None, ge=1, le=10_000)
    interval: float = Field(default=3600.0, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.epsilon != "auto" and not 0 < self.epsilon <= 1:
            raise ConfigError(
                f"epsilon={self.epsilon:g} of a test must be above 0 and at most 1, far below that"
                ' of a release; set [watch] epsilon, or leave it at "auto"'
            )
        return self
