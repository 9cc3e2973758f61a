"""Further columns of an epoch's events: of each, an event has one category or none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from common.arrays import Integers
from label_party.events.tally import Duplicates

NONE = -1
"""Code of an event that has no category."""


@dataclass(frozen=True)
class Column:
    """A column that is wanted.

    Attributes
    ----------
    name
        What it is called in the file.
    values
        The public list of its categories; None: any text is one, in an order without meaning.
    public
        Whether it is read from the population's file, where that has it. The labels' rows have it
        otherwise: then events without such a row have no category.
    """

    name: str
    values: pl.Series | None = None
    public: bool = False

    def codes(self, texts: pl.Series) -> Integers:
        """(n,) places in the list, one after its end for what it lacks, NONE for null."""
        if self.values is None:
            codes = texts.cast(pl.Categorical).to_physical()
        else:
            end = len(self.values)
            codes = texts.replace_strict(
                self.values, np.arange(end), default=end, return_dtype=pl.Int64
            )
        return codes.cast(pl.Int64).set(texts.is_null(), NONE).to_numpy()


def one_per_event(at: Integers, codes: Integers, events: int, duplicates: Duplicates) -> Integers:
    """(events,) the category of each event, from those of its rows that have one.

    Parameters
    ----------
    at, codes
        (m,) event and category of every row, in file order.
    duplicates
        What of several rows counts: with "last" the last that has a category, with "missing" none;
        else they are parts of one event, which has the category that they agree on, and none if
        they do not.
    """
    if duplicates == "missing":
        single = np.bincount(at, minlength=events)[at] == 1
        at, codes = at[single], codes[single]
    at, codes = at[codes != NONE], codes[codes != NONE]
    found = np.full(events, NONE, dtype=np.int64)
    found[at] = codes  # assignment in file order: the last one stays
    if duplicates != "last":
        found[at[found[at] != codes]] = NONE
    return found
