"""What the tests of engines share: data, a key that stays the same, tasks that fail once."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from labelveil.common.engine.local import InProcess
from labelveil.common.engine.task import Engine, Secrets
from labelveil.common.entropy import Entropy
from labelveil.common.release.manifest import manifest_digest
from labelveil.label_party.config import sections as config
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.epoch import rows_of_epoch
from labelveil.label_party.events.open import rules_of
from labelveil.label_party.events.steps import Sizes, Sources, Work, complete
from labelveil.label_party.events.tasks import SubmittedRows
from labelveil.label_party.release.strata import plan_events, stratum_column
from labelveil.label_party.store.release_store import Store, StoredRelease
from tests.label_party.made_up import build_counted

JOIN = bytes(range(32))
RELEASE_KEY = bytes(range(100, 132))
LEDGER = bytes(range(200, 232))
ROWS = 180_000
SMALL = Sizes(slice_rows=20_000, bucket_rows=30_000, part_rows=1 << 14)


def write_events(folder: Path, rows: int = ROWS) -> None:
    """Labels with gaps, unknown keys and repetitions, in one file; the population in three."""
    generator = np.random.default_rng(3)
    labels = np.round(generator.gamma(1.0, 12.0, rows), 2)
    chosen = generator.permutation(rows + 5_000)[: rows // 2]
    # several labels for one key, far apart and near each other: their order counts
    twice = chosen[5_000:6_000]
    chosen = np.concatenate([chosen, chosen[:2_000], twice, twice])
    pl.DataFrame(
        {"id": chosen, "y": labels[: chosen.size], "who": chosen % 40_000},
    ).with_columns(
        pl.when(pl.col("id") % 50 == 0).then(None).otherwise(pl.col("y")).alias("y")
    ).write_parquet(folder / "labels.parquet", row_group_size=17_000)
    listed = generator.permutation(rows)
    (folder / "population").mkdir()
    for index, part in enumerate(np.array_split(listed, 3)):
        pl.DataFrame({"id": part, "who": part % 40_000}).write_parquet(
            folder / "population" / f"part-{index}.parquet"
        )


def settings(folder: Path, **changes: Any) -> LabelPartyConfig:
    chosen = {
        "data.labels": str(folder / "labels.parquet"),
        "data.population": str(folder / "population"),
        "data.key": "id",
        "data.label": "y",
        "data.duplicates": "sum",
        "domain.lower": 0,
        "domain.upper": 100,
        "domain.grid": "step",
        "domain.step": 5,
        "privacy.epsilon": 8.0,
        "randomizer.name": "randomized-response",
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return config.load(None, settings=[f"{key}={value}" for key, value in chosen.items()])


@dataclass(frozen=True)
class Message:
    """A release's bytes, what its manifest says of them, and by what the ledger knows events."""

    files: dict[str, bytes]
    fingerprints: bytes
    counts: list[list[int]]
    digest: str
    tally: Any
    parts: int  # strata, 1 without any


def in_memory(folder: Path, chosen: LabelPartyConfig, submitted: Path | None = None) -> Message:
    """Build a release of the events in this process's memory: what all engines must equal."""
    return _build(folder, chosen, Work.in_memory(JOIN), submitted)


def with_engine(
    folder: Path,
    chosen: LabelPartyConfig,
    engine: Engine,
    sizes: Sizes = SMALL,
    submitted: Path | None = None,
) -> Message:
    """Build a release of the events through an engine."""
    work = folder / "work"
    work.mkdir(parents=True)
    return _build(folder, chosen, Work(engine, work, JOIN, sizes), submitted)


def _build(folder: Path, chosen: LabelPartyConfig, work: Work, submitted: Path | None) -> Message:
    named = None if submitted is None else SubmittedRows(submitted, submitted.stat().st_size // 16)
    column = stratum_column(chosen.strata)
    labels, population = rows_of_epoch(chosen, (), column)
    listed = None if population is None else work.open_table(population, "population")
    sources = Sources(work.open_table(labels, "labels"), listed, named)
    limit = chosen.privacy.max_records_per_user
    events = complete(sources, work, rules_of(chosen), limit)
    store = Store(folder / "store")
    store.create()
    writer = store.writer("labels", "1")
    plan = plan_events(chosen, events, column)
    manifest = build_counted(events, chosen, plan, Entropy(RELEASE_KEY), writer)
    writer.finish(manifest.to_bytes())
    writer.publish()
    digest = manifest_digest(manifest.to_bytes())
    release = StoredRelease(store.path("labels", "1"), digest)  # verifies every block
    keys, codes = release.read(0, release.rows)
    return Message(
        {"keys": keys, "codes": codes},
        b"".join(part.tobytes() for part in events.fingerprints(LEDGER)),
        [prior.noisy_counts for prior in manifest.priors],
        manifest.content.digest + manifest.population.digest,
        events.tally,
        len(manifest.by_stratum),
    )


@dataclass
class Watching(Engine):
    """An engine that keeps what another one would send to its workers."""

    pickled: bytes = b""
    steps: int = 0

    def stream(self, tasks: Sequence[Any], secrets: Secrets) -> Iterator[Any]:
        self.steps += 1
        self.pickled += b"".join(pickle.dumps(task) for task in tasks)
        return InProcess().stream(tasks, secrets)
