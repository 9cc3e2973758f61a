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
Everything in the message is a function of these releases, so it is (ε₁ + ε₂)-DP. How several labels
share ε says :mod:`common.randomizers.division`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce

from numpy.typing import ArrayLike

from common.arrays import Floats, Integers
from common.entropy import Entropy
from common.errors import ConfigError, PrivacyError
from common.guarantees import PureDP, Unit
from common.randomizers.base import Randomizer, check_epsilon
from common.randomizers.budget import PRIOR_SHARE, round_down, split_budget
from common.randomizers.cells import Cells, Codebook, Group, stream
from common.randomizers.design.room import fitting, most_knots
from common.randomizers.division import (
    FEWEST_POINTS,
    MOST_CELLS,
    Channels,
    Division,
    cell_grids,
    divide,
    shares_of_epsilon,
)
from common.randomizers.prior import PRIOR_STREAM, NoisyPrior, decoded_prior, private_prior
from common.randomizers.terms import LabelTerms, check_terms

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
        What is sent: by a channel for each label, or, where one share has all labels, as
        ``division`` and the histogram decide.
    records
        Records of one privacy unit whose labels may change together.
    division
        See :mod:`common.randomizers.division`.
    points
        Knots that the designs of all channels may have, for their codes to fit two bytes.
    """

    terms: tuple[LabelTerms, ...]
    rows: int
    histograms: tuple[Share, ...]
    channels: tuple[Share, ...]
    records: int = 1
    division: Division = "auto"
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
        if len(groups) < len(names):  # one prior over the cells of all labels decides
            ((everything, epsilon),) = self._budgets
            prior = priors[everything].probabilities
            channels = divide(
                self.terms, everything.cells, prior, epsilon, self.rows, self.division
            )
            return Message(names, ((everything, priors[everything]),), channels, self.records)

        built = self.own_channels({group: prior.probabilities for group, prior in priors.items()})
        every = tuple((group, priors.get(group)) for group in groups)
        return Message(names, every, tuple(zip(groups, built, strict=True)), self.records)

    def own_channels(self, priors: Mapping[Group, Floats]) -> list[Randomizer]:
        """Build a channel for each label, from (k,) weights of the points of those that need it."""

        def build(points: int) -> list[Randomizer]:
            return [
                label.build(group.cells.grids[0], priors.get(group), epsilon, self.rows, points)
                for label, (group, epsilon) in zip(self.terms, self._budgets, strict=True)
            ]

        return fitting(build, self.points)

    @property
    def _budgets(self) -> list[tuple[Group, float]]:
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


def plan_message(
    terms: Sequence[LabelTerms],
    rows: int,
    epsilon: float,
    *,
    division: Division = "auto",
    records: int = 1,
    prior_share: float | Fraction = PRIOR_SHARE,
) -> MessagePlan:
    """Decide from public facts what is counted, what is sent, and for which ε.

    Parameters
    ----------
    terms
        One a label, at most 8.
    rows
        Number of events.
    epsilon
        What one privacy unit may spend on the whole message, 0 < epsilon <= 40.
    division
        See :mod:`common.randomizers.division`.
    records
        Records of one privacy unit.
    prior_share
        The largest share of ε that priors may take.

    Raises
    ------
    ConfigError
        Where labels are too many, or need too many cells or codes, for what is asked.
    """
    check_epsilon(epsilon)
    check_terms(terms)
    grids = cell_grids(terms, rows, epsilon)
    if division == "joint" and grids is None:
        sizes = [len(label.grid or label.coarse_grid(FEWEST_POINTS)) for label in terms]
        raise ConfigError(
            f"no channel for {len(terms)} labels at once: {' × '.join(map(str, sizes))} ="
            f" {math.prod(sizes):,} cells must be at most {MOST_CELLS} cells; set division ="
            " 'split', or coarser grids"
        )
    plan = MessagePlan(tuple(terms), rows, (), (), records, division)
    if len(terms) == 1 or grids is None or division == "split":
        return _split(plan, epsilon, prior_share)
    everything = Group(tuple(range(len(terms))), Cells(grids))
    budget = split_budget(epsilon, len(everything.cells), rows, largest_share=prior_share)
    return replace(
        plan,
        histograms=(Share(everything, budget.prior),),
        channels=(Share(everything, budget.labels),),
    )


def _split(plan: MessagePlan, epsilon: float, prior_share: float | Fraction) -> MessagePlan:
    """Send every label as if it were alone, with its share of ε."""
    histograms, channels, outputs = [], [], []
    shares = shares_of_epsilon(plan.terms, plan.rows, epsilon)
    for place, (label, share) in enumerate(zip(plan.terms, shares, strict=True)):
        own = round_down(Fraction(epsilon) * share)
        grid = label.own_grid(plan.rows, own)
        group, left = Group((place,), Cells((grid,))), Fraction(own)
        counted = label.needs_prior(grid)
        if counted:
            budget = split_budget(own, len(grid), plan.rows, largest_share=prior_share)
            histograms.append(Share(group, budget.prior))
            left = budget.labels
        channels.append(Share(group, left))
        outputs.append(None if counted else len(grid))
    return replace(
        plan,
        histograms=tuple(histograms),
        channels=tuple(channels),
        points=most_knots(outputs),
    )
