"""Freed messages are used again, and not fetched again from the system; larger arrays go back."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

# How many pages the system hands out while eight megabytes are taken and freed, again and again.
CHILD = """
import resource, sys
from labelveil.common.allocator import keep_freed_memory

assert sys.argv[1] == "plain" or keep_freed_memory()
for _ in range(5):
    [bytes(1 << 20) for _ in range(8)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(60):
    [bytes(1 << 20) for _ in range(8)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

# What a process holds, in megabytes, after arrays of up to 31 were freed between small ones.
HOLES = """
import sys
import numpy as np
from labelveil.common.allocator import keep_freed_memory

assert sys.argv[1] == "plain" or keep_freed_memory()
large, small = [], []
for size in 3 * (5, 8, 13, 21, 31):
    large.append(np.ones(size << 17))
    small.append(np.ones(1 << 16))
del large
(held,) = (line for line in open("/proc/self/status") if line.startswith("VmRSS:"))
print(int(held.split()[1]) >> 10)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's thresholds are pinned")
def test_freed_memory_is_used_again() -> None:
    assert _said(CHILD, "pinned") < _said(CHILD, "plain") / 10


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's thresholds are pinned")
def test_freed_arrays_leave_no_holes() -> None:
    assert _said(HOLES, "pinned") < 120  # of 234 that were freed; NumPy and what is kept have 40


def _said(child: str, how: str) -> int:
    ended = subprocess.run(
        [sys.executable, "-c", child, how],
        cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True,
    )  # fmt: skip
    return int(ended.stdout)
