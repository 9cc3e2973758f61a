"""Questions: what a model that has learned from earlier labels wants to know of further ones.

A channel that is designed for the labels of all events asks each the question that fits the average
one. Who has a model already expects something of every event: its predicted law. Events of like
laws make a stratum, whose channel is designed for their mean law, so that each event is asked where
its own label is in doubt (two stages for classes: Ghazi et al., *Deep Learning with Label
Differential Privacy*, NeurIPS 2021).

Each stratum's channel is ε-DP in the label that it reads, whatever was asked: strata and laws may
come from earlier codes, of other events' labels, and from anybody. An event's label is read once,
by one channel, so that the codes of all rounds together are ε-DP in each label (adaptive parallel
composition). What has to be checked of a question is its shape alone. No histogram is counted: all
of ε goes to the labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Integers
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.cells import Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.message import Released
from labelveil.common.randomizers.message.plan import MessagePlan, plan_message
from labelveil.common.randomizers.message.strata import MOST_STRATA, MOST_WEIGHT, Strata
from labelveil.common.randomizers.message.terms import LabelTerms

EXPLAINED = 0.15
"""Share of a stratum's variance that features are taken to explain still. Models of bike rentals,
diamonds and houses at ε = 0.5 err by 5 to 10 % less than with 0.3, and with 0.6 by 20 to 70 % more.
"""

_WEIGHTS = 1 << 30
_ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class Question:
    """Which stratum each event is in, and what is expected of the labels of each.

    Raises
    ------
    ConfigError
        If it is no such thing.
    """

    strata: NDArray[np.integer[Any]]
    """(n,) of the events."""
    grid: Grid
    """k points."""
    laws: Integers
    """(S, k) weights >= 0 of the grid's points, 1 <= S <= 32."""

    def __post_init__(self) -> None:
        laws, strata = self.laws, self.strata
        if laws.ndim != 2 or laws.dtype != np.int64 or laws.shape[1] != len(self.grid):
            raise ConfigError(
                f"laws of shape {laws.shape} must have {len(self.grid)} whole weights each, one for"
                " each point of the grid"
            )
        if not 1 <= len(laws) <= MOST_STRATA:
            raise ConfigError(f"{len(laws)} strata must be 1 … {MOST_STRATA}")
        if laws.min() < 0 or laws.max() > MOST_WEIGHT or not laws.sum(axis=1).all():
            raise ConfigError(f"a law's weights must be 0 … {MOST_WEIGHT:,}, and not all of them 0")
        if strata.ndim != 1 or strata.dtype.kind not in "iu" or not strata.size:
            raise ConfigError("strata must be a column of whole numbers, one for each event")
        if not 0 <= strata.min() <= strata.max() < len(laws):
            raise ConfigError(f"every event's stratum must be one of 0 … {len(laws) - 1}")

    def plan(self, terms: LabelTerms, epsilon: float) -> MessagePlan:
        """Plan the message that answers it, on the points that are configured, if any are.

        Nothing is counted.

        Raises
        ------
        ConfigError
            If it is about another range of labels, or labels are two or a few values, for which no
            other channel is better, whatever is expected of them.
        """
        own, grid = self.grid, terms.grid or self.grid
        if (own.lower, own.upper) != (terms.lower, terms.upper):
            raise ConfigError(
                f"the question is about labels in {own.lower:g} … {own.upper:g}, not in"
                f" {terms.lower:g} … {terms.upper:g}; name the same bounds in all rounds"
            )
        if not terms.needs_prior(grid):
            raise ConfigError(
                f"labels of {len(grid)} values are asked in the same way whatever is expected of"
                " them; send all events in one round"
            )
        return plan_question(terms, grid, self.classes, epsilon)

    def on(self, grid: Grid) -> Question:
        """The same question of labels that are placed on other points of its range."""
        if grid == self.grid:
            return self
        laws = _WEIGHTS * (self.laws / self.laws.sum(axis=1, keepdims=True))
        moved = np.zeros((len(grid), len(laws)))
        neighbours = grid.neighbours(self.grid.points)
        for places, shares in zip(*(each.T for each in neighbours), strict=True):
            np.add.at(moved, places, (laws * shares).T)
        return Question(self.strata, grid, np.ceil(moved.T).astype(np.int64))

    @property
    def classes(self) -> Strata:
        """The strata, by their numbers."""
        count = len(self.laws)
        parts = range(0, self.strata.size, _ROWS_AT_ONCE)
        counted = (
            np.bincount(self.strata[at : at + _ROWS_AT_ONCE], minlength=count) for at in parts
        )
        rows = np.sum(list(counted), axis=0)
        return Strata(tuple(map(str, range(count))), tuple(rows.tolist()), np.arange(count))

    def released(self, group: Group) -> Released:
        """What channels over a label's grid are built from; nothing of it was paid for."""
        return Released.expected(group, self.classes, self.on(group.cells.grids[0]).laws)


def plan_question(terms: LabelTerms, grid: Grid, strata: Strata, epsilon: float) -> MessagePlan:
    """Plan a message of one label whose strata have channels that fit what is expected."""
    explained = EXPLAINED if terms.randomizer == "auto" else None
    terms = replace(terms, grid=grid, explained=explained)
    return plan_message([terms], sum(strata.rows), epsilon).for_question(strata)
