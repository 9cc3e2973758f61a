"""The one interface of private selection: counts in; a selected set (or ⊥) and a guarantee out.

Neighbours differ by one user who is added or removed. A user counts at most once for a candidate
but for any number of candidates, so every count moves by at most 1, all in one direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Integers, counted
from labelveil.common.entropy import Entropy
from labelveil.common.errors import DataError
from labelveil.common.guarantees import Adjacency, Guarantee, Unit

ADJACENCY = Adjacency.ADD_REMOVE
UNIT = Unit.USER


def neighbours(step: int) -> Adjacency:
    """Return the neighbours between which a gap moves by at most ``step``: 1 or 2."""
    return ADJACENCY if step == 1 else Adjacency.REPLACE_RECORD


@dataclass(frozen=True, eq=False)
class Selection:
    """What a selector releases."""

    chosen: Integers | None
    """(k,) indices of the selected candidates, or None for ⊥: nothing could be released safely.
    By index, unless the selector says that their order is part of the release."""
    guarantee: Guarantee
    """What one user may lose by this release, whatever came out."""

    @property
    def k(self) -> int:
        """How many candidates were selected; 0 for ⊥."""
        return 0 if self.chosen is None else int(self.chosen.size)


class Ranking:
    """Counts with their descending order; ties are broken by index.

    Counts are (m,) integers >= 0, m >= 1: distinct users of each candidate.

    Raises
    ------
    DataError
        If counts are anything else.
    """

    def __init__(self, counts: ArrayLike) -> None:
        self.counts = counted(counts, "counts of users", bits=40)
        if not self.counts.size:
            raise DataError("there are no counts; name at least one candidate")

    @cached_property
    def order(self) -> Integers:
        """(m,) candidate indices by descending count."""
        return np.argsort(-self.counts, kind="stable")

    @cached_property
    def sorted(self) -> Integers:
        """(m,) counts, descending."""
        return self.counts[self.order]

    def padded_gaps(self, ranks: int) -> Integers:
        """(ranks,) gaps ``h_(j) − h_(j+1)``, as if candidates without users went on forever.

        Their number then says nothing about how many candidates there are.
        """
        counts = np.zeros(ranks + 1, dtype=np.int64)
        size = min(ranks + 1, self.counts.size)
        counts[:size] = self.sorted[:size]
        return counts[:-1] - counts[1:]

    def top(self, k: int) -> Integers:
        """(k,) indices of the k largest counts, by index: a set, not an order."""
        return np.sort(self.order[:k])


class Selector(Protocol):
    """A private selection mechanism with all its parameters fixed."""

    def draw(self, counts: Ranking | ArrayLike, entropy: Entropy) -> Selection:
        """Select from (m,) counts, or a :class:`Ranking` of them that several selections share.

        Entropy must be fresh for every release.
        """


def ranked(counts: Ranking | ArrayLike) -> Ranking:
    """Rank counts unless that has been done."""
    return counts if isinstance(counts, Ranking) else Ranking(counts)
