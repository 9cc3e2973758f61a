"""Objectives: what is minimised over the network's outputs, and what they predict.

``likelihood``
    −ln Σ_y K[y, z] q(y | x), through a head. Columns of K are divided by their maximum, which
    changes the loss by a constant and keeps every factor within [e^−ε, 1]: nothing underflows.
``debiased``
    the loss against decoding values u_z, unbiased for the label where the channel allows it.
``raw``
    the loss against the values that the outputs stand for, as published.
``true``
    the loss against true labels: the reference that no release can reach.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.heads import Head, LinearHead, build_head, canonical_tilts
from labelveil.feature_party.learning.law_table import LawTable
from labelveil.feature_party.learning.names import OBJECTIVE_NAMES
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.several_labels import joint_support
from labelveil.feature_party.learning.support import Support


class Evaluated(NamedTuple):
    """What outputs predict of (…,) rows: ``estimates`` are of what the codes should say of a mean
    under the predicted distributions (0 without any)."""

    losses: Tensor
    points: Tensor
    estimates: Tensor
    distributions: Tensor | None


class Objective(ABC):
    """A loss over p network ``outputs`` and rows, and the prediction they make.

    ``name`` and ``head`` are as in the configuration, the latter empty where there is none.
    ``cells`` is the number m of the support's cells, 0 for point predictions.
    """

    name: str
    head: str = ""
    outputs: int = 1
    cells: int = 0

    @property
    def components(self) -> Sequence[tuple[Objective, slice]]:
        """The objectives that predict, and each one's outputs."""
        return [(self, slice(None))]

    @abstractmethod
    def targets(self, codes: NDArray[np.integer]) -> Tensor:
        """What the loss needs of each row, (n,), for its code."""

    @abstractmethod
    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """Loss of each row, (…,), for (…, p) outputs and (…,) targets."""

    def quick_loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """The same, as exactly as training needs it."""
        return self.loss(raw, targets)

    def average_loss(self, raw: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
        """(G, n) losses of the average prediction of each group of g members.

        From their (G, g, n, p) outputs and (G, g, n) losses; (G, n) targets are the same for all.
        """
        return self.loss(raw.mean(dim=1), targets)

    @abstractmethod
    def distributions(self, raw: Tensor) -> Tensor | None:
        """(…, m) probabilities of the support's cells, or None for a point prediction."""

    @abstractmethod
    def points(self, raw: Tensor) -> Tensor:
        """(…,) point predictions of a single network, in label units."""

    def evaluate(self, raw: Tensor, targets: Tensor) -> Evaluated:
        """Everything at once, of (…, p) outputs and (…,) targets."""
        losses, points = self.loss(raw, targets), self.points(raw)
        return Evaluated(losses, points, torch.zeros_like(points), self.distributions(raw))

    def moved(self, location: float, scale: float) -> Objective:
        """The same objective, with points for labels location + scale · y."""
        return self

    def to(self, device: torch.device) -> Objective:
        for name, value in vars(self).items():
            if isinstance(value, Tensor | Head):
                setattr(self, name, value.to(device))
        return self


class SharedObjective(Objective):
    """Several laws at once, each with outputs of its own on hidden layers that all of them share.

    What a network must find in the features to predict under one law serves the others, too: one
    training instead of several. Its loss is the average of theirs.
    """

    name = "likelihood"

    def __init__(self, laws: Sequence[Objective]) -> None:
        self.laws = tuple(laws)
        self.head = "+".join(law.head for law in laws)
        ends = itertools.accumulate((law.outputs for law in laws), initial=0)
        self.places = [slice(*pair) for pair in itertools.pairwise(ends)]
        self.outputs, self.cells = self.places[-1].stop, laws[0].cells

    @property
    def components(self) -> Sequence[tuple[Objective, slice]]:
        return list(zip(self.laws, self.places, strict=True))

    def targets(self, codes: NDArray[np.integer]) -> Tensor:
        return self.laws[0].targets(codes)

    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([law.loss(raw[..., at], targets) for law, at in self.components]).mean(0)

    def quick_loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        losses = [law.quick_loss(raw[..., at], targets) for law, at in self.components]
        return torch.stack(losses).mean(0)

    def distributions(self, raw: Tensor) -> Tensor | None:
        """The laws' equal mixture, where each of them is a distribution."""
        laws = [law.distributions(raw[..., at]) for law, at in self.components]
        known = [law for law in laws if law is not None]
        return torch.stack(known).mean(0) if len(known) == len(laws) else None

    def points(self, raw: Tensor) -> Tensor:
        """The average of theirs."""
        return torch.stack([law.points(raw[..., at]) for law, at in self.components]).mean(0)

    def to(self, device: torch.device) -> Objective:
        self.laws = tuple(law.to(device) for law in self.laws)
        return self


class _TabulatedLoss(torch.autograd.Function):
    """A table's (…,) losses for (…, p) outputs; its slopes are the gradient."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, targets: Tensor, table: LawTable) -> Tensor:
        losses, slopes = table.slopes(raw.reshape(-1, table.outputs), targets.reshape(-1))
        ctx.save_for_backward(slopes.view(raw.shape))
        return losses.view(targets.shape)

    @staticmethod
    def backward(ctx: Any, *along: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * along[0][..., None], None, None


class LikelihoodObjective(Objective):
    """Forward-corrected negative log likelihood of the codes."""

    name = "likelihood"

    def __init__(self, problem: LabelProblem, support: Support, head: Head) -> None:
        self.head, self.family, self.outputs = head.name, head, head.outputs
        self.support, self.cells = support, support.size
        self._scale(support)
        self.values = torch.as_tensor(support.values, dtype=torch.float32)
        self._table: LawTable | None = None

    def _scale(self, support: Support) -> None:
        """Measure the likelihood of each code by its largest under a support."""
        largest = support.likelihood.max(axis=0)
        factors = (self.support.likelihood / largest).T
        self.factors = torch.as_tensor(factors.copy(), dtype=torch.float32)
        self.log_largest = torch.as_tensor(np.log(largest), dtype=torch.float32)

    def table(self) -> LawTable | None:
        """Its derivatives, made once and kept until it is dropped: networks, linear models and
        trees learn from the same. None if a table does not serve its law.

        A table has a hundred megabytes where channels have many outputs.
        """
        support = self.support
        if self._table is None and LawTable.serves(self.family, support.likelihood.shape[1]):
            of_channels = support.channel_of, support.shares
            self._table = LawTable(self.family, support.likelihood, *of_channels)
        return self._table

    def drop_table(self) -> None:
        """Free its memory, once nothing learns from it any more."""
        self._table = None

    def evaluate(self, raw: Tensor, targets: Tensor) -> Evaluated:
        probabilities = self.family.probabilities(raw)
        of_cells = torch.as_tensor(self.support.estimates.expected, dtype=raw.dtype).to(raw.device)
        through = torch.as_tensor(self.support.channel_of).to(raw.device)[targets]
        expected = (probabilities @ of_cells).gather(-1, through[..., None])[..., 0]
        losses, law = self._losses(probabilities, targets), self._of_label(probabilities)
        return Evaluated(losses, law @ self.values, expected, law)

    def targets(self, codes: NDArray[np.integer]) -> Tensor:
        return torch.as_tensor(codes.astype(np.int64))

    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        return self._losses(self.family.probabilities(raw), targets)

    def _losses(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        factors = self.factors.index_select(0, targets.reshape(-1)).view(*targets.shape, -1)
        return -torch.log((probabilities * factors).sum(-1))

    def quick_loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        table = self.table()
        if table is None:
            return self.loss(raw, targets)
        losses: Tensor = _TabulatedLoss.apply(raw, targets, table)  # type: ignore[no-untyped-call]
        return losses + self.log_largest.index_select(0, targets.reshape(-1)).view(targets.shape)

    def average_loss(self, raw: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
        # the likelihood is linear in q, so that of the average is the average
        return math.log(losses.shape[1]) - torch.logsumexp(-losses, dim=1)

    def distributions(self, raw: Tensor) -> Tensor:
        return self._of_label(self.family.probabilities(raw))

    def _of_label(self, probabilities: Tensor) -> Tensor:
        """What a law of the family says of the label that is predicted."""
        return probabilities

    def points(self, raw: Tensor) -> Tensor:
        return self.distributions(raw) @ self.values


class JointObjective(LikelihoodObjective):
    """The same under a law of all labels that are sent together, of which it predicts one.

    Canonical tilts of the cells are what the channel tells of all labels, and of how they belong
    together. Of few cells each has a logit of its own.
    """

    def __init__(
        self, problem: LabelProblem, support: Support, tilts: Floats | None = None
    ) -> None:
        joint, belongs = joint_support(problem, support)
        if not joint.discrete and tilts is None:
            tilts = canonical_tilts(joint.prior, joint.likelihood)
        super().__init__(problem, joint, LinearHead("joint", np.log(joint.prior), tilts))
        self.cells = support.size
        # scaled as they are for laws of the label alone, so that losses compare
        self._scale(support)
        self.values = torch.as_tensor(support.values, dtype=torch.float32)
        self.merged = torch.as_tensor(np.eye(support.size)[belongs], dtype=torch.float32)

    def _of_label(self, probabilities: Tensor) -> Tensor:
        return probabilities @ self.merged.to(probabilities.dtype)


@dataclass(eq=False)
class PointObjective(Objective):
    """A loss between one output and one target value a row."""

    name: str
    kind: str
    # (d,) target of each code, in label units; empty when targets are given as values
    decoded: Floats
    centre: float
    scale: float
    lower: float
    upper: float
    outputs: int = 1
    head: str = ""

    def targets(self, codes: NDArray[np.integer]) -> Tensor:
        return self.value_targets(self.decoded[codes])

    def value_targets(self, values: Floats) -> Tensor:
        """Standardised targets for true label values, (n,)."""
        if self.kind == "poisson":
            return torch.as_tensor(values / self.scale, dtype=torch.float32)
        return torch.as_tensor((values - self.centre) / self.scale, dtype=torch.float32)

    @cached_property
    def _log_bounds(self) -> tuple[float, float]:
        # Decoded counts may be negative; an unbounded log rate would then run away.
        top = max(self.upper / self.scale, 1.0)
        return float(np.log(1e-3)), float(np.log(2 * top))

    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        output = raw[..., 0]
        if self.kind == "poisson":
            bounded = output.clamp(*self._log_bounds)
            return torch.exp(bounded) - targets * bounded
        if self.kind == "absolute":
            return (output - targets).abs()
        return (output - targets) ** 2

    def moved(self, location: float, scale: float) -> Objective:
        centre, lower, upper = (
            location + scale * place for place in (self.centre, self.lower, self.upper)
        )
        return replace(self, centre=centre, scale=scale * self.scale, lower=lower, upper=upper)

    def distributions(self, raw: Tensor) -> None:
        return None

    def points(self, raw: Tensor) -> Tensor:
        output = raw[..., 0]
        if self.kind == "poisson":
            return torch.exp(output.clamp(*self._log_bounds)) * self.scale
        return output * self.scale + self.centre


def build_objective(
    name: str,
    problem: LabelProblem,
    support: Support,
    head: str | None = None,
    tilts: Floats | None = None,
) -> Objective:
    """Build one of ``OBJECTIVE_NAMES`` for a problem, and a support of its predictions.

    ``head`` is the likelihood's, gaussian by default; other objectives ignore it. ``tilts`` are
    those of a canonical head, or of a law of several labels, that has been trained. ``ConfigError``
    for an unknown name, or a head that the labels have no use for.
    """
    if name == "likelihood" and head == "joint":
        if problem.joint_values is None:
            raise ConfigError(
                "head='joint' is for labels that one channel sends together; use auto"
            )
        return JointObjective(problem, support, tilts)
    if name == "likelihood":
        return LikelihoodObjective(problem, support, build_head(head or "gaussian", support, tilts))
    grid = problem.grid
    if name == "true":
        decoded, kind = np.zeros(0), problem.loss
    elif name == "raw":
        decoded, kind = problem.outputs, problem.loss
    elif name == "debiased":
        decoded = decoder(problem, grid).values[:, 0]
        # A decoded value is unbiased for the label, so its mean is what can be learned; the
        # absolute distance to it means nothing.
        kind = "squared" if problem.loss == "absolute" else problem.loss
    else:
        raise ConfigError(f"objective={name!r} must be auto or one of {', '.join(OBJECTIVE_NAMES)}")
    scale = max(problem.mean, 1e-9) if kind == "poisson" else problem.deviation
    return PointObjective(name, kind, decoded, problem.mean, scale, float(grid[0]), float(grid[-1]))
