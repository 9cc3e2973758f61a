"""What a simulation is asked to do, checked before anything is read or started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import model_validator

from common.config import Choice, Section, setting
from common.errors import ConfigError
from common.randomizers import randomizer_names
from common.randomizers.base import MAX_EPSILON
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


class DataSettings(Section):
    """Labels and features in one place, as a simulation and a comparison start from them."""

    labels: Path = setting(..., "Labels: CSV or Parquet.")
    features: Path = setting(
        ...,
        "Features: CSV or Parquet; may be the labels' file. Its label column is then withheld from"
        " the features party.",
    )
    label: str = setting(..., "Label column, a number.")
    lower: float = setting(..., "Public lower bound of the labels.")
    upper: float = setting(..., "Public upper bound of the labels.")
    out: Path = setting(..., "Folder for everything that the run leaves behind.")
    key: str | None = setting(
        None, "Column that names the event in both files; default for one file: rows."
    )
    holdout: float = setting(0.2, "Share of events kept for scoring.", gt=0, lt=1)
    loss: Annotated[str, Choice(LOSS_NAMES)] = setting(
        "squared", "By which labels are randomized, and models predict."
    )
    ignore: list[str] = setting(
        list, "Column withheld from the features party; repeatable.", metavar="COLUMN"
    )
    quiet: bool = setting(False, "No progress, no table.", flag="--quiet")

    @model_validator(mode="after")
    def _check_domain(self) -> Self:
        if self.lower >= self.upper:
            raise ConfigError(
                f"--lower {self.lower:g} must be below --upper {self.upper:g}; the label domain is"
                " empty"
            )
        return self

    @property
    def same_file(self) -> bool:
        """Whether labels and features come from one file."""
        return self.labels.resolve() == self.features.resolve()


class Settings(DataSettings):
    """One simulation."""

    epsilon: float = setting(
        ..., "What the release may reveal about one label.", gt=0, le=MAX_EPSILON
    )
    seed: int = setting(0, "Chooses splits and initial weights, never noise.", ge=0)
    randomizer: Annotated[str, Choice(randomizer_names())] = setting(
        "auto", "What labels are randomized with.", metavar="NAME"
    )
    objective: str = setting("auto", "What the model is trained for.")
    head: str = setting("auto", "Shape of the predicted distribution.")
    population: Path | None = setting(None, "Every event both sides know, with the key column.")
    submit_population: bool = setting(
        False,
        "The features' events are the population; they are submitted.",
        flag="--submit-population",
    )
    missing: float | None = setting(
        None, "Label of an event without one; default 0, or the lower bound where 0 is outside."
    )
    duplicates: Literal["refuse", "sum", "mean", "last"] = setting(
        "refuse", "What the labels party does with several labels of one key."
    )
    label_settings: list[str] = setting(
        list,
        "Setting of the labels party; repeatable.",
        flag="--set-label",
        metavar="SECTION.KEY=VALUE",
    )
    feature_settings: list[str] = setting(
        list,
        "Setting of the features party; repeatable.",
        flag="--set-feature",
        metavar="SECTION.KEY=VALUE",
    )
    nonprivate: bool = setting(True, "Also train the same network on the true labels, to compare.")
    overwrite: bool = setting(False, "Replace an earlier run in the folder.", flag="--overwrite")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.submit_population and self.population is not None:
            raise ConfigError(
                f"--population {self.population} and --submit-population exclude each other; give"
                " one of them"
            )
        if not self.lower <= self.missing_value <= self.upper:
            raise ConfigError(
                f"--missing {self.missing_value:g} must lie in {self.lower:g} … {self.upper:g}"
            )
        for option, given in (
            ("--set-label", self.label_settings),
            ("--set-feature", self.feature_settings),
        ):
            for one in given:
                name = one.partition("=")[0].strip()
                if name in _OWN_OPTIONS:
                    raise ConfigError(f"{option} {one!r}: use {_OWN_OPTIONS[name]} instead")
        return self

    @property
    def missing_value(self) -> float:
        """Label of an event without one."""
        if self.missing is not None:
            return self.missing
        return 0.0 if self.lower <= 0 <= self.upper else self.lower
