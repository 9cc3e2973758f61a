"""Further columns of an epoch's events: of each, an event has one category or none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from common.arrays import Integers
from common.release.cmac import CMAC

NONE = -1
"""Code of an event that has no category."""


@dataclass(frozen=True)
class Column:
    """A column that is wanted."""

    name: str  # what it is called in the file
    values: pl.Series | None = None  # the public list of its categories; None: any text is one
    # whether it is read from the population's file, where that has it. The labels' rows have it
    # otherwise: then events without such a row have no category.
    public: bool = False

    def codes(self, texts: pl.Series, secret: bytes) -> Integers:
        """(n,) codes, NONE for null.

        They are places in the list, one after its end for what it lacks; without a list 63 bits of
        a hash under a secret, so that all slices of a file agree without knowing each other.
        """
        if self.values is None:
            tags = CMAC(secret).column(texts.fill_null(""))
            codes = np.ascontiguousarray(tags[:, :8]).view("<i8")[:, 0] & np.int64(2**63 - 1)
            codes[texts.is_null().to_numpy()] = NONE
            return codes
        end = len(self.values)
        found = texts.replace_strict(
            self.values, np.arange(end), default=end, return_dtype=pl.Int64
        )
        return found.set(texts.is_null(), NONE).to_numpy()


def one_per_event(at: Integers, codes: Integers, events: int, *, last: bool) -> Integers:
    """(events,) the category of each event, from those of its rows that have one.

    Takes the (r,) event and category of every row, in file order. Where the ``last`` of several
    rows does not count they are parts of one event, which has the category that they agree on, and
    none if they do not.
    """
    at, codes = at[codes != NONE], codes[codes != NONE]
    found = np.full(events, NONE, dtype=np.int64)
    found[at] = codes  # assignment in file order: the last one stays
    if not last:
        found[at[found[at] != codes]] = NONE
    return found
