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

SAMPLE = {"manifests": 8, "questions": 40, "configurations": 8, "populations": 4, "predictions": 8}
MORE = {
    "manifests": (60, 400),
    "questions": (400, 20_000),
    "configurations": (40, 400),
    "populations": (9, 9),
    "predictions": (40, 1000),
}
REFUSED = {"populations": 0, "predictions": 0.05, "questions": 0.3}
"""Share of the cases, where it is not most of them."""


def read(door: str, seed: int, cases: int, folder: Path) -> None:
    command = [sys.executable, "-m", "tests.bounded", door, str(seed), str(cases), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    seconds, slowest = found["slowest"]
    assert seconds < MOST_SECONDS, slowest
    assert found["grown"] < MOST_BYTES
    assert found["refused"] >= REFUSED.get(door, 0.5) * (found["taken"] + found["refused"])


@pytest.mark.parametrize("door", SAMPLE)
def test_whatever_is_sent_is_bounded(tmp_path: Path, door: str) -> None:
    assert SAMPLE.keys() == MORE.keys() == DOORS.keys()
    read(door, 1, SAMPLE[door], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("door", MORE)
def test_more_of_what_is_sent_is_bounded(tmp_path: Path, door: str) -> None:
    read(door, 2, effort(*MORE[door]), tmp_path)
