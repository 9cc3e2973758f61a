"""Releases and features made up for tests, without the labels party."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers import NoisyPrior, private_prior
from labelveil.common.randomizers.exact_rows import sorted_channel
from labelveil.common.randomizers.grid import Grid
from labelveil.common.release.blocks import encode_codes
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.table import Release, read_release, write_release
from labelveil.feature_party.model.facts import EpochLosses, FitSettings, HeadFacts, ModelFacts
from tests.common.release.releases import manifest_of

SECRET = bytes(range(32))


@dataclass(frozen=True)
class World:
    """A release on disk with the features and true labels that belong to it."""

    directory: Path
    secret_file: Path
    features: Path
    truth: Path
    release: Release
    keys: bytes
    codes: bytes


def thresholds_channel(grid: np.ndarray, epsilon: float) -> FiniteChannel:
    """Uniformly randomized thresholds: unbiased, with two outputs a threshold."""
    k, grow = grid.size, float(np.exp(epsilon))
    gaps = np.diff(grid)
    weights = gaps / gaps.sum()
    above = np.arange(k)[:, None] > np.arange(k - 1)
    high = weights * np.where(above, grow, 1.0) / (grow + 1)
    matrix = np.concatenate([weights - high, high], axis=1)
    span = float(gaps.sum())
    low = grid[0] - span / (grow - 1) - 1e-9 * np.arange(k - 1)[::-1]
    top = grid[0] + span * grow / (grow - 1) + 1e-9 * np.arange(k - 1)
    return sorted_channel(grid, np.concatenate([low, top]), matrix, epsilon)[0]


def build_manifest(
    channel: FiniteChannel,
    prior: NoisyPrior,
    keys: bytes,
    codes: bytes,
    *,
    submitted: bytes = b"",
    block_rows: int = 256,
    loss: str = "squared",
    secret: bytes = SECRET,
) -> Manifest:
    """The manifest that belongs to rows; without keys the population is what was submitted."""
    return manifest_of(
        {"amount": channel.inputs},
        [(["amount"], prior)],
        [(["amount"], channel)],
        keys,
        codes,
        submitted=submitted,
        block_rows=block_rows,
        loss=loss,
        secret=secret,
        data_set="sales",
        epoch="one",
    )


def four_codes(outputs: int) -> tuple[Manifest, bytes, bytes]:
    """A release of the codes 0 … 3, with its keys, by a channel of so many outputs."""
    grid, keys = np.arange(float(outputs)), bytes(range(64))
    channel = FiniteChannel(grid, grid, randomized_response_rows(outputs, 1.0))
    codes = encode_codes(np.arange(4), channel.code_bytes)
    prior = private_prior(np.ones(outputs, dtype=np.int64), 0.5, seeded_entropy(0))
    manifest = manifest_of({"y": grid}, [(["y"], prior)], [(["y"], channel)], keys, codes)
    return manifest, keys, codes


def made_up_events(rows: int, seed: int) -> tuple[pl.DataFrame, np.ndarray]:
    """Features with a number, a heavy tail, a category and gaps; labels in 0 … 4 around a curve."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rows)
    shop = rng.integers(0, 6, rows)
    mean = 2 + np.tanh(2 * x) + 0.2 * (shop - 2.5)
    labels = np.clip(mean + 0.3 * rng.normal(size=rows), 0, 4)
    table = pl.DataFrame(
        {
            "event": [f"e{i}" for i in range(rows)],
            "x": np.where(rng.random(rows) < 0.05, np.nan, x),
            "income": np.exp(2 * rng.normal(size=rows)),
            "shop": [f"shop {s}" for s in shop],
        }
    )
    return table, labels


def build_world(
    folder: Path,
    rows: int = 1500,
    epsilon: float = 4.0,
    seed: int = 1,
    *,
    keyed: bool = True,
    biased: bool = False,
) -> World:
    """Write a release with its features and true labels into a folder.

    ``biased`` randomizes by randomized response over the grid: outputs are pulled to its middle.
    """
    table, labels = made_up_events(rows, seed)
    grid = Grid(np.linspace(0, 4, 9))
    entropy = seeded_entropy(seed)
    indices = grid.round(labels, entropy.words("rounding", 0, rows))
    prior = private_prior(np.bincount(indices, minlength=len(grid)), 0.5, entropy)
    channel = thresholds_channel(grid.points, epsilon)
    if biased:
        rows_of_weights = randomized_response_rows(len(grid), epsilon)
        channel = FiniteChannel(grid.points, grid.points, rows_of_weights)
    sampled = channel.sample(indices, entropy.words("labels", 0, rows))
    codes = encode_codes(sampled, channel.code_bytes)
    hashed = hash_keys(table["event"], SECRET)
    keys = hashed if keyed else b""
    manifest = build_manifest(channel, prior, keys, codes, submitted=hashed)
    write_release(folder / "release", manifest.to_bytes(), keys, codes)
    secret = folder / "keys.secret"
    secret.write_text(SECRET.hex())
    secret.chmod(0o600)
    shuffled = table if not keyed else table.sample(fraction=1.0, shuffle=True, seed=seed)
    shuffled.write_parquet(folder / "features.parquet")
    truth = pl.DataFrame({"event": table["event"], "amount": labels})
    truth.write_parquet(folder / "truth.parquet")
    return World(
        folder / "release",
        secret,
        folder / "features.parquet",
        folder / "truth.parquet",
        read_release(folder / "release"),
        keys,
        codes,
    )


def model_facts() -> ModelFacts:
    """Facts of a model that nobody trained."""
    return ModelFacts(
        objective="likelihood",
        head="gaussian",
        heads={"gaussian": HeadFacts(1.0, 1.0, 1)},
        shrinkage=0.0,
        history=[EpochLosses(1, 1.0, 1.0)],
        slope=None,
        release="",
        matched=1,
        training_rows=1,
        holdout=0.2,
        seed=0,
        settings=FitSettings(2, 1, 64, 1e-3, "adamw", 0.01, (12,), 0.0, 0.1, 6, 0),
        warnings=[],
    )
