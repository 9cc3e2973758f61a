"""What a simulation is asked to do, checked before anything is read or started."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigError
from common.randomizers import randomizer_names
from common.randomizers.base import check_epsilon
from common.randomizers.losses import LOSS_NAMES

_OWN_OPTIONS = {
    "data.labels": "--labels",
    "data.population": "--population",
    "labels_party.submit": "--submit-population",
    "data.key": "--key",
    "data.label": "--label",
    "data.missing": "--missing",
    "data.duplicates": "--duplicates",
    "domain.lower": "--lower",
    "domain.upper": "--upper",
    "privacy.epsilon": "--epsilon",
    "randomizer.name": "--randomizer",
    "randomizer.loss": "--loss",
    "data.features": "--features",
    "data.ignore": "--ignore",
    "training.objective": "--objective",
    "training.head": "--head",
    "training.holdout": "--holdout",
    "training.seed": "--seed",
}
"""Settings that scoring depends on, so that they may be given in one way only."""

DUPLICATES = ("refuse", "sum", "mean", "last")


@dataclass(frozen=True)
class Settings:
    """One simulation.

    Attributes
    ----------
    labels, features
        CSV or Parquet files; they may be the same file, whose label column is then withheld from
        the features party.
    key
        Column that names the event in both; None uses row numbers, if both are the same file.
    label
        Column with the label.
    lower, upper
        Public bounds of the labels, in label units.
    epsilon
        What the release may reveal about one label.
    out
        Folder for everything that the run leaves behind.
    holdout
        Share of the events that are never trained on, above 0 and below 1.
    seed
        Chooses splits and initial weights, never noise.
    randomizer, loss
        What the labels party randomizes with, and for.
    objective, head
        What the features party trains with.
    ignore
        Columns of the features file that are withheld from the features party.
    population
        File with every event that both parties know; None: the labelled events.
    submit_population
        Whether the features party submits its events as the population instead.
    missing
        Label of an event without one; None: 0, or ``lower`` where 0 is outside the domain.
    duplicates
        What the labels party does with several labels of one key.
    label_settings, feature_settings
        ``section.key=value`` for either party's configuration.
    nonprivate
        Whether to train the same network on the true labels too.
    overwrite
        Whether an ``out`` that is not empty may be emptied.
    """

    labels: Path
    features: Path
    label: str
    lower: float
    upper: float
    epsilon: float
    out: Path
    key: str | None = None
    holdout: float = 0.2
    seed: int = 0
    randomizer: str = "auto"
    objective: str = "auto"
    head: str = "auto"
    loss: str = "squared"
    ignore: tuple[str, ...] = ()
    population: Path | None = None
    submit_population: bool = False
    missing: float | None = None
    duplicates: str = "refuse"
    label_settings: tuple[str, ...] = ()
    feature_settings: tuple[str, ...] = ()
    nonprivate: bool = True
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon, "--epsilon")
        for name, value in (("--lower", self.lower), ("--upper", self.upper)):
            if not math.isfinite(value):
                raise ConfigError(f"{name}={value} must be a finite number")
        if self.lower >= self.upper:
            raise ConfigError(
                f"--lower {self.lower:g} must be below --upper {self.upper:g}; the label domain is"
                " empty"
            )
        if not 0 < self.holdout < 1:
            raise ConfigError(
                f"--holdout {self.holdout:g} must lie between 0 and 1: some events are trained on,"
                " others scored"
            )
        if self.submit_population and self.population is not None:
            raise ConfigError(
                f"--population {self.population} and --submit-population exclude each other; give"
                " one of them"
            )
        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed} must be a whole number >= 0")
        if not self.lower <= self.missing_value <= self.upper:
            raise ConfigError(
                f"--missing {self.missing_value:g} must lie in {self.lower:g} … {self.upper:g}"
            )
        _one_of("--randomizer", self.randomizer, randomizer_names())
        _one_of("--loss", self.loss, LOSS_NAMES)
        _one_of("--duplicates", self.duplicates, DUPLICATES)
        for option, given in (
            ("--set-label", self.label_settings),
            ("--set-feature", self.feature_settings),
        ):
            for setting in given:
                name = setting.partition("=")[0].strip()
                if name in _OWN_OPTIONS:
                    raise ConfigError(f"{option} {setting!r}: use {_OWN_OPTIONS[name]} instead")

    @property
    def missing_value(self) -> float:
        """Label of an event without one."""
        if self.missing is not None:
            return self.missing
        return 0.0 if self.lower <= 0 <= self.upper else self.lower

    @property
    def same_file(self) -> bool:
        """Whether labels and features come from one file."""
        return self.labels.resolve() == self.features.resolve()


def _one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{option} {value!r} must be one of {', '.join(known)}")
