"""Which rows and columns of which sources are an epoch's: decided here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from labelveil.common.arrays import Integers
from labelveil.common.csv_files import Dialect
from labelveil.common.errors import not_none
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.columns import Column
from labelveil.label_party.sources.anomalies import LINE, Anomalies, anomaly_of
from labelveil.label_party.sources.csv_rows import Holds
from labelveil.label_party.sources.remote_source import Source
from labelveil.label_party.sources.tables import (
    CSV,
    KEY,
    PLACE,
    USER,
    as_days,
    as_names,
    as_numbers,
    as_words,
    check_columns,
    check_front,
    column_name,
    columns_of,
    label_column,
    parquet_files,
    read_columns,
)


@dataclass(frozen=True)
class Rows:
    """Some columns of a source's rows, of one day if the source has several."""

    source: Source
    # key, labels, user: names of the columns
    key: str
    labels: tuple[str, ...] = ()
    user: str | None = None
    # a column of dates or times, and the day whose rows are wanted
    day: tuple[str, str] | None = None
    others: tuple[Column, ...] = ()  # further columns
    stratum: Column | None = None  # the one that says in which stratum an event is
    dialect: Dialect = CSV  # how the source is written, if it is CSV
    holds: Holds = "labels"
    roles: tuple[str, ...] = ()  # columns that say whose row it is, whether or not they are read

    @property
    def naming(self) -> list[str]:
        """The columns that say whose row it is, the key first."""
        return list(dict.fromkeys((*self._named, *self.roles)))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys((*self._named, *self.labels, *self._texts)))

    @property
    def _named(self) -> list[str]:
        names = self.key, self.user, None if self.day is None else self.day[0]
        return [name for name in names if name is not None]

    @property
    def _texts(self) -> list[str]:
        columns = self.others if self.stratum is None else (*self.others, self.stratum)
        return [column.name for column in columns]

    def read(self, part: tuple[int, int] | None = None) -> tuple[pl.DataFrame, Anomalies]:
        """Read the columns, whatever stands in the rows; and what was odd.

        A row speaks for its own event alone. One whose key is missing names none and is left out;
        so is one of another day, or of none. A cell that is not what its column should hold is
        missing. In CSV files keys and users are text, exactly as written, so that ``007`` stays
        ``007``. ``part`` are the first row of a Parquet file, and the one after the last; None for
        all.

        Returns, in file order (of a directory of Parquet files in that of their names), ``key``
        (text), the labels as :func:`label_column` calls them (float64, finite; null where the event
        has none) and ``user`` (text; null where there is none), as far as asked for, the further
        columns by :func:`column_name`, as text without the spaces around it, and with labels
        ``place`` (int64: line or row, as anomalies name it). ``DataError`` if the source cannot be
        read at all, lacks a column, or has one of an unusable type: facts that are public.
        """
        source, key, user, day = self.source, self.key, self.user, self.day
        frame, odd = read_columns(source, self.columns, self.naming, part, self.dialect, self.holds)
        places = frame[LINE]
        names = {name: as_names(frame[name], source) for name in (key, user) if name is not None}
        absent = names[key].is_null()
        odd += anomaly_of(key, "no key, so that the row names no event", absent, places)
        kept = ~absent
        if day is not None:
            days = as_days(frame[day[0]], source)
            odd += anomaly_of(day[0], "no date of the form YYYY-MM-DD", days.is_null(), places)
            kept &= (days.cast(pl.String) == day[1]).fill_null(False)
        frame, places = frame.filter(kept), places.filter(kept)
        events = [names[key].filter(kept).alias(KEY)]
        for index, name in enumerate(self.labels):
            numbers, bad = as_numbers(frame[name], name, source, self.dialect, places)
            events.append(numbers.alias(label_column(index)))
            odd += bad
        if user is not None:
            users = names[user].filter(kept)
            odd += anomaly_of(user, "no user", users.is_null(), places)
            events.append(users.alias(USER))
        words = {name: as_words(frame[name], source) for name in self._texts}
        events += [text.str.strip_chars().alias(column_name(name)) for name, text in words.items()]
        if self.labels:
            events.append(places.alias(PLACE))
        return pl.DataFrame(events), odd

    def check(self) -> None:
        """Check what a release would be refused for whatever stands in the rows.

        ``DataError`` if the source cannot be read, lacks a column or has one of an unusable type,
        or if a label's cell could change what says whose row it is.
        """
        check_columns(self.source, self.columns, self.dialect)
        check_front(self.source, self.naming, self.dialect, self.holds)
        if parquet_files(self.source) is not None:
            self.read((0, 0))  # types

    def days(self) -> list[str]:
        """Return the days that occur in the column of dates, ascending; ``DataError`` as read."""
        name = not_none(self.day)[0]
        frame, _ = read_columns(
            self.source, [name], self.naming, dialect=self.dialect, holds=self.holds
        )
        days = as_days(frame[name], self.source)
        return [day.isoformat() for day in days.drop_nulls().unique().sort()]


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
    said = (user, data.date, config.strata.column) if own else (data.date,)
    roles = tuple(name for name in said if name is not None)
    holds: Holds = "both" if own else "labels"
    labels = Rows(source, data.key, names, users, day, others, mine, dialect, holds, roles)
    if listed is None:
        return labels, None
    dialect = data.population_dialect
    return labels, Rows(
        listed, data.key, (), user, day, among, stratum, dialect, "population", roles
    )


def values_of(source: Source, column: str, dialect: Dialect = CSV) -> list[str]:
    """The texts of a column of a population, the commonest first; as strata are named by.

    ``DataError`` if the source cannot be read, or lacks the column.
    """
    frame, _ = read_columns(source, [column], dialect=dialect, holds="population")
    words = frame[column].alias(KEY).cast(pl.String)
    counted = words.str.strip_chars().drop_nulls().value_counts(sort=True)
    return counted.filter(pl.col(KEY) != "")[KEY].to_list()


def rows_of_values(config: LabelPartyConfig, column: Column) -> Integers:
    """(v + 1,) events of each public value of the strata's column, and of none of them.

    It reads nothing of labels. ``DataError`` as :func:`values_of`.
    """
    labels, population = rows_of_epoch(config, (), column)
    events = replace(population or labels, labels=(), user=None).read()[0]
    texts = events.unique(KEY, keep="first", maintain_order=True)[column_name(column.name)]
    return np.bincount(column.places(texts), minlength=len(not_none(column.values)) + 1)
