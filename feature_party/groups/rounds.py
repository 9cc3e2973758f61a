"""Rounds of questions about groups: ask, learn from all answers, ask about further events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from labelveil.common.arrays import Indices
from labelveil.common.errors import DataError
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice, PrivateSums
from labelveil.feature_party.groups.model import SumsModel, ask_first
from labelveil.feature_party.schema import NOTHING, Stated

Answer = Callable[[Indices, GroupQuestion], PrivateSums]
"""What the labels party does: sums labels of events, by their rows, as a question asks."""


@dataclass(frozen=True, eq=False)
class Round:
    """What was asked so far, what was answered, and what is learned of it."""

    rows: Indices
    """(m,) rows of all events that were asked about, in the order of the answers."""
    answers: tuple[PrivateSums, ...]
    model: SumsModel


def learn_in_rounds(
    table: pl.DataFrame,
    lattice: Lattice,
    epsilon: float,
    answer: Answer,
    *,
    shares: Sequence[float],
    stated: Stated = NOTHING,
    seed: int = 0,
) -> Iterator[Round]:
    """Ask about every row of a table once, in rounds that ``shares`` of them are dealt to.

    The first question comes from the columns alone, and every further one from the model of all
    answers before it. Yields after each round. ``DataError`` if a round would have no event.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(table.height)
    ends = np.rint(np.cumsum([0, *shares]) * table.height).astype(int).tolist()
    answers, model = list[PrivateSums](), None
    for number, (first, last) in enumerate(pairwise(ends), 1):
        rows = order[first:last]
        if not rows.size:
            raise DataError(
                f"none of {table.height:,} events is left for round {number}; ask about more"
                " events, or in fewer rounds"
            )
        if model is None:
            question = ask_first(table[rows], lattice, epsilon, rng, stated)
        else:
            question = model.ask(table[rows], epsilon, rng)
        answers.append(answer(rows, question))
        model = SumsModel.fit(table[order[:last]], answers, stated=stated, seed=seed)
        yield Round(order[:last], tuple(answers), model)
