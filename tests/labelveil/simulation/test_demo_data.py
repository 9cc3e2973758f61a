"""Tests for the demonstrations' data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from labelveil.commands.cli import main
from labelveil.common.errors import ConfigError
from labelveil.simulation import demo_data
from labelveil.simulation.demo_data import EXAMPLES, KEY, write_demo_data
from tests.commands import RunCommand


@pytest.mark.parametrize(
    ("name", "events", "features"), [("diamonds", 16_000, 9), ("visits", 20_190, 9)]
)
def test_each_party_gets_its_own_columns_of_the_same_events(
    name: str, events: int, features: int, tmp_path: Path
) -> None:
    example = EXAMPLES[name]
    labels, stones = map(pl.read_csv, write_demo_data(example, tmp_path))
    assert labels.columns == [KEY, example.label]
    assert labels.height == events
    assert labels[example.label].is_between(example.lower, example.upper).all()
    assert example.label not in stones.columns
    assert stones.width == 1 + features
    assert stones[KEY].equals(labels[KEY])


def test_fewer_events_are_drawn_the_same_each_time(tmp_path: Path) -> None:
    labels, first = write_demo_data(EXAMPLES["diamonds"], tmp_path / "a", 1000)
    _, again = write_demo_data(EXAMPLES["diamonds"], tmp_path / "b", 1000)
    assert pl.read_csv(labels).height == 1000
    assert first.read_bytes() == again.read_bytes()


def test_a_library_may_lie_in_a_folder_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "of[3]*").mkdir()
    (folder / "diamonds.csv").write_text("price\n7\n")
    found = SimpleNamespace(locate_file=lambda name: folder / Path(name).name)
    monkeypatch.setattr(demo_data, "distribution", lambda name: found)
    assert EXAMPLES["diamonds"].read()["price"].to_list() == [7]


def test_what_is_missing_is_named(tmp_path: Path, run_command: RunCommand) -> None:
    def read() -> pl.DataFrame:
        raise ImportError

    with pytest.raises(ConfigError, match=r"comes with plotnine, .* pip install"):
        write_demo_data(replace(EXAMPLES["diamonds"], read=read), tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_demo_data(EXAMPLES["visits"], tmp_path / "file")
    done = run_command(main, "demo", "pearls")
    assert done.error == "error: example='pearls' must be one of diamonds, visits\n"
    done = run_command(main, "demo", "visits", "--out", str(tmp_path / "file"))
    assert "cannot be written" in done.error
