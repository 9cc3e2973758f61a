"""What is about to be bought, and what speaks against it; shown before the irreversible step.

Rows that could not be taken as they stand are warned of with their lines; numbers beyond the limits
below, too. Warnings tell of raw labels. They are for the labels party's console: nothing that
leaves may hold one, nor may what is bought depend on one by a rule that nobody pays for. So code
that buys without a person goes on whatever they say, and a dry run, which buys nothing, fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from labelveil.common.arrays import Integers
from labelveil.common.mechanisms.group_sums import NoisySums
from labelveil.common.randomizers.grid import Grid, RoundingEffect
from labelveil.common.randomizers.message.plan import MessagePlan
from labelveil.label_party.events.steps import Events
from labelveil.label_party.events.tally import LabelTally, Tally
from labelveil.label_party.store.purchase import Order

_FEW = 0.01
"""Below this share of labels or categories, columns or keys rarely fit together."""
_CLIPPED = 0.05
_LEFT_OUT = 0.5
_MOVED = 1.0
_DOMINATING = 0.05
_TIMES_AVERAGE = 10
_DISGUISED = 0.9


class DryRunEnded(Exception):
    """Nothing is to be bought after all; nothing was charged, drawn or written."""


@dataclass(frozen=True)
class Spread:
    """How the events spread over a column's public list of categories."""

    name: str
    events: int
    listed: int  # events with a category on the list
    most: int  # events in the commonest one

    @classmethod
    def from_codes(cls, name: str, codes: Integers, categories: int) -> Spread:
        """Count (n,) codes, those below ``categories`` being on the list."""
        listed = codes[(codes >= 0) & (codes < categories)]
        most = int(np.bincount(listed, minlength=1).max())
        return cls(name, codes.size, listed.size, most)


@dataclass(frozen=True)
class Intention:
    """What would be read and spent, once everything was read and checked."""

    purchases: tuple[Order, ...]  # what would be charged, in this order
    events: Events  # what was read; the last purchase is about them
    # the labels that it is about, by name: which of the events' each is; none if it is about
    # categories alone
    labels: Mapping[str, int] = field(hash=False, default_factory=dict)
    plan: MessagePlan | None = None  # the message of codes that it is about, if it is
    sums: NoisySums | None = None  # the sums that it is about, if it is
    spreads: tuple[Spread, ...] = ()  # of the columns of categories that it is about
    in_rounds: bool = False  # whether each population is a part of the labelled events
    # why nothing useful would come out, from public facts alone; None if it might
    too_few: str | None = None

    @cached_property
    def placed(self) -> list[tuple[Grid, RoundingEffect]]:
        """Each label's grid in the message, and what placing the labels on it does to them."""
        grids: Sequence[Grid] = ()
        if self.plan is not None:
            grids = self.plan.grids
        elif self.sums is not None:
            grids = [self.sums.question.lattice.grid]
        return [*zip(grids, self.events.rounding_effects(grids), strict=True)] if grids else []

    def warnings(self) -> list[str]:
        """Everything that speaks against it, one line each."""
        tally, strata = self.events.tally, self.plan and self.plan.strata
        warnings = [f"labels, {odd}" for odd in tally.odd]
        warnings += [f"population, {odd}" for odd in tally.odd_population]
        warnings += _of_keys(tally, in_rounds=self.in_rounds)
        before = {name: f"label {name!r}: " if len(self.labels) > 1 else "" for name in self.labels}
        for name, at in self.labels.items():
            warnings += [before[name] + line for line in _of_label(tally.rows, tally.labels[at])]
        for name, (grid, moved) in zip(self.labels, self.placed, strict=False):
            if moved.share > _MOVED:
                warnings.append(f"{before[name]}the grid has {grid}; {moved}; choose a finer one")
        explained = self.events.explained(strata) if strata else []
        for name, share in zip(self.labels, explained, strict=False):
            if share > _DISGUISED:
                warnings.append(
                    f"{before[name]}the strata tell {share:.0%} of its variance, and both parties"
                    " know them: is their column made from labels?"
                )
        for spread in self.spreads:
            warnings += _of_categories(spread)
        return warnings if self.too_few is None else [*warnings, self.too_few]


Confirm = Callable[[Intention], None]
"""Called once all is read and before anything is charged; what it raises prevents the purchase."""


def go_on(intention: Intention) -> None:
    """Buy, whatever the labels are, as suits everything that runs without a person."""


def _of_label(rows: int, tally: LabelTally) -> list[str]:
    warnings, labelled = [], rows - tally.unlabelled
    if labelled < _FEW * rows:
        warnings.append(
            f"only {_of(labelled, rows, 'events')} have a label; do the keys of labels and"
            " population fit together?"
        )
    if labelled and rows > 1 and tally.smallest == tally.largest:
        warnings.append(f"all {rows:,} events have the same label, {tally.smallest:g}")
    if tally.outside > _CLIPPED * labelled:
        warnings.append(
            f"{_of(tally.outside, labelled, 'labels')} lie outside lower … upper and are clipped"
        )
    return warnings


def _of_keys(tally: Tally, *, in_rounds: bool = False) -> list[str]:
    warnings = []
    there = tally.labelled + tally.left_out
    if tally.left_out > _LEFT_OUT * there and not in_rounds:
        warnings.append(
            f"{_of(tally.left_out, there, 'keys of labels')} are not in the population; are both"
            " of the same epoch, and spelt alike?"
        )
    average = tally.label_rows / max(there, 1)
    if tally.most_rows > max(_DOMINATING * tally.label_rows, _TIMES_AVERAGE * average):
        warnings.append(
            f"{_of(tally.most_rows, tally.label_rows, 'rows of labels')} have one and the same key;"
            " is it a placeholder?"
        )
    return warnings


def _of_categories(spread: Spread) -> list[str]:
    if spread.listed < _FEW * spread.events:
        return [
            f"only {_of(spread.listed, spread.events, 'events')} have a value of {spread.name!r}"
            " that is on its list"
        ]
    if spread.most == spread.listed:
        return [f"all {spread.listed:,} listed values of {spread.name!r} are the same"]
    return []


def _of(part: int, whole: int, what: str) -> str:
    return f"{part:,} of {whole:,} {what} ({part / whole:.2%})"
