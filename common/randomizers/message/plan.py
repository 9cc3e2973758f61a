"""What one message is made of, in steps that are each a function of the one before:

    plan = plan_message(terms, rows, epsilon)         # public facts: what is counted, for which ε
    counts = [... for share in plan.histograms]       # the only look at labels before the codes
    released = plan.release(counts, entropy)          # noisy histograms
    message = plan.build(released)                    # channels, from these alone
    codes = message.codebooks.randomize(labels, strata, entropy)
    message = message.decode(counts_of_codes)         # histograms that codes tell, for no ε

A message is a list of histograms, each over a group of labels, and for each stratum of events
(:mod:`labelveil.common.randomizers.message.strata`) a list of channels. One label without strata is
a list of one in a list of one, and this is then the two-step procedure, Algorithm 3 and Theorem 7
of Ghazi et al., *Regression with Label Differential Privacy*, ICLR 2023: ε₁ on a private prior, ε₂
on each label. Everything in the message is a function of these releases, so it is (ε₁ + ε₂)-DP.
How several labels share ε says :mod:`labelveil.common.randomizers.message.division`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from operator import itemgetter

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.channel import MAX_OUTPUTS
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import float_below
from labelveil.common.randomizers.base import Randomizer, check_epsilon
from labelveil.common.randomizers.budget import split_budget
from labelveil.common.randomizers.cells import Cells, Group, stream
from labelveil.common.randomizers.design.optimal_design import POINTS, fitting, most_knots
from labelveil.common.randomizers.exact_rows import MAX_WEIGHTS, size_of
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.codebooks import Codebook, Codebooks
from labelveil.common.randomizers.message.division import (
    FEWEST_POINTS,
    MOST_CELLS,
    Channels,
    allocate,
    cell_grids,
    designed_outputs,
    divide,
    joint_channel,
    split_channels,
)
from labelveil.common.randomizers.message.message import Message, Released
from labelveil.common.randomizers.message.strata import (
    STRATA_STREAM,
    Strata,
    StratumTable,
    keep_strata,
)
from labelveil.common.randomizers.message.terms import Division, LabelTerms, check_terms
from labelveil.common.randomizers.prior import (
    PRIOR_STREAM,
    NoisyPrior,
    expected_prior,
    private_prior,
    rational_epsilon,
)

Laws = Mapping[Group, Floats]
"""Weights of cells, by the labels that these are of."""


@dataclass(frozen=True)
class Share:
    """Labels that are counted, or sent, together, and the ε of one privacy unit that this takes."""

    group: Group
    epsilon: Fraction


@dataclass(frozen=True)
class MessagePlan:
    """What public facts decide of a message, before a label is looked at.

    Without strata, or where codes tell every histogram, so that no channel depends on one, all
    events are sent in the same way.
    """

    terms: tuple[LabelTerms, ...]
    """One a label."""
    rows: int
    """Events."""
    histograms: tuple[Share, ...]
    """What is counted; nothing of labels whose codes tell it."""
    channels: tuple[Share, ...]
    """What is sent, here by a channel for each label."""
    records: int = 1
    """Of one privacy unit, whose labels may change together."""
    points: int = 0
    """Knots that designs may have, for the codes of all to fit two bytes."""
    strata: Strata | None = None
    """Those that histograms tell apart."""
    public: tuple[tuple[Group, NoisyPrior], ...] = ()
    """Priors that were public beforehand. A histogram that is paid for as well corrects them."""

    @property
    def groups(self) -> list[Group]:
        """Of the histograms."""
        return [share.group for share in self.histograms]

    @property
    def known(self) -> list[Group]:
        """Labels with a prior, counted or public, before codes are drawn."""
        return list(dict.fromkeys([*self.groups, *(group for group, _ in self.public)]))

    @property
    def grids(self) -> tuple[Grid, ...]:
        """Of each label."""
        groups = [share.group for share in self.channels]
        pairs = [zip(group.labels, group.cells.grids, strict=True) for group in groups]
        return tuple(grid for _, grid in sorted(chain.from_iterable(pairs), key=itemgetter(0)))

    @property
    def stratum_count(self) -> int:
        """Strata that channels are built for; 1 without any."""
        return len(self.strata.names) if self.strata else 1

    @property
    def most_outputs(self) -> int:
        """Codes that each of them may have."""
        return MAX_OUTPUTS // self.stratum_count

    @property
    def designed(self) -> list[int | None]:
        """Outputs of each label's channel; None where a design decides."""
        known = self.known
        return [None if s.group in known else len(s.group.cells) for s in self.channels]

    def knowing(self, priors: Mapping[Group, Floats], *, corrected: bool = False) -> MessagePlan:
        """Start from priors that were public beforehand.

        Nothing is spent on them; wrong ones cost accuracy alone.

        Parameters
        ----------
        priors
            Of each of :attr:`groups` (k,) weights >= 0 of its cells, not all 0.
        corrected
            Pay for the histograms all the same: the public prior is then one of the laws that may
            explain them. Otherwise nothing is counted, and all of ε goes to the labels.

        Raises
        ------
        ConfigError
            For strata whose labels nothing would tell apart.
        """
        groups = self.groups
        public = tuple((group, expected_prior(priors[group], self.records)) for group in groups)
        if corrected:
            return replace(self, public=public)
        if self.strata:
            raise ConfigError(
                "a public prior says nothing of each stratum; have it corrected by a histogram, or"
                " leave the strata out"
            )
        counted = {share.group: share.epsilon for share in self.histograms}
        channels = [
            replace(share, epsilon=share.epsilon + counted.get(share.group, 0))
            for share in self.channels
        ]
        return replace(self, histograms=(), channels=tuple(channels), public=public)

    def by_stratum(self, values: Sequence[str], rows: Integers) -> MessagePlan:
        """Send events of each public class by channels of their own, where that may pay.

        Parameters
        ----------
        values
            All v classes.
        rows
            (v + 1,) events of each, and of none of them.

        Raises
        ------
        ConfigError
            If these channels would need more than 65,536 codes.
        """
        if not self.histograms:
            return self
        table = min(share.epsilon for share in self.histograms) / 2 / self.records
        strata = keep_strata(values, rows, table)
        return self.in_strata(strata) if len(strata.names) > 1 else self

    def in_strata(self, strata: Strata) -> MessagePlan:
        """Send events of each stratum by channels of their own.

        Raises
        ------
        ConfigError
            As :meth:`by_stratum`.
        """
        plan = replace(self, strata=strata)
        return replace(plan, points=most_knots(plan.designed, plan.most_outputs))

    def for_question(self, strata: Strata) -> MessagePlan:
        """Count nothing, as what is expected of each stratum's labels is known: all of ε is theirs.

        Raises
        ------
        ConfigError
            As :meth:`by_stratum`.
        """
        (counted,), (sent,) = self.histograms, self.channels
        sent = replace(sent, epsilon=sent.epsilon + counted.epsilon)
        return replace(self.in_strata(strata), histograms=(), channels=(sent,))

    def release(self, counts: Sequence[ArrayLike], entropy: Entropy) -> Released:
        """Put noise on histograms: from here on they are public.

        Parameters
        ----------
        counts
            Of each of them (k,) counts; with strata (S, k), a stratum's in each row.
        """
        priors, tables = dict(self.public), {}
        for share, cells in zip(self.histograms, counts, strict=True):
            group, cells = share.group, np.asarray(cells)
            epsilon = self.of_histogram(share)
            start = dict(self.public).get(group)
            priors[group] = private_prior(
                cells.sum(axis=0) if self.strata else cells,
                epsilon,
                entropy,
                group=self.records,
                words=stream(PRIOR_STREAM, group.labels[0]),
                shape=group.cells.shape,
                start=None if start is None else start.noisy_counts,
            )
            if self.strata:
                words = stream(STRATA_STREAM, group.labels[0])
                tables[group] = StratumTable.release(
                    self.strata, group.cells, cells, priors[group], epsilon, entropy, words
                )
        return Released(priors, tables)

    def of_histogram(self, share: Share) -> Fraction:
        """What the pooled histogram may spend: all, or half where one of strata takes as much."""
        return rational_epsilon(share.epsilon / 2) if self.strata else share.epsilon

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

    def build(self, released: Released) -> Message:
        """Build the channels, from public facts and released histograms alone."""
        pooled, laws = released.laws, released.laws_of_strata
        names, strata = tuple(label.name for label in self.terms), self.strata if laws else None
        books, made = [], list[Randomizer]()
        for channels in self.channels_of(pooled, laws or [pooled]):
            groups, randomizers = zip(*channels, strict=True)
            books.append(Codebook(names, groups, tuple(each.channel for each in randomizers)))
            made += randomizers
        return Message(
            terms=self.terms,
            codebooks=Codebooks(tuple(books)),
            randomizers=tuple((each.name, each.details) for each in made),
            released=released,
            records=self.records,
            strata=strata,
        )

    def channels_of(self, pooled: Laws, strata: Sequence[Laws]) -> list[Channels]:
        """Build the channels of each stratum from its laws."""
        groups = [share.group for share in self.channels]
        return [tuple(zip(groups, self.own_channels(laws), strict=True)) for laws in strata]

    def own_channels(self, laws: Laws) -> list[Randomizer]:
        """Build a channel for each label, from (k,) weights of the points of those that need it."""

        def build(points: int) -> list[Randomizer]:
            return [
                label.build(group.cells.grids[0], laws.get(group), epsilon, self.rows, points)
                for label, (group, epsilon) in zip(self.terms, self.budgets, strict=True)
            ]

        return fitting(build, self.points, self.stratum_count)

    @property
    def budgets(self) -> list[tuple[Group, float]]:
        """What each channel may spend on one record."""
        return [(share.group, float_below(share.epsilon / self.records)) for share in self.channels]


@dataclass(frozen=True)
class JointPlan(MessagePlan):
    """One histogram over the cells of all labels, which decides by what channels they are sent."""

    division: Division = "auto"
    """``joint`` leaves no choice."""

    @property
    def designed(self) -> list[int | None]:
        """If each label has a channel of its own, which the histogram decides."""
        return designed_outputs(self.channels[0].group.cells.grids)

    def channels_of(self, pooled: Laws, strata: Sequence[Laws]) -> list[Channels]:
        """Divide as the law of all events says, and so in every stratum."""
        ((group, epsilon),) = self.budgets
        cells, facts = group.cells, (epsilon, self.rows)
        chosen = divide(self.terms, cells, pooled[group], *facts, self.division)
        if strata[0] is pooled:
            return [chosen]
        each = joint_channel if len(chosen) == 1 else split_channels
        parts = [each(self.terms, cells, laws[group], *facts) for laws in strata]
        built = [[one.channel for _, one in channels] for channels in parts]
        codes = [math.prod(channel.outputs.size for channel in part) for part in built]
        size = sum(size_of(len(one.stated), one.outputs.size) for part in built for one in part)
        if max(codes) > self.most_outputs or size > MAX_WEIGHTS:
            # no two bytes, or no manifest, have room for this many: one a label, of fewer knots
            count = self.stratum_count
            parts = [split_channels(self.terms, cells, x[group], *facts, count) for x in strata]
        return parts


def plan_message(
    terms: Sequence[LabelTerms],
    rows: int,
    epsilon: float,
    *,
    division: Division = "auto",
    records: int = 1,
    prior_share: float | Fraction | None = None,
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
        Of several labels: see :mod:`labelveil.common.randomizers.message.division`.
    records
        Records of one privacy unit.
    prior_share
        The largest share of ε that priors may take; None for what
        :func:`labelveil.common.randomizers.budget.split_budget` takes by itself.

    Raises
    ------
    ConfigError
        Where labels are too many, or need too many cells or codes, for what is asked.
    """
    check_epsilon(epsilon)
    check_terms(terms)
    if len(terms) == 1:
        return plan_alone(terms, rows, [epsilon], records=records, prior_share=prior_share)
    return plan_several(terms, rows, epsilon, division, records=records, prior_share=prior_share)


def plan_alone(
    terms: Sequence[LabelTerms],
    rows: int,
    epsilons: Sequence[float],
    *,
    records: int = 1,
    prior_share: float | Fraction | None = None,
) -> MessagePlan:
    """Send every label by a channel of its own, as if it were alone.

    ``epsilons`` are each label's; the others, and errors, are those of
    :func:`plan_message`.
    """
    histograms, channels, outputs = [], [], []
    for place, (label, epsilon) in enumerate(zip(terms, epsilons, strict=True)):
        check_epsilon(epsilon)
        grid = label.own_grid(rows, epsilon)
        group, left = Group((place,), Cells((grid,))), rational(epsilon)
        counted = label.needs_prior(grid)
        if counted:
            budget = split_budget(
                epsilon, len(grid), rows, records=records, largest_share=prior_share
            )
            histograms.append(Share(group, budget.prior))
            left = budget.labels
        channels.append(Share(group, left))
        outputs.append(None if counted else len(grid))
    points = most_knots(outputs)
    return MessagePlan(tuple(terms), rows, tuple(histograms), tuple(channels), records, points)


def plan_several(
    terms: Sequence[LabelTerms],
    rows: int,
    epsilon: float,
    division: Division,
    *,
    records: int = 1,
    prior_share: float | Fraction | None = None,
) -> MessagePlan:
    """Plan a message of two labels or more, as ``plan_message`` does."""
    grids = cell_grids(terms, rows, epsilon)
    if division == "joint" and grids is None:
        sizes = [len(label.grid or label.coarse_grid(FEWEST_POINTS)) for label in terms]
        raise ConfigError(
            f"no channel for {len(terms)} labels at once: {' × '.join(map(str, sizes))} ="
            f" {math.prod(sizes):,} cells must be at most {MOST_CELLS} cells; set division ="
            " 'split', or coarser grids"
        )
    if grids is None or division == "split":
        coarse = [one.grid or one.coarse_grid(POINTS) for one in terms]
        even = [np.full(len(grid), 1 / len(grid)) for grid in coarse]  # from public facts alone
        shares = allocate(terms, coarse, even, epsilon, rows)
        own = [float_below(rational(epsilon) * share) for share in shares]
        return plan_alone(terms, rows, own, records=records, prior_share=prior_share)
    everything = Group(tuple(range(len(terms))), Cells(grids))
    size = len(everything.cells)
    budget = split_budget(epsilon, size, rows, records=records, largest_share=prior_share)
    histograms, channels = (Share(everything, part) for part in (budget.prior, budget.labels))
    return JointPlan(tuple(terms), rows, (histograms,), (channels,), records, division=division)
