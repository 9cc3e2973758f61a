"""Whatever a partner sends takes time and memory of its size, refused or not: 2 s and a gigabyte.

What is read at each door says :mod:`tests.bounded`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bounded import DOORS, MOST_BYTES, MOST_SECONDS
from tests.effort import effort

SAMPLE = {"manifests": 3, "questions": 20, "configurations": 3, "populations": 3, "predictions": 5}
MORE = {
    "manifests": (30, 400),
    "questions": (200, 20_000),
    "configurations": (20, 400),
    "populations": (9, 9),
    "predictions": (40, 1000),
}
REFUSED = {"populations": 0, "predictions": 0.05, "questions": 0.3}
"""Share of the cases, where it is not most of them."""


def read(seed: int, folder: Path, **cases: int) -> None:
    doors = [f"{door}={many}" for door, many in cases.items()]
    command = [sys.executable, "-m", "tests.bounded", str(seed), str(folder), *doors]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    for door, line in zip(cases, ended.stdout.splitlines(), strict=True):
        found: dict[str, Any] = json.loads(line)
        seconds, slowest = found["slowest"]
        assert seconds < MOST_SECONDS, slowest
        assert found["grown"] < MOST_BYTES
        assert found["refused"] >= REFUSED.get(door, 0.5) * (found["taken"] + found["refused"])


def test_whatever_is_sent_is_bounded(tmp_path: Path) -> None:
    assert SAMPLE.keys() == MORE.keys() == DOORS.keys()
    read(1, tmp_path, **SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("door", MORE)
def test_more_of_what_is_sent_is_bounded(tmp_path: Path, door: str) -> None:
    read(2, tmp_path, **{door: effort(*MORE[door])})
