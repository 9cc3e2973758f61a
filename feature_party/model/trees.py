"""Boosted trees as tensors: they predict, are saved and are exported without LightGBM.

Every node says which input it asks, a threshold, and two branches: one for inputs up to the
threshold, one for those above. A leaf branches to itself, so that all rows take the same number of
steps through all trees at once. (hummingbird-ml compiles trees, too; it would bring scikit-learn,
psutil, dill and onnxconverter-common to everybody who predicts, for what is a screen here.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feature_party.model.network import Learned

_NODES = 1 << 17
"""Nodes that are asked at once: a megabyte, most of which stays in a cache."""


@dataclass(frozen=True)
class TreesShape:
    """Sizes of boosted trees."""

    inputs: tuple[int, ...]  # numeric ones that may be asked; then come the categories' encodings
    cardinalities: tuple[int, ...]  # of each category's vocabulary, out-of-vocabulary included
    outputs: int  # number of outputs
    members: int  # models side by side
    rounds: int  # trees for each output of a member
    nodes: int  # of all trees
    depth: int  # steps to the deepest leaf

    @property
    def weights(self) -> int:
        """Numbers that are learned, places of nodes included."""
        roots = self.rounds * self.outputs
        return self.members * (sum(self.cardinalities) + roots) + 5 * self.nodes


class Trees(Learned):
    """Boosted trees of several members."""

    kind = "trees"

    def __init__(self, shape: TreesShape) -> None:
        super().__init__()
        self.shape = shape
        size, trees = sum(shape.cardinalities), shape.rounds * shape.outputs
        # what each member takes a category for
        self.encodings = self._kept(shape.members, size)
        # of every node: its input, its threshold, where to go on, and what a leaf adds
        self.asked = self._kept(shape.nodes, kind=torch.int64)
        self.thresholds = self._kept(shape.nodes)
        self.branches = self._kept(shape.nodes, 2, kind=torch.int64)
        self.values = self._kept(shape.nodes)
        # the first node of every tree, round by round
        self.roots = self._kept(shape.members, trees, kind=torch.int64)
        self.inputs: Tensor
        self.register_buffer("inputs", torch.tensor(shape.inputs, dtype=torch.int64), False)
        starts = torch.tensor([0, *shape.cardinalities], dtype=torch.int64).cumsum(0)[:-1].clone()
        self.starts: Tensor
        self.register_buffer("starts", starts, False)

    def _kept(self, *shape: int, kind: torch.dtype = torch.float64) -> nn.Parameter:
        return nn.Parameter(torch.zeros(shape, dtype=kind), requires_grad=False)

    def check(self) -> None:
        """Raise ``ValueError`` for nodes that lead to none, or ask for an input that is none."""
        shape = self.shape
        inputs = len(shape.inputs) + len(shape.cardinalities)
        nodes = shape.nodes
        for table, end in ((self.branches, nodes), (self.roots, nodes), (self.asked, inputs)):
            if ((table < 0) | (table >= end)).any():
                raise ValueError(f"a place among {end} is none")
        if not 0 <= shape.depth <= shape.nodes:
            raise ValueError(f"{shape.depth} steps through {shape.nodes} nodes")

    def forward(self, numeric: Tensor, categories: Tensor) -> Tensor:
        """(M, B, p) float64 outputs for (1, B, F) float32 numbers and (1, B, C) int64 vocabulary
        indices."""
        if torch.compiler.is_compiling():  # exported, as one walk
            return self._walk(numeric, categories)
        step = max(_NODES // self.roots.numel(), 1)
        parts = zip(
            torch.split(numeric, step, dim=1), torch.split(categories, step, dim=1), strict=True
        )
        return torch.cat([self._walk(*part) for part in parts], dim=1)

    def _walk(self, numeric: Tensor, categories: Tensor) -> Tensor:
        size, rows = len(self.roots), numeric.shape[1]
        inputs = numeric[0].index_select(1, self.inputs).double().expand(size, -1, -1)
        if self.shape.cardinalities:
            places = (categories[0] + self.starts).view(-1)
            encoded = self.encodings.index_select(1, places).view(size, rows, categories.shape[2])
            inputs = torch.cat([inputs, encoded], dim=2)
        node = self.roots[:, None].expand(-1, rows, -1)
        for _ in range(self.shape.depth):
            higher = inputs.gather(2, _of(self.asked, node)) > _of(self.thresholds, node)
            node = _of(self.branches.view(-1), 2 * node + higher)
        leaves = _of(self.values, node).view(size, rows, self.shape.rounds, self.shape.outputs)
        return leaves.sum(dim=2)


def _of(values: Tensor, node: Tensor) -> Tensor:
    """Values of (…) nodes; ``values[node]`` is as many operations again when exported."""
    return values.index_select(0, node.reshape(-1)).view(node.shape)
