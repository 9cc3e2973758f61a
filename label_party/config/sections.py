"""The labels party's configuration: one immutable section for each table of label_party.toml.

What a single value may be is checked here, so that a mistake is told before any file is read.
Relative paths are relative to the working directory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from common.config import Section, load_config
from common.engine.task import EngineSection
from common.errors import ConfigError
from common.exact.rational import decimal_value
from common.guarantees import ApproximateDP, PureDP, Unit
from common.randomizers.base import MAX_EPSILON
from common.randomizers.grid import Grid
from common.randomizers.losses import LOSS_NAMES
from label_party.config.offers import EvaluationSection, WatchSection
from label_party.sources.addresses import Address, Source, locate

DEFAULT_CONFIG = Path("label_party.toml")
EPOCH_PLACE = "{epoch}"
"""In the names of files that hold one epoch each."""
SUBMITTED = "submitted"
"""In place of a population's file: the features party submits its keys."""


def _as_text(value: Any) -> Any:
    """Take ``epoch = 2`` and ``epoch = 2024-06-02`` for the names that they look like."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if whole or type(value) is date else value


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Name = Annotated[str, BeforeValidator(_as_text), StringConstraints(pattern=NAME_PATTERN)]
"""Names a directory and travels in requests: up to 64 letters, digits, dots, dashes, underscores"""


class DataSection(Section):
    """Where the labels and the population come from."""

    labels: Address
    labels_query: str | None = None
    population: Address | None = None
    population_query: str | None = None
    credentials_file: Path | None = None
    key: str = "key"
    label: str = "label"
    data_set: Name = "labels"
    epoch: Name = "1"
    missing: float | None = None
    duplicates: Literal["refuse", "sum", "mean", "last"] = "refuse"
    date: str | None = None

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
    """The public bounds of the labels and the grid between them."""

    lower: float
    upper: float
    grid: Literal["auto", "step", "edges", "log"] = "auto"
    step: float | None = None
    edges: list[float] | None = None
    points: int | None = None
    scale: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (math.isfinite(self.lower) and math.isfinite(self.upper)):
            raise ConfigError(
                f"lower={self.lower:g} and upper={self.upper:g} must be finite numbers;"
                " set [domain] lower and upper"
            )
        if self.lower >= self.upper:
            raise ConfigError(
                f"lower={self.lower:g} must be below upper={self.upper:g}, the label domain is"
                " empty; set [domain] lower and upper"
            )
        needed = {"step": ["step"], "edges": ["edges"], "log": ["points", "scale"]}
        for key in needed.get(self.grid, []):
            if getattr(self, key) is None:
                raise ConfigError(f"grid={self.grid!r} needs {key}; set [domain] {key}")
        if self.grid != "auto":
            grid = self.build(1, 1.0)
            if (grid.lower, grid.upper) != (self.lower, self.upper):
                raise ConfigError(
                    f"edges run from {grid.lower:g} to {grid.upper:g} but must run from"
                    f" lower={self.lower:g} to upper={self.upper:g}; set [domain] edges"
                )
        return self

    def build(self, rows: int, epsilon: float) -> Grid:
        """Return the grid; a choice left to us looks at the bounds, the row count and ε alone."""
        if self.grid == "step" and self.step is not None:
            return Grid.from_step(self.lower, self.upper, self.step)
        if self.grid == "edges" and self.edges is not None:
            return Grid.from_edges(self.edges)
        if self.grid == "log" and self.points is not None and self.scale is not None:
            return Grid.from_log(self.lower, self.upper, self.points, self.scale)
        return Grid.default(self.lower, self.upper, rows, epsilon)


class PrivacySection(Section):
    """What one release spends, whose labels it protects, and what the data set may spend."""

    epsilon: float
    total_epsilon: float | None = None
    total_delta: float = 0.0
    unit: Literal["record", "user"] = "record"
    user: str | None = None
    max_records_per_user: int | None = None
    epochs: Literal["additive", "disjoint"] = "additive"
    prior_share: float = 0.125

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not 0 < self.epsilon <= MAX_EPSILON:
            raise ConfigError(
                f"epsilon={self.epsilon:g} must be above 0 and at most {MAX_EPSILON:g};"
                " set [privacy] epsilon"
            )
        if self.total_epsilon is not None and not (
            self.total_epsilon > 0 and math.isfinite(self.total_epsilon)
        ):
            raise ConfigError(
                f"total_epsilon={self.total_epsilon:g} must be a number above 0;"
                " set [privacy] total_epsilon"
            )
        if not 0 <= self.total_delta < 1:
            raise ConfigError(
                f"total_delta={self.total_delta:g} must be at least 0 and below 1, far below one"
                " over the number of events; set [privacy] total_delta"
            )
        if not 0 < self.prior_share < 1:
            raise ConfigError(
                f"prior_share={self.prior_share:g} must lie between 0 and 1;"
                " set [privacy] prior_share"
            )
        if self.unit == "user":
            if not self.user or self.max_records_per_user is None:
                raise ConfigError(
                    "unit='user' needs to know whose event is whose and how many one may have;"
                    " set [privacy] user and max_records_per_user"
                )
            if self.max_records_per_user < 1:
                raise ConfigError(
                    f"max_records_per_user={self.max_records_per_user} must be at least 1;"
                    " set [privacy] max_records_per_user"
                )
            if self.epochs == "disjoint":
                raise ConfigError(
                    "epochs='disjoint' must be 'additive' when unit='user': one user has events"
                    " in many epochs; set [privacy] epochs"
                )
        elif self.user is not None or self.max_records_per_user is not None:
            raise ConfigError(
                "user and max_records_per_user have no effect when unit='record'; remove them or"
                ' set [privacy] unit = "user"'
            )
        return self

    @property
    def privacy_unit(self) -> Unit:
        return Unit(self.unit)

    @property
    def group(self) -> int:
        """The most records that one privacy unit may have."""
        return self.max_records_per_user or 1

    @property
    def charge(self) -> PureDP:
        """What one release is charged: ε as written, in decimals, not the float's binary value.

        Three releases at 0.1 then fit a total of 0.3 exactly.
        """
        return PureDP.of(decimal_value(self.epsilon), unit=self.privacy_unit)

    @property
    def limit(self) -> PureDP | ApproximateDP:
        """What the data set may spend; by default one release, and no δ."""
        total = decimal_value(self.epsilon if self.total_epsilon is None else self.total_epsilon)
        if not self.total_delta:
            return PureDP.of(total, unit=self.privacy_unit)
        return ApproximateDP.of(total, decimal_value(self.total_delta), unit=self.privacy_unit)


class RandomizerSection(Section):
    """Which label randomizer, and the loss by which it is judged."""

    name: str = "auto"
    loss: str = "squared"
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.loss not in LOSS_NAMES:
            raise ConfigError(
                f"loss={self.loss!r} must be one of {', '.join(LOSS_NAMES)}; set [randomizer] loss"
            )
        return self


class KeysSection(Section):
    """The secret under which both parties hash event keys, and the key that signs manifests."""

    secret_file: Path = Path("certificates/join.key")
    signing_key: Path | None = None


class StoreSection(Section):
    """Where releases and the ledger live."""

    directory: Path = Path("label_store")


class ServerSection(Section):
    """The listening end: address, identity, who may fetch, limits and logs."""

    listen: str = "127.0.0.1:50051"
    certificate: Path = Path("certificates/label-party.pem")
    private_key: Path = Path("certificates/label-party.key")
    client_ca: Path = Path("certificates/ca.pem")
    client_san: str = "feature-party"
    data_sets: list[Name] = Field(default_factory=list)
    clients: dict[str, list[Name]] = Field(default_factory=dict)
    max_streams: int = Field(default=16, ge=1, le=1024)
    spare_threads: int = Field(default=8, ge=2, le=256)
    max_message_bytes: int = Field(default=4 << 20, ge=4096, le=64 << 20)
    max_population_rows: int = Field(default=50_000_000, ge=1)
    max_waiting_populations: int = Field(default=8, ge=1)
    requests_per_minute: int = Field(default=600, ge=1)
    stall_seconds: float = Field(default=120.0, gt=0)
    grace_seconds: float = Field(default=30.0, ge=0)
    reflection: bool = True
    log_format: Literal["auto", "text", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_listen(self.listen, "server")
        for key, name in [("client_san", self.client_san), *(("clients", n) for n in self.clients)]:
            if not name or "*" in name:
                raise ConfigError(
                    f"{key}={name!r} must be one exact DNS name or URI; set [server] {key}"
                )
        for name, data_sets in self.clients.items():
            if not data_sets:
                raise ConfigError(
                    f"client {name!r} may fetch no data set; name some in [server] clients, or"
                    " remove it"
                )
        alone = self.model_fields_set & {"client_san", "data_sets"}
        if self.clients and alone:
            raise ConfigError(
                f"{sorted(alone)[0]} has no effect beside [server] clients, which names every"
                " client; move its names there, or remove one of the two"
            )
        return self


class ObservabilitySection(Section):
    """What the operator sees besides the log: probes and metrics over HTTP, and traces."""

    listen: str | None = None
    tracing: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.listen is not None:
            _check_listen(self.listen, "observability")
        return self


def _check_listen(listen: str, section: str) -> None:
    host, separator, port = listen.rpartition(":")
    if not (host and separator and port.isdigit() and int(port) < 65536):
        raise ConfigError(
            f"listen={listen!r} must be host:port with a port from 0 to 65535;"
            f" set [{section}] listen"
        )


class LabelPartyConfig(Section):
    """The whole of label_party.toml."""

    data: DataSection
    domain: DomainSection
    privacy: PrivacySection
    randomizer: RandomizerSection = Field(default_factory=RandomizerSection)
    keys: KeysSection = Field(default_factory=KeysSection)
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection)
    watch: WatchSection = Field(default_factory=WatchSection)
    store: StoreSection = Field(default_factory=StoreSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    server: ServerSection = Field(default_factory=ServerSection)
    observability: ObservabilitySection = Field(default_factory=ObservabilitySection)

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
    def missing_value(self) -> float:
        """What an event without a label gets: as configured, else 0 where it lies in the domain."""
        if self.data.missing is not None:
            return self.data.missing
        return 0.0 if self.domain.lower <= 0.0 <= self.domain.upper else self.domain.lower

    @property
    def largest_loss(self) -> float:
        """The most that one event counts for in an evaluation: as configured, else the range's."""
        span = self.domain.upper - self.domain.lower
        whole = span**2 if self.evaluation.loss == "squared" else span
        return min(self.evaluation.largest_loss or whole, whole)

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
            "privacy": self.privacy.model_dump(
                mode="json", exclude={"total_epsilon", "total_delta", "epochs"}
            ),
            "randomizer": self.randomizer.model_dump(mode="json"),
        }


def load(
    path: Path | None,
    overrides: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
) -> LabelPartyConfig:
    """Read and check the labels party's configuration; errors are one line."""
    return load_config(LabelPartyConfig, path, overrides, settings)
