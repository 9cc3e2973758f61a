"""A release of two labels of each event, made up for tests without the labels party."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import polars as pl

from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.exact.channel import TOTAL, FiniteChannel
from labelveil.common.randomizers import NoisyPrior, build_randomizer, private_prior
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.codebooks import Codebook, Codebooks
from labelveil.common.release.blocks import decode_codes, encode_codes
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.table import Release, labels_frame
from tests.common.release.releases import manifest_of
from tests.feature_party.worlds import SECRET

NAMES = ("returned", "amount")
CELLS = Cells((Grid.from_count(0, 1, 2), Grid.from_count(0, 90, 10)))
BOTH = Group((0, 1), CELLS)
EACH = tuple(Group((j,), Cells((grid,))) for j, grid in enumerate(CELLS.grids))

Division = Literal["split", "separate", "joint"]
"""Histogram and channel for each label, a histogram of both and a channel each, or one of both."""


def channels_alone(prior: NoisyPrior, epsilon: float = 1.0) -> Codebook:
    """A channel for each label."""
    marginals = [CELLS.marginal(prior.probabilities, j) for j in (0, 1)]
    channels = [
        build_randomizer("auto", labels=grid.points, prior=one, epsilon=epsilon).channel
        for grid, one in zip(CELLS.grids, marginals, strict=True)
    ]
    return Codebook(NAMES, EACH, tuple(channels))


def channel_of_both(prior: NoisyPrior, epsilon: float = 1.0) -> Codebook:
    """The same channels as one of cells: its outputs are the combined codes."""
    told = channels_alone(prior, epsilon).likelihood
    rows = [[int(p * 2.0**53) << 11 for p in row] for row in told.tolist()]
    for row in rows:
        row[0] += TOTAL - sum(row)
    channel = FiniteChannel(np.arange(len(CELLS)), np.arange(told.shape[1]), rows)
    return Codebook(NAMES, (BOTH,), (channel,))


def made_up_orders(rows: int, seed: int) -> tuple[pl.DataFrame, np.ndarray]:
    """Features, and (n, 2) labels: dear orders are returned, and both depend on the features."""
    rng = np.random.default_rng(seed)
    x, size = rng.normal(size=(2, rows))
    amount = np.clip(30 + 15 * x + 8 * rng.normal(size=rows), 0, 90)
    returned = rng.random(rows) < 1 / (1 + np.exp(2 - amount / 30 - 1.5 * size))
    table = pl.DataFrame({"event": [f"e{i}" for i in range(rows)], "x": x, "size": size})
    return table, np.column_stack([returned, amount]).astype(np.float64)


Draw = Callable[[Codebook, np.ndarray, Entropy], np.ndarray]


def randomize(codebook: Codebook, labels: np.ndarray, entropy: Entropy) -> np.ndarray:
    return Codebooks((codebook,)).randomize(labels, None, entropy)


def two_labels(
    rows: int,
    division: Division,
    epsilon: float = 4.0,
    seed: int = 1,
    labels: np.ndarray | None = None,
    draw: Draw = randomize,
) -> tuple[Release, pl.DataFrame, np.ndarray]:
    """A release, its features and true labels, which may be given; ``draw`` makes the codes."""
    table, made_up = made_up_orders(rows, seed)
    labels = made_up if labels is None else labels
    entropy = seeded_entropy(seed)
    counted = [BOTH] if division != "split" else list(EACH)
    cells = {group: group.round(labels, entropy) for group in [BOTH, *EACH]}
    count = {group: np.bincount(cells[group], minlength=len(group.cells)) for group in cells}
    both = private_prior(count[BOTH], 0.5, entropy)
    priors = [both] if counted == [BOTH] else [private_prior(count[g], 0.5, entropy) for g in EACH]
    codebook = (channel_of_both if division == "joint" else channels_alone)(both, epsilon)
    code_bytes = Codebooks((codebook,)).code_bytes
    codes = encode_codes(draw(codebook, labels, entropy), code_bytes)
    keys = hash_keys(table["event"], SECRET)
    manifest = manifest_of(
        {name: grid.points for name, grid in zip(NAMES, CELLS.grids, strict=True)},
        [([NAMES[j] for j in g.labels], prior) for g, prior in zip(counted, priors, strict=True)],
        [
            ([NAMES[j] for j in group.labels], channel)
            for group, channel in zip(codebook.groups, codebook.channels, strict=True)
        ],
        keys,
        codes,
        data_set="orders",
        epoch="one",
    )
    frame = labels_frame(manifest, keys, decode_codes(codes, code_bytes))
    return Release(manifest, manifest.to_bytes(), frame), table, labels
