"""Ridges on random Fourier features: they predict, are saved and exported without what taught them.

An output is linear in the numeric columns x, in what each category adds, and in D waves
``cos(x·ω_j + w_j + φ_j)``: ω_j, and w_j, the sum of one number for each category's value, are what
frequencies and scales of columns make together. Members of one group have the same waves.

Source: Rahimi and Recht, *Random Features for Large-Scale Kernel Machines*, NeurIPS 2007.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labelveil.feature_party.model.network import EVERYBODY, Learned


@dataclass(frozen=True)
class RandomFeaturesShape:
    """Sizes of ridges on random features."""

    inputs: tuple[int, ...]  # numeric ones that are learned from
    cardinalities: tuple[int, ...]  # of each category's vocabulary, out-of-vocabulary included
    waves: int
    outputs: int  # number of outputs
    groups: tuple[int, ...]  # members of each, side by side

    @property
    def members(self) -> int:
        return sum(self.groups)

    @property
    def columns(self) -> int:
        """Numeric inputs, and values of all categories."""
        return len(self.inputs) + sum(self.cardinalities)

    @property
    def weights(self) -> int:
        """Numbers that are learned, and drawn."""
        of_outputs = self.members * self.outputs * (1 + self.columns + self.waves)
        return len(self.groups) * self.waves * (1 + self.columns) + of_outputs


class RandomFeatures(Learned):
    """Linear outputs of several members, of columns and of waves along them."""

    kind = "kernel"

    def __init__(self, shape: RandomFeaturesShape) -> None:
        super().__init__()
        self.shape = shape
        groups, members, outputs = len(shape.groups), shape.members, shape.outputs
        # of numeric inputs, then of each value of each category
        self.frequencies = _kept(groups, shape.columns, shape.waves)
        self.phases = _kept(groups, shape.waves)
        self.slopes = _kept(members, shape.columns, outputs)
        self.of_waves = _kept(members, shape.waves, outputs)
        self.biases = _kept(members, 1, outputs)
        self.inputs: Tensor
        self.register_buffer("inputs", torch.tensor(shape.inputs, dtype=torch.int64), False)
        starts = torch.tensor([len(shape.inputs), *shape.cardinalities]).cumsum(0)[:-1].clone()
        self.starts: Tensor
        self.register_buffer("starts", starts, False)

    def check(self) -> None:
        """Raise ``ValueError`` for a number that is none, or a group of no member."""
        if min(self.shape.groups, default=0) < 1:
            raise ValueError(f"groups of {self.shape.groups} members")
        if not all(weights.isfinite().all() for weights in self.parameters()):
            raise ValueError("a weight is no finite number")

    def forward(self, numeric: Tensor, categories: Tensor, members: slice = EVERYBODY) -> Tensor:
        """(M, B, p) outputs for (1, B, F) float32 numbers and (1, B, C) int64 vocabulary indices;
        of some members alone."""
        columns, values = numeric[0][:, self.inputs], categories[0]
        shape, raw = self.shape, list[Tensor]()
        for group, mine in enumerate(torch.split(self.of_waves, shape.groups)):
            raw.append(self.waves(group, columns, values) @ mine)
        found = torch.cat(raw)[members] + self.biases[members]
        slopes, width = self.slopes[members], len(shape.inputs)
        found = found + columns @ slopes[:, :width]
        return found + slopes[:, values + self.starts].sum(dim=2) if shape.cardinalities else found

    def waves(self, group: int, columns: Tensor, values: Tensor) -> Tensor:
        """(B, D) waves of a group, of (B, q) numeric columns and (B, C) vocabulary indices."""
        # far out a wave has many turns behind it, of which single precision loses the last
        frequencies = self.frequencies[group].double()
        angles = columns.double() @ frequencies[: len(self.shape.inputs)] + self.phases[group]
        if self.shape.cardinalities:
            angles = angles + nn.functional.embedding(values + self.starts, frequencies).sum(dim=1)
        return torch.cos(angles).to(columns.dtype)


def _kept(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape), requires_grad=False)
