"""Boosted trees asked by bits beside the same trees walked node by node."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labelveil.feature_party.model.trees import MOST_LEAVES, Trees, TreesShape

MEMBERS, ROUNDS, OUTPUTS = 3, 4, 2
NUMBERS, SIZES = (1, 3), (5, 9)
PLACES = np.linspace(-1, 1, 9)
"""Of thresholds, inputs and encodings alike: many inputs lie on a threshold."""


def grown(rng: np.random.Generator, leaves: int, one_of: tuple[range, ...] = ()) -> Trees:
    """Trees with a random number of leaves, every leaf split with the same chance."""
    nodes: list[tuple[int, float, int, int, float]] = []
    roots, deepest = [], 0
    for _ in range(MEMBERS * ROUNDS * OUTPUTS):
        root = len(nodes)
        roots.append(root)
        nodes.append((0, 0.0, root, root, rng.normal()))
        ends = {root: 0}
        for _ in range(int(rng.integers(leaves))):
            node = int(rng.choice([*ends]))
            depth = ends.pop(node) + 1
            below = [len(nodes), len(nodes) + 1]
            for place in below:
                nodes.append((0, 0.0, place, place, rng.normal()))
                ends[place] = depth
            asked = int(rng.integers(len(NUMBERS) + len(SIZES)))
            nodes[node] = (asked, float(rng.choice(PLACES)), below[0], below[1], 0.0)
            deepest = max(deepest, depth)
    asked_of, thresholds, left, right, values = zip(*nodes, strict=True)
    shape = TreesShape(NUMBERS, SIZES, OUTPUTS, MEMBERS, ROUNDS, len(nodes), deepest)
    trees = Trees(shape, one_of)
    state = {
        "encodings": rng.choice(PLACES, (MEMBERS, sum(SIZES))),
        "asked": asked_of,
        "thresholds": thresholds,
        "branches": np.stack([left, right], axis=1),
        "values": values,
        "roots": np.reshape(roots, (MEMBERS, -1)),
    }
    trees.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
    trees.check()
    return trees


def one_by_one(trees: Trees, member: int, numbers: np.ndarray, places: np.ndarray) -> np.ndarray:
    """(p,) outputs for a row, by following the branches."""
    encodings = np.split(trees.encodings[member].numpy(), np.cumsum(SIZES)[:-1])
    inputs = [*numbers[[*NUMBERS]], *(each[at] for each, at in zip(encodings, places, strict=True))]
    sums = np.zeros(OUTPUTS)
    for number, root in enumerate(trees.roots[member].tolist()):
        node = root
        while int(trees.branches[node, 0]) != node:
            above = inputs[int(trees.asked[node])] > float(trees.thresholds[node])
            node = int(trees.branches[node, int(above)])
        sums[number % OUTPUTS] += float(trees.values[node])
    return sums


@pytest.mark.parametrize(
    ("leaves", "one_of"), [(1, ()), (12, ()), (MOST_LEAVES, ()), (12, (range(2),))]
)
def test_rows_reach_the_leaves_that_they_walk_to(leaves: int, one_of: tuple[range, ...]) -> None:
    """Also where one of the two numbers at most is 1, and both are asked as one."""
    rng = np.random.default_rng(leaves)
    trees, rows = grown(rng, leaves, one_of), 400
    numbers = rng.choice(PLACES, (rows, 4)).astype(np.float32)
    if one_of:
        numbers = np.eye(4, dtype=np.float32)[rng.choice([0, *NUMBERS], rows)]
    places = np.stack([rng.integers(size, size=rows) for size in SIZES], axis=1)
    asked = torch.as_tensor(numbers)[None], torch.as_tensor(places)[None]
    found = trees(*asked)
    assert found.shape == (MEMBERS, rows, OUTPUTS)
    torch.testing.assert_close(trees(asked[0][:, :50], asked[1][:, :50]), found[:, :50])
    torch.testing.assert_close(trees(*asked, members=slice(1, 2)), found[1:2])
    for member in range(MEMBERS):
        for row in range(0, rows, 8):
            expected = one_by_one(trees, member, numbers[row], places[row])
            np.testing.assert_allclose(found[member, row], expected, rtol=1e-12, atol=1e-12)
