"""The section of label_party.toml that says where labels and population come from."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from labelveil.common.config import Section, setting
from labelveil.common.config.names import Name
from labelveil.common.errors import ConfigError
from labelveil.label_party.sources.addresses import Address, check_query, is_database, locate

if TYPE_CHECKING:
    from labelveil.common.csv_files import Dialect
    from labelveil.label_party.sources.remote_source import Source

EPOCH_PLACE = "{epoch}"
"""In the names of files that hold one epoch each."""
SUBMITTED = "submitted"
"""In place of a population's file: the features party submits its keys."""


Encoding = Literal["utf-8", "cp1252"]
Separator = Literal[",", ";", "\t", "|"]
DecimalMark = Literal[".", ","]
_WRITTEN = "encoding", "separator", "decimal"


class DataSection(Section):
    """Where the labels and the population come from."""

    labels: Address = setting(
        ...,
        "The labels, one an event: a file, an object or a database. Files are CSV (with a"
        " header) or Parquet; objects s3://, gs://, az:// or https://, ending in .csv, .tsv or"
        " .parquet; databases sqlite:///file.db or postgresql://user@host/name. Addresses hold"
        " no credentials. `label-party watch` puts an epoch's name in place of {epoch}.",
        example="labels.csv",
    )
    labels_query: str | None = setting(
        None,
        "A database's query: one SELECT with the columns named below.",
        example="SELECT click_id AS key, amount AS label FROM sales",
    )
    labels_encoding: Encoding | None = setting(
        None,
        "Encoding of a CSV file of labels: utf-8, or cp1252, of which Latin-1 is a part."
        " `label-party init` looks at the file and proposes it, with separator and decimal mark."
        " No release looks: one row would then decide how others are read. Default: utf-8.",
        example="cp1252",
    )
    labels_separator: Separator | None = setting(
        None,
        "Separator of its cells. Default: a comma, or a tab if the name ends in .tsv.",
        example=";",
    )
    labels_decimal: DecimalMark | None = setting(
        None,
        "Decimal mark of labels that are text; they have no sign for thousands. Default: the"
        " point.",
        example=",",
    )
    population: Address | None = setting(
        None,
        'Every event that both parties know, labelled or not: an address, or "submitted". Its'
        " key column is called the same. An event without a label gets `missing` before"
        ' randomization, so nobody learns which events have one. "submitted": the features party'
        " submits its keys while `label-party serve` runs, and gets labels in that order."
        " Default: the events in `labels`.",
        example="population.csv",
    )
    population_query: str | None = setting(
        None, "The population's query.", example="SELECT click_id AS key FROM landings"
    )
    population_encoding: Encoding | None = setting(
        None, "Encoding of a CSV file of the population. Default: utf-8.", example="cp1252"
    )
    population_separator: Separator | None = setting(
        None,
        "Separator of its cells. Default: a comma, or a tab if the name ends in .tsv.",
        example=";",
    )
    credentials_file: Path | None = setting(
        None,
        "File of credentials that its owner alone can read. For PostgreSQL a password file,"
        " host:port:database:user:password; for objects TOML lines such as aws_access_key_id ="
        ' "…", as Polars names them. Default: credentials come from the environment (PGPASSFILE,'
        " PGSERVICE, AWS_ACCESS_KEY_ID, …).",
        example="certificates/credentials",
    )
    key: str = setting(
        "key",
        "Column with the event's key: text, or whole numbers. In a CSV file it is text. In one of"
        " labels it stands best in the first column: where there is no population it must, with"
        " [data] date, [privacy] user and [strata] column beside it, in front of all others.",
    )
    label: str = setting(
        "label",
        "Column with the label, a number. Empty, null and NaN mean that the event has no label.",
    )
    data_set: Name = setting("labels", "Name of the data set. Budgets belong to it.")
    epoch: Name = setting(
        "1",
        "Name of this release within the data set. Each epoch has one release.",
    )
    missing: float | None = setting(
        None,
        "Label of an event without one, within the domain. Default: 0, or `lower` if 0 lies outside"
        " the domain.",
        unit="label units",
        example=0.0,
    )
    date: str | None = setting(
        None,
        "For `label-party watch`: column of dates (ISO 8601, with or without a time) whose days are"
        " the epochs. A day is as it is written, whatever the time zone, and over at midnight UTC:"
        " times from west of Greenwich belong in UTC. Or give each epoch its own files, with"
        " {epoch} in the names of `labels` and `population`.",
        example="sold_at",
    )
    duplicates: Literal["missing", "last", "sum", "mean"] = setting(
        "missing",
        "The label of an event that has several rows: missing, as if it had none; the last in"
        " file order; their sum; or their mean. `label-party init` looks and proposes.",
    )

    def at(self, epoch: str) -> Self:
        """The section for one epoch: its name, and in place of ``{epoch}`` in the files' names."""

        def named(place: Path | str) -> Path | str:
            text = str(place).replace(EPOCH_PLACE, epoch)
            return Path(text) if isinstance(place, Path) else text

        population = None if self.population is None else named(self.population)
        update = {"epoch": epoch, "labels": named(self.labels), "population": population}
        return self.model_copy(update=update)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_query("labels", self.labels, self.labels_query)
        if self.population is not None and not self.submitted:
            check_query("population", self.population, self.population_query)
        elif self.population_query is not None:
            raise ConfigError(
                "population_query has no effect without a database in population; remove it or"
                " set [data] population"
            )
        for name in ("labels", "population"):
            place = getattr(self, name)
            given = [key for key in _WRITTEN if getattr(self, f"{name}_{key}", None) is not None]
            if given and place is not None and (is_database(place) or str(place) == SUBMITTED):
                raise ConfigError(
                    f"{name}_{given[0]} has no effect where {name} is no file; remove it"
                )
        return self

    @property
    def labels_source(self) -> Source:
        return locate(self.labels, self.labels_query, self.credentials_file, "labels")

    @property
    def labels_dialect(self) -> Dialect:
        """How the labels are written, where that is text."""
        comma = self.labels_decimal == ","
        return _dialect(self.labels, self.labels_encoding, self.labels_separator, comma)

    @property
    def population_dialect(self) -> Dialect:
        """How the population is written, where that is text."""
        return _dialect(self.population, self.population_encoding, self.population_separator)

    @property
    def population_source(self) -> Source | None:
        """Where the population is read; None if it is the labels' own, or submitted."""
        if self.population is None or self.submitted:
            return None
        return locate(self.population, self.population_query, self.credentials_file, "population")

    @property
    def submitted(self) -> bool:
        """Whether the features party submits the population."""
        return str(self.population) == SUBMITTED


def _dialect(
    place: Path | str | None, encoding: str | None, separator: str | None, comma: bool = False
) -> Dialect:
    from labelveil.common.csv_files import (
        Dialect,  # it brings Polars, which most commands start without
    )

    usual = "\t" if ".tsv" in PurePosixPath(str(place)).suffixes else ","
    return Dialect(separator or usual, comma, encoding or "utf-8")
