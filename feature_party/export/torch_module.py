"""A trained model as one torch module, preprocessing included: columns in, predictions out.

Every feature column is one tensor of n rows: a number (NaN if missing), a moment as seconds since
1970-01-01 00:00 on the event's own clock (NaN if missing), or a category as its place in the
column's table (0 if it is not in there). Columns are told apart by their places alone: exporters
write the names of a dictionary into the programs that they generate, and names come from data.
What :class:`~labelveil.feature_party.model.encoding.Encoder` and
:class:`~labelveil.feature_party.model.model.Model` do in NumPy is done here in tensor operations
that exporters can write down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from labelveil.common.arrays import Floats, Integers
from labelveil.common.errors import not_none
from labelveil.feature_party.groups.model import SumsModel
from labelveil.feature_party.model.encoding import CLIP, YEAR, Encoder, NumericColumn, moments
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.ridge.columns import values_of
from labelveil.feature_party.ridge.ridge import Ridge, features_of
from labelveil.feature_party.schema import MISSING, ColumnMeaning

Kind = Literal["number", "moment", "category"]

_MISSING = "\x1amissing"
"""As MISSING in the vocabulary, without the zero byte that ends a text for some runtimes."""
_DAY = 86_400.0
_THURSDAY = 3.0
"""Days from a Monday to 1970-01-01."""


@dataclass(frozen=True, eq=False)
class Column:
    """One input of an exported model."""

    name: str  # the feature column's
    input: str  # what the exported program calls it, by its place
    kind: Kind  # ``number``, ``moment`` or ``category``
    places: dict[str, int]  # of each known category, from 1
    meaning: ColumnMeaning  # what the cells of a table mean
    missing: str = ""  # text that stands for a missing category

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"name": self.name, "input": self.input, "kind": self.kind}
        data["read"] = str(self.meaning)
        if self.kind == "category":
            data |= {"missing": self.missing, "unknown_place": 0, "places": self.places}
        return data

    def texts(self, table: pl.DataFrame) -> list[str]:
        """Canonical texts of a categorical column's values, (n,)."""
        return self._read(table).replace(MISSING, self.missing).to_list()

    def values(self, table: pl.DataFrame) -> Floats | Integers:
        """(n,) float64 numbers or seconds, or int64 places, of a features table."""
        if self.kind == "category":
            places = (self.places.get(text, 0) for text in self.texts(table))
            return np.fromiter(places, dtype=np.int64, count=table.height)
        values = self._read(table)
        return moments(values) if self.kind == "moment" else np.array(values.to_numpy())

    def _read(self, table: pl.DataFrame) -> pl.Series:
        return self.meaning.read(table[self.name])


def served_columns(encoder: Encoder) -> tuple[Column, ...]:
    """Inputs of an exported model, in order."""
    texts = {text for column in encoder.categorical for text in column.vocabulary}
    missing = _MISSING
    while missing in texts:
        missing += _MISSING
    vocabularies = {column.name: column.vocabulary for column in encoder.categorical}
    fitted = {column.name: column for column in encoder.numeric}
    columns = []
    for place, name in enumerate(encoder.columns):
        input_ = f"input_{place}"
        if name in vocabularies:
            keys = [missing if text == MISSING else text for text in vocabularies[name]]
            places = {text: at for at, text in enumerate(keys, start=1)}
            meaning = encoder.schema[name]
            columns.append(Column(name, input_, "category", places, meaning, missing))
        else:
            kind: Kind = "number" if fitted[name].part == "value" else "moment"
            columns.append(Column(name, input_, kind, {}, encoder.schema[name]))
    return tuple(columns)


class ServedModel(nn.Module):
    """Preprocessing, learners, heads, mixture and point prediction of a trained model.

    ``forward`` takes a (n,) tensor for each of :func:`served_columns`, in their order: float64 for
    numbers and moments, int64 for categories. It returns the prediction, (n,) float64, and for a
    model of distributions the probabilities, (n, m) float64 over the support.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.inputs = ServedInputs(model.encoder)
        self._experts = [(expert.objective, _double(expert.weight)) for expert in model.experts]
        self.learned = nn.ModuleList([expert.learned.eval() for expert in model.experts])
        self._shrinkage, self._reach = _double(model.shrinkage), model.reach
        self._median = model.problem.loss == "absolute"
        self.values: Tensor
        self.prior: Tensor
        self.adjustment: Tensor | None
        self.cells: Tensor | None
        self.register_buffer("cells", None if model.cells is None else torch.as_tensor(model.cells))
        self.register_buffer("values", torch.as_tensor(model.support.values))
        self.register_buffer("prior", torch.as_tensor(model.support.released))
        factors = model.adjustment
        self.register_buffer("adjustment", None if factors is None else torch.as_tensor(factors))

    def forward(self, *columns: Tensor) -> tuple[Tensor, ...]:
        numeric, categories = self.inputs(*columns)
        mixed: Tensor | None = None
        for (objective, weight), learned in zip(self._experts, self.learned, strict=True):
            raw = learned(numeric[None], categories[None]).double()
            probabilities = objective.distributions(raw)
            if probabilities is None:
                return (objective.points(raw).mean(dim=0),)
            last = probabilities.mean(dim=0)
            mixed = weight * last if mixed is None else mixed + weight * last
        mixed = not_none(mixed)
        if self._reach is not None:
            mixed = self._reach(mixed, last)
        if self.adjustment is not None:
            mixed = mixed * self.adjustment
            mixed = mixed / mixed.sum(dim=1, keepdim=True)
        if self.cells is not None:
            mixed = mixed @ self.cells
        mixed = (1 - self._shrinkage) * mixed + self._shrinkage * self.prior
        if self._median:
            below = (torch.cumsum(mixed, dim=1) < 0.5 - 1e-9).long().sum(dim=1)
            points = self.values[below.clamp(max=self.values.shape[0] - 1)]
        else:
            points = mixed @ self.values
        return points, mixed


class ServedSums(nn.Module):
    """Preprocessing, ridges and trees of a model of sums.

    ``forward`` takes what :class:`ServedModel` takes, and returns the prediction, (n,) float64.
    """

    def __init__(self, model: SumsModel) -> None:
        super().__init__()
        self.inputs = ServedInputs(model.encoder)
        self.values = list(map(len, values_of(model.encoder, model.most_values)))
        self.ridges = nn.ModuleList(map(_ServedRidge, model.ridges))
        self.weights: Tensor
        self.register_buffer("weights", torch.as_tensor(model.weights))
        self.trees = None if model.boosted is None else model.boosted.trees.eval()
        self._first = None if model.boosted is None else _double(model.boosted.constant)
        self._share = _double(model.share_of_trees)
        self._lower, self._upper = _double(model.lattice.lower), _double(model.lattice.upper)

    def forward(self, *columns: Tensor) -> tuple[Tensor]:
        numeric, categories = self.inputs(*columns)
        flags = [
            (categories[:, place, None] == torch.arange(1, 1 + values)).float()
            for place, values in enumerate(self.values)
        ]
        inputs = torch.cat([numeric, *flags], dim=1)
        points = torch.stack([ridge(inputs) for ridge in self.ridges], dim=1) @ self.weights
        if self.trees is not None and self._first is not None:
            none = torch.zeros((1, inputs.shape[0], 0), dtype=torch.int64)
            found = self._first + self.trees(inputs[None], none).mean(dim=0)[:, 0]
            points = (1 - self._share) * points + self._share * found
        return (torch.minimum(torch.maximum(points, self._lower), self._upper),)


class _ServedRidge(nn.Module):
    """``forward`` takes (n, F) float32 rows and returns expected labels, (n,) float64."""

    def __init__(self, ridge: Ridge) -> None:
        super().__init__()
        self.linear, self.link = ridge.linear, ridge.link
        self.scales: Tensor
        self.frequencies: Tensor
        self.phases: Tensor
        self.coefficients: Tensor
        for name in ("scales", "frequencies", "phases", "coefficients"):
            self.register_buffer(name, getattr(ridge, name))

    def forward(self, x: Tensor) -> Tensor:
        features = features_of(x, self.scales, self.frequencies, self.phases, self.linear)
        return self.link.mean(features.double() @ self.coefficients)


class ServedInputs(nn.Module):
    """What :meth:`Encoder.encode` makes of columns.

    ``forward`` takes all of :func:`served_columns` and returns numbers, (n, F) float32, and
    places of categories, (n, C) int64.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        places = {name: place for place, name in enumerate(encoder.columns)}
        self.numbers = ServedNumbers(encoder.numeric, places) if encoder.numeric else None
        given = dict(encoder.given)
        # of each category its input's place, or, where every row has the same, its own
        self._categories = [
            (places.get(column.name), _place(column.vocabulary, given.get(column.name)))
            for column in encoder.categorical
        ]

    def forward(self, *columns: Tensor) -> tuple[Tensor, Tensor]:
        rows = columns[0].shape[0]
        numeric = torch.zeros(rows, 0) if self.numbers is None else self.numbers(*columns)
        categories = torch.zeros(rows, 0, dtype=torch.int64)
        if self._categories:
            places = [
                torch.full((rows,), given) if place is None else columns[place]
                for place, given in self._categories
            ]
            categories = torch.stack(places, dim=1)
        return numeric, categories


class ServedNumbers(nn.Module):
    """The numeric inputs, as :meth:`Encoder.encode` makes them: all columns in the same operations.

    ``forward`` takes all columns, (n,) each, and returns (n, F) float32. Of each column of
    ``fitted`` ``columns`` say the place among them.
    """

    order: Tensor
    indicated: Tensor
    cut: Tensor
    low: Tensor
    high: Tensor
    logarithmic: Tensor
    middle: Tensor
    spread: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, fitted: Sequence[NumericColumn], columns: Mapping[str, int]) -> None:
        super().__init__()
        by_part = sorted(fitted, key=attrgetter("part"))
        self._parts = [
            (part, [columns[column.name] for column in alike])
            for part, alike in groupby(by_part, key=attrgetter("part"))
        ]
        places = {id(column): at for at, column in enumerate(by_part)}
        indicated = [column for column in by_part if column.indicator]
        cut = [column for column in by_part for _ in column.edges[1:]]
        made = [*by_part, *indicated, *cut]  # whose each input is, as they are computed
        wanted = [place for column in fitted for place, whose in enumerate(made) if whose is column]
        self._keep("order", wanted, torch.int64)
        self._keep("indicated", (places[id(column)] for column in indicated), torch.int64)
        self._keep("cut", (places[id(column)] for column in cut), torch.int64)
        self._keep("low", (edge for column in by_part for edge in column.edges[:-1]))
        self._keep("high", (edge for column in by_part for edge in column.edges[1:]))
        self._keep("logarithmic", (column.logarithmic for column in by_part), torch.bool)
        for name in ("middle", "spread", "centre", "scale"):
            self._keep(name, map(attrgetter(name), by_part))

    def _keep(self, name: str, values: Iterable[float], kind: torch.dtype = torch.float64) -> None:
        self.register_buffer(name, torch.tensor(list(values), dtype=kind))

    def forward(self, *columns: Tensor) -> Tensor:
        parts = [
            _part(torch.stack([columns[place] for place in places], dim=1), part)
            for part, places in self._parts
        ]
        values = torch.cat(parts, dim=1)
        missing = ~torch.isfinite(values)
        values = torch.where(missing, self.middle, values)
        curved = _asinh((values - self.middle) / self.spread)
        values = torch.where(self.logarithmic, curved, values)
        scaled = (values - self.centre) / self.scale
        through = (scaled[:, self.cut] - self.low) / (self.high - self.low)
        inputs = [
            scaled.clamp(-CLIP, CLIP),
            missing[:, self.indicated].double(),
            through.clamp(0.0, 1.0) - 0.5,
        ]
        return torch.cat(inputs, dim=1)[:, self.order].float()


class ServedLabels(nn.Module):
    """The models of several labels side by side.

    ``forward`` returns the outputs of each, one after another.
    """

    def __init__(self, models: Iterable[Model | SumsModel]) -> None:
        super().__init__()
        self.models = nn.ModuleList(
            ServedSums(model) if isinstance(model, SumsModel) else ServedModel(model)
            for model in models
        )

    def forward(self, *columns: Tensor) -> tuple[Tensor, ...]:
        return tuple(output for model in self.models for output in model(*columns))


def _place(vocabulary: Sequence[str], given: str | None) -> int:
    """A value's place in a vocabulary, from 1; 0 for what is not there."""
    return 1 + vocabulary.index(given) if given in vocabulary else 0


def _part(seconds: Tensor, part: str) -> Tensor:
    if part == "value":
        return seconds
    day = torch.floor(seconds / _DAY)
    if part == "day":
        return day
    if part == "season":
        return day - YEAR * torch.floor(day / YEAR)
    if part == "weekday":
        monday = day + _THURSDAY
        return monday - 7 * torch.floor(monday / 7) + 1
    left = seconds - _DAY * day
    hour = torch.floor(left / 3600)
    return hour + torch.floor((left - 3600 * hour) / 60) / 60


def _double(value: float | tuple[float, ...]) -> Tensor:
    """A constant; the ONNX exporter would round a Python number to single precision."""
    return torch.tensor(value, dtype=torch.float64)


def _asinh(values: Tensor) -> Tensor:
    """asinh in operations that ONNX Runtime has for doubles."""
    size = torch.abs(values)
    return torch.sign(values) * torch.log(size + torch.sqrt(size * size + 1))


def probes(encoder: Encoder, rows: int = 256) -> pl.DataFrame:
    """Rows for comparing an export with its model: usual, missing, unseen and far-out values."""
    steps = np.arange(rows)
    table: dict[str, pl.Series] = {}
    for at, column in enumerate(encoder.numeric):
        # every column takes its values in another order
        place = (steps * (2 * at + 1) % rows + 0.5) / rows
        if column.part == "value":
            values = column.middle + column.spread * np.tan(np.pi * (place - 0.5))
            values[at % (rows // 4) :: rows // 4] = (np.nan, np.inf, 1e30, -1e30)
            table[column.name] = pl.Series(values)
        elif column.name not in table:
            seconds = (place * 2e9 - 1e8).astype(np.int64) * 1_000_000
            clock = pl.Series(seconds).cast(pl.Datetime("us"))
            table[column.name] = clock.scatter(at % rows, None)
    for at, category in enumerate(encoder.categorical):
        known = [None if text == MISSING else text for text in category.vocabulary]
        choices = [*known[: rows - 2], None, "\x01 never seen \u2028"]
        table[category.name] = pl.Series(
            [choices[step * (2 * at + 1) % len(choices)] for step in range(rows)], dtype=pl.String
        )
    return pl.DataFrame(table)
