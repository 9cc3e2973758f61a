"""``label-party plan`` for several labels: compare the ways in which they can share one ε.

It looks at a prior (:mod:`labelveil.label_party.release.prior_knowledge`); where none is known,
each label is taken to be uniform between its bounds, or over its points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.exact.rounding import float_below
from labelveil.common.randomizers.budget import split_budget
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.design.assessment import Assessor, Forecast
from labelveil.common.randomizers.design.conditionals import EXPLAINED
from labelveil.common.randomizers.design.joint import Targets
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.knots import interpolation
from labelveil.common.randomizers.message.division import (
    at_knots,
    cell_grids,
    joint_channel,
    split_channels,
)
from labelveil.common.randomizers.message.plan import plan_message
from labelveil.common.randomizers.message.terms import Division, LabelTerms
from labelveil.label_party.config.privacy import PrivacySection
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.release.prior_knowledge import PriorKnowledge

JOINT, SEPARATE, SPLIT = "joint", "separate", "split"
_FINE = 401


@dataclass(frozen=True, eq=False)
class DivisionRow:
    """One way at one ε."""

    epsilon: float  # of the whole message
    # ``joint``: one channel; ``separate``: one prior over cells and a channel a label; ``split``: a
    # prior and a channel a label
    division: str
    # epsilon_prior, epsilon_labels: what goes to priors, and to each channel
    epsilon_prior: float
    epsilon_labels: list[float]
    predicted_errors: list[float]  # of a model of each label, in the units of its loss
    auto: bool = False  # whether ``auto`` takes it

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def taken_by(self, division: Division) -> bool:
        """Whether that is what the configuration makes of a message."""
        return self.auto if division == "auto" else self.division == division


@dataclass(frozen=True, eq=False)
class DivisionPlan:
    """All ways, by ε, and what the errors are to be compared with, a label each."""

    rows: list[DivisionRow]
    terms: Sequence[LabelTerms]
    knowledge: PriorKnowledge
    explained: float
    constant_errors: list[float]
    true_label_errors: list[float]

    def gains(self, row: DivisionRow) -> dict[str, float]:
        """What a model of each label gains over a constant: the share of true labels' gain."""
        known = zip(self.terms, self.constant_errors, self.true_label_errors, strict=True)
        return {
            label.name: (constant - error) / (constant - truth)
            for (label, constant, truth), error in zip(known, row.predicted_errors, strict=True)
        }

    @property
    def derived(self) -> str | None:
        """Say which label may be left out, judging by bounds alone."""
        binary = [label.name for label in self.terms if (label.lower, label.upper) == (0, 1)]
        from_zero = [label.name for label in self.terms if label.lower == 0]
        amounts = [name for name in from_zero if name not in binary]
        if not (binary and amounts):
            return None
        return (
            f"derived: if {' or '.join(binary)} only says whether {' or '.join(amounts)} is above"
            " 0, leave it out: the codes of that tell it already, with all of ε."
        )


def plan_divisions(
    config: LabelPartyConfig,
    knowledge: PriorKnowledge,
    epsilons: Sequence[float],
    on_epsilon: Callable[[float], None] = lambda epsilon: None,
    explained: float = EXPLAINED,
    *,
    over_cells: bool = True,
) -> DivisionPlan:
    """Judge every division of two labels or more at every ε.

    ``epsilons`` are whole budgets of one privacy unit, priors included; ``on_epsilon`` is called
    when everything at one has been judged. ``explained`` is the share of the labels' variances, in
    0 … 1, that the features are taken to explain. To judge the ways that have one prior
    ``over_cells`` takes seconds.
    """
    terms, privacy = config.terms, config.privacy
    rows: list[DivisionRow] = []
    forecasts: list[Forecast] = []
    for epsilon in sorted(epsilons):
        split, forecasts = _split(terms, privacy, knowledge, epsilon, explained)
        grids = cell_grids(terms, knowledge.rows, epsilon) if over_cells else None
        if grids is not None:
            cells = Cells(grids)
            rows += _over_cells(terms, privacy, knowledge, epsilon, cells, forecasts, explained)
        rows.append(replace(split, auto=grids is None))
        on_epsilon(epsilon)
    constants = [forecast.constant for forecast in forecasts]
    true_labels = [forecast.with_true_labels for forecast in forecasts]
    return DivisionPlan(rows, terms, knowledge, explained, constants, true_labels)


def _prior(terms: Sequence[LabelTerms], knowledge: PriorKnowledge, group: Group) -> Floats:
    """(k,) prior over cells; a uniform one is rounded to them, whatever their points are."""
    if knowledge.known:
        return knowledge.over(group)
    parts = []
    for label, grid in zip(group.labels, group.cells.grids, strict=True):
        one = terms[label]
        fine = one.grid or Grid.from_count(one.lower, one.upper, _FINE)
        parts.append(interpolation(fine.points, grid.points).mean(axis=0))
    return np.asarray(reduce(np.kron, parts))


def _over_cells(
    terms: Sequence[LabelTerms],
    privacy: PrivacySection,
    knowledge: PriorKnowledge,
    epsilon: float,
    cells: Cells,
    forecasts: Sequence[Forecast],
    explained: float,
) -> list[DivisionRow]:
    """Judge one channel, and one a label, by the share that each label loses."""
    events, group = knowledge.rows, privacy.group
    share = privacy.prior_share
    budget = split_budget(epsilon, len(cells), events, records=group, largest_share=share)
    prior = _prior(terms, knowledge, Group(tuple(range(len(terms))), cells))
    losses, weights = [label.loss for label in terms], [label.weight for label in terms]
    targets = Targets.for_cells(cells, prior, losses, weights, events, explained)
    each = float_below(budget.labels / group)
    judged = []
    for name, make in ((JOINT, joint_channel), (SEPARATE, split_channels)):
        channels = make(terms, cells, prior, each, events)
        codes = at_knots(targets, cells, channels)
        errors = [
            forecast.error(share * forecast.nothing)
            for forecast, share in zip(forecasts, targets.shares_lost(codes), strict=True)
        ]
        spent = [group * built.channel.epsilon for _, built in channels]
        row = DivisionRow(epsilon, name, float(budget.prior), spent, errors)
        judged.append((targets.lost(codes), row))
    least = min(loss for loss, _ in judged)
    return [replace(row, auto=loss == least) for loss, row in judged]


def _split(
    terms: Sequence[LabelTerms],
    privacy: PrivacySection,
    knowledge: PriorKnowledge,
    epsilon: float,
    explained: float,
) -> tuple[DivisionRow, list[Forecast]]:
    """Judge labels that are sent as if alone; and say what errors are to be compared with."""
    events, group, share = knowledge.rows, privacy.group, privacy.prior_share
    plan = plan_message(terms, events, epsilon, division="split", records=group, prior_share=share)
    groups = [share.group for share in plan.channels]
    priors = {share: _prior(terms, knowledge, share) for share in groups}
    channels = plan.own_channels({each: priors[each] for each in plan.groups})
    grids = [each.cells.grids[0] for each in groups]
    assessors = [
        Assessor(grid.points, prior, events, label.loss, explained)
        for label, grid, prior in zip(terms, grids, priors.values(), strict=True)
    ]
    judged = zip(assessors, channels, strict=True)
    errors = [assessor.assess(built).predicted_error for assessor, built in judged]
    paid = sum(float(share.epsilon) for share in plan.histograms)
    spent = [group * built.channel.epsilon for built in channels]
    row = DivisionRow(epsilon, SPLIT, paid, spent, errors)
    return row, [assessor.forecast for assessor in assessors]
