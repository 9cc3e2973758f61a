"""The network: embeddings and numbers, two hidden layers, ReLU; several of them side by side.

An ensemble's members never interact, so their weights are stacked in one tensor a layer and all of
them run in one batched matrix product: on a CPU that is several times faster than one by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

EMBEDDING = 8
_TOGETHER = 1 << 12
"""Members times rows that go through all layers at once: their hidden units stay in the processor's
cache."""


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of a network."""

    numeric: int  # number of numeric inputs
    cardinalities: tuple[int, ...]  # of each category's vocabulary, out-of-vocabulary included
    hidden: tuple[int, ...]  # sizes of the hidden layers
    outputs: int  # number of outputs
    members: int  # number of networks

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of all layers: what goes in, what comes out of each."""
        return (self.numeric + EMBEDDING * len(self.cardinalities), *self.hidden, self.outputs)

    @property
    def weights(self) -> int:
        """Numbers that are learned."""
        layers = sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(self.sizes))
        return self.members * (EMBEDDING * sum(self.cardinalities) + layers)


@dataclass(frozen=True)
class Dropout:
    """What is dropped from a batch of which only some rows are at hand."""

    generator: torch.Generator  # draws for the whole batch: it does not matter who has which rows
    batch: int  # rows of the whole batch
    rows: slice  # those at hand


EVERYBODY = slice(None)
"""All members."""


class Learned(nn.Module):
    """From encoded rows, (n, F) numbers and (n, C) categories, to (M, n, p) outputs of members;
    ``members=`` asks some of them alone."""

    kind: str  # what a saved model calls it
    shape: Any  # a dataclass of its sizes


class Ensemble(Learned):
    """Independently initialised networks of one shape, evaluated together."""

    kind = "networks"

    def __init__(
        self, shape: NetworkShape, generator: torch.Generator, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.shape = shape
        self.dropout = dropout
        members = shape.members
        total = sum(shape.cardinalities)
        table = torch.randn(members * total, EMBEDDING, generator=generator) * 0.1
        # without categories the table is empty and never used; nobody may wait for its gradient
        self.embeddings = nn.Parameter(table, requires_grad=total > 0)
        starts = torch.tensor([0, *shape.cardinalities], dtype=torch.int64).cumsum(0)[:-1]
        offsets = starts + total * torch.arange(members)[:, None]
        self.offsets: Tensor
        self.register_buffer("offsets", offsets[:, None, :], persistent=False)
        sizes = shape.sizes
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            last = index == len(sizes) - 2
            # He initialisation; the last layer starts near 0, where every head is the prior's fit.
            scale = (0.1 if last else 1.0) * math.sqrt(2.0 / max(fan_in, 1))
            weight = torch.randn(members, fan_in, fan_out, generator=generator) * scale
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, fan_out)))

    def only(self, outputs: slice) -> Ensemble:
        """The networks with some of their outputs; all layers but the last are the same."""
        count = len(range(self.shape.outputs)[outputs])
        if count == self.shape.outputs:
            return self
        part = Ensemble(replace(self.shape, outputs=count), torch.Generator().manual_seed(0))
        state = self.state_dict()
        for name in (f"weights.{len(self.weights) - 1}", f"biases.{len(self.biases) - 1}"):
            state[name] = state[name][..., outputs]
        part.load_state_dict(state)
        return part.to(self.embeddings.device)

    def joined(self, other: Ensemble) -> Ensemble | None:
        """The networks with another's outputs behind their own, if nothing but these is apart."""
        ours, theirs = self.state_dict(), other.state_dict()
        last = [f"{kind}.{len(self.weights) - 1}" for kind in ("weights", "biases")]
        alone = replace(other.shape, outputs=self.shape.outputs) != self.shape
        if alone or not all(torch.equal(ours[n], theirs[n]) for n in ours if n not in last):
            return None
        shape = replace(self.shape, outputs=self.shape.outputs + other.shape.outputs)
        both = Ensemble(shape, torch.Generator().manual_seed(0))
        both.load_state_dict(
            {**ours, **{name: torch.cat([ours[name], theirs[name]], dim=-1) for name in last}}
        )
        return both.to(self.embeddings.device)

    def followed_by(self, other: Ensemble) -> Ensemble:
        """The networks, and another's of the same shape after them."""
        ours, theirs = self.state_dict(), other.state_dict()
        shape = replace(self.shape, members=self.shape.members + other.shape.members)
        both = Ensemble(shape, torch.Generator().manual_seed(0))
        both.load_state_dict({name: torch.cat([ours[name], theirs[name]]) for name in ours})
        return both.to(self.embeddings.device)

    def forward(
        self,
        numeric: Tensor,
        categories: Tensor,
        dropout: Dropout | None = None,
        members: slice = EVERYBODY,
    ) -> Tensor:
        """(M, B, p) outputs of every member: of (M, B, F) or (1, B, F) float32 numbers, and of
        (M, B, C) or (1, B, C) int64 vocabulary indices."""
        weights, biases, offsets = [*self.weights], [*self.biases], self.offsets
        if members != EVERYBODY:
            weights, biases = ([each[members] for each in layers] for layers in (weights, biases))
            offsets = offsets[members]
        together = [numeric.expand(len(offsets), -1, -1)]
        if self.shape.cardinalities:
            together += [nn.functional.embedding(categories + offsets, self.embeddings).flatten(2)]
        rows = max(1, _TOGETHER // len(offsets))
        if torch.compiler.is_compiling() or dropout is not None or numeric.shape[1] <= rows:
            return self._layers(together, weights, biases, dropout)
        starts = range(0, numeric.shape[1], rows)
        parts = ([each[:, start : start + rows] for each in together] for start in starts)
        return torch.cat([self._layers(part, weights, biases) for part in parts], dim=1)

    def _layers(
        self,
        inputs: Sequence[Tensor],
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        dropout: Dropout | None = None,
    ) -> Tensor:
        """(M, B, p) outputs for (M, B, F) numbers and (M, B, E) embeddings, if there are any."""
        numbers, *embedded = inputs
        hidden = torch.baddbmm(biases[0], numbers, weights[0][:, : self.shape.numeric])
        for each in embedded:
            # apart from the numbers, whose gradients, most of a layer's work, nobody needs
            hidden.baddbmm_(each, weights[0][:, self.shape.numeric :])
        for weight, bias in zip(weights[1:], biases[1:], strict=True):
            hidden = torch.baddbmm(bias, self._drop(torch.relu_(hidden), dropout), weight)
        return hidden

    def _drop(self, hidden: Tensor, dropout: Dropout | None) -> Tensor:
        if dropout is None or self.dropout == 0:
            return hidden
        shape = (hidden.shape[0], dropout.batch, hidden.shape[2])
        drawn = torch.rand(shape, generator=dropout.generator, device=hidden.device)
        keep = drawn[:, dropout.rows] >= self.dropout
        return hidden * keep / (1 - self.dropout)
