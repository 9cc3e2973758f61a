"""A model reads a later file as it read the first, whatever that looks like by itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from labelveil.common.errors import LabelveilError
from labelveil.feature_party.commands.cli import app
from tests.feature_party.worlds import World

QUICK = ("--set", "training.learner=linear", "--ensemble", "1", "--epochs", "1")


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def people(world: World) -> pl.DataFrame:
    """The features as people write them: codes with zeros, thousands, gaps, a late decimal."""
    rows = pl.read_parquet(world.features)
    number = rows["shop"].str.slice(5).cast(pl.Int64)
    many = (number * 1000 + 234).cast(pl.String).to_list()
    return pl.DataFrame(
        {
            "": range(len(rows)),  # pandas' index
            "event": rows["event"],
            "zip": [f"{code:05}" for code in number * 4000 + 12],
            "size": [f"{code}.50" for code in number],
            "spent": [f"{text[:-3]},{text[-3:]}" if len(text) > 3 else text for text in many],
            "late": [*("34"[i % 2] for i in range(len(rows) - 1)), "0.5"],
            "x": ["N/A" if x != x else f" {x} " for x in rows["x"]],
            "day": [f"{1 + i % 28:02}/{1 + i % 12:02}/2025" for i in range(len(rows))],
        }
    )


@pytest.fixture(scope="module")
def folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that was trained on such a CSV file."""
    folder = tmp_path_factory.mktemp("later")
    people(world).write_csv(folder / "features.csv")
    said = invoke(
        *("train", "--release", str(world.directory), "--features", str(folder / "features.csv")),
        *("--key", "event", "--secret-file", str(world.secret_file), *QUICK),
        *("--set", 'data.categorical=["size"]', "--model", str(folder / "model")),
    )
    for line in ("spent: number 1,234.5", "zip: category", "day: date %d/%m/%Y", "late: number"):
        assert line in said
    return folder


def predicted(folder: Path, features: Path, *more: str) -> tuple[pl.DataFrame, dict[str, dict]]:  # type: ignore[type-arg]
    out = features.with_suffix(".out.parquet")
    said = invoke(
        *("predict", "--features", str(features), "--model", str(folder / "model")),
        *("--output", str(out), "--quiet", "--json", *more),
    )
    document = json.loads(said[said.index("{") :])
    return pl.read_parquet(out), {column["column"]: column for column in document["drift"]}


def same(one: pl.DataFrame, other: pl.DataFrame) -> None:
    assert one["event"].to_list() == other["event"].to_list()
    for name in ("prediction", "lower", "upper"):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-6)


def test_a_row_says_by_itself_what_it_said_among_others(world: World, folder: Path) -> None:
    whole, drift = predicted(folder, folder / "features.csv")
    assert whole.columns[0] == "event"  # the model knows the key
    assert not any(column["matters"] for column in drift.values())
    table = people(world)
    typed = table.with_columns(
        spent=pl.col("spent").str.replace(",", "").cast(pl.Int64),
        late=pl.col("late").cast(pl.Float64),
        x=pl.col("x").str.strip_chars().cast(pl.Float64, strict=False),
        day=pl.col("day").str.to_date("%d/%m/%Y"),
    )
    typed.write_parquet(folder / "typed.parquet")
    same(predicted(folder, folder / "typed.parquet")[0], whole)
    for place in (0, 7, len(table) - 1):  # codes of digits alone, whole numbers alone, one decimal
        table[place : place + 1].write_csv(folder / "one.csv")
        one, _ = predicted(folder, folder / "one.csv")
        same(one, whole[place : place + 1])


def test_what_is_unlike_the_training_is_told_and_stops_a_script(world: World, folder: Path) -> None:
    table = people(world).with_columns(
        zip=pl.lit("7"), spent=pl.lit("1.2.3"), x=pl.lit(""), late=pl.lit("99")
    )
    path = folder / "strange.csv"
    pl.concat([people(world)[:400], table[:400]]).write_csv(path)
    _, drift = predicted(folder, path)
    shares = {
        "zip": drift["zip"]["unknown"]["now"],
        "spent": drift["spent"]["odd"]["now"],
        "x": drift["x"]["missing"]["now"],
        "late": drift["late"]["outside"],
    }
    assert all(abs(share - 0.5) < 0.05 for share in shares.values()), shares
    assert {name for name, column in drift.items() if column["matters"]} == set(shares)
    with pytest.raises(LabelveilError, match="unlike what the model was trained on"):
        predicted(folder, path, "--fail-on-drift")
    assert path.with_suffix(".out.parquet").exists()
    table.write_csv(path)
    with pytest.raises(LabelveilError, match=r"'spent' holds no number 1,234.5 in any of 1,500"):
        predicted(folder, path)


def test_init_writes_what_the_columns_are(
    world: World, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    features = str(folder / "features.csv")
    invoke("init", "--features", features, "--key", "event", "--data-set", "sales")
    text = (tmp_path / "feature_party.toml").read_text()
    for line in ('"spent" = "number 1,234.5"', '"day" = "date %d/%m/%Y"', '"zip" = "category"'):
        assert line in text
    said = invoke(
        *("train", "--release", str(world.directory), "--secret-file", str(world.secret_file)),
        *(*QUICK, "--set", "data.columns.spent=ignore"),
    )
    assert "spent: ignored" in said
