"""How rows that are predicted differ from those that a model was trained on, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from labelveil.common.errors import DataError
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.schema import MISSING, ColumnMeaning

MATTERS = 0.2
"""Difference of shares from which a column is told of."""


@dataclass(frozen=True)
class ColumnDrift:
    """Shares of the rows of a column: in training, and now."""

    name: str
    meaning: str  # what its cells were taken for
    missing: tuple[float, float]  # no value
    odd: tuple[float, float]  # a cell that is not what the column holds, and counts as missing
    unknown: tuple[float, float]  # a category that the model does not know
    outside: float  # a number beyond the least and the largest in training, now

    @property
    def matters(self) -> bool:
        return bool(self.sentences)

    @property
    def sentences(self) -> list[str]:
        """What a user should know, in a sentence for each kind of difference."""
        told = []
        kinds = (
            (self.missing, "have no {name}"),
            (
                self.odd,
                "have a {name} that is no {meaning}, and are predicted as if it was missing",
            ),
            (
                self.unknown,
                "have a {name} that the model does not know, and are predicted without it",
            ),
            ((0.0, self.outside), "have a {name} outside the range that the model was trained on"),
        )
        for (before, now), text in kinds:
            if now - before > MATTERS:
                what = text.format(name=repr(self.name), meaning=self.meaning)
                told.append(f"{now:.0%} of the rows {what} ({before:.0%} in training)")
        return told

    def to_json(self) -> dict[str, Any]:
        pairs = {"missing": self.missing, "odd": self.odd, "unknown": self.unknown}
        return {
            "column": self.name,
            "meaning": self.meaning,
            **{name: {"training": before, "now": now} for name, (before, now) in pairs.items()},
            "outside": self.outside,
            "matters": self.matters,
        }


class DriftCounts:
    """Counts over the rows of a table, a batch after another."""

    def __init__(self, encoder: Encoder) -> None:
        self._known = {share.name: share for share in encoder.shares}
        self._vocabularies = {c.name: list(c.vocabulary) for c in encoder.categorical}
        self._meanings: dict[str, ColumnMeaning] = {n: encoder.schema[n] for n in encoder.columns}
        # missing, odd, unknown, outside
        self._counts = {name: np.zeros(4, dtype=np.int64) for name in self._meanings}
        self._first_odd: dict[str, int] = {}
        self.rows = 0

    def add(self, batch: pl.DataFrame) -> None:
        """Count the rows of a batch, which has all columns that the model reads."""
        for name, meaning in self._meanings.items():
            values, counts = meaning.read(batch[name]), self._counts[name]
            missing, odd = meaning.unread(batch[name], values)
            counts[:2] += missing, odd
            if meaning.kind == "category":
                strange = (values != MISSING) & ~values.is_in(self._vocabularies[name])
                counts[2] += int(strange.sum())
                continue
            if odd and name not in self._first_odd:
                places = values.is_null() & ~meaning.absent(batch[name])
                self._first_odd[name] = self.rows + int(places.arg_max() or 0)
            low, high = self._known[name].low, self._known[name].high
            if low is not None and high is not None:
                outside = ~values.is_between(low, high) & values.is_finite()  # else it is missing
                counts[3] += int(outside.sum())
        self.rows += batch.height

    def check(self) -> None:
        """Raise ``DataError`` if no cell of a column is what the model was trained with in it."""
        for name, (missing, odd, *_) in self._counts.items():
            if odd and odd == self.rows - missing:
                raise DataError(
                    f"column {name!r} holds no {self._meanings[name]} in any of {odd:,} cells, the"
                    f" first in row {self._first_odd[name] + 1:,}, and did when the model was"
                    " trained; correct it, or train again"
                )

    def columns(self) -> Sequence[ColumnDrift]:
        """The difference of each column; there must have been a row."""
        drifts = []
        for name, counts in self._counts.items():
            missing, odd, unknown, outside = (counts / self.rows).tolist()
            known = self._known[name]
            pairs = (known.missing, missing), (known.odd, odd), (known.unknown, unknown)
            drifts.append(ColumnDrift(name, str(self._meanings[name]), *pairs, outside))
        return drifts


def check_cells(encoder: Encoder, table: pl.DataFrame) -> None:
    """Raise ``DataError`` if no cell of a column of a table is what the model was trained with."""
    counts = DriftCounts(encoder)
    counts.add(table)
    counts.check()
