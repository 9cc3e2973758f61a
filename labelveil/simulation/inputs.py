"""Read what a simulation starts from, and give each party only what it may see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import polars.selectors as cs

from labelveil.common.csv_files import SUFFIXES, Dialect, find_dialect, read_table
from labelveil.common.errors import DataError, listed
from labelveil.common.parquet_files import type_words
from labelveil.common.release.event_keys import canonical_keys
from labelveil.simulation.settings import LabelColumn, Settings

ROW_KEY = "event"
KEY, LABEL = "key", "label"


@dataclass(frozen=True, eq=False)
class Inputs:
    """The tables, checked; the key column has the same name in all that a party gets."""

    key: str
    # labels, population: for the labels party: key and labels; and the keys of all events that both
    # parties know, or None where it goes by its labels, or by what the features party submits
    labels: pl.DataFrame
    features: pl.DataFrame  # for the features party: neither labels nor ignored columns
    population: pl.DataFrame | None
    # for scoring alone: ``key`` (canonical text) and ``label`` (float64) of every event of the
    # release, or a column of its name for each of several labels; completed and clipped as the
    # labels party does it, before any noise. A submitted population keeps its order.
    truth: pl.DataFrame
    strata: tuple[str, ...] = ()  # values of the strata's column, which stands beside the events
    columns: Mapping[str, str] = field(
        default_factory=dict
    )  # what features mean, of CSV all of them

    def whole(self, label: LabelColumn) -> bool:
        """Whether labels of a column are whole numbers, by its type or as was said."""
        kind = self.labels[label.column].dtype
        ends = label.lower % 1 == label.upper % 1 == 0
        return label.whole or ((kind.is_integer() or kind == pl.Boolean) and ends)

    def binary(self, label: LabelColumn) -> bool:
        return self.whole(label) and label.upper - label.lower == 1

    @property
    def others(self) -> str:
        """Why the features' events are other ones than those of ``truth``; empty if they are not.

        Submitted as the population they would be released all the same: without a label of their
        own, or with one for several rows.
        """
        keys = pl.DataFrame({KEY: canonical_keys(self.features[self.key])})
        if repeated := keys.height - keys[KEY].n_unique():
            return f"{repeated:,} rows of the features repeat an event"
        if unknown := keys.join(self.truth, on=KEY, how="anti").height:
            return f"{unknown:,} events of the features are not among the labels"
        return ""


def read_inputs(settings: Settings) -> Inputs:
    """Read and check everything, so that nothing is started in vain.

    ``DataError`` if a file or column is missing or of the wrong kind.
    """
    # what cells of features mean is the features party's to find, from all of them
    features = read_table(settings.features, as_text=True)
    labels = read_table(settings.labels, settings.key)
    key = settings.key
    if key is None:
        if not settings.same_file:
            raise DataError(
                "--key is missing: labels and features come from two files, so name the column"
                " that both have in common"
            )
        key = ROW_KEY
        while key in features.columns:
            key += "_"
        features, labels = features.with_row_index(key), labels.with_row_index(key)
    _need(labels, key, settings.labels)
    columns = [label.column for label in settings.label_columns]
    for column in columns:
        _need(labels, column, settings.labels)
        if key == column:
            raise DataError(f"--key and --label both name column {key!r}; they must differ")
        labels = labels.with_columns(_as_numbers(labels[column], settings.labels))
    for column in (key, *settings.ignore):
        _need(features, column, settings.features)
    withheld = {*columns, *settings.ignore} - {key}
    features = features[[c for c in features.columns if c not in withheld]]
    if features.width < 2:
        raise DataError(f"{settings.features} has no feature columns beside the key {key!r}")
    # a party's own modules are loaded where they work, and by no import of the face
    from labelveil.feature_party.schema import IGNORED, Stated, can_be_feature
    from labelveil.feature_party.schema_search import find_schema

    stated = Stated.from_settings(settings.columns)
    for column in settings.columns:
        _need(features, column, settings.features)
    for column, dtype in features.drop(key, *stated.ignored, strict=False).schema.items():
        if not can_be_feature(dtype):
            raise DataError(
                f"column {column!r} of {settings.features} has type {type_words(dtype)}, which"
                " cannot be a feature; leave it out with --ignore"
            )
    meanings: dict[str, str] = {}
    if settings.features.suffix.lower() in SUFFIXES:  # what it writes for a party is Parquet
        table, path = features.drop(key), settings.features
        found = find_schema([table], len(table), stated, typed=False, path=path).schema
        meanings = {column.name: str(column) for column in found.columns}
    meanings = {**settings.columns, **meanings, **dict.fromkeys(stated.ignored, IGNORED)}
    population = None
    if settings.population is not None:
        population = read_table(settings.population, key)
        _need(population, key, settings.population)
        population = population[[key]]
    labels = labels[[key, *columns]]
    covered = features[[key]] if settings.submitted else population
    truth = _truth(labels, covered, settings)
    if settings.strata is None:
        return Inputs(key, labels, features, population, truth, (), meanings)
    _need(features, settings.strata, settings.features)
    classes = features.select(
        canonical_keys(features[key]).alias(KEY), features[settings.strata].cast(pl.String)
    )
    values = tuple(classes[settings.strata].alias("").drop_nulls().unique().sort())
    if population is None:
        labels = _beside(labels, key, classes)
    else:
        population = _beside(population, key, classes)
    return Inputs(key, labels, features, population, truth, values, meanings)


def _beside(events: pl.DataFrame, key: str, known: pl.DataFrame) -> pl.DataFrame:
    """Give events what is known of their canonical keys."""
    each = known.unique(KEY, keep="first")
    keys = pl.DataFrame({KEY: canonical_keys(events[key])})
    beside = keys.join(each, on=KEY, how="left", maintain_order="left")
    return events.with_columns(beside.drop(KEY).get_columns())


def _need(table: pl.DataFrame, column: str, path: Path) -> None:
    if column not in table.columns:
        shown = listed(table.columns)
        raise DataError(f"{path} has no column {column!r}; its columns are {shown}")


def _as_numbers(labels: pl.Series, path: Path) -> pl.Series:
    """Labels as the labels party reads them; ``DataError`` where it would warn of no number."""
    # a party's own modules are loaded where they work, and by no import of the face
    from labelveil.label_party.sources.tables import as_numbers

    if labels.dtype.is_numeric() or labels.dtype == pl.Boolean:
        return labels
    written = path.suffix.lower() in SUFFIXES
    dialect = find_dialect(path) if written else Dialect()
    first = 2 if written else 1  # a file's first line is its header
    places = pl.Series(range(first, first + len(labels)), dtype=pl.Int64)
    numbers, odd = as_numbers(labels, labels.name, path, dialect, places)
    if odd:
        raise DataError(
            f"{path}: {'; '.join(map(str, odd))}; correct it, or leave the cell empty where the"
            " label is missing"
        )
    return numbers.alias(labels.name)


def _known(labels: pl.Series) -> pl.Series:
    """Labels as numbers, or null where they are missing, as infinite ones are for a party."""
    numbers = labels.alias("").cast(pl.Float64)
    return numbers.set(~numbers.is_finite().fill_null(True), None)


def _truth(
    labels: pl.DataFrame, population: pl.DataFrame | None, settings: Settings
) -> pl.DataFrame:
    key, *_ = labels.columns
    names = {LABEL: settings.label_columns[0]}
    if len(settings.label_columns) > 1:
        names = {label.column: label for label in settings.label_columns}
        if KEY in names:
            raise DataError(f"a label of several cannot be called {KEY!r}; rename the column")
    table = labels.select(
        canonical_keys(labels[key]).alias(KEY),
        *(_known(labels[label.column]).alias(name) for name, label in names.items()),
    )
    repeated = table.height - table[KEY].n_unique()
    if repeated and settings.duplicates is None:
        raise DataError(
            f"{repeated:,} rows of {settings.labels} repeat a key; make keys unique, or choose"
            " --duplicates missing, last, sum or mean"
        )
    keys = table.select(KEY).unique(maintain_order=True)
    if population is not None:
        keys = pl.DataFrame({KEY: canonical_keys(population[key])})
        if keys[KEY].n_unique() < keys.height:
            listing = settings.population or settings.features
            raise DataError(f"{listing} lists an event twice; list each event once")
    if settings.duplicates == "missing":
        table = table.filter(pl.len().over(KEY) == 1)
    for name, label in names.items():
        column = cs.by_name(name)
        rules = {"sum": column.sum(), "mean": column.mean()}
        combined = rules.get(settings.duplicates or "last", column.last())
        known = table.select(KEY, column).drop_nulls(column).group_by(KEY).agg(combined)
        completed = column.fill_null(settings.missing_value(label)).clip(label.lower, label.upper)
        keys = keys.join(known, on=KEY, how="left", maintain_order="left").with_columns(completed)
    return keys
