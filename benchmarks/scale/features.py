"""What the features party does with a message at some size, from the join on."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.scale.process import Clock
from labelveil.common.release.blocks import block_ranges
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.folder import read_manifest
from labelveil.common.release.manifest import Manifest
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.learning.objectives import build_objective
from labelveil.feature_party.learning.several_labels import view_of
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.model.facts import FitSettings
from labelveil.feature_party.model.network import NetworkShape
from labelveil.feature_party.pipeline.learning import Learning
from labelveil.feature_party.training.batches import Rows
from labelveil.feature_party.training.encoded_shards import (
    RowStream,
    ShardParts,
    Shards,
    fit_encoder,
    write_shards,
)
from labelveil.feature_party.training.fitting import Fitter
from labelveil.feature_party.training.streamed import PreparedShards
from tests.feature_party.learn import prepare

SLICE = 1 << 19
SECRET = "join.key"
MEMBERS, BATCH, HIDDEN = 4, 4096, (128, 64)


def join(folder: Path, rows: int) -> None:
    """Verify the fetched release and match it with the features."""
    Learning(_features_config(folder), quiet=True).join()


def join_kernel(folder: Path, rows: int) -> None:
    """Read the features, hash their keys, and write them again."""
    scan = pl.scan_parquet(folder / "features.parquet")
    out = folder / "kernel-shards"
    out.mkdir()
    for index, (start, stop) in enumerate(block_ranges(rows, SLICE)):
        part = scan.slice(start, stop - start).collect()
        hash_keys(part["id"], bytes(32))
        with (out / f"{index}.parquet").open("wb") as file:
            part.write_parquet(file, compression="zstd")
            os.fsync(file.fileno())
    shutil.rmtree(out)


def encode(folder: Path, rows: int) -> dict[str, float]:
    """Encode the joined events into the shards that are trained on.

    What :func:`prepare` does before is left out: it opens the join and estimates the labels'
    distribution, which takes the same for any number of rows.
    """
    config = _features_config(folder)
    data = prepare(config.release_folders, config.features, config)
    assert isinstance(data, PreparedShards)
    clock = Clock()
    stream = RowStream(data.training_events, data.training_rows, 0)
    columns = [name for name in data.joined.columns if name != "id"]
    encoder = fit_encoder(stream, columns, Encoder.fit)
    write_shards(folder / "rows", "rows", stream, encoder)
    return clock.read()


def encode_kernel(folder: Path, rows: int) -> None:
    """Read the joined events, and write their numbers."""
    out = folder / "kernel-rows"
    out.mkdir()
    for index, path in enumerate(sorted((folder / "joined").glob("*.parquet"))):
        pl.read_parquet(path).drop("id").write_parquet(out / f"{index}.parquet", compression="lz4")
    shutil.rmtree(out)


def train(folder: Path, rows: int) -> dict[str, float]:
    """Walk the shards once."""
    fitter = _fitter(folder)
    clock = Clock()
    order = fitter.plan.part_order(0)
    for part, shard in zip(order, fitter.parts.walk(order), strict=True):
        fitter._train_part(0, part, shard, 0)
    return clock.read()


def train_kernel(folder: Path, rows: int) -> dict[str, float]:
    """Take as many steps of the same network on batches in memory; a tenth of them, times ten."""
    fitter = _fitter(folder)
    shard = fitter.parts.part(0)
    index = torch.randint(shard.targets.shape[0], (4, MEMBERS, BATCH))
    return _steps(fitter, itertools.cycle([shard.take(one) for one in index]), 0.1)


def train_loader(folder: Path, rows: int) -> dict[str, float]:
    """Take them on what torch's DataLoader fetches; a fiftieth of them, times fifty."""
    fitter = _fitter(folder)
    shard = fitter.parts.part(0)
    table = TensorDataset(shard.numeric, shard.categories, shard.targets)
    batch = MEMBERS * min(BATCH, len(table) // MEMBERS)
    loader = DataLoader(table, batch_size=batch, shuffle=True, drop_last=True)

    def batches() -> Iterator[Rows]:
        while True:
            for parts in loader:
                yield Rows(*(part.unflatten(0, (MEMBERS, -1)) for part in parts))

    return _steps(fitter, batches(), 0.02)


def training_rows(folder: Path) -> int:
    """Rows of an epoch."""
    return sum(_shards(folder).sizes)


def _steps(fitter: Fitter, batches: Iterator[Rows], share: float) -> dict[str, float]:
    """Seconds of an epoch, from those of a share of its steps."""
    steps = max(1, round(share * fitter.plan.epoch_steps))
    clock = Clock()
    for batch in itertools.islice(batches, steps):
        raw = fitter.network(batch.numeric, batch.categories)
        losses = fitter.objective.quick_loss(raw, batch.targets).mean(dim=1)
        fitter.optimizer.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        fitter.optimizer.step()
    scale = fitter.plan.epoch_steps / steps
    return {name: scale * used for name, used in clock.read().items()}


def _shards(folder: Path) -> Shards:
    shards = Shards.open(folder / "rows", "rows")
    assert shards is not None
    return shards


def _fitter(folder: Path) -> Fitter:
    shards = _shards(folder)
    manifest = Manifest.from_bytes(read_manifest(folder / "fetched"))
    problem = view_of(manifest.message, "").problem
    objective = build_objective("likelihood", problem, Support.from_problem(problem))
    chosen = FitSettings(
        members=MEMBERS,
        epochs=1,
        batch_size=BATCH,
        learning_rate=2e-3,
        optimizer="adamw",
        weight_decay=0.01,
        hidden=HIDDEN,
        dropout=0.0,
        validation=0.1,
        patience=1,
        seed=0,
    )
    shape = NetworkShape(
        shards.encoder.inputs, shards.encoder.cardinalities, HIDDEN, objective.outputs, MEMBERS
    )
    device = torch.device("cpu")
    return Fitter(objective, ShardParts(shards, objective, device), shape, chosen, device)


def _features_config(folder: Path) -> FeaturePartyConfig:
    return FeaturePartyConfig.model_validate(
        {
            "data": {"features": folder / "features.parquet", "key": "id"},
            "keys": {"secret_file": folder / "certificates" / SECRET},
            "release": {"directory": folder / "fetched"},
            "join": {"directory": folder / "joined"},
        }
    )
