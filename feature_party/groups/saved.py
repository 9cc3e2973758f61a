"""A model of sums in its folder, and what predicts files with it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from pydantic import TypeAdapter

from labelveil.common.errors import ConfigError, DataError
from labelveil.common.files import write_text
from labelveil.common.formats import SUMS_MODEL
from labelveil.common.mechanisms.group_sums import Lattice
from labelveil.common.version import software
from labelveil.feature_party.groups.boosting import Boosted
from labelveil.feature_party.groups.model import SumsModel
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.model.model import (
    MODEL_FILE,
    WEIGHTS_FILE,
    described,
    load_states,
    save_tensors,
    undamaged,
)
from labelveil.feature_party.model.several_labels import LabelModels
from labelveil.feature_party.model.trees import Trees, TreesShape
from labelveil.feature_party.ridge.columns import values_of
from labelveil.feature_party.ridge.links import Cube, Line
from labelveil.feature_party.ridge.ridge import Ridge
from labelveil.feature_party.tables import Table, collect_table

_MOST_VALUES_OF_1 = 32
"""Values of a category that had a column of their own when format 1 was written."""


@dataclass(frozen=True)
class SumsFacts:
    """What is known of the training; ``model.json`` says it under ``facts``."""

    releases: tuple[str, ...]
    """SHA-256 of the manifests of what was learned from."""
    events: int
    """That these are about."""
    mean: float
    """Of their predictions, or of many of them."""
    columns: str
    """What was said of columns."""
    seed: int
    key: str
    """Column of the events' keys."""
    label: str
    """Its name, as the labels party calls it."""
    warnings: tuple[str, ...] = ()
    """Sentences for the users of the model."""


@dataclass(frozen=True, eq=False)
class SavedSums:
    """A model of sums, with what is known of its training."""

    model: SumsModel
    facts: SumsFacts

    @property
    def sources(self) -> tuple[str, ...]:
        """None: it predicts for one labels party."""
        return ()

    @property
    def by_label(self) -> dict[str, SumsModel]:
        """The model of the only label, by its name."""
        return {self.facts.label: self.model}

    @property
    def has_distributions(self) -> bool:
        """False: sums teach which labels are expected."""
        return False

    @property
    def encoder(self) -> Encoder:
        return self.model.encoder

    @property
    def key(self) -> str:
        """Column of the events' keys in the training."""
        return self.facts.key

    def for_source(self, source: str) -> Self:
        """Itself; ``ConfigError`` if a labels party is named."""
        if source:
            raise ConfigError(
                f"source={source!r} must name a labels party that was learned from, and a model of"
                " sums has one alone; leave --source out"
            )
        return self

    def predict(
        self,
        features: Table,
        interval: float | None = None,
        quantiles: Sequence[float] = (),
        above: Sequence[float] = (),
    ) -> pl.DataFrame:
        """(n,) rows of a table with a ``prediction``; a model of sums gives no distributions."""
        inputs = self.encoder.encode(collect_table(features))
        return pl.DataFrame({"prediction": self.model.distributions(inputs).points})

    def save(self, directory: Path) -> None:
        """Write ``weights.pt`` and ``model.json``; the latter comes last."""
        directory.mkdir(parents=True, exist_ok=True)
        parts = [_parts(ridge) for ridge in self.model.ridges]
        states, trees = [tensors for tensors, _ in parts], None
        if (boosted := self.model.boosted) is not None:
            numbers = {"constant": boosted.constant, "share": boosted.share}
            trees = {"shape": asdict(boosted.trees.shape), **numbers}
            states.append(dict(boosted.trees.state_dict()))
        save_tensors(states, directory / WEIGHTS_FILE)
        lattice = self.model.lattice
        data = {
            "format": str(SUMS_MODEL),
            "software": software(),
            "encoder": self.encoder.to_json(),
            "lattice": [lattice.lower, lattice.upper, lattice.steps],
            "ridges": [numbers for _, numbers in parts],
            "trees": trees,
            "most_values": self.model.most_values,
            "facts": asdict(self.facts),
        }
        write_text(directory / MODEL_FILE, json.dumps(data) + "\n")

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what :meth:`save` wrote; ``DataError`` if there is none, or it is damaged."""
        with described(directory, SUMS_MODEL) as data:
            encoder = Encoder.from_json(data["encoder"])
            first = SUMS_MODEL.number_of(data["format"]) == 1
            most = _MOST_VALUES_OF_1 if first else int(data["most_values"])
            states, boosted = load_states(directory / WEIGHTS_FILE, "cpu"), None
            if data["trees"] is not None:
                boosted = _boosted(states.pop(), values_of(encoder, most), **data["trees"])
            ridges = tuple(
                _ridge(state, **numbers)
                for state, numbers in zip(states, data["ridges"], strict=True)
            )
            facts = TypeAdapter(SumsFacts).validate_python(data["facts"])
            model = SumsModel(encoder, ridges, Lattice(*data["lattice"]), boosted, most)
            if not math.isfinite(model.miss + facts.mean):
                raise ValueError(f"it misses by {model.miss} around {facts.mean}")
            width = model.columns(encoder.encode(encoder.unknown())).shape[1]
            if any(ridge.scales.numel() != width for ridge in ridges):  # torch stretches one column
                raise ValueError(f"its rows have {width} columns, and its ridges others")
            saved = cls(model, facts)
            points = saved.predict(encoder.unknown())["prediction"]  # what fails later fails here
            if not np.isfinite(points.to_numpy()).all():
                raise ValueError(f"it predicts {points[0]}")
        return saved


def load_trained(directory: Path) -> LabelModels | SavedSums:
    """Read a folder's models, whatever they have learned from; ``DataError`` as of ``load``."""
    return SavedSums.load(directory) if is_of_sums(directory) else LabelModels.load(directory)


def is_of_sums(directory: Path) -> bool:
    """Whether the model in a folder has learned from sums, as far as its file says."""
    with suppress(DataError), undamaged(str(directory), ""):  # whoever reads it says what is wrong
        data = json.loads((directory / MODEL_FILE).read_text(encoding="utf-8"))
        return str(data["format"]).startswith(f"{SUMS_MODEL.name}/")
    return False


def _ridge(tensors: dict[str, Any], *, cube: Any = None, **numbers: Any) -> Ridge:
    """A ridge of its tensors and what ``model.json`` says of it: no cube before format 3."""
    link = Line() if cube is None else TypeAdapter(Cube).validate_python(cube)
    if isinstance(link, Cube) and not (math.isfinite(link.lower) and 0 < link.level < math.inf):
        raise ValueError(f"predictions are {link}")
    known: dict[str, Any] = {name: float(said) for name, said in numbers.items()}
    return Ridge(link, **tensors, **known)


def _boosted(
    state: dict[str, torch.Tensor],
    one_of: Sequence[range],
    shape: Any,
    constant: float,
    share: float,
) -> Boosted:
    said = TypeAdapter(TreesShape).validate_python(shape)
    there = sum(weights.numel() for weights in state.values())
    if said.weights != there:  # before room is made for them
        raise ValueError(f"{there:,} weights for a shape of {said.weights:,}")
    if not math.isfinite(constant):
        raise ValueError(f"trees begin at {constant}")
    if not 0 <= share <= 1:
        raise ValueError(f"trees count for {share}")
    trees = Trees(said, one_of)
    trees.load_state_dict(state)
    trees.check()
    return Boosted(trees, float(constant), float(share))


def _parts(ridge: Ridge) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A ridge's tensors, and what ``model.json`` says of it."""
    values = {field.name: getattr(ridge, field.name) for field in fields(ridge)}
    cube = asdict(link) if isinstance(link := values.pop("link"), Cube) else None
    tensors = {name: v for name, v in values.items() if isinstance(v, torch.Tensor)}
    numbers = {name: float(v) for name, v in values.items() if name not in tensors}
    return tensors, {**numbers, "cube": cube}
