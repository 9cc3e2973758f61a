"""A small table of events, and settings of a simulation on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from labelveil.simulation import Settings
from tests.programs import forked_parties

TABLE = pl.DataFrame(
    {
        "id": ["a", "b", "c", "d"],
        "y": [1.0, None, 99.0, float("nan")],
        "x": [1, 2, 3, 4],
        "leak": [1, 0, 1, 0],
    }
)


@pytest.fixture
def forked() -> Iterator[None]:
    """Let both parties be forked: what they import takes longer than most of what they do here."""
    with forked_parties():
        yield


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Settings]:
    """Make settings of a table in one file, ``all.parquet``, with changes."""

    def make(**changes: Any) -> Settings:
        both = tmp_path / "all.parquet"
        fields = {
            "labels": both, "features": both, "label": "y", "lower": 0.0, "upper": 10.0,
            "epsilon": 1.0, "out": tmp_path / "out", "randomizer": "rr-on-bins",
            "rounds": "1",
        }  # fmt: skip
        return Settings(**fields | changes)

    TABLE.write_parquet(tmp_path / "all.parquet")
    return make
