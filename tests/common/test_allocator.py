"""Freed megabytes are used again, and not fetched again from the system."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

# How many pages the system hands out while eight megabytes are taken and freed, again and again.
CHILD = """
import resource, sys
from common.allocator import keep_freed_memory

assert sys.argv[1] == "plain" or keep_freed_memory()
for _ in range(5):
    [bytes(1 << 20) for _ in range(8)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(60):
    [bytes(1 << 20) for _ in range(8)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's thresholds are pinned")
def test_freed_memory_is_used_again() -> None:
    assert _faults("pinned") < _faults("plain") / 10


def _faults(how: str) -> int:
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, how],
        cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True,
    )  # fmt: skip
    return int(ended.stdout)
