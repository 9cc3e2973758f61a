"""Two labels wherever one may come from, be made, and be kept: the same events, the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from labelveil.common.engine.local import Pool
from labelveil.common.engine.spark import SparkEngine
from labelveil.common.release.blocks import decode_codes
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.folder import MANIFEST_FILE
from labelveil.common.release.manifest import Manifest
from labelveil.label_party.events.steps import Sizes
from labelveil.label_party.server.run import running
from labelveil.label_party.store.release_store import Store
from tests.engines import SparkSession, needs_java
from tests.label_party import engines
from tests.label_party.conftest import EVENTS, Client, Party
from tests.label_party.release.test_several import settings, with_labels

FEW_VALUES = """
[[label]]
name = "returned"
kind = "binary"
[[label]]
name = "amount"
kind = "category"
values = [0, 1, 2]
missing = 2
"""


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("several")
    engines.write_events(folder, rows=20_000)
    table = pl.read_parquet(folder / "labels.parquet")
    table.with_columns(kept=pl.col("who") % 2).write_parquet(folder / "labels.parquet")
    return folder


@pytest.mark.slow
def test_two_processes_make_the_same_bytes(events: Path, tmp_path: Path) -> None:
    chosen = settings(events, privacy__division="split", data__duplicates="last")
    expected = engines.in_memory(tmp_path / "one", chosen)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        sizes = Sizes(slice_rows=8_000, bucket_rows=8_000, part_rows=1 << 16)
        done = engines.with_engine(tmp_path / "two", chosen, Pool(executor, 2), sizes)
    assert done == expected


@needs_java
@pytest.mark.slow
def test_spark_makes_the_same_bytes(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    chosen = settings(events, privacy__division="split", data__duplicates="last")
    expected = engines.in_memory(tmp_path / "one", chosen)
    sizes = Sizes(slice_rows=8_000, bucket_rows=8_000, part_rows=1 << 16)
    for partitions in (3, 17):
        engine, folder = SparkEngine(spark.session, partitions), tmp_path / str(partitions)
        assert engines.with_engine(folder, chosen, engine, sizes) == expected


@pytest.mark.slow
def test_a_store_that_was_restored_serves_the_same_release(
    party: Party, connect: Callable[..., Client]
) -> None:
    with_labels(party)
    assert party.release(privacy__division="split").code == 0
    path = Store(party.store).path("labels", "1") / MANIFEST_FILE
    before = path.read_bytes()
    assert party.run("backup", "--to", "b.tar", "--quiet").code == 0
    party.store.rename(party.folder / "lost")
    assert party.run("restore", "b.tar", "--nothing-since").code == 0
    with running(party.config(privacy__division="split")) as address:
        client = connect(address)
        described = client.describe()
        _, codes = client.fetch(described)
    assert described.manifest == before == path.read_bytes()
    assert codes == (party.folder / "lost/releases/labels/1/codes.bin").read_bytes()
    assert "already released" in party.release(privacy__division="split").out


def test_a_submitted_population_gets_both_labels_in_its_order(
    party: Party, connect: Callable[..., Client]
) -> None:
    with_labels(party, FEW_VALUES)
    keys = [f"event-{i}" for i in range(EVENTS)]
    amounts = [float(i % 3) for i in range(EVENTS)]
    party.write_labels({"key": keys, "amount": amounts, "returned": [i % 2 for i in range(EVENTS)]})
    # but for a chance of e^-15 every code is that of its labels
    asked = {
        "data__population": '"submitted"',
        "privacy__division": "split",
        "privacy__epsilon": 40,
        "privacy__total_epsilon": 40,
    }
    secret = read_secret(party.folder / "join.key")
    numbers = [*range(150, 20, -1), 1000]
    names = pl.Series([f"event-{i}" for i in numbers])
    with running(party.config(**asked)) as address:
        client = connect(address)
        client.submit(hash_keys(names, secret), secret)
        assert party.release(**asked).code == 0
        described = client.describe()
        none, codes = client.fetch(described)
    assert none == b""
    manifest = Manifest.from_bytes(described.manifest)
    codebook = manifest.codebooks.only
    columns = codebook.split(decode_codes(codes, manifest.content.code_bytes))
    sent = [c.outputs[one] for c, one in zip(codebook.channels, columns.T, strict=True)]
    known = [(i % 2, i % 3) for i in numbers[:-1]]
    assert np.column_stack(sent).tolist() == [list(map(float, one)) for one in [*known, (0, 2)]]
