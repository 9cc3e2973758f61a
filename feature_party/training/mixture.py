"""Candidates: pairs of a learner and a law, and how those that were trained are mixed.

They are stacked by what all say of rows that they did not see: by likelihood, which decides as well
how much of the released prior is left in the predictions, then all together by squared errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from labelveil.common.arrays import Floats, Integers
from labelveil.feature_party.learning.mixing import (
    NEGLIGIBLE,
    ROWS,
    choose_mixture,
    null_share,
    squares,
    stack,
)
from labelveil.feature_party.learning.problem import Codes, LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.facts import EpochLosses, HeadFacts
from labelveil.feature_party.training.fitting import EpochRecord, Fit

_OPEN = 0.1
"""Shares of their own that candidates are given before squared errors are looked at."""


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

    @property
    def shares(self) -> Floats:
        """Of all that is mixed, together 1, the released prior's last."""
        weights = [each.weight for each in self.trained]
        return np.append((1 - self.shrinkage) * np.array(weights), self.shrinkage)

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


def _shared(trained: Sequence[Trained], shares: Floats) -> Mixture:
    """Candidates with their shares, the released prior's last, without those under 2%."""
    *models, prior = np.where(shares < NEGLIGIBLE * (1 - shares[-1]), 0.0, shares)
    weights = np.array(models) / sum(models)
    pairs = zip(trained, weights.tolist(), strict=True)
    return Mixture(tuple(replace(each, weight=w) for each, w in pairs), float(prior))


@dataclass(frozen=True, eq=False)
class Stack:
    """Finds shares, for a support and labels that are worth ``effective_labels`` true ones.

    ``codes_of`` are those of training rows.
    """

    problem: LabelProblem
    support: Support
    effective_labels: float
    codes_of: Callable[[Integers], Codes]

    def by_likelihood(self, plain: Sequence[Trained], flexible: Sequence[Trained] = ()) -> Mixture:
        """Give candidates the shares under which they explain the codes best, and the released
        prior what these leave it.

        Plain ones are trusted, the first most; flexible ones must prove themselves. What has no
        likelihood is alone.
        """
        first = plain[0]
        if first.candidate.objective != "likelihood":
            return _shared(plain, np.array([1.0, 0.0]))
        losses, several = (
            np.array([each.fit.losses for each in some]).reshape(-1, first.fit.losses.size)
            for some in (plain, flexible)
        )
        nothing = self.losses_of_prior(self.codes_of(first.fit.rows))
        # all begin alike where distributions have no shape that the first would be trusted for
        labels = math.inf if self.support.discrete else self.effective_labels
        shares = choose_mixture(losses, several, labels)
        mixture = _shared([*plain, *flexible], np.append(shares, 0.0))
        left = null_share(mixture.losses, nothing, self.effective_labels)
        return replace(mixture, shrinkage=left)

    def losses_of_prior(self, codes: Codes) -> Floats:
        """(v,) those of the released prior alone, of (v,) codes."""
        likelihood = self.support.likelihood  # losses are relative to each code's largest
        alone = self.support.prior @ (likelihood / likelihood.max(axis=0))
        return np.asarray(-np.log(alone)[codes])

    def by_squares(self, mixture: Mixture, means: Sequence[Trained]) -> Mixture:
        """Move shares to where they make the squared error least.

        A likelihood judges the shapes of distributions, too, and cannot judge those that learn
        ``means`` alone, which join here: they begin with a tenth, and all with a tenth between
        them; the released prior only if it has a share. What codes say beyond what they should by
        the mixture stands for what labels are beyond its predictions: with far less noise than
        labels decoded without bias.
        """
        said, joined = self.support.estimates, replace(mixture, trained=(*mixture.trained, *means))
        codes = self.codes_of(mixture.main.fit.rows)
        weight = np.sqrt(said.information)[self.support.channel_of[codes]]
        residual = said.of_code[codes] - mixture.shrunk(lambda fit: fit.estimates, 0.0)
        points = [each.fit.predictions - self.problem.mean for each in joined.trained]
        places = np.stack([*points, np.zeros(codes.size)]) / self.problem.deviation
        believed = (1 - 2 * _OPEN) * joined.shares
        believed[len(mixture.trained) : -1] += _OPEN / max(len(means), 1)
        believed[:-1] += _OPEN / len(points)
        evidence = squares(weight * residual, weight * places, joined.shares)
        found = _shared(joined.trained, stack(evidence, ROWS * believed))
        return replace(found, tried=mixture.tried)

    def predictions(self, mixture: Mixture) -> Floats:
        """(v,) out-of-fold predictions of all that is mixed, before any adjustment."""
        return mixture.shrunk(lambda fit: fit.predictions, self.problem.mean)
