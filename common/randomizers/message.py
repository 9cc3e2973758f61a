"""What one message is made of, in steps that are each a function of the one before:

    plan = plan_message(terms, rows, epsilon)         # public facts: what is counted, for which ε
    counts = [... for share in plan.histograms]       # the only look at labels before the codes
    priors = plan.release_priors(counts, entropy)     # noisy histograms
    message = plan.build(priors)                      # channels, from these alone
    codes = message.codebook.randomize(labels, entropy)
    message = message.decode(counts_of_codes)         # histograms that codes tell, for no ε

A message is a list of histograms and a list of channels, each over a group of labels; one label is
a list of one, and this is then the two-step procedure, Algorithm 3 and Theorem 7 of Ghazi et al.,
*Regression with Label Differential Privacy*, ICLR 2023: ε₁ on a private prior, ε₂ on each label.
Everything in the message is a function of these releases, so it is (ε₁ + ε₂)-DP. Which plan is made
says :mod:`common.randomizers.plan`, and how several labels share ε
:mod:`common.randomizers.division`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce

from numpy.typing import ArrayLike

from common.arrays import Floats, Integers
from common.entropy import Entropy
from common.errors import PrivacyError
from common.guarantees import PureDP, Unit
from common.randomizers.base import Randomizer, check_epsilon
from common.randomizers.budget import PRIOR_SHARE, round_down, split_budget
from common.randomizers.cells import Cells, Codebook, Group, stream
from common.randomizers.design.room import fitting, most_knots
from common.randomizers.prior import PRIOR_STREAM, NoisyPrior, decoded_prior, private_prior
from common.randomizers.terms import LabelTerms

Channels = tuple[tuple[Group, Randomizer], ...]
"""Randomizers, by the labels that each sends."""
Priors = Mapping[Group, NoisyPrior]
"""Histograms, by the labels that each counted."""


@dataclass(frozen=True)
class Share:
    """Labels that are counted, or sent, together, and the ε of one privacy unit that this takes."""

    group: Group
    epsilon: Fraction


@dataclass(frozen=True)
class MessagePlan:
    """What public facts decide of a message, before a label is looked at.

    Attributes
    ----------
    terms
        One a label.
    rows
        Number of events.
    histograms
        What is counted. Nothing of labels whose codes tell their histogram.
    channels
        What is sent, here by a channel for each label.
    records
        Records of one privacy unit whose labels may change together.
    points
        Knots that the designs of all channels may have, for their codes to fit two bytes.
    """

    terms: tuple[LabelTerms, ...]
    rows: int
    histograms: tuple[Share, ...]
    channels: tuple[Share, ...]
    records: int = 1
    points: int = 0

    @property
    def groups(self) -> list[Group]:
        """Of the histograms."""
        return [share.group for share in self.histograms]

    def release_priors(
        self, counts: Sequence[ArrayLike], entropy: Entropy
    ) -> dict[Group, NoisyPrior]:
        """Put noise on the (k,) counts of each histogram: from here on they are public."""
        return {
            share.group: private_prior(
                cells,
                share.epsilon,
                entropy,
                group=self.records,
                words=stream(PRIOR_STREAM, share.group.labels[0]),
                shape=share.group.cells.shape,
            )
            for share, cells in zip(self.histograms, counts, strict=True)
        }

    def after(self, spent: Fraction) -> MessagePlan:
        """Take off its only channel's ε what these labels have spent before.

        Raises
        ------
        PrivacyError
            If nothing would be left.
        """
        (share,) = self.channels
        if not 0 <= spent < share.epsilon:
            raise PrivacyError(
                f"{float(spent):g} is spent of epsilon={float(share.epsilon):g}, which leaves"
                " nothing for the labels; raise epsilon"
            )
        return replace(self, channels=(replace(share, epsilon=share.epsilon - spent),))

    def build(self, priors: Priors) -> Message:
        """Build the channels, from public facts and released histograms alone."""
        names = tuple(label.name for label in self.terms)
        groups = [share.group for share in self.channels]
        built = self.own_channels({group: prior.probabilities for group, prior in priors.items()})
        every = tuple((group, priors.get(group)) for group in groups)
        return Message(names, every, tuple(zip(groups, built, strict=True)), self.records)

    def own_channels(self, priors: Mapping[Group, Floats]) -> list[Randomizer]:
        """Build a channel for each label, from (k,) weights of the points of those that need it."""

        def build(points: int) -> list[Randomizer]:
            return [
                label.build(group.cells.grids[0], priors.get(group), epsilon, self.rows, points)
                for label, (group, epsilon) in zip(self.terms, self.budgets, strict=True)
            ]

        return fitting(build, self.points)

    @property
    def budgets(self) -> list[tuple[Group, float]]:
        """What each channel may spend on one record."""
        return [(share.group, round_down(share.epsilon / self.records)) for share in self.channels]


@dataclass(frozen=True)
class Message:
    """What a message of one or several labels is made of.

    Attributes
    ----------
    names
        Of the labels.
    priors
        Histograms over groups of labels; None for one that the codes will tell.
    channels
        Randomizers over groups of labels.
    records
        Records of one privacy unit.
    """

    names: tuple[str, ...]
    priors: tuple[tuple[Group, NoisyPrior | None], ...]
    channels: Channels
    records: int = 1

    @property
    def codebook(self) -> Codebook:
        """What codes mean."""
        groups, randomizers = zip(*self.channels, strict=True)
        channels = tuple(randomizer.channel for randomizer in randomizers)
        return Codebook(self.names, groups, channels)

    @property
    def labels_guarantee(self) -> PureDP:
        """Of all codes of one privacy unit, from the channels' integers."""
        unit = Unit.RECORD if self.records == 1 else Unit.USER
        parts = [
            PureDP.of_channel(randomizer.channel, unit).scale(self.records)
            for _, randomizer in self.channels
        ]
        return reduce(PureDP.compose, parts)

    @property
    def guarantee(self) -> PureDP:
        """Of the whole message, these labels having paid for its histograms."""
        paid = [prior.guarantee for _, prior in self.priors if prior and prior.decoded is None]
        return reduce(PureDP.compose, [*paid, self.labels_guarantee])

    @property
    def histograms(self) -> list[tuple[Group, NoisyPrior]]:
        """All histograms, once none is left for the codes to tell."""
        return [(group, prior) for group, prior in self.priors if prior is not None]

    def decode(self, counts: Sequence[Integers]) -> Message:
        """Fill in the histograms that codes tell.

        Parameters
        ----------
        counts
            (d,) for each channel: how many codes there are of each.
        """
        decoded = {
            group: decoded_prior(randomizer.channel, codes, self.records)
            for (group, randomizer), codes in zip(self.channels, counts, strict=True)
            if (group, None) in self.priors
        }
        priors = tuple((group, prior or decoded[group]) for group, prior in self.priors)
        return replace(self, priors=priors)


def plan_alone(
    terms: Sequence[LabelTerms],
    rows: int,
    epsilons: Sequence[float],
    *,
    records: int = 1,
    prior_share: float | Fraction = PRIOR_SHARE,
) -> MessagePlan:
    """Send every label by a channel of its own, as if it were alone.

    Parameters
    ----------
    epsilons
        Of each label.

    The others, and errors, are those of :func:`common.randomizers.plan.plan_message`.
    """
    histograms, channels, outputs = [], [], []
    for place, (label, epsilon) in enumerate(zip(terms, epsilons, strict=True)):
        check_epsilon(epsilon)
        grid = label.own_grid(rows, epsilon)
        group, left = Group((place,), Cells((grid,))), Fraction(epsilon)
        counted = label.needs_prior(grid)
        if counted:
            budget = split_budget(epsilon, len(grid), rows, largest_share=prior_share)
            histograms.append(Share(group, budget.prior))
            left = budget.labels
        channels.append(Share(group, left))
        outputs.append(None if counted else len(grid))
    points = most_knots(outputs)
    return MessagePlan(tuple(terms), rows, tuple(histograms), tuple(channels), records, points)
