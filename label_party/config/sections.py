"""The labels party's configuration: one immutable section for each table of label_party.toml.

What a single value may be is checked here, so that a mistake is reported before any file is read.
Relative paths are relative to the working directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from common.config import Choice, Section, load_config, setting
from common.config.names import Name
from common.engine.task import EngineSection
from common.errors import ConfigError
from common.randomizers import Recipe, randomizer_names
from common.randomizers.grid import Grid
from common.randomizers.losses import LOSS_NAMES
from common.release.facts import check_digits, check_options
from label_party.config.offers import EvaluationSection, WatchSection
from label_party.config.privacy import NOT_IN_REQUEST, PrivacySection
from label_party.config.serving import ObservabilitySection, ServerSection
from label_party.sources.addresses import Address, Source, locate

DEFAULT_CONFIG = Path("label_party.toml")
EPOCH_PLACE = "{epoch}"
"""In the names of files that hold one epoch each."""
SUBMITTED = "submitted"
"""In place of a population's file: the features party submits its keys."""


class DataSection(Section):
    """Where the labels and the population come from."""

    labels: Address = setting(
        ...,
        "The labels, one an event: a file, an object or a database. A file is CSV (with a header)"
        " or Parquet; an object s3://, gs://, az:// or https://, ending in .csv, .tsv or .parquet;"
        " a database sqlite:///file.db or postgresql://user@host/name. Addresses hold no"
        " credentials. For `label-party watch`, {epoch} in the name stands for an epoch's.",
        example="labels.csv",
    )
    labels_query: str | None = setting(
        None,
        "A database's query: one SELECT with the columns named below.",
        example="SELECT click_id AS key, amount AS label FROM sales",
    )
    population: Address | None = setting(
        None,
        'Every event that both parties know, labelled or not: an address, or "submitted".'
        " It has the same key; an event without a label gets `missing` before randomization, so"
        ' that nobody learns which events have one. "submitted": the features party submits its'
        " list of keys while `label-party serve` runs, and gets labels in that order. Default: the"
        " events in `labels` are the population.",
        example="population.csv",
    )
    population_query: str | None = setting(
        None, "The population's query.", example="SELECT click_id AS key FROM landings"
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
        "Column with the event's key: text, or whole numbers. In CSV files keys are taken as text.",
    )
    label: str = setting(
        "label",
        "Column with the label, a number. Empty, null and NaN mean that the event has no label.",
    )
    data_set: Name = setting("labels", "Name of the data set. Budgets belong to it.")
    epoch: Name = setting(
        "1",
        "Name of this release within the data set. One release is built per epoch, once and for"
        " ever.",
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
        " the epochs. Or give each epoch its own files, with {epoch} in the names of `labels` and"
        " `population`.",
        example="sold_at",
    )
    duplicates: Literal["refuse", "sum", "mean", "last"] = setting(
        "refuse", 'What to do with several labels for one key. "last" is in file order.'
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
        _ = self.labels_source, self.population_source
        return self

    @property
    def labels_source(self) -> Source:
        """Where the labels are read."""
        return locate("labels", self.labels, self.labels_query, self.credentials_file)

    @property
    def population_source(self) -> Source | None:
        """Where the population is read; None if it is the labels' own, or submitted."""
        if self.population is None or self.submitted:
            if self.population_query is not None:
                raise ConfigError(
                    "population_query has no effect without a database in population; remove it or"
                    " set [data] population"
                )
            return None
        return locate("population", self.population, self.population_query, self.credentials_file)

    @property
    def submitted(self) -> bool:
        """Whether the features party submits the population."""
        return str(self.population) == SUBMITTED


class DomainSection(Section):
    """The public bounds of the labels and the grid between them.

    Labels outside are clipped to the bounds. Choose them from what everybody knows about the
    labels, never by looking at the labels.
    """

    lower: float = setting(
        ..., "Public lower bound of the labels.", unit="label units", example=0.0
    )
    upper: float = setting(
        ..., "Public upper bound of the labels.", unit="label units", example=100.0
    )
    grid: Literal["auto", "step", "edges", "log", "values"] = setting(
        "auto",
        'Points on which labels are placed. "auto" chooses them from bounds, number of events and'
        ' epsilon alone. "values": labels are the few numbers listed and nothing in between, as the'
        " numbers of classes are.",
    )
    step: float | None = setting(
        None, 'For grid = "step": distance between points.', unit="label units", gt=0, example=1.0
    )
    edges: list[float] | None = setting(
        None,
        'For grid = "edges": all points, ascending, from lower to upper.',
        unit="label units",
        example=[0.0, 1.0, 10.0],
    )
    values: list[float] | None = setting(
        None,
        'For grid = "values": all labels there are, ascending, from lower to upper.',
        example=[0.0, 1.0, 2.0],
    )
    points: int | None = setting(
        None, 'For grid = "log": number of points, dense near lower.', ge=2, example=200
    )
    scale: float | None = setting(
        None,
        'For grid = "log": distance from lower up to which points are nearly even.',
        unit="label units",
        gt=0,
        example=1.0,
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lower >= self.upper:
            raise ConfigError(
                f"lower={self.lower:g} must be below upper={self.upper:g}, the label domain is"
                " empty; set [domain] lower and upper"
            )
        needed = {"log": ["points", "scale"], "auto": []}
        for key in needed.get(self.grid, [self.grid]):
            if getattr(self, key) is None:
                raise ConfigError(f"grid={self.grid!r} needs {key}; set [domain] {key}")
        if self.grid != "auto":
            grid = self.build(1, 1.0)
            if (grid.lower, grid.upper) != (self.lower, self.upper):
                raise ConfigError(
                    f"{self.grid} run from {grid.lower:g} to {grid.upper:g} but must run from"
                    f" lower={self.lower:g} to upper={self.upper:g}; set [domain] {self.grid}"
                )
        return self

    def build(self, rows: int, epsilon: float) -> Grid:
        """Return the grid; a choice left to us looks at the bounds, the row count and ε alone."""
        if self.grid == "step" and self.step is not None:
            return Grid.from_step(self.lower, self.upper, self.step)
        if self.grid == "edges" and self.edges is not None:
            return Grid.from_edges(self.edges)
        if self.grid == "values" and self.values is not None:
            return Grid.from_edges(self.values)
        if self.grid == "log" and self.points is not None and self.scale is not None:
            return Grid.from_log(self.lower, self.upper, self.points, self.scale)
        return Grid.default(self.lower, self.upper, rows, epsilon)


class RandomizerSection(Section):
    """Which label randomizer, and the loss by which it is judged."""

    name: Annotated[str, Choice(randomizer_names())] = setting(
        "auto",
        'How labels are randomized. "auto" chooses the best for training; `labelveil compare`'
        " compares.",
        flag="--randomizer",
    )
    loss: Annotated[str, Choice(LOSS_NAMES)] = setting("squared", "Loss of the regression.")
    options: dict[str, Any] = setting(
        dict, "Options of the randomizer, where it takes any.", example={"points": 32}
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_options(self.name, self.options)
        check_digits(self.options)
        return self


class KeysSection(Section):
    """The secret under which both parties hash event keys, and the key that signs manifests."""

    secret_file: Path = setting(
        Path("certificates/join.key"),
        "Secret that both parties share and hash keys with. 64 hexadecimal digits, a new one for"
        " each partner. `label-party init --new-secret` makes one, and `labelveil certificates`"
        " does for tests.",
    )
    signing_key: Path | None = setting(
        None,
        "Ed25519 private key (PEM, mode 0600) that `label-party release` signs the manifest with."
        " The features party can pin the public key. `label-party init --new-signing-key` makes a"
        " pair, and `labelveil certificates --signing-key` does for tests. The server does not"
        " need it.",
        example="certificates/signing.key",
    )


class StoreSection(Section):
    """Where releases and the ledger live."""

    directory: Path = setting(
        Path("label_store"),
        "Directory of the releases and of the ledger, on a local disk. Back it up: it is the proof"
        " of what has been spent.",
        flag="--store",
    )


class LabelPartyConfig(Section):
    """The whole of label_party.toml."""

    data: DataSection
    domain: DomainSection
    privacy: PrivacySection
    randomizer: RandomizerSection = setting(RandomizerSection)
    keys: KeysSection = setting(KeysSection)
    evaluation: EvaluationSection = setting(EvaluationSection)
    watch: WatchSection = setting(WatchSection)
    store: StoreSection = setting(StoreSection)
    engine: EngineSection = setting(EngineSection)
    server: ServerSection = setting(ServerSection)
    observability: ObservabilitySection = setting(ObservabilitySection)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.data.submitted:
            self._check_submitted()
        if self.watch.hits is not None and self.privacy.epochs == "disjoint":
            raise ConfigError(
                "hits has no effect when epochs='disjoint': no event is tested twice, so each test"
                " is part of its own epoch; remove [watch] hits"
            )
        lower, upper = self.domain.lower, self.domain.upper
        if not lower <= self.missing_value <= upper:
            raise ConfigError(
                f"missing={self.missing_value:g} must lie within the domain {lower:g} … {upper:g};"
                " set [data] missing"
            )
        return self

    def _check_submitted(self) -> None:
        # nothing but the submitter's word would say that these claims are true
        if self.privacy.unit == "user":
            raise ConfigError(
                "unit='user' needs to know whose event is whose, labelled or not, and a submitted"
                " population does not say; name a file in [data] population, or set [privacy] unit"
            )
        if self.privacy.epochs == "disjoint":
            raise ConfigError(
                "epochs='disjoint' must be 'additive' when the features party submits the"
                " population: it could name one event in two epochs; set [privacy] epochs"
            )

    def at(self, epoch: str) -> Self:
        """This configuration for one epoch."""
        return self.model_copy(update={"data": self.data.at(epoch)})

    @property
    def account(self) -> str:
        """Whose budget pays: the account that is named, or the data set's own."""
        return self.privacy.account or self.data.data_set

    @property
    def missing_value(self) -> float:
        """What an event without a label gets: as configured, else 0 where it lies in the domain."""
        if self.data.missing is not None:
            return self.data.missing
        return 0.0 if self.domain.lower <= 0.0 <= self.domain.upper else self.domain.lower

    @property
    def recipe(self) -> Recipe:
        """How labels are randomized."""
        return Recipe(
            self.randomizer.name,
            self.randomizer.loss,
            self.randomizer.options,
            self.privacy.group,
            self.privacy.prior_share,
            values=self.domain.grid == "values",
        )

    @property
    def entitlements(self) -> dict[str, frozenset[str]]:
        """Which named certificate may fetch which data sets."""
        if self.server.clients:
            return {name: frozenset(sets) for name, sets in self.server.clients.items()}
        names = self.server.data_sets or [self.data.data_set]
        return {self.server.client_san: frozenset(names)}

    def request(self) -> dict[str, Any]:
        """Return what a release of this configuration *means*, as JSON values.

        Two configurations with the same meaning ask for the same release; where files lie and how
        the server is set up are no part of it.
        """
        # only where it applies, so that older releases keep their meaning
        population = {"population": SUBMITTED} if self.data.submitted else {}
        date_column = {} if self.data.date is None else {"date": self.data.date}
        return {
            **population,
            **date_column,
            "label": self.data.label,
            "missing": self.missing_value,
            "duplicates": self.data.duplicates,
            "domain": self.domain.model_dump(mode="json"),
            "privacy": self.privacy.model_dump(mode="json", exclude=NOT_IN_REQUEST),
            "randomizer": self.randomizer.model_dump(mode="json"),
        }


def load(
    path: Path | None,
    overrides: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
) -> LabelPartyConfig:
    """Read and check the labels party's configuration; errors are one line."""
    return load_config(LabelPartyConfig, path, overrides, settings)
