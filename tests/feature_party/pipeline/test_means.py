"""Means by a column: of codes or of sums, of one labels party or several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from labelveil.common.errors import ConfigError, DataError
from labelveil.feature_party.evaluation.group_means import GroupMean
from labelveil.feature_party.evaluation.intervals import Measured
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.pipeline.learning import Learning
from labelveil.feature_party.pipeline.means import LabelMeans, means_by
from tests.feature_party.pipeline.configured import configured
from tests.feature_party.worlds import World, build_world


def test_means_of_sums_are_of_one_release(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [SimpleNamespace(sums=None), SimpleNamespace(sums=object())]
    monkeypatch.setattr(Learning, "manifests", kinds)
    config = configured(world, tmp_path, labels_party={"epochs": ["1", "2"]})
    with pytest.raises(ConfigError, match=r"of the sums of one release, and there are 2; set"):
        means_by(config, ["shop"], None, quiet=True)


@pytest.mark.parametrize("matches", [None, MatchCounts(9, 8, 7)])
def test_means_are_told_with_where_they_are_from(matches: MatchCounts | None) -> None:
    means = [
        GroupMean(("a",), 1200, Measured(1.0, 0.5, 1.5)),
        GroupMean(("b",), 34, Measured(2, 1, 3)),
    ]
    found = LabelMeans("pay", ["arm"], 0.5, matches, matches is None, means)
    first = "sums over 1,234 events, whose own means these are" if matches is None else str(matches)
    assert found.lines[0] == first
    assert found.lines[-1] == "pay:"
    assert ("warning: this randomizer" in found.lines[1]) == (matches is not None)
    data = found.to_json()
    assert data["told_by"] == ("sums" if matches is None else "codes")
    assert (data["name"], data["by"], data["epsilon"]) == ("pay", ["arm"], 0.5)
    assert data["unbiased"] == (matches is None)
    assert data["groups"] == [mean.to_json(["arm"]) for mean in means]
    assert ("matched" in data) == (matches is not None)
    assert "name" not in replace(found, label="").to_json()
    assert replace(found, label="").lines[-1] != "pay:"


def test_means_by_a_column_are_of_the_matched_events(world: World, tmp_path: Path) -> None:
    (found,) = means_by(configured(world, tmp_path), ["shop"], "shop 1", quiet=True)
    truth = pl.read_parquet(world.features).join(pl.read_parquet(world.truth), on="event")
    known = dict(
        truth.group_by("shop")
        .agg(pl.col("amount").mean(), pl.len())
        .select("shop", "len")
        .iter_rows()
    )
    assert {mean.values[0]: mean.events for mean in found.means} == known
    assert (found.label, found.exact, found.epsilon) == ("", True, 4.5)
    with pytest.raises(DataError, match="--by 'event' is no column of the features; columns: x, "):
        means_by(configured(world, tmp_path), ["event"], None, quiet=True)


@pytest.mark.slow
def test_means_of_several_labels_parties_are_each_ones_own(tmp_path: Path) -> None:
    """Of its own events, at its own ε, between its own labels."""
    worlds, releases = dict[str, World](), tmp_path / "releases"
    releases.mkdir()
    for name, rows, epsilon, seed in (("a", 300, 4.0, 1), ("b", 250, 2.0, 2)):
        (tmp_path / name).mkdir()
        worlds[name] = build_world(tmp_path / name, rows=rows, epsilon=epsilon, seed=seed)
        worlds[name].directory.rename(releases / name)
    parties = [{"name": name, "data_set": name} for name in worlds]
    config = configured(
        worlds["a"], tmp_path, labels_party=parties, release={"directory": releases}
    )
    shops = pl.read_parquet(worlds["a"].features)
    found = means_by(config, ["shop"], None, quiet=True)
    assert [(each.label, each.epsilon) for each in found] == [("a", 4.5), ("b", 2.5)]
    for each, (name, world), rows in zip(found, worlds.items(), (300, 250), strict=True):
        assert each.matches is not None
        assert (each.matches.matched, each.lines[-1]) == (rows, f"{name}:")
        own = shops.join(pl.read_parquet(world.truth), on="event")
        true = dict(own.group_by("shop").agg(pl.col("amount").mean()).iter_rows())
        assert sum(mean.events for mean in each.means) == rows
        for mean in each.means:
            assert mean.mean.low < true[mean.values[0]] < mean.mean.high
