"""The run's folder: what may be replaced, and what each party finds in its own folder."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from labelveil.common.errors import ConfigError
from labelveil.simulation import Settings
from labelveil.simulation.inputs import read_inputs
from labelveil.simulation.workspace import Workspace, furnish
from tests.labelveil.simulation.conftest import TABLE


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text("{}")
    with pytest.raises(ConfigError, match="not empty; choose another folder, or pass --overwrite"):
        Workspace(tmp_path).claim(overwrite=False)
    assert (tmp_path / "metrics.json").read_text() == "{}"


def test_overwriting_removes_an_earlier_run_and_nothing_else(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.claim(overwrite=False)
    workspace.metrics.write_text("{}")
    (workspace.label_party / "labels.parquet").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    workspace.claim(overwrite=True)
    assert not workspace.metrics.exists()
    assert not (workspace.label_party / "labels.parquet").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        Workspace(tmp_path / "out").claim(overwrite=True)


def furnished(settings: Settings) -> Workspace:
    workspace = Workspace(settings.out)
    workspace.claim(overwrite=False)
    furnish(workspace, read_inputs(settings), settings)
    return workspace


def test_each_party_gets_its_own_data_and_nothing_else(small: Callable[..., Settings]) -> None:
    workspace = furnished(small(key="id", ignore=["leak"]))
    assert pl.read_parquet(workspace.feature_party / "features.parquet").columns == ["id", "x"]
    assert pl.read_parquet(workspace.label_party / "labels.parquet").columns == ["id", "y"]


def test_configurations_survive_odd_names(small: Callable[..., Settings], tmp_path: Path) -> None:
    odd = 'a "quoted" \\ name\n= [x] # é'
    TABLE.rename({"id": odd}).write_parquet(tmp_path / "all.parquet")
    workspace = furnished(small(key=odd))
    for party in (workspace.label_party, workspace.feature_party):
        config = tomllib.loads((party / f"{party.name}.toml").read_text())
        assert config["data"]["key"] == odd
