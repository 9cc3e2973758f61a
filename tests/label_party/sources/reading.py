"""Reading events out of a source, as an epoch's rows are."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from labelveil.common.csv_files import Dialect
from labelveil.label_party.events.columns import Column
from labelveil.label_party.events.epoch import Rows
from labelveil.label_party.sources.anomalies import Anomalies
from labelveil.label_party.sources.databases import Query
from labelveil.label_party.sources.remote_source import Source
from labelveil.label_party.sources.tables import CSV

PLANTED = "73571.25"
"""A value of a row, which no message may show."""


def read_events(
    source: Source,
    key: str,
    *,
    labels: Sequence[str] = (),
    user: str | None = None,
    day: tuple[str, str] | None = None,
    rows: tuple[int, int] | None = None,
    others: Sequence[str] = (),
    dialect: Dialect = CSV,
) -> tuple[pl.DataFrame, Anomalies]:
    columns = tuple(map(Column, others))
    return Rows(source, key, tuple(labels), user, day, columns, None, dialect).read(rows)


def read_query(query: Query, names: list[str]) -> pl.DataFrame:
    return pl.concat(frame for frame, _ in query.chunks(names)).select(names)
