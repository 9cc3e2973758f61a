"""How good a randomizer is for the model, from public information alone.

Everything here is a function of a channel, a public (or already released) prior and the number of
events, so looking at it and choosing by it costs no privacy. The same numbers from *raw* labels
would make the choice itself depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats
from labelveil.common.errors import LabelveilError
from labelveil.common.exact.search import bisected
from labelveil.common.randomizers.base import (
    Randomizer,
    build_randomizer,
    check_prior,
    randomizer_names,
)
from labelveil.common.randomizers.design.conditionals import (
    EXPLAINED,
    ConditionalFamily,
    effective_rows,
    plausible_conditionals,
)
from labelveil.common.randomizers.design.optimal_design import decoding_values
from labelveil.common.randomizers.knots import thinned
from labelveil.common.randomizers.losses import Loss, LossFunction, get_loss

_POINTS = 64
_BISECTIONS = 60


@dataclass(frozen=True)
class Assessment:
    """What a randomizer does to a label and what a model trained on it must expect."""

    name: str
    epsilon: float
    """The channel's own, exactly."""
    outputs: int
    """Their number."""
    label_error: float
    """E ℓ(output, label) under the prior: what the published method minimises."""
    bias: float
    """Root mean square, under the prior, of E[decoded label | label] - label with the best decoding
    of the outputs, in label units; 0 where the label's mean is identified."""
    effective_share: float
    """How many true labels one randomized label is worth for the model, 0 … 1."""
    effective_sample_size: float
    """``effective_share`` times the number of events."""
    predicted_error: float
    """Predicted loss of the trained model: what features cannot explain plus the excess."""


@dataclass(frozen=True)
class Forecast:
    """Predicted losses of models of one label."""

    constant: float  # of the best constant prediction
    unavoidable: float  # of the best predictions from the features: the floor of every model
    with_true_labels: float  # of a model trained on the true labels
    nothing: float  # excess error of the family with no label at all

    @classmethod
    def for_family(
        cls, family: ConditionalFamily, prior: Floats, loss: Loss, effective: float
    ) -> Forecast:
        """Forecast for a tempered family around a (k,) prior."""

        def constant(distribution: Floats) -> float:
            """Loss of the best constant prediction, over a fine set of constants."""
            constants = np.linspace(family.labels.min(), family.labels.max(), 1001)
            return float(np.nanmin(loss.matrix(constants, family.labels) @ distribution))

        least = constant(prior)
        gain = constant(family.distributions.mean(axis=0)) - family.least_loss
        nothing, truth = (
            family.excess_error(channel, effective)
            for channel in (np.ones((prior.size, 1)), np.eye(prior.size))
        )
        return cls(least, least - gain, least - gain * (1 - truth / nothing), nothing)

    def error(self, excess: float) -> float:
        """Loss of a model with this excess error; with no information, that of the constant.

        A model is to learn the width and the shape of a distribution, too, so that its excess error
        without any information is above what features can explain; both are brought to one scale.
        """
        return self.unavoidable + (self.constant - self.unavoidable) * excess / self.nothing


class Assessor:
    """Judges randomizers over one (k,) grid with (k,) weights, public or already released.

    ``explained`` is the share of the variance of the label's normal score that features are taken
    to explain, in 0 … 1.
    """

    def __init__(
        self,
        labels: ArrayLike,
        prior: ArrayLike,
        rows: int,
        loss: str | LossFunction = "squared",
        explained: float = EXPLAINED,
    ) -> None:
        self.labels: Floats = np.asarray(labels, dtype=np.float64)
        self.prior = check_prior(prior, self.labels.size)
        self.rows = rows
        self.loss = get_loss(loss)
        self._chosen, self._places, self._mass = thinned(self.labels, self.prior, _POINTS)
        family = plausible_conditionals(self._places, self._mass, self.loss, explained)
        self._family = family.tempered()  # as the default is chosen
        self._effective = effective_rows(rows)
        self.forecast = Forecast.for_family(self._family, self._mass, self.loss, self._effective)

    def assess(self, randomizer: Randomizer) -> Assessment:
        """Judge one randomizer built on the same grid."""
        channel = randomizer.channel.probabilities[self._chosen]
        excess = self._family.excess_error(channel, self._effective)
        decoded = channel @ decoding_values(channel, self._places, self._mass)
        # the share of true labels that gives the same excess error, by bisection
        information = self._family.information(np.eye(self._places.size))

        def as_good(share: float) -> bool:
            known = max(share * self._effective, 1e-12) * information
            return not self._family.excess_given(known) > excess

        share = sum(bisected(as_good, 0.0, 1.0, _BISECTIONS)) / 2
        return Assessment(
            name=randomizer.name,
            epsilon=randomizer.channel.epsilon,
            outputs=randomizer.channel.outputs.size,
            label_error=randomizer.expected_loss,
            bias=float(np.sqrt(self._mass @ (decoded - self._places) ** 2)),
            effective_share=share,
            effective_sample_size=share * self.rows,
            predicted_error=self.forecast.error(excess),
        )

    def compare(
        self, epsilon: float, names: Iterable[str] | None = None
    ) -> tuple[list[Assessment], dict[str, str]]:
        """Build and judge every randomizer, the best predicted error first.

        Also returned is the reason for each randomizer that does not fit this grid.
        """
        assessments, unfit = [], {}
        if names is None:  # "auto" is a name for the default, which stands in the list itself
            names = [name for name in randomizer_names() if name != "auto"]
        for name in names:
            try:
                randomizer = build_randomizer(
                    name,
                    labels=self.labels,
                    prior=self.prior,
                    epsilon=epsilon,
                    loss=self.loss,
                    rows=self.rows,
                )
                assessments.append(self.assess(randomizer))
            except LabelveilError as error:
                unfit[name] = str(error)
        return sorted(assessments, key=attrgetter("predicted_error")), unfit
