"""A watch of days of labels, as its tests run it."""

from __future__ import annotations

import numpy as np
import polars as pl

from labelveil.common.release.manifest import Manifest
from tests.label_party.conftest import Party, Result
from tests.statistics import RATE

ROWS = 20_000
"""Enough to miss a shift of 4 as seldom as a false alarm is raised."""


def write_day(party: Party, epoch: str, shift: float = 0.0, rows: int = ROWS) -> None:
    """A day of labels 0 … 10 around 3 + shift, its keys its own."""
    (party.folder / "days").mkdir(exist_ok=True)
    spread = np.random.default_rng(int.from_bytes(epoch.encode(), "big")).normal(0, 1.5, rows)
    labels = np.clip(np.round(3 + shift + spread), 0, 10)
    keys = [f"{epoch}-{i}" for i in range(rows)]
    frame = pl.DataFrame({"key": keys, "label": labels})
    frame.write_parquet(party.folder / "days" / f"{epoch}.parquet")


def watch(party: Party, *arguments: str, **settings: object) -> Result:
    asked = {
        "data__labels": "days/{epoch}.parquet",
        "privacy__epochs": "disjoint",
        "privacy__total_epsilon": 1.0,
        "watch__false_alarm": RATE,
        **settings,
    }
    text = (party.folder / "label_party.toml").read_text()
    alone = text.replace('population = "population.csv"', "")
    (party.folder / "label_party.toml").write_text(alone)
    return party.run("watch", "--once", *arguments, *party.arguments(**asked))


def manifest(party: Party, epoch: str) -> Manifest:
    path = party.store / "releases" / "labels" / epoch / "manifest.json"
    return Manifest.from_bytes(path.read_bytes())


def epochs(party: Party) -> list[str]:
    return sorted(path.name for path in (party.store / "releases" / "labels").iterdir())
