"""Which rows and columns of which sources are an epoch's: decided here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from common.arrays import Integers
from common.csv_files import Dialect
from common.errors import present
from label_party.config.sections import LabelPartyConfig
from label_party.events.columns import Column
from label_party.sources.foreign import Source
from label_party.sources.oddities import Oddities
from label_party.sources.tables import CSV, KEY, columns_of, other, read_columns, read_events


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
    stratum: Column | None = None  # the one that says in which stratum an event is
    dialect: Dialect = CSV  # how the source is written, if it is CSV

    @property
    def naming(self) -> list[str]:
        """The columns that say whose row it is, the key first."""
        names = self.key, self.user, None if self.day is None else self.day[0]
        return [name for name in names if name is not None]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys((*self.naming, *self.labels, *self._texts)))

    @property
    def _texts(self) -> list[str]:
        columns = self.others if self.stratum is None else (*self.others, self.stratum)
        return [column.name for column in columns]

    def read(self, part: tuple[int, int] | None = None) -> tuple[pl.DataFrame, Oddities]:
        """Read them all, or those of a part of a Parquet file; and say what is odd about them."""
        return read_events(
            self.source,
            self.key,
            labels=self.labels,
            user=self.user,
            day=self.day,
            rows=part,
            others=self._texts,
            dialect=self.dialect,
        )


def rows_of_epoch(
    config: LabelPartyConfig, columns: Iterable[Column] = (), stratum: Column | None = None
) -> tuple[Rows, Rows | None]:
    """Return the epoch's rows of labels and of the population.

    The second is None where the labels' own keys are the population, or where it was submitted.
    Users and strata are those of the population: of the labels' rows only where these are the
    population.
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
    source, dialect = data.labels_source, data.labels_dialect
    mine = stratum if own else None
    labels = Rows(source, data.key, names, users, day, others, mine, dialect)
    if listed is None:
        return labels, None
    return labels, Rows(listed, data.key, (), user, day, among, stratum, data.population_dialect)


def values_of(source: Source, column: str, dialect: Dialect = CSV) -> list[str]:
    """The texts of a column of a population, the commonest first; as strata are named by.

    ``DataError`` if the source cannot be read, or lacks the column.
    """
    words = read_columns(source, [column], dialect=dialect)[0][column].cast(pl.String)
    counted = words.str.strip_chars().drop_nulls().alias(KEY).value_counts(sort=True)
    return counted.filter(pl.col(KEY) != "")[KEY].to_list()


def rows_of_values(config: LabelPartyConfig, column: Column) -> Integers:
    """(v + 1,) events of each public value of the strata's column, and of none of them.

    It reads nothing of labels. ``DataError`` as :func:`values_of`.
    """
    labels, population = rows_of_epoch(config, (), column)
    events = replace(population or labels, labels=(), user=None).read()[0]
    texts = events.unique(KEY, keep="first", maintain_order=True)[other(column.name)]
    return np.bincount(column.places(texts), minlength=len(present(column.values)) + 1)
