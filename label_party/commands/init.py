"""``label-party init``: the configuration file and, if asked for, join secret and signing key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from labelveil.common.config import Section, checked, setting
from labelveil.common.config.declare import declared
from labelveil.common.config.examination import NotYetThere, verified
from labelveil.common.config.names import WHOLE, bounded_column
from labelveil.common.config.options import UncheckedConfig
from labelveil.common.config.template import Explained, write_config
from labelveil.common.errors import ConfigError, DataError, printable
from labelveil.common.files import write_text
from labelveil.label_party.commands.options import options
from labelveil.label_party.config.data import EPOCH_PLACE, SUBMITTED, DataSection
from labelveil.label_party.config.sections import LabelPartyConfig, load
from labelveil.label_party.sources.addresses import check_address, is_database

if TYPE_CHECKING:
    from labelveil.label_party.sources.remote_source import Source

HEAD = """\
Configuration of the labels party. Relative paths are relative to the working directory. Every key
can be overridden: label-party release --set privacy.epsilon=0.5"""


OF_ONE_LABEL = "domain", "data.label", "data.missing", "randomizer.loss"
"""What each [[label]] says of itself."""


STRATA_FILE = Path("strata.txt")
_SIGNING_KEY = Path("certificates/signing.key")
"""Where `labelveil certificates` puts one, too."""

_NOTHING_SAYS = "as nothing says that labels are whole numbers"

_LOOKED_AT = 1 << 28
"""Bytes of a file that is looked at; of a larger one a dry run says what is odd."""


class New(Section):
    label: list[str] = setting(
        list,
        "Label column; with its public bounds COLUMN:LOWER:UPPER, repeatable for several labels of"
        " one event; and :whole behind them if labels are whole numbers, as counts and yes (1) or"
        " no (0) are. Of a Parquet file its type says that.",
        metavar="COLUMN[:LOWER:UPPER[:whole]]",
    )
    table: str | None = setting(
        None,
        "Of a database with labels: table or view that has these columns. init writes the query;"
        " --labels-query gives one.",
    )
    population_table: str | None = setting(
        None, "Of a database with the population: table or view that has the key."
    )
    strata_column: str | None = setting(
        None,
        "Column of the population by whose values events are sent in strata; init lists them in"
        f" {STRATA_FILE}.",
    )
    new_secret: bool = setting(
        False,
        "Make the join secret, too, where `labelveil certificates` has not. Alone, or with"
        " --secret-file, it is made for the configuration file that is there, which stays as it"
        " is.",
    )
    new_signing_key: bool = setting(
        False, "Make the signing key, too. Alone, as --new-secret alone."
    )
    force: bool = setting(False, "Overwrite an existing file; a key never.")
    unverified: bool = setting(
        False,
        "Write the file although labels or population cannot be looked at, or lack a column.",
        flag="--unverified",
    )

    @property
    def keys_alone(self) -> bool:
        """Whether nothing is asked for but keys."""
        others = self.label, self.table, self.population_table, self.strata_column
        return (self.new_secret or self.new_signing_key) and not any(others)


@options(
    *("data.labels", "data.labels_query", "data.population", "data.population_query"),
    *("data.credentials_file", "data.key", "data.date", "data.data_set", "data.epoch"),
    *("domain.lower", "domain.upper", "domain.grid", "privacy.epsilon", "privacy.total_epsilon"),
    *("randomizer.name", "randomizer.loss", "keys.secret_file", "keys.signing_key"),
    *("store.directory", "server.listen", "server.certificate", "server.private_key"),
    *("server.client_ca", "server.client_san"),
)
def init(given: UncheckedConfig, new: New) -> None:
    if new.keys_alone and given.values.keys() <= _OF_KEYS and given.path.is_file():
        config = _with_keys(load(given.path), given.values)
        _check_new(new, config)
        _write_keys(new, config)
        if new.new_secret and given.values:
            secret = config.keys.secret_file
            typer.echo(
                f'new epochs are hashed with it once you set [keys] secret_file = "{secret}"'
            )
        return
    from labelveil.label_party.sources.databases import snapshot

    with snapshot():  # one connection to a database, however often it is looked at
        _write(given, new)


def _write(given: UncheckedConfig, new: New) -> None:
    values = _as_written(given.values) | _queries(new, given.values)
    values |= _labels(new, values)
    strata = [] if new.strata_column is None else _strata(new.strata_column, values)
    if strata:
        values |= {"strata.column": new.strata_column, "strata.values": STRATA_FILE}
    if new.new_signing_key:
        values.setdefault("keys.signing_key", _SIGNING_KEY)
    several = "label" in values
    without, still_open = OF_ONE_LABEL if several else (), list[str]()

    def check(config: LabelPartyConfig) -> None:
        _check_new(new, config)
        for which in ("labels", "population"):
            if f"data.{which}" in values:
                with verified(new.unverified, still_open):
                    _check_source(config, which)

    config = write_config(
        given.path, LabelPartyConfig, HEAD, values, without, force=new.force, check=check
    )
    if strata:
        write_text(STRATA_FILE, "\n".join(strata))
        typer.echo(f"wrote {STRATA_FILE}: {len(strata):,} values of {new.strata_column!r}")
    examples = [
        option.place
        for option in declared(LabelPartyConfig)
        if option.required
        and option.section not in ("label", *without)
        and option.name not in values
    ]
    if examples:
        still_open.append(f"examples stand in {given.path} for {', '.join(examples)}")
    wrote = f"wrote {given.path}; read it"
    typer.echo(wrote if still_open else f"{wrote}, then run: {given.again('label-party release')}")
    if several:
        for label in values["label"]:
            kind = label["kind"]
            typer.echo(f"label {label['name']!r}: {kind.value}, {kind.reason}; correct it there")
    elif isinstance(grid := values.get("domain.grid"), Explained):
        typer.echo(f"grid: {grid.value}, {grid.reason}; correct it there")
    if several_rows := _with_several_rows(config):
        typer.echo(
            f"events with several rows, and so the missing value: {several_rows:,}; if they add"
            ' up, or the last one counts, say so there: [data] duplicates = "sum", "mean" or "last"'
        )
    _write_keys(new, config)
    if still_open:
        said = printable("; ".join(still_open))
        typer.echo(f"not verified: {said}; then run: {given.again('label-party doctor')}")


def _check_source(config: LabelPartyConfig, which: str) -> None:
    """Look whether labels or population are as the configuration says."""
    from labelveil.label_party.commands.doctor import check_source

    place = getattr(config.data, which)
    is_file = isinstance(place, Path) and str(place) != SUBMITTED and EPOCH_PLACE not in str(place)
    if is_file and not place.exists():
        raise NotYetThere(f"{place} does not exist yet")
    check_source(config, which)


_OF_KEYS = {"keys.secret_file", "keys.signing_key"}


def _with_keys(config: LabelPartyConfig, values: Mapping[str, Any]) -> LabelPartyConfig:
    """The configuration that is there, with other places for keys that are to be made."""
    places = {name.partition(".")[2]: Path(str(value)) for name, value in values.items()}
    return config.model_copy(update={"keys": config.keys.model_copy(update=places)})


def _check_new(new: New, config: LabelPartyConfig) -> None:
    """Refuse what could not be written beside a configuration, or stands there already."""
    from labelveil.common.outputs import check_output
    from labelveil.common.security.new_keys import public_path

    secret, signing = config.keys.secret_file, config.keys.signing_key or _SIGNING_KEY
    keys = [("--new-secret", secret)] if new.new_secret else []
    if new.new_signing_key:
        keys += [("--new-signing-key", signing), ("--new-signing-key", public_path(signing))]
    for option, path in keys:
        if path.exists():
            raise ConfigError(
                f"{path} exists already, and is never overwritten: leave {option} out to use it, or"
                " move it away if nobody else has a copy"
            )
        check_output(option, path, makes_folder=True)
    if new.strata_column is not None:
        if STRATA_FILE.exists() and not new.force:
            raise ConfigError(f"{STRATA_FILE} exists already; pass --force to overwrite it")
        check_output("--strata-column", STRATA_FILE)


def _write_keys(new: New, config: LabelPartyConfig) -> None:
    from labelveil.common.security.new_keys import write_secret, write_signing_key

    if new.new_secret:
        write_secret(config.keys.secret_file)
        typer.echo(f"wrote {config.keys.secret_file}; give the features party a copy, safely")
    if new.new_signing_key:
        private = config.keys.signing_key or _SIGNING_KEY
        public = write_signing_key(private)
        typer.echo(
            f"wrote {private} and {public}; give the features party the latter, in a way that it"
            " can trust"
        )
        if config.keys.signing_key is None:
            typer.echo(f'to sign with it, say so: [keys] signing_key = "{private}"')


def _strata(column: str, values: Mapping[str, Any]) -> list[str]:
    """The values of a column of the population that can be names of strata, one a line: the
    commonest, if they are too many.

    ``ConfigError`` if no population is at hand: none are taken from rows of labels.
    """
    from labelveil.label_party.events.epoch import values_of
    from labelveil.label_party.release.strata import MOST_VALUES, names_stratum

    data = _data(values)
    source = data.population_source
    if source is None:
        raise ConfigError(
            f"--strata-column {column!r} takes its values from a population, and there is none:"
            " name it by --population, or list values known beforehand as [strata] values"
        )
    found = values_of(source, column, data.population_dialect)
    named = [value for value in found if value.splitlines() == [value] and names_stratum(value)]
    return sorted(named[:MOST_VALUES])


def _with_several_rows(config: LabelPartyConfig) -> int:
    """How many events have several rows, where labels are at hand."""
    from labelveil.label_party.events.epoch import rows_of_epoch
    from labelveil.label_party.sources.tables import KEY

    labels, _ = rows_of_epoch(config)
    file = labels.source
    if not (isinstance(file, Path) and file.is_file()):
        return 0
    if file.stat().st_size > _LOOKED_AT:
        return 0
    try:
        keys = replace(labels, labels=(), user=None).read()[0][KEY]
    except DataError:  # to be said by a release, which needs the labels
        return 0
    return keys.filter(keys.is_duplicated()).n_unique()


def _as_written(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, and how the CSV files among it are written: looked at here, then fixed."""
    from labelveil.common.csv_files import SUFFIXES, propose_dialect

    values = dict(given)
    for name in ("labels", "population"):
        path = Path(str(given.get(f"data.{name}", "")))
        if path.suffix.lower() not in SUFFIXES or not path.is_file():
            continue
        dialect = propose_dialect(path)
        if dialect.encoding != "utf-8":
            values[f"data.{name}_encoding"] = dialect.encoding
        if dialect.separator != ("\t" if ".tsv" in path.suffixes else ","):
            values[f"data.{name}_separator"] = dialect.separator
        if dialect.decimal_comma and name == "labels":
            values["data.labels_decimal"] = ","
    return values


def _labels(new: New, others: Mapping[str, Any]) -> dict[str, Any]:
    """What the file says of labels: of one its column and perhaps bounds, of several a table each.

    ``ConfigError`` if bounds are missing, or stand twice.
    """
    given = new.label
    alone = len(given) == 1 and given[0].count(":") < 2  # its bounds are settings of their own
    if alone:
        ends = (others.get(f"domain.{end}", 0.0) for end in ("lower", "upper"))
        labels = [(given[0], *ends, False)]
    else:
        labels = [bounded_column("--label", text) for text in given]
        settings = {"--lower": "domain.lower", "--upper": "domain.upper"}
        settings |= {"--loss": "randomizer.loss", "--grid": "domain.grid"} if labels[1:] else {}
        for flag, name in settings.items():
            if labels and name in others:
                raise ConfigError(f"{flag} has no effect beside --label {given[0]}; leave it out")
    source = _data(others).labels_source if "data.labels" in others else None
    if isinstance(source, Path) and not source.exists():
        source = None
    values, tables, grid_is_open = dict[str, Any](), [], "domain.grid" not in others
    for column, lower, upper, is_whole in labels:
        whole = Explained(True, "as --label says")
        if grid_is_open and not is_whole:
            whole, unseen = Explained(False, _NOTHING_SAYS), list[str]()
            with verified(new.unverified, unseen):
                whole = _whole(source, column, lower, upper)
            source = None if unseen else source
        of_whole = "binary" if (lower, upper) == (0, 1) else "count"
        kind = Explained(of_whole if whole.value else "amount", whole.reason)
        tables.append({"name": column, "kind": kind, "lower": lower, "upper": upper})
        values = {"data.label": column}
        values |= {} if alone else {"domain.lower": lower, "domain.upper": upper}
        if grid_is_open:
            values["domain.grid"] = Explained(WHOLE if whole.value else "auto", whole.reason)
    return {"label": tables} if tables[1:] else values


def _queries(new: New, given: Mapping[str, Any]) -> dict[str, str]:
    """The queries of tables that were named."""
    columns = [given.get("data.key", "key")]
    of_labels = [text.removesuffix(f":{WHOLE}").rsplit(":", 2)[0] for text in new.label]
    dates = [given["data.date"]] if "data.date" in given else []
    strata = [] if new.strata_column is None else [new.strata_column]
    queries = {}
    for name, table, wanted in (
        ("labels", new.table, [*columns, *(of_labels or ["label"]), *dates]),
        ("population", new.population_table, [*columns, *dates, *strata]),
    ):
        flag = "--table" if name == "labels" else "--population-table"
        place, query = given.get(f"data.{name}"), f"data.{name}_query"
        database = place is not None and is_database(check_address(str(place)))
        if table is not None and (not database or query in given):
            beside = f"--{name}-query" if query in given else f"--{name} that is no database"
            raise ConfigError(f"{flag} {table} has no effect beside {beside}; leave it out")
        if database and table is None and query not in given:
            raise ConfigError(
                f"--{name} {place} is a database: name its table by {flag}, or give a query by"
                f" --{name}-query"
            )
        if table is not None:
            queries[query] = select(wanted, table)
    return queries


def select(columns: Sequence[str], table: str) -> str:
    """Return a query for columns of a table, which may be ``schema.table``.

    The table is named before each: SQLite takes a quoted name of no column for a text.
    """

    def quoted(name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    place = ".".join(map(quoted, table.split(".")))
    return f"SELECT {', '.join(f't.{quoted(name)}' for name in columns)} FROM {place} AS t"


def _data(values: Mapping[str, Any]) -> DataSection:
    """What the file will say of its sources, as far as that is known."""
    of_sources = "data.labels", "data.population", "data.credentials_file"
    given = {name[5:]: value for name, value in values.items() if name.startswith(of_sources)}
    return checked(DataSection, {"labels": "labels.csv", **given})


def _whole(source: Source | None, column: str, lower: float, upper: float) -> Explained:
    """Whether labels are whole numbers, by nothing but what is declared of their column."""
    from labelveil.label_party.sources.tables import declared_type

    declared = None if source is None else declared_type(source, column)
    if declared is None:
        return Explained(False, _NOTHING_SAYS)
    kind, whole = declared
    reason = f"as column {column!r} has type {kind}"
    return Explained(whole and lower % 1 == upper % 1 == 0, reason)
