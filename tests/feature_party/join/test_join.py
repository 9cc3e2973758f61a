"""Joining: the right code for every event, counts on both sides, and clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import DataError
from labelveil.common.release.event_keys import hash_keys
from labelveil.feature_party.join.matches import JoinInputs, Party
from labelveil.feature_party.join.on_disk import join_to_shards
from labelveil.feature_party.join.shards import JoinedShards
from labelveil.feature_party.join.tasks import CODE
from labelveil.feature_party.tables import collect_table, scan_table
from labelveil.feature_party.training.holdout import draw_holdout
from tests.feature_party.worlds import SECRET, World, build_world


def join(world: World, features: pl.DataFrame | Path, folder: Path, **changes: Any) -> JoinedShards:
    """Join a world's release with some features."""
    if isinstance(features, pl.DataFrame):
        features.write_parquet(folder / "table.parquet")
        features = folder / "table.parquet"
    given = {"key": "event", "secret": SECRET, **changes}
    inputs = JoinInputs((world.directory,), features, given["key"], (Party(given["secret"]),))
    return join_to_shards(inputs, folder / "joined")


def codes(joined: JoinedShards) -> np.ndarray:
    return pl.concat(joined.tables([CODE]))[CODE].to_numpy()


def test_counts_on_both_sides(world: World, tmp_path: Path) -> None:
    features = pl.read_parquet(world.features).head(900)
    others = features.head(300).with_columns(event=pl.col("event") + "?")
    counts = join(world, pl.concat([features, others]), tmp_path).matches
    assert (counts.release_rows, counts.feature_rows, counts.matched) == (1500, 1200, 900)
    warning = counts.poor(0.9)
    assert warning is not None
    assert "only 900 events match: 75.0% of the 1,200" in warning
    assert counts.poor(0.5) is None


def test_csv_keys_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,x\n007,1\n7,2\n")
    assert scan_table(tmp_path / "a.csv").collect()["id"].to_list() == ["007", "7"]


def test_a_submitted_population_joins_by_order(tmp_path: Path) -> None:
    world = build_world(tmp_path, rows=600, keyed=False)
    joined = join(world, world.features, tmp_path)
    np.testing.assert_array_equal(codes(joined), world.release.codes)
    assert joined.matches.matched == 600
    table = pl.read_parquet(world.features)
    # what was kept counts in place of the features' keys, if it is what was submitted
    kept, right = world.directory / "population.keys", hash_keys(table["event"], SECRET)
    kept.write_bytes(right)
    reverse = codes(join(world, table.reverse(), tmp_path))
    np.testing.assert_array_equal(reverse[::-1], world.release.codes)
    kept.write_bytes(right[16:] + right[:16])
    np.testing.assert_array_equal(codes(join(world, table, tmp_path)), world.release.codes)
    for frame, secret in (
        (table.head(599), SECRET),
        (table.reverse(), SECRET),
        (table.with_columns(event=pl.col("event") + "?"), SECRET),
        (table, bytes(32)),
    ):
        with pytest.raises(DataError, match="600 submitted events, and column 'event'") as caught:
            join(world, frame, tmp_path, secret=secret)
        assert "\n" not in str(caught.value)


def test_refusals(world: World, tmp_path: Path) -> None:
    table = pl.read_parquet(world.features)
    cases: list[tuple[pl.DataFrame, str, bytes, str]] = [
        (table, "click", SECRET, "no key column 'click'"),
        (table, "event", bytes(32), "none of the 1,500 events"),
        (pl.concat([table, table.head(2)]), "event", SECRET, "2 rows repeat a key"),
        (table.with_columns(event=None), "event", SECRET, "1,500 missing values"),
        (table, "x", SECRET, "keys must be text, whole numbers or UUIDs"),
    ]
    for frame, key, secret, message in cases:
        with pytest.raises(DataError, match=message) as caught:
            join(world, frame, tmp_path, key=key, secret=secret)
        assert "\n" not in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        scan_table(tmp_path / "nothing.csv")
    (tmp_path / "table.xlsx").write_text("")
    with pytest.raises(DataError, match=r"use \.csv, \.tsv or \.parquet"):
        scan_table(tmp_path / "table.xlsx")
    (tmp_path / "broken.parquet").write_text("not Parquet")
    with pytest.raises(DataError, match="cannot be read"):
        collect_table(tmp_path / "broken.parquet")


def test_holdout_is_fixed_by_its_seed() -> None:
    held = draw_holdout(100, 0.2, 3)
    assert np.unique(held).size == 20
    np.testing.assert_array_equal(held, draw_holdout(100, 0.2, 3))
    assert not np.array_equal(held, draw_holdout(100, 0.2, 4))
    assert draw_holdout(10, 0.0, 0).size == 0
    with pytest.raises(DataError, match="leave 1 to train on"):
        draw_holdout(2, 0.5, 0)
