"""Candidates: pairs of a learner and a law, and how those that were trained are mixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.feature_party.model.facts import EpochLosses, HeadFacts
from labelveil.feature_party.training.fitting import EpochRecord, Fit


@dataclass(frozen=True)
class Candidate:
    """A learner, an objective, and for a likelihood the head that it goes through."""

    objective: str
    head: str | None = None
    learner: str = "networks"

    def __str__(self) -> str:
        return f"{self.objective}-{self.name}" if self.head else self.objective

    @property
    def name(self) -> str:
        """What people read: the head or, without one, the objective; with a learner of its own."""
        name = self.head or self.objective
        return name if self.learner == "networks" else f"{self.learner}-{name}"


MEAN = Candidate("likelihood", "mean")
"""What plain least squares on what each code says would be; see :class:`MeanTable`."""

OF_MEANS = replace(MEAN, learner="trees")
"""Trees that learn means alone."""

Fits = dict[Candidate, Fit]
ProgressCallback = Callable[[str, EpochRecord], None]
"""Called after every epoch with what is being trained."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """Trained candidates with their shares; ``tried`` are those given up after one group of members
    had left its rows out."""

    fits: Mapping[Candidate, Fit]  # all that were trained; their out-of-fold rows are the same
    weights: Mapping[Candidate, float]  # shares of those that predict, > 0 and summing to 1
    tried: Mapping[Candidate, Fit] = field(default_factory=dict)

    @property
    def main(self) -> Candidate:
        """The one with the largest share."""
        return max(self.weights, key=lambda candidate: self.weights[candidate])

    def average(self, values: Callable[[Fit], Floats]) -> Floats:
        """Weighted mean of what each that predicts has."""
        return np.asarray(sum(w * values(self.fits[each]) for each, w in self.weights.items()))

    @property
    def head(self) -> str:
        """The heads that predict, with their shares if there are several."""
        ranked = sorted(self.weights.items(), key=lambda item: -item[1])
        if len(ranked) == 1:
            return self.main.name if self.main.head else ""
        return " + ".join(f"{candidate.name} ({weight:.0%})" for candidate, weight in ranked)

    @property
    def heads(self) -> dict[str, HeadFacts]:
        """Every candidate that was trained, if only in part, by its name."""
        return {
            each.name: HeadFacts(
                float(fit.losses.mean()), self.weights.get(each, 0.0), len(fit.history)
            )
            for each, fit in {**self.fits, **self.tried}.items()
        }

    @property
    def history(self) -> list[EpochLosses]:
        """How training the main one went."""
        return [
            EpochLosses(record.epoch, record.training, record.validation)
            for record in self.fits[self.main].history
        ]
