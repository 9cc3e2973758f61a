"""Boosted trees as tensors: they predict, are saved and are exported without LightGBM.

Every node says which input it asks, a threshold, and two branches: one for inputs up to the
threshold, one for those above. A leaf branches to itself, so that all rows take the same number of
steps through all trees at once. (hummingbird-ml compiles trees, too; it would bring scikit-learn,
psutil, dill and onnxconverter-common to everybody who predicts, for what is a screen here.)

Few rows, and exported programs, walk like that. Of many rows it is faster to ask a whole tree about
each input once: where the input lies among all thresholds says which leaves are left, as the bits
of a word, and the leaf that is reached is the first that every input leaves. Inputs of which one
at most is 1, as those for the values of a category, are asked as one.

Source: Lucchese et al., *QuickScorer: A Fast Algorithm to Rank Documents with Additive Ensembles of
Regression Trees*, SIGIR 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelveil.common.arrays import Floats, Indices, Singles
from labelveil.feature_party.model.network import EVERYBODY, Learned

Words = NDArray[np.uint64]
Leaves = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of all nodes: whether they are leaves, their tree, the first of their leaves in it, from the
left, and how many these are."""

_FEW_ROWS = 256
"""Up to this many walk: they are done before the first trees have been asked by bits."""
MOST_LEAVES = 64
"""Of a tree: bits of a word."""
_ROWS = 1 << 13
"""That are asked at once: what is made on the way stays in the processor's cache."""
_LAST_BIT = np.uint64(0x022FDD63CC95386D)
"""A de Bruijn sequence: times a power of two its first six bits tell which power.

Source: Leiserson, Prokop, Randall, *Using de Bruijn Sequences to Index a 1 in a Computer Word*,
1998.
"""
_FIRST_SIX, _ONE, _ALL = np.uint64(58), np.uint64(1), ~np.uint64(0)


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
    """Boosted trees of several members.

    Of each range of ``one_of`` one numeric input at most is 1, and all others are 0.
    """

    kind = "trees"

    def __init__(self, shape: TreesShape, one_of: Sequence[range] = ()) -> None:
        super().__init__()
        self.shape, self.one_of = shape, one_of
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
        """Raise ``ValueError`` for nodes that make no trees, or ask for an input that is none."""
        shape = self.shape
        inputs = len(shape.inputs) + len(shape.cardinalities)
        nodes = shape.nodes
        for table, end in ((self.branches, nodes), (self.roots, nodes), (self.asked, inputs)):
            if ((table < 0) | (table >= end)).any():
                raise ValueError(f"a place among {end} is none")
        if not 0 <= shape.depth < MOST_LEAVES:
            raise ValueError(f"{shape.depth} steps through trees of at most {MOST_LEAVES} leaves")
        ends, tree, _, leaves = self._leaves()
        above = torch.bincount(
            torch.cat([self.branches[~ends].flatten(), self.roots.flatten()]), minlength=nodes
        )
        if (above != 1).any() or (tree < 0).any():
            raise ValueError(f"{nodes} nodes make no trees of {shape.depth} steps")
        if leaves[self.roots].max() > MOST_LEAVES:
            raise ValueError(f"a tree of more than {MOST_LEAVES} leaves")
        if not torch.isfinite(self.values).all():
            raise ValueError("a leaf says no finite number")

    def forward(self, numeric: Tensor, categories: Tensor, members: slice = EVERYBODY) -> Tensor:
        """(M, B, p) float64 outputs for (1, B, F) float32 numbers and (1, B, C) int64 vocabulary
        indices; of some members alone."""
        # exported as a walk, for any number of rows
        if torch.compiler.is_compiling() or numeric.shape[1] <= _FEW_ROWS or numeric.is_cuda:
            return self._walk(numeric, categories)[members]
        numbers, places, outputs = numeric[0].numpy(), categories[0].numpy(), []
        for start in range(0, len(numbers), _ROWS):
            part = slice(start, start + _ROWS)
            asked = numbers[part], places[part], self._ones(numbers[part])
            each = [one.outputs(*asked) for one in self._members[members]]
            outputs.append(np.stack(each))
        return torch.as_tensor(np.concatenate(outputs, axis=1))

    def _ones(self, numbers: Singles) -> dict[int, Indices]:
        """By the first of inputs that are asked as one: (B,) which of them is 1, counted from 1,
        and 0 where none is."""
        found = {}
        for inputs in self.one_of:
            of_inputs = numbers[:, self.inputs[inputs.start : inputs.stop].numpy()]
            place = of_inputs @ np.arange(1, 1 + len(inputs), dtype=np.float32)
            found[inputs.start] = place.astype(np.int64)
        return found

    @cached_property
    def _members(self) -> list[_Member]:
        leaves = self._leaves()
        return [_Member(self, member, leaves) for member in range(self.shape.members)]

    def _leaves(self) -> Leaves:
        place = self.branches.device
        nodes, (left, right) = torch.arange(self.shape.nodes, device=place), self.branches.T
        ends, tree, first = left == nodes, torch.full_like(nodes, -1), torch.zeros_like(nodes)
        leaves, inner = ends.long(), nodes[~ends]
        # all trees at once, a level a time: counts of leaves go up, and then tree and place go down
        for _ in range(self.shape.depth):
            leaves[inner] = leaves[left[inner]] + leaves[right[inner]]
        tree[self.roots.flatten()] = torch.arange(self.roots.numel(), device=place)
        for _ in range(self.shape.depth):
            for side, before in ((left, 0), (right, leaves[left])):
                tree[side[inner]] = tree[inner]
                first[side[inner]] = (first + before)[inner]
        return ends, tree, first, leaves

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


class _Member:
    """One member's trees, asked by bits."""

    def __init__(self, trees: Trees, member: int, found: Leaves) -> None:
        roots = trees.roots[member].numpy()
        self.outputs_of, self.numbers = trees.shape.outputs, trees.shape.inputs
        ends, tree, first, leaves = (each.numpy() for each in found)
        left, asked, thresholds, values = (
            each.numpy()
            for each in (trees.branches[:, 0], trees.asked, trees.thresholds, trees.values)
        )
        tree = tree - member * roots.size
        here = (tree >= 0) & (tree < roots.size)
        mine, inner = np.flatnonzero(here & ends), here & ~ends
        bits = np.left_shift(_ONE, np.stack([first, leaves[left]]).astype(np.uint64))
        # what each tree's leaves add, by the place that a leaf's bit is found at
        self.values = np.zeros((roots.size, MOST_LEAVES))
        self.values[tree[mine], _place(bits[0, mine])] = values[mine]
        # of every input that is asked: the thresholds; of a category, how many are below its values
        self.cuts: dict[int, Floats] = {}
        self.ranks: dict[int, Indices] = {}
        # of every tree: inputs, and the leaves that are left by how many thresholds are below
        self.asks: list[list[tuple[int, Words]]] = [[] for _ in roots]
        encodings = np.split(trees.encodings[member].numpy(), trees.starts.numpy()[1:])
        for input_ in np.unique(asked[inner]).tolist():
            mine = np.flatnonzero(inner & (asked == input_))
            self.cuts[input_], rank = np.unique(thresholds[mine], return_inverse=True)
            if input_ >= len(self.numbers):
                encoded = encodings[input_ - len(self.numbers)]
                self.ranks[input_] = np.searchsorted(self.cuts[input_], encoded)
            asking, row = np.unique(tree[mine], return_inverse=True)
            kept = np.full((asking.size, 1 + self.cuts[input_].size), _ALL)
            # above a threshold the leaves on its left are out
            np.bitwise_and.at(kept, (row, 1 + rank), ~((bits[1, mine] - _ONE) * bits[0, mine]))
            np.bitwise_and.accumulate(kept, axis=1, out=kept)
            for number, words in zip(asking.tolist(), kept, strict=True):
                self.asks[number].append((input_, words))
        for inputs in trees.one_of:
            self._ask_as_one(inputs)

    def _ask_as_one(self, inputs: range) -> None:
        """Let the first of some inputs stand for which of them is 1."""
        ends = {at: np.searchsorted(self.cuts.pop(at), (0, 1)) for at in inputs if at in self.cuts}
        places = np.arange(1 + len(inputs))
        for number, asks in enumerate(self.asks):
            mine = [(input_, words) for input_, words in asks if input_ in ends]
            if not mine:
                continue
            every = np.full(places.size, _ALL)
            for input_, words in mine:
                of_zero, of_one = words[ends[input_]]
                every &= np.where(places == 1 + input_ - inputs.start, of_one, of_zero)
            others = [(input_, words) for input_, words in asks if input_ not in ends]
            self.asks[number] = [*others, (inputs.start, every)]

    def outputs(self, numbers: Singles, categories: Indices, ones: dict[int, Indices]) -> Floats:
        """(B, p) outputs for (B, F) numbers, (B, C) vocabulary indices and what :meth:`Trees._ones`
        finds."""
        count = len(self.numbers)
        ranks = ones | {
            input_: np.searchsorted(cuts, numbers[:, self.numbers[input_]])
            if input_ < count
            else self.ranks[input_][categories[:, input_ - count]]
            for input_, cuts in self.cuts.items()
        }
        sums = np.zeros((self.outputs_of, len(numbers)))
        words, other = np.empty((2, len(numbers)), np.uint64)
        adds = np.empty(len(numbers))
        for number, (asks, values) in enumerate(zip(self.asks, self.values, strict=True)):
            words.fill(_ALL)
            for input_, kept in asks:
                np.take(kept, ranks[input_], out=other, mode="clip")
                words &= other
            np.negative(words, out=other)
            words &= other  # the lowest bit alone
            np.take(values, _place(words).view(np.int64), out=adds, mode="clip")
            sums[number % self.outputs_of] += adds
        return sums.T


def _place(bits: Words) -> Words:
    """(n,) places, 0 … 63, of words of one bit each; the words become the places."""
    bits *= _LAST_BIT
    bits >>= _FIRST_SIX
    return bits
