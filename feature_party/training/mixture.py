"""Candidates: pairs of a learner and a law, and how those that were trained are mixed.

One step does it, from what all say of rows that they did not see: shares by likelihood, then how
much of the released prior is left in the predictions, then what makes the squared error less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.feature_party.learning.mixing import (
    choose_mixture,
    least_squares_share,
    null_share,
)
from labelveil.feature_party.learning.problem import Codes, LabelProblem
from labelveil.feature_party.learning.support import Support
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

ProgressCallback = Callable[[str, EpochRecord], None]
"""Called after every epoch with what is being trained."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A candidate, and what it says of rows that it did not see: of all candidates the same."""

    candidate: Candidate
    fit: Fit
    weight: float = 0.0  # share of what all of them predict


@dataclass(frozen=True, eq=False)
class Mixture:
    """Trained candidates with their shares, the most trusted first.

    The released prior is one candidate more, with the share ``shrinkage`` of the whole. ``tried``
    are those given up after one group of members had left its rows out.
    """

    trained: tuple[Trained, ...]
    shrinkage: float = 0.0
    tried: tuple[Trained, ...] = ()

    @property
    def predicting(self) -> list[Trained]:
        """Those with a share; all shares sum to 1."""
        return [each for each in self.trained if each.weight > 0]

    @property
    def main(self) -> Trained:
        """The one with the largest share."""
        return max(self.trained, key=lambda each: each.weight)

    def average(self, values: Callable[[Fit], Floats]) -> Floats:
        """Weighted mean of what each that predicts has."""
        return np.asarray(sum(each.weight * values(each.fit) for each in self.predicting))

    def shrunk(self, values: Callable[[Fit], Floats], of_prior: float) -> Floats:
        """The same of all that is mixed, the released prior too, which says this of any row."""
        share = self.shrinkage
        return np.asarray((1 - share) * self.average(values) + share * of_prior)

    @property
    def losses(self) -> Floats:
        """(v,) of its own, out of fold, without the released prior."""
        return np.asarray(-np.log(self.average(lambda fit: np.exp(-fit.losses))))

    def moved(self, place: int, share: float) -> Mixture:
        """Move a share of what all have to the candidate at a place."""
        weights = [(1 - share) * each.weight for each in self.trained]
        weights[place] += share
        return replace(self, trained=_weighted(self.trained, weights))

    @property
    def head(self) -> str:
        """The heads that predict, with their shares if there are several."""
        ranked = sorted(self.predicting, key=lambda each: -each.weight)
        if len(ranked) == 1:
            return self.main.candidate.name if self.main.candidate.head else ""
        return " + ".join(f"{each.candidate.name} ({each.weight:.0%})" for each in ranked)

    @property
    def heads(self) -> dict[str, HeadFacts]:
        """Every candidate that was trained, if only in part, by its name."""
        return {
            each.candidate.name: HeadFacts(
                float(each.fit.losses.mean()), each.weight, len(each.fit.history)
            )
            for each in (*self.trained, *self.tried)
        }

    @property
    def history(self) -> list[EpochLosses]:
        """How training the main one went."""
        return [
            EpochLosses(record.epoch, record.training, record.validation)
            for record in self.main.fit.history
        ]


def _weighted(trained: Sequence[Trained], weights: Sequence[float]) -> tuple[Trained, ...]:
    return tuple(replace(each, weight=w) for each, w in zip(trained, weights, strict=True))


@dataclass(frozen=True, eq=False)
class Stack:
    """Finds shares, for a support and labels that are worth ``effective_labels`` true ones."""

    problem: LabelProblem
    support: Support
    effective_labels: float

    def by_likelihood(self, plain: Sequence[Trained], flexible: Sequence[Trained] = ()) -> Mixture:
        """Give candidates the shares under which they explain the codes best.

        Plain ones are trusted, the first most; flexible ones must prove themselves.
        """
        trained = [*plain, *flexible]
        if len(trained) == 1:
            return Mixture(_weighted(trained, [1.0]))
        losses = np.stack([each.fit.losses for each in trained])
        # all begin alike where distributions have no shape that the first would be trusted for
        labels = math.inf if self.support.discrete else self.effective_labels
        shares = choose_mixture(losses[: len(plain)], losses[len(plain) :], labels)
        return Mixture(_weighted(trained, np.concatenate(shares).tolist()))

    def with_prior(self, mixture: Mixture, codes: Codes) -> Mixture:
        """Give the released prior what out-of-fold likelihoods of the (v,) codes leave it."""
        alone = self.losses_of_prior(codes)
        return replace(mixture, shrinkage=null_share(mixture.losses, alone, self.effective_labels))

    def losses_of_prior(self, codes: Codes) -> Floats:
        """(v,) those of the released prior alone, of (v,) codes."""
        likelihood = self.support.likelihood  # losses are relative to each code's largest
        alone = self.support.prior @ (likelihood / likelihood.max(axis=0))
        return np.asarray(-np.log(alone)[codes])

    def by_squares(self, mixture: Mixture, means: Sequence[Trained], codes: Codes) -> Mixture:
        """Give every candidate the share that makes the squared error least, one after another.

        A likelihood judges the shapes of distributions, too, and cannot judge those that learn
        ``means`` alone, which come first here. What codes say beyond what they should by the
        mixture stands for what labels are beyond its predictions: with far less noise than labels
        decoded without bias.
        """
        said = self.support.estimates
        weight = np.sqrt(said.information)[self.support.channel_of[codes]]
        mixture = replace(mixture, trained=(*mixture.trained, *means))
        last = len(mixture.trained) - len(means)
        for place in (*range(last, len(mixture.trained)), *range(last)):
            residual = said.of_code[codes] - mixture.shrunk(lambda fit: fit.estimates, 0.0)
            rival = mixture.trained[place].fit.predictions
            difference = (rival - self.predictions(mixture)) / self.problem.deviation
            share = least_squares_share(weight * residual, weight * difference)
            if share:
                mixture = mixture.moved(place, share)
        return mixture

    def predictions(self, mixture: Mixture) -> Floats:
        """(v,) out-of-fold predictions of all that is mixed, before any adjustment."""
        return mixture.shrunk(lambda fit: fit.predictions, self.problem.mean)
