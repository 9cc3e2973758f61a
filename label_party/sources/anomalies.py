"""What of a source could not be taken as it stands: counted and located, never shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

SHOWN = 5
"""Number of places of each anomaly that are kept."""
LINE = "line or row of the source"
"""Column of the places that anomalies name, beside those of a source."""


@dataclass(frozen=True)
class Anomaly:
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
class Anomalies:
    """All that is odd about a source, or some of its rows; those of further rows are added.

    For the operator alone: that a row is odd tells of its label. Nothing is decided by it.
    """

    each: tuple[Anomaly, ...] = ()

    def __add__(self, other: Anomalies) -> Anomalies:
        merged = {(entry.column, entry.reason): entry for entry in self.each}
        for entry in other.each:
            known = merged.get((entry.column, entry.reason))
            if known is not None:
                places = tuple(sorted(known.places + entry.places)[:SHOWN])
                entry = Anomaly(entry.column, entry.reason, known.count + entry.count, places)
            merged[entry.column, entry.reason] = entry
        return Anomalies(tuple(merged[name] for name in sorted(merged)))

    def __bool__(self) -> bool:
        return bool(self.each)

    def __iter__(self) -> Iterator[Anomaly]:
        return iter(self.each)

    def to_json(self) -> list[dict[str, Any]]:
        return [vars(entry) | {"places": list(entry.places)} for entry in self.each]


NOTHING = Anomalies()


def anomaly(column: str, reason: str, places: Iterable[int], count: int) -> Anomalies:
    """Return one anomaly of n cells or rows, and some of their places; none if no cell is."""
    if not count:
        return Anomalies()
    return Anomalies((Anomaly(column, reason, count, tuple(sorted(places)[:SHOWN])),))


def anomaly_of(column: str, reason: str, odd: pl.Series, places: pl.Series) -> Anomalies:
    """Return where of (n,) rows are odd, given the places of all of them."""
    where = places.filter(odd)
    return anomaly(column, reason, where.head(SHOWN), where.len())
