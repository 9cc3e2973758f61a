"""A trained model: encoder, ensembles and how their distributions are mixed; saved as two files."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from pickletools import genops
from typing import Any

import numpy as np
import polars as pl
import torch
from pydantic import TypeAdapter

from labelveil.common.arrays import Booleans, Floats
from labelveil.common.errors import DataError, LabelveilError
from labelveil.common.files import PUBLIC, appearing, write_text
from labelveil.common.formats import MODEL, Format
from labelveil.common.version import software
from labelveil.feature_party.learning.heads import LinearHead, MeanHead
from labelveil.feature_party.learning.objectives import (
    LikelihoodObjective,
    Objective,
    build_objective,
)
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.sources import own_cells, own_labels
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.columns import columns, quantile
from labelveil.feature_party.model.encoding import Encoded, Encoder
from labelveil.feature_party.model.facts import ModelFacts
from labelveil.feature_party.model.network import EVERYBODY, Ensemble, Learned, NetworkShape
from labelveil.feature_party.model.random_features import RandomFeatures, RandomFeaturesShape
from labelveil.feature_party.model.reach import Reach
from labelveil.feature_party.model.trees import Trees, TreesShape
from labelveil.feature_party.tables import SOURCE, Table, collect_table

MODEL_FILE = "model.json"
WEIGHTS_FILE = "weights.pt"
_EVALUATION_ROWS = 4096

_MAKING = {"GLOBAL", "STACK_GLOBAL", "INST"}
_MAKERS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch FloatStorage",
    "torch DoubleStorage",
    "torch LongStorage",
}
"""What a file of weights may call: nothing that makes more of a number than is in the file."""


@contextmanager
def undamaged(what: str, remedy: str) -> Iterator[None]:
    """Say in one line that a file is damaged.

    JSON, zip, pickle and torch have errors of a dozen kinds for it. That of an empty file,
    ``EOFError``, would end a command as if somebody had pressed a key.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # torch's, about what it goes on to refuse
            yield
    except LabelveilError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{what} is damaged ({reason:.200}); {remedy}") from error


@contextmanager
def described(directory: Path, kind: Format) -> Iterator[dict[str, Any]]:
    """What ``model.json`` in a folder says, and in one line whatever is found wrong with it.

    ``DataError`` if there is none, it is of another kind, or something in it or beside it is
    damaged.
    """
    path = directory / MODEL_FILE
    if not path.is_file():
        raise DataError(f"{directory} holds no trained model; run feature-party train first")
    remedy = "train it again"
    with undamaged(f"the model in {directory}", remedy):
        data = json.loads(path.read_text(encoding="utf-8"))
        made_by, older = data.get("software"), f"{remedy}, or use the version that made it"
        stated = data["format"]
        kind.check(stated, str(path), DataError, made_by=made_by, older=older)
    with undamaged(f"the model in {directory}", remedy):
        yield data


def save_tensors(state: Any, path: Path) -> None:
    """Write what ``torch.load`` reads; torch itself has no name for a disk that is full."""
    buffer = BytesIO()
    torch.save(state, buffer)
    with appearing(path, mode=PUBLIC) as file:
        file.write(buffer.getbuffer())


def load_states(path: Path, device: torch.device | str) -> list[dict[str, torch.Tensor]]:
    """Read the weights that :func:`save_tensors` wrote, in the memory of their file's size.

    ``ValueError`` if they claim more: compressed, repeated without being there, or made by
    anything but what a list of tensors needs.
    """
    most = path.stat().st_size
    with zipfile.ZipFile(path) as kept:
        stored = {info.filename: info.file_size for info in kept.infolist()}
        if sum(stored.values()) > most:
            raise ValueError(f"{most:,} bytes claim to hold {sum(stored.values()):,}")
        (said,) = (name for name in stored if name.endswith("/data.pkl"))
        # before any of it is run: what a pickle would call
        made_by = {str(arg) for op, arg, _ in genops(kept.read(said)) if op.name in _MAKING}
    if not made_by <= _MAKERS:
        raise ValueError(f"weights are not made by {min(made_by - _MAKERS):.60}")
    states: list[dict[str, torch.Tensor]] = torch.load(path, map_location=device, weights_only=True)
    for tensor in (tensor for state in states for tensor in state.values()):
        if tensor.numel() * tensor.element_size() > min(tensor.untyped_storage().nbytes(), most):
            raise ValueError(f"{tensor.numel():,} weights are not all there")
    return states


Shape = NetworkShape | TreesShape | RandomFeaturesShape


@dataclass
class Expert:
    """One trained candidate."""

    objective: Objective  # what it was trained for, which gives its outputs their meaning
    # networks, boosted trees, ridges on random features, or networks without hidden layers
    learned: Learned
    weight: float  # share of the mixture; the weights of a model's experts sum to 1


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for (n,) rows: the label's mean, or of the absolute loss its median."""

    points: Floats
    distributions: Floats | None  # (n, m) of the support's cells; None of a model of points alone

    def select(self, rows: Booleans) -> Predictions:
        """Those of some rows."""
        distributions = None if self.distributions is None else self.distributions[rows]
        return Predictions(self.points[rows], distributions)


@dataclass(repr=False, eq=False)
class Model:
    """Everything prediction needs.

    The experts all give distributions, or there is just one. Their mixture is multiplied by the
    (m,) factors ``adjustment`` and normalised. Where there is a ``reach``, the last expert's word
    limits the mixture before that. Of one source among several, see :meth:`of`, the
    (m, m') matrix ``cells`` leads from their cells to those of the support.
    """

    encoder: Encoder  # from a features table to the experts' inputs
    problem: LabelProblem  # the release's public facts
    support: Support  # cells of predicted distributions
    experts: Sequence[Expert]  # what was trained
    facts: ModelFacts  # what is known about the training run
    shrinkage: float = 0.0  # share of the released prior in every distribution, 0 … 1
    adjustment: Floats | None = None
    reach: Reach | None = None
    cells: Floats | None = None

    def __repr__(self) -> str:
        what, inputs = self.facts.head or self.facts.objective, len(self.encoder.columns)
        return f"<Model: {what}; {inputs} features, {self.facts.training_rows:,} events>"

    @property
    def sources(self) -> tuple[str, ...]:
        """The labels parties that it predicts for, if it has learned from several."""
        return tuple(source.name for source in self.problem.sources)

    @property
    def key(self) -> str:
        """Column of the events' keys in the training."""
        return self.facts.key

    def for_source(self, source: str) -> Model:
        """The model of one labels party's labels, in their units; itself if there is just one, and
        ``ConfigError`` if it has not learned from this one."""
        if not source and not self.sources:
            return self
        scales, _ = self.problem.source(source)
        problem = own_labels(self.problem, source)
        support, cells = own_cells(self.problem, self.support, source, problem)
        return replace(
            self,
            encoder=replace(self.encoder, given=((SOURCE, source),)),
            problem=problem,
            support=support,
            experts=[
                replace(one, objective=one.objective.moved(scales.location, scales.scale))
                for one in self.experts
            ],
            cells=cells,
        )

    @property
    def has_distributions(self) -> bool:
        """Whether predictions come with intervals."""
        return all(expert.objective.name == "likelihood" for expert in self.experts)

    def reaches(self, value: float) -> bool:
        """Whether a label may be above a value, and may not."""
        return bool(self.problem.grid[0] <= value < self.problem.grid[-1])

    def predict(
        self,
        features: Table,
        interval: float | None = None,
        quantiles: Sequence[float] = (),
        above: Sequence[float] = (),
    ) -> pl.DataFrame:
        """Predict labels for a polars, pandas or lazy table, or a path; extra columns are ignored.

        Rows, in order, have a ``prediction`` and, of a model that gives distributions, the columns
        of :func:`labelveil.feature_party.model.columns.columns`, which takes the other arguments.
        """
        predicted = self.distributions(self.encoder.encode(collect_table(features)))
        table = {"prediction": predicted.points}
        if predicted.distributions is not None:
            given = predicted.distributions, interval, quantiles, above
            table |= columns(self.problem, self.support, *given)
        return pl.DataFrame(table)

    @torch.no_grad()
    def distributions(self, inputs: Encoded, members: slice = EVERYBODY) -> Predictions:
        """Predict encoded rows: points, and distributions where the objective gives them.

        ``members`` are the networks of each ensemble that take part; of a learner that has fewer
        members, one for each fold, those of the same folds.
        """
        points, parts = [], []
        device = next(self.experts[0].learned.parameters()).device
        for start in range(0, max(len(inputs), 1), _EVALUATION_ROWS):
            part = slice(start, start + _EVALUATION_ROWS)
            numeric = torch.as_tensor(inputs.numeric[part], device=device)[None]
            categories = torch.as_tensor(inputs.categories[part].astype(np.int64), device=device)[
                None
            ]
            mixed: torch.Tensor | None = None
            for expert, raw in self._asked(numeric, categories, members):
                # a head's logits are large numbers that nearly cancel: single precision would show
                raw = raw.double()
                law = _mean_law(expert.objective, raw)
                if law is None:
                    points.append(expert.objective.points(raw).mean(dim=0).cpu().numpy())
                    continue
                last = law
                mixed = expert.weight * last if mixed is None else mixed + expert.weight * last
            if mixed is not None:
                mixed = mixed.cpu()
                mixed = mixed if self.reach is None else self.reach(mixed, last.cpu())
                parts.append(mixed.numpy())
        if not parts:
            return Predictions(np.concatenate(points), None)
        probabilities_ = np.concatenate(parts)
        if self.adjustment is not None:
            probabilities_ = probabilities_ * self.adjustment
            probabilities_ /= probabilities_.sum(axis=1, keepdims=True)
        if self.cells is not None:
            probabilities_ = probabilities_ @ self.cells
        nothing = self.shrinkage * self.support.released
        probabilities_ = (1 - self.shrinkage) * probabilities_ + nothing
        if self.problem.loss == "absolute":
            return Predictions(quantile(self.support, probabilities_, 0.5), probabilities_)
        return Predictions(probabilities_ @ self.support.values, probabilities_)

    def _asked(
        self, numeric: torch.Tensor, categories: torch.Tensor, members: slice
    ) -> list[tuple[Expert, torch.Tensor]]:
        """Every expert, in their order, with its (M, B, p) outputs."""
        found: dict[int, torch.Tensor] = {}
        for learned, experts in self._learned:
            asked = _same_folds(members, learned.shape.members, self.facts.settings.members)
            raw, at = learned(numeric, categories, members=asked), 0
            for expert in experts:
                outputs = expert.learned.shape.outputs
                found[id(expert)] = raw[..., at : at + outputs]
                at += outputs
        return [(expert, found[id(expert)]) for expert in self.experts]

    @cached_property
    def _learned(self) -> list[tuple[Learned, list[Expert]]]:
        """What is asked, and the experts that its outputs are of, one after another.

        Laws that were trained on the same hidden layers are asked together.
        """
        found: list[tuple[Learned, list[Expert]]] = []
        for expert in self.experts:
            learned = expert.learned.eval()
            for place, (other, experts) in enumerate(found):
                if isinstance(learned, Ensemble) and isinstance(other, Ensemble):
                    both = other.joined(learned)
                    if both is not None:
                        found[place] = both.eval(), [*experts, expert]
                        break
            else:
                found.append((learned, [expert]))
        return found

    def save(self, directory: Path) -> None:
        """Write ``model.json`` and ``weights.pt``; the former comes last."""
        directory.mkdir(parents=True, exist_ok=True)
        save_tensors([e.learned.state_dict() for e in self.experts], directory / WEIGHTS_FILE)
        experts = [
            {
                "objective": expert.objective.name,
                "head": expert.objective.head,
                "weight": expert.weight,
                "learner": expert.learned.kind,
                "shape": asdict(expert.learned.shape),
                "tilts": _tilts(expert.objective),
            }
            for expert in self.experts
        ]
        data = {
            "format": str(MODEL),
            "software": software(),
            "encoder": self.encoder.to_json(),
            "problem": self.problem.to_json(),
            "experts": experts,
            "shrinkage": self.shrinkage,
            "adjustment": None if self.adjustment is None else self.adjustment.tolist(),
            "reach": None if self.reach is None else self.reach.to_json(),
            "facts": self.facts.model_dump(),
        }
        write_text(directory / MODEL_FILE, json.dumps(data))

    @classmethod
    def load(cls, directory: Path, device: torch.device | str = "cpu") -> Model:
        """Read a saved model; errors as of :func:`described`."""
        with described(directory, MODEL) as data:
            problem = LabelProblem.from_json(data["problem"])
            support = Support.from_problem(problem)
            states = load_states(directory / WEIGHTS_FILE, device)
            encoder = Encoder.from_json(data["encoder"])
            experts = [
                _expert(entry, state, encoder, problem, support, torch.device(device))
                for entry, state in zip(data["experts"], states, strict=True)
            ]
            if not experts:
                raise ValueError("no networks or trees")
            share = float(data["shrinkage"])
            stored = data["adjustment"]
            adjustment = None if stored is None else np.asarray(stored, np.float64)
            if adjustment is not None and adjustment.shape != support.prior.shape:
                raise ValueError(f"{adjustment.size} factors for {support.size} cells")
            facts = ModelFacts.model_validate(data["facts"])
            reach = None if data["reach"] is None else Reach.from_json(support, data["reach"])
            model = cls(encoder, problem, support, experts, facts, share, adjustment, reach)
            points = model.predict(encoder.unknown())["prediction"]  # what fails later fails here
            if not points.is_finite().all():
                raise ValueError(f"it predicts {points[0]}")
        return model


def _mean_law(objective: Objective, raw: torch.Tensor) -> torch.Tensor | None:
    """(B, m) mean of the members' distributions for (M, B, p) outputs; None of points alone.

    One member after another: what they say of all cells at once leaves the processor's cache.
    """
    total: torch.Tensor | None = None
    for member in raw:
        law = objective.distributions(member)
        if law is None:
            return None
        total = law if total is None else total + law
    return None if total is None else total / len(raw)


def _same_folds(members: slice, few: int, most: int) -> slice:
    """Of ``few`` members those that left out what ``members`` of ``most`` did."""
    if members == EVERYBODY:
        return members
    return slice(members.start * few // most, members.stop * few // most)


def _tilts(objective: Objective) -> list[list[float]] | None:
    """What a head owes to the channel, which a saved model need not have any more."""
    family = objective.family if isinstance(objective, LikelihoodObjective) else None
    if isinstance(family, MeanHead):
        return family.axis[:, None].tolist()
    if not isinstance(family, LinearHead) or family.name not in ("canonical", "joint"):
        return None
    return None if family.statistics is None else family.statistics.T.tolist()


def _expert(
    entry: dict[str, Any],
    state: dict[str, torch.Tensor],
    encoder: Encoder,
    problem: LabelProblem,
    support: Support,
    device: torch.device,
) -> Expert:
    learned: Learned
    kinds: dict[str, type[Shape]] = {
        Trees.kind: TreesShape,
        RandomFeatures.kind: RandomFeaturesShape,
    }
    kind = kinds.get(entry["learner"], NetworkShape)
    shape: Shape = TypeAdapter(kind).validate_python(entry["shape"])
    # before room is made for weights, or an input is looked up among them
    there = sum(weights.numel() for weights in state.values())
    if shape.weights != there or shape.cardinalities != encoder.cardinalities:
        raise ValueError(f"{there:,} weights for a shape of {shape.weights:,}")
    if not isinstance(shape, NetworkShape) and shape.inputs != encoder.plain_inputs:
        raise ValueError(f"{len(shape.inputs):,} inputs that are not the encoder's")
    if isinstance(shape, TreesShape):
        learned = Trees(shape)
    elif isinstance(shape, RandomFeaturesShape):
        learned = RandomFeatures(shape)
    else:
        learned = Ensemble(shape, torch.Generator().manual_seed(0))
    learned.to(device).load_state_dict(state)
    if not isinstance(learned, Ensemble):
        learned.check()
    stored = entry["tilts"]
    tilts = None if stored is None else np.array(stored)
    objective = build_objective(entry["objective"], problem, support, entry["head"], tilts)
    objective.to(device)
    return Expert(objective, learned, float(entry["weight"]))
