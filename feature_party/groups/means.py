"""Asking for mean labels of groups of events by noisy sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import polars as pl

from labelveil.common.arrays import Indices
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice, PrivateSums
from labelveil.feature_party.evaluation.group_means import Values, grouped, means_of_sums
from labelveil.feature_party.schema_search import find_schema


@dataclass(frozen=True, eq=False)
class MeansQuestion:
    """What to ask, and what the answer says."""

    question: GroupQuestion
    by: tuple[str, ...]
    """Columns by whose values the groups are."""
    groups: Sequence[tuple[Values, Indices]]
    """Their values, and their events."""

    @classmethod
    def by_columns(cls, table: pl.DataFrame, by: Sequence[str], lattice: Lattice) -> Self:
        """Ask by columns of a table; ``DataError`` if it has no rows or one of them not."""
        for name in by:
            if name not in table.columns:
                columns = ", ".join(table.columns)
                raise DataError(f"by={name!r} is no column of X; columns: {columns}")
        if not table.height or not by:
            raise DataError("means are of at least one event, by at least one column")
        cells = table.select(by)
        schema = find_schema([cells], cells.height).schema
        found = grouped(
            {name: cells[name] for name in by}, {name: schema.meaning(name) for name in by}
        )
        groups = np.empty(table.height, dtype=np.int64)
        for place, (_, rows) in enumerate(found):
            groups[rows] = place
        widths = np.full(len(found), (lattice.steps + 1) // 2)  # no label is clipped
        question = GroupQuestion(lattice, groups, widths, np.array([lattice.steps // 2]))
        return cls(question, tuple(by), found)

    def means(self, answer: PrivateSums, control: str | None = None) -> pl.DataFrame:
        """Mean label of each group, with a 95% interval that holds for all groups together.

        It is of these very events: what another draw of events would change is not in it.
        ``control`` is the value of the last column with which all others are compared: their
        ``lift`` is how far their mean is above its, in the same row of all other columns. Columns
        are those of the groups, ``events``, ``mean``, ``mean_low``, ``mean_high``, and of lifts.

        ``ConfigError`` if another question was answered, ``DataError`` if there is no such value.
        """
        if answer.question.digest != self.question.digest:
            raise ConfigError("this answers another question than that for means; ask again")
        rows: list[dict[str, Any]] = []
        for mean in means_of_sums(self.groups, answer, control):
            found = mean.to_json(self.by)
            rows.append({**found.pop("group"), **found})
        return pl.DataFrame(rows, infer_schema_length=None)
