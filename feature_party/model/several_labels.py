"""Models of several labels of one event, side by side: one folder, and one table of predictions.

A single label has no name here: its model lies in the folder itself, and its columns have the names
that they always had.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import torch

from common.errors import DataError
from common.files import write_text
from feature_party.model.encoding import Encoder
from feature_party.model.model import MODEL_FILE, Model, undamaged
from feature_party.tables import Table, collect_table

FORMAT = "labelveil-models/1"
"""Of a folder with a folder for each label's model; one of those has a format of its own."""


@dataclass(frozen=True)
class LabelModels:
    """A model for each label.

    Attributes
    ----------
    by_label
        By the labels' names; a single one has none.
    """

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

    def of(self, source: str) -> LabelModels:
        """Those of one labels party; see :meth:`Model.of`."""
        return LabelModels({name: model.of(source) for name, model in self.by_label.items()})

    def predict(
        self,
        features: Table,
        interval: float | None = None,
        quantiles: Sequence[float] = (),
        above: Sequence[float] = (),
    ) -> pl.DataFrame:
        """As :meth:`Model.predict`; of several labels NAME is the prediction of each, and NAME_mean
        and the like the other columns. ``above`` is asked of the labels that reach so far."""
        table, columns = collect_table(features), dict[str, pl.Series]()
        for value in above:
            if "" not in self.by_label and not any(
                one.reaches(value) for one in self.by_label.values()
            ):
                raise DataError(f"above={value:g} must be some label's value; set [output] above")
        for name, model in self.by_label.items():
            asked = [value for value in above if not name or model.reaches(value)]
            predicted = model.predict(table, interval, quantiles, asked)
            for one in predicted:
                column = output_name(name, one.name)
                if column in columns:
                    raise DataError(f"two labels both predict a column {column!r}; rename one")
                columns[column] = one
        return pl.DataFrame(columns)

    def save(self, directory: Path) -> None:
        """Write a folder for each model, and ``model.json`` last; a single label's is all."""
        folders = label_paths(directory, self.by_label)
        for name, model in self.by_label.items():
            model.save(folders[name])
        if "" not in self.by_label:
            labels = [{"name": name, "folder": one.name} for name, one in folders.items()]
            text = json.dumps({"format": FORMAT, "labels": labels})
            write_text(directory / MODEL_FILE, text + "\n")

    @classmethod
    def load(cls, directory: Path, device: torch.device | str = "cpu") -> LabelModels:
        """Read what :meth:`save` wrote.

        Raises
        ------
        DataError
            If there is none, or its files are damaged.
        """
        path = directory / MODEL_FILE
        with undamaged(f"the model in {directory}", "train it again"):
            data = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                return cls({"": Model.load(directory, device)})
            folders = {str(one["name"]): Path(one["folder"]).name for one in data["labels"]}
            if not folders:
                raise ValueError("no labels")
        return cls({name: Model.load(directory / one, device) for name, one in folders.items()})


def label_paths(within: Path, labels: Mapping[str, object]) -> dict[str, Path]:
    """Folders within one for each label: the folder itself for a label without a name. A name that
    the labels party chose is no folder's unless it is plain, and so never ``model.json``."""
    if "" in labels:
        return {"": within}
    plain = all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in labels)
    return {
        name: within / (name if plain else f"label-{number}")
        for number, name in enumerate(labels, start=1)
    }


def output_name(label: str, output: str) -> str:
    """What one label's output is called among those of all: its prediction has its own name."""
    if not label:
        return output
    return label if output == "prediction" else f"{label}_{output}"
