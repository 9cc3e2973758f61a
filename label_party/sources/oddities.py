"""What of a source could not be taken as it stands: counted and located, never shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

SHOWN = 5
"""So many places of each oddity are kept."""
LINE = "line or row of the source"
"""Column of the places that oddities name, beside those of a source."""


@dataclass(frozen=True)
class Oddity:
    """Cells of one column, or rows, that are odd for one reason."""

    column: str  # name of the column; empty where it is about whole rows
    reason: str  # what is odd, in words that hold no value
    count: int  # how many
    # the first few, ascending: lines of a CSV file, whose header is line 1; of anything else rows,
    # the first being row 1
    places: tuple[int, ...]

    def __str__(self) -> str:
        where = ", ".join(f"{place:,}" for place in self.places)
        more = ", …" if self.count > len(self.places) else ""
        of = f"column {self.column!r}: " if self.column else ""
        return f"{of}{self.reason}: {self.count:,} (at {where}{more})"


@dataclass(frozen=True)
class Oddities:
    """All that is odd about a source, or some of its rows; those of further rows are added.

    For the operator alone: that a row is odd tells of its label. Nothing is decided by it.
    """

    each: tuple[Oddity, ...] = ()

    def __add__(self, other: Oddities) -> Oddities:
        merged = {(entry.column, entry.reason): entry for entry in self.each}
        for entry in other.each:
            known = merged.get((entry.column, entry.reason))
            if known is not None:
                places = tuple(sorted(known.places + entry.places)[:SHOWN])
                entry = Oddity(entry.column, entry.reason, known.count + entry.count, places)
            merged[entry.column, entry.reason] = entry
        return Oddities(tuple(merged[name] for name in sorted(merged)))

    def __bool__(self) -> bool:
        return bool(self.each)

    def __iter__(self) -> Iterator[Oddity]:
        return iter(self.each)

    def to_json(self) -> list[dict[str, Any]]:
        return [vars(entry) | {"places": list(entry.places)} for entry in self.each]


NOTHING = Oddities()


def oddity(column: str, reason: str, places: Iterable[int], count: int) -> Oddities:
    """Return one oddity of so many cells or rows, and some of their places; none if no cell is."""
    if not count:
        return Oddities()
    return Oddities((Oddity(column, reason, count, tuple(sorted(places)[:SHOWN])),))


def oddity_of(column: str, reason: str, odd: pl.Series, places: pl.Series) -> Oddities:
    """Return where of (n,) rows are odd, given the places of all of them."""
    where = places.filter(odd)
    return oddity(column, reason, where.head(SHOWN), where.len())
