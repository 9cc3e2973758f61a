"""Joining what does not fit into memory: the rows and codes of the join in memory, in shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from common.errors import DataError, ReleaseError
from common.release import LABELS_FILE, write_release
from feature_party.external_join import CODE, JoinSizes, join_to_shards
from feature_party.join import join_release
from tests.feature_party.worlds import SECRET, World, build_world

SMALL = JoinSizes(shard_rows=256, bucket_rows=300)


def _stored(world: World, folder: Path) -> Path:
    write_release(folder / "stored", world.release.manifest_bytes, world.release.labels)
    return folder / "stored"


@pytest.mark.parametrize("keyed", [True, False])
def test_the_rows_and_codes_of_the_join_in_memory(tmp_path: Path, keyed: bool) -> None:
    world = build_world(tmp_path, rows=1500, keyed=keyed)
    table = pl.read_parquet(world.features)
    if keyed:  # some events that were not sent, in between
        strangers = table.head(200).with_columns(event=pl.col("event") + "?")
        table = pl.concat([table[100:700], strangers, table[700:]])
    table.write_parquet(tmp_path / "features.parquet", row_group_size=177)
    release = _stored(world, tmp_path)
    expected = join_release(world.release, table, "event", SECRET)
    counts = join_to_shards(
        release, tmp_path / "features.parquet", "event", SECRET, tmp_path / "out", SMALL
    )
    assert counts == expected.matches
    shards = sorted((tmp_path / "out").iterdir())
    assert len(shards) == -(-table.height // 256)
    found = pl.concat([pl.read_parquet(shard) for shard in shards])
    assert found.drop(CODE).equals(expected.table)
    np.testing.assert_array_equal(found[CODE].to_numpy(), expected.codes)
    assert not list(tmp_path.glob(".out-*"))


def test_refusals_leave_nothing(world: World, tmp_path: Path) -> None:
    release, out = _stored(world, tmp_path), tmp_path / "out"
    table = pl.read_parquet(world.features)

    def refused(frame: pl.DataFrame, kind: type[Exception], said: str) -> None:
        frame.write_parquet(tmp_path / "features.parquet")
        with pytest.raises(kind, match=said):
            join_to_shards(release, tmp_path / "features.parquet", "event", SECRET, out, SMALL)
        assert not list(tmp_path.glob("*out*"))

    refused(pl.concat([table, table.head(3)]), DataError, "3 rows repeat a key")
    refused(table.with_columns(event=pl.col("event") + "?"), DataError, "none of the 1,500")
    refused(table.head(0), DataError, "no rows")
    labels = pl.read_parquet(release / LABELS_FILE)
    other = labels.with_columns(code=pl.when(pl.int_range(pl.len()) == 1499).then(
        1 - pl.col("code").clip(0, 1)).otherwise(pl.col("code")).cast(pl.UInt16))  # fmt: skip
    other.write_parquet(release / LABELS_FILE)
    refused(table, ReleaseError, "do not match the manifest's digest")
