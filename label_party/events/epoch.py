"""Which rows and columns of which sources are an epoch's: decided here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from common.csv_files import Dialect
from label_party.config.sections import LabelPartyConfig
from label_party.events.columns import Column
from label_party.sources.foreign import Source
from label_party.sources.oddities import Oddities
from label_party.sources.tables import CSV, columns_of, read_events


@dataclass(frozen=True)
class Rows:
    """Some columns of a source's rows, of one day if the source has several."""

    source: Source
    # key, labels, user: names of the columns, as :func:`label_party.sources.tables.read_events`
    # reads them
    key: str
    labels: tuple[str, ...] = ()
    user: str | None = None
    # a column of dates or times, and the day whose rows are wanted
    day: tuple[str, str] | None = None
    others: tuple[Column, ...] = ()  # further columns
    dialect: Dialect = CSV  # how the source is written, if it is CSV

    @property
    def naming(self) -> list[str]:
        """The columns that say whose row it is, the key first."""
        names = self.key, self.user, None if self.day is None else self.day[0]
        return [name for name in names if name is not None]

    @property
    def columns(self) -> list[str]:
        others = (column.name for column in self.others)
        return list(dict.fromkeys((*self.naming, *self.labels, *others)))

    def read(self, part: tuple[int, int] | None = None) -> tuple[pl.DataFrame, Oddities]:
        """Read them all, or those of a part of a Parquet file; and say what is odd about them."""
        return read_events(
            self.source,
            self.key,
            labels=self.labels,
            user=self.user,
            day=self.day,
            rows=part,
            others=[column.name for column in self.others],
            dialect=self.dialect,
        )


def rows_of_epoch(
    config: LabelPartyConfig, columns: Iterable[Column] = ()
) -> tuple[Rows, Rows | None]:
    """Return the epoch's rows of labels and of the population.

    The second is None where the labels' own keys are the population, or where it was submitted.
    Users are those of the population: of the labels' rows only where these are the population.
    """
    data, user = config.data, config.privacy.user
    own = data.population is None
    day = None if data.date is None else (data.date, data.epoch)
    listed = data.population_source
    public = [column for column in columns if column.public]
    there = []
    if listed is not None and public:
        there = columns_of(listed, data.population_dialect)
    among = tuple(column for column in public if column.name in there)
    others = tuple(column for column in columns if column not in among)
    names = tuple(terms.column for terms in config.labels)
    users = user if own else None
    labels = Rows(data.labels_source, data.key, names, users, day, others, data.labels_dialect)
    if listed is None:
        return labels, None
    return labels, Rows(listed, data.key, (), user, day, among, data.population_dialect)
