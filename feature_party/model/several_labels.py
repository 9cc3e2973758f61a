"""Models of an event's labels, side by side: one folder, and one table of predictions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import torch

from labelveil.common.errors import DataError
from labelveil.common.files import write_text
from labelveil.common.formats import MODELS
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.model.model import MODEL_FILE, Model, described
from labelveil.feature_party.tables import Table, collect_table, file_of

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of labels that are those of their folders."""


@dataclass(frozen=True, eq=False)
class LabelModels:
    """A model for each label, by its name."""

    by_label: Mapping[str, Model]

    @property
    def sources(self) -> tuple[str, ...]:
        """The labels parties that they predict for, if they have learned from several."""
        return next(iter(self.by_label.values())).sources

    @property
    def encoder(self) -> Encoder:
        """Of the columns that all of them read."""
        return next(iter(self.by_label.values())).encoder

    @property
    def has_distributions(self) -> bool:
        """Whether all predictions come with intervals."""
        return all(model.has_distributions for model in self.by_label.values())

    @property
    def key(self) -> str:
        """Column of the events' keys in the training."""
        return next(iter(self.by_label.values())).facts.key

    def for_source(self, source: str) -> LabelModels:
        """Those of one labels party; see :meth:`Model.for_source`."""
        return LabelModels(
            {name: model.for_source(source) for name, model in self.by_label.items()}
        )

    def output(self, label: str, name: str) -> str:
        """What a label's output is called among those of all: its prediction has its own name.

        Outputs of an only label are not named after it.
        """
        if len(self.by_label) == 1:
            return name
        return label if name == "prediction" else f"{label}_{name}"

    def predict(
        self,
        features: Table,
        interval: float | None = None,
        quantiles: Sequence[float] = (),
        above: Sequence[float] = (),
    ) -> pl.DataFrame:
        """As :meth:`Model.predict`, in columns named by :meth:`output`; ``above`` is asked of the
        labels that reach so far."""
        table, columns = collect_table(features), dict[str, pl.Series]()
        several = len(self.by_label) > 1
        for value in above if several else ():
            if not any(model.reaches(value) for model in self.by_label.values()):
                raise DataError(f"above={value:g} must be some label's value; set [output] above")
        for label, model in self.by_label.items():
            own = [value for value in above if not several or model.reaches(value)]
            for series in model.predict(table, interval, quantiles, own):
                column = self.output(label, series.name)
                if column in columns:
                    raise DataError(f"two labels both predict a column {column!r}; rename one")
                columns[column] = series
        return pl.DataFrame(columns)

    def save(self, directory: Path) -> None:
        """Write a folder for each model, and ``model.json`` last."""
        folders = label_folders(directory, self.by_label)
        for label, model in self.by_label.items():
            model.save(folders[label])
        labels = [{"name": label, "folder": folder.name} for label, folder in folders.items()]
        text = json.dumps({"format": str(MODELS), "labels": labels})
        write_text(directory / MODEL_FILE, text + "\n")

    @classmethod
    def load(cls, directory: Path, device: torch.device | str = "cpu") -> LabelModels:
        """Read what :meth:`save` wrote; errors as of :func:`described`."""
        with described(directory, MODELS) as data:
            folders = {str(label["name"]): str(label["folder"]) for label in data["labels"]}
            if not folders or not all(map(_PLAIN.fullmatch, folders.values())):
                raise ValueError("no labels, or folders of another name than is written")
        paths = {name: directory / folder for name, folder in folders.items()}
        return cls({name: Model.load(path, device) for name, path in paths.items()})


def label_folders(within: Path, labels: Iterable[str]) -> dict[str, Path]:
    """A folder within one for each label. A name that the labels party chose is no folder's unless
    it is plain, and so never ``model.json``."""
    names = [*labels]
    plain = all(map(_PLAIN.fullmatch, names))
    return {
        name: within / (name if plain else f"label-{number}")
        for number, name in enumerate(names, start=1)
    }


def label_files(path: Path, labels: Iterable[str]) -> dict[str, Path]:
    """A file for each label beside one for all, which is that of an only label."""
    folders = label_folders(Path(), labels)
    several = len(folders) > 1
    return {name: file_of(path, each.name * several) for name, each in folders.items()}
