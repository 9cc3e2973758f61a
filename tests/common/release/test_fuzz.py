"""Damaged manifests, rows and streams by the thousand: each is refused in one line, or read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from labelveil.common.release.table import write_release
from tests.common.release.releases import make_release
from tests.effort import effort, one_in
from tests.labelveil.audit.conftest import in_key_order

MOST_SECONDS = 1.0
"""Of the processor, for one release."""
MOST_MEGABYTES = 200.0
RANDOMIZERS = ["rr-on-bins", "randomized-thresholds", "auto", "unbiased", "laplace"]


def fuzz(folder: Path, randomizer: str, seed: int, cases: int) -> None:
    manifest, keys, codes = in_key_order(*make_release(300, randomizer=randomizer))
    write_release(folder, manifest.to_bytes(), keys, codes)
    command = [sys.executable, "-m", "tests.common.release.fuzzed", str(folder)]
    ended = subprocess.run(
        [*command, str(seed), str(cases)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    assert found["slowest"] < MOST_SECONDS
    assert found["grown"] < MOST_MEGABYTES
    assert found["taken"] < cases / 4  # most mutations matter


@pytest.mark.parametrize("randomizer", one_in(3, RANDOMIZERS[:3]))
def test_damaged_releases_are_refused(tmp_path: Path, randomizer: str) -> None:
    fuzz(tmp_path, randomizer, 1, 24)


@pytest.mark.slow
@pytest.mark.parametrize("randomizer", RANDOMIZERS)
@pytest.mark.parametrize("seed", range(effort(1, 4)))
def test_damaged_releases_of_every_kind_are_refused(
    tmp_path: Path, randomizer: str, seed: int
) -> None:
    """Ten thousand of them where everything is tried."""
    fuzz(tmp_path, randomizer, seed + 2, effort(100, 500))
