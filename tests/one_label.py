"""What a release of one label is made of, in memory and from its exact counts."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Indices, Integers
from labelveil.common.entropy import Entropy
from labelveil.common.exact.channel import Codes, FiniteChannel
from labelveil.common.guarantees import PureDP
from labelveil.common.randomizers import (
    LabelTerms,
    Message,
    MessagePlan,
    NoisyPrior,
    plan_message,
)
from labelveil.common.randomizers.base import LABEL_STREAM
from labelveil.common.randomizers.grid import Grid


@dataclass(frozen=True)
class OneLabel:
    """A message of one label, and the plan it was made by."""

    plan: MessagePlan
    message: Message

    @property
    def prior(self) -> NoisyPrior:
        ((_, prior),) = self.message.histograms
        return prior

    @property
    def channel(self) -> FiniteChannel:
        (channel,) = self.message.codebook.channels
        return channel

    def draw(self, indices: Indices, entropy: Entropy) -> Codes:
        """(n,) codes of labels that are (n,) points of the grid."""
        return self.channel.sample(indices, entropy.words(LABEL_STREAM, 0, indices.size))

    @property
    def epsilon_prior(self) -> Fraction:
        return sum((share.epsilon for share in self.plan.histograms), Fraction(0))

    @property
    def epsilon_labels(self) -> Fraction:
        (share,) = self.plan.channels
        return share.epsilon

    @property
    def labels_guarantee(self) -> PureDP:
        return self.message.labels_guarantee

    @property
    def guarantee(self) -> PureDP:
        return self.message.guarantee

    def decode(self, codes: Integers) -> OneLabel:
        """Once it is drawn how many codes there are of each; changes nothing where labels paid."""
        return OneLabel(self.plan, self.message.decode(codes))


def one_label(
    counts: ArrayLike,
    grid: Grid,
    epsilon: float,
    entropy: Entropy,
    randomizer: str = "auto",
    *,
    records: int = 1,
    prior_share: float | Fraction | None = None,
    **terms: Any,
) -> OneLabel:
    """Release the prior of (k,) counts, where one is needed, and build the channel."""
    label = LabelTerms("label", grid.lower, grid.upper, grid, randomizer=randomizer, **terms)
    rows = int(np.sum(counts))
    plan = plan_message([label], rows, epsilon, records=records, prior_share=prior_share)
    released = plan.release([counts] if plan.groups else [], entropy)
    return OneLabel(plan, plan.build(released))
