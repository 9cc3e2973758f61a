"""Stages that are configured for a world, and what they print."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.join.matches import MatchCounts
from tests.feature_party.worlds import World


def configured(world: World, folder: Path, **more: Any) -> FeaturePartyConfig:
    names = {"metrics": "metrics.json", "report": "r.html", "predictions": "p.csv", "model": "m"}
    values: dict[str, Any] = {
        "data": {"features": world.features, "key": "event"},
        "keys": {"secret_file": world.secret_file},
        "release": {"directory": world.directory},
        "output": {name: folder / file for name, file in names.items()},
    }
    return FeaturePartyConfig.model_validate(values | more)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


TWO: list[dict[str, Any]] = [{"name": "a", "data_set": "x"}, {"name": "b", "data_set": "y"}]


def prepared(labels: int = 1, matched: int = 1500) -> dict[str, Any]:
    events = SimpleNamespace(
        release_id="ab", matches=MatchCounts(1500, 1500, matched), found=None,
        trained=lambda *_: np.zeros(0, dtype=bool),
    )  # fmt: skip
    return {f"y{number}": events for number in range(labels)}
