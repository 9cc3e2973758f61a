"""Strata that both parties know (``[strata]``): the column that says in which an event is.

Strata are public, as the population is: neighbours have the same
(:mod:`labelveil.label_party.events.open`). Which of the column's values are strata of their own
follows from how many events each has, and the values are a list that was made without a look at
labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from labelveil.common.errors import ConfigError, not_none
from labelveil.common.randomizers.message.plan import MessagePlan
from labelveil.common.randomizers.message.strata import OTHERS
from labelveil.common.release.sections import MOST_LETTERS
from labelveil.label_party.config.offers import StrataSection
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.columns import Column, read_category_list
from labelveil.label_party.events.epoch import rows_of_values
from labelveil.label_party.events.steps import Events

MOST_VALUES = 65_535
_WHY_ONE = "no two classes have the 16 events for each 1/ε of their histogram's, or codes tell all"


def stratum_column(strata: StrataSection) -> Column | None:
    """The column, with its public values, ascending; None without one.

    ``DataError`` if the list cannot be read; ``ConfigError`` if it is too long.
    """
    name, path = strata.column, strata.values
    if name is None:
        return None
    values = read_category_list(not_none(path), "[strata] values")
    if len(values) > MOST_VALUES:
        raise ConfigError(
            f"{path} lists {len(values):,} values of {name!r}, more than {MOST_VALUES:,}; list"
            " those with most events, for all others are one stratum in any case"
        )
    for value in values:
        if names_stratum(value):
            continue
        raise ConfigError(
            f"{path} lists {value!r:.60}, which cannot name a stratum: {OTHERS!r} is that of all"
            f" values that have none, and a name has up to {MOST_LETTERS} letters"
        )
    return Column(name, values)


def names_stratum(value: str) -> bool:
    """Whether a value can be the name of its stratum; events of others are of none of their own."""
    return value != OTHERS and len(value) <= MOST_LETTERS


def plan_events(
    config: LabelPartyConfig,
    events: Events,
    column: Column | None,
) -> MessagePlan:
    """What public facts decide of a message about events.

    ``ConfigError`` for labels that one message cannot carry.
    """
    plan = config.plan_message(events.rows)
    if column is not None:
        values: pl.Series = not_none(column.values)
        plan = plan.by_stratum(values.to_list(), events.strata(len(values)))
    return plan


def strata_notes(config: LabelPartyConfig, epsilons: Sequence[float]) -> list[str]:
    """What public facts say beforehand of a plan in strata, at each ε; nothing without strata."""
    column = stratum_column(config.strata)
    if column is None:
        return []
    values, rows = not_none(column.values), rows_of_values(config, column)
    notes = []
    for epsilon in epsilons:
        plan = config.plan_message(int(rows.sum()), epsilon).by_stratum(values.to_list(), rows)
        if plan.strata is None:
            notes.append(f"At ε = {epsilon:g} all events are sent in one way: {_WHY_ONE}.")
            continue
        each = zip(plan.strata.names, plan.strata.rows, strict=True)
        shown = ", ".join(f"{name} ({count:,})" for name, count in each)
        notes.append(f"At ε = {epsilon:g} events are sent in {plan.stratum_count} strata: {shown}.")
    return [f"Strata by {column.name!r}, {len(values):,} values.", *notes]
