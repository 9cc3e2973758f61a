"""What audits are told, as their commands take it: a party's address, canaries to be made."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from labelveil.common.arrays import Floats
from labelveil.common.config import Section, setting
from labelveil.common.config.names import bounded_column
from labelveil.common.errors import ConfigError

MOST_VALUES = 16


class Connection(Section):
    """Where a labels party serves, and who asks."""

    address: str | None = setting(None, "host:port of a running labels party; default: none.")
    data_set: str = setting("labels", "Its data set.")
    epoch: str = setting("", "Its release; the latest by default.")
    ca: Path = setting(Path("certificates/ca.pem"), "Authority of its certificate, PEM.")
    certificate: Path | None = setting(
        Path("certificates/feature-party.pem"), "Certificate of a client it admits, PEM."
    )
    private_key: Path | None = setting(
        Path("certificates/feature-party.key"), "Its private key, PEM."
    )
    server_name: str | None = setting(None, "Name in the server's certificate, if not the host's.")


class CanarySettings(Section):
    """Data sets that are made for the audit."""

    rows: int = setting(20_000, "Events in the canary data sets.")
    epsilon: float = setting(1.0, "ε of the canary releases.")
    randomizer: str = setting("auto", "Randomizer of the canary releases.")
    labels: int = setting(1, "Labels of each canary event.", ge=1, le=8)
    effort: int = setting(
        1, "How many times as many noisy numbers are tested, and fetches timed.", ge=1, le=100
    )

    @property
    def names(self) -> list[str]:
        """Of the labels."""
        return ["label", *(f"label{number}" for number in range(2, self.labels + 1))]


class Planting(Section):
    """Canaries to be made.

    A secret is one of k ``values`` together with an end of each other label, the last changing
    fastest; a label beyond a bound or between two values, which are drawn; several rows; or no
    label at all.
    """

    lower: float = setting(..., "Lowest label, as the partner has configured it.")
    upper: float = setting(..., "Highest label, as the partner has it.")
    events: int = setting(40_000, "Canaries; four times as many see half as much.")
    values: int = setting(2, "Different labels, evenly from low to high.")
    name: str = setting("labels", "Name of the files that the partner is given.")
    key: str = setting("key", "Name of the key column.")
    label: str = setting("label", "Name of the label column.")
    date: str | None = setting(
        None, "Another column, and the date of every event.", metavar="COLUMN:DATE"
    )
    duplicates: Literal["missing", "last", "sum", "mean"] = setting(
        "missing", "What the partner makes of an event with several rows: its [data] duplicates."
    )
    also: list[str] = setting(
        list, "Another label of each event, at one of its ends.", metavar="COLUMN:LOWER:UPPER"
    )
    users: int = setting(
        0,
        "Give users twice as many events, where the partner has that many max_records_per_user; the"
        " column is called user. The first of each in the order of a release keep their labels.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.events < 1000:
            raise ConfigError(f"--events {self.events} must be at least 1000: fewer show nothing")
        for column, lower, upper in self.columns:
            if not (math.isfinite(lower) and lower < upper < math.inf):
                raise ConfigError(
                    f"{column}: --lower {lower:g} must be below --upper {upper:g}, or the ends of"
                    " --also"
                )
        if self.values < 2 or self.values * 2 ** len(self.also) > MOST_VALUES:
            raise ConfigError(
                f"--values {self.values} must be at least 2, and with --also make at most"
                f" {MOST_VALUES} secrets"
            )
        if not 0 <= self.users <= self.events // 4:
            raise ConfigError(f"--users {self.users} must be 0 … a quarter of --events")
        if not re.fullmatch(r"[\w.-]{1,60}", self.name):
            raise ConfigError(f"--name {self.name!r:.80} must be letters, digits, dots and dashes")
        if self.date is not None and not all(self.date.partition(":")):
            raise ConfigError(f"--date {self.date!r:.80} must be COLUMN:DATE, as in day:2026-03-01")
        return self

    @property
    def columns(self) -> list[tuple[str, float, float]]:
        """Name and ends of every label."""
        others = (bounded_column("--also", text)[:3] for text in self.also)
        return [(self.label, self.lower, self.upper), *others]

    @property
    def labels(self) -> Floats:
        """(k, m) labels of each secret that is within the bounds and planned, ascending."""
        _, *others = ((lower, upper) for _, lower, upper in self.columns)
        return np.array([*product(np.linspace(self.lower, self.upper, self.values), *others)])


class RunFiles(Section):
    """Parts of a run that lie elsewhere than in its folder; all but the release may be missing.

    Where only some events were trained on, a column ``held_out`` of the predictions says which.
    """

    release: Path = setting(Path("release"), "Release folder, by default in RUN.")
    predictions: Path = setting(
        Path("predictions.parquet"),
        "Table with key, prediction (of several labels, a column of each name), by default in RUN.",
    )
    features: Path = setting(
        Path("feature_party/features.parquet"), "Features with the same key, by default in RUN."
    )
    truth: Path = setting(
        Path("truth/labels.parquet"),
        "Table with key, label (of several, a column of each name): before any noise, by default in"
        " RUN.",
    )
    secret: Path = setting(
        Path("certificates/join.key"), "Secret that keys are hashed with, by default in RUN."
    )
    canaries: Path | None = setting(
        None,
        "Table with key, secret (0: lowest label, 1: highest; others are left out) of events whose"
        " label, or all labels at once, was replaced at random before the release.",
    )

    def in_folder(self, run: Path) -> Self:
        """The files of a run: what was not named lies where ``labelveil simulate`` leaves it."""
        names = type(self).model_fields.keys() - self.model_fields_set - {"canaries"}
        return self.model_copy(update={name: run / getattr(self, name) for name in names})
