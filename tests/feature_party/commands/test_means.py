"""``feature-party means``: against true means, as text and JSON, and one line for every mistake."""

from __future__ import annotations

import json

import polars as pl
import pytest
from typer.testing import CliRunner

from labelveil.common.errors import LabelveilError
from labelveil.feature_party.commands.cli import app
from tests.feature_party.worlds import World


def means(world: World, *arguments: str) -> str:
    given = ["--features", str(world.features), "--key", "event"]
    given += ["--secret-file", str(world.secret_file), "--release", str(world.directory)]
    result = CliRunner().invoke(app, ["means", *given, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refusal(world: World, *arguments: str) -> str:
    with pytest.raises(LabelveilError) as caught:
        means(world, *arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def true_means(world: World) -> dict[str, float]:
    both = pl.read_parquet(world.features).join(pl.read_parquet(world.truth), on="event")
    found = both.group_by("shop").agg(pl.col("amount").mean())
    return dict(found.iter_rows())


def test_means_of_a_release_are_near_the_true_ones(world: World) -> None:
    true = true_means(world)
    document = json.loads(means(world, "--by", "shop", "--control", "shop 0", "--json"))
    assert document["by"] == ["shop"]
    assert (document["told_by"], document["unbiased"]) == ("codes", True)
    assert document["matched"] == sum(group["events"] for group in document["groups"]) == 1500
    assert {group["group"]["shop"] for group in document["groups"]} == {*true}
    for group in document["groups"]:
        mean = true[group["group"]["shop"]]
        assert group["mean_low"] < mean < group["mean_high"]
        assert group["mean_high"] - group["mean_low"] < 0.7
        if group["group"]["shop"] == "shop 0":
            assert "lift" not in group
        else:
            assert group["lift_low"] < mean - true["shop 0"] < group["lift_high"]
    text = means(world, "--by", "shop")
    assert "1,500 events match" in text
    for name in true:
        assert name in text
    assert "lift" not in text
    assert "shop 3" in means(world, "--by", "shop", "--by", "x")
    assert means(world, "--by", "shop", "--quiet") == ""


def test_what_cannot_be_told_is_one_line(world: World) -> None:
    columns = "columns: x, income, shop"
    assert refusal(world) == "--by is missing: name a column of the features, such as --by campaign"
    assert refusal(world, "--by", "nope") == f"--by 'nope' is no column of the features; {columns}"
    assert (
        refusal(world, "--by", "event") == f"--by 'event' is no column of the features; {columns}"
    )
    assert "--by names 'shop' twice" in refusal(world, "--by", "shop", "--by", "shop")
    assert "control 'shop 9' is none of the values shop 0, shop 1," in refusal(
        world, "--by", "shop", "--control", "shop 9"
    )
