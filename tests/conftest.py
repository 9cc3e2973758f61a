"""Settings that every test shares."""

from __future__ import annotations

import atexit
import gc
import os
import signal

if "PYTEST_XDIST_WORKER" in os.environ:  # there are as many of these as cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

import common  # noqa: F401  before any test module imports gRPC: TLS 1.3 only
from tests.commands import run_command
from tests.effort import effort
from tests.engines import spark
from tests.statistics import repeatable

__all__ = ["repeatable", "run_command", "spark"]

# Time says more about the machine than about the code; tests/benchmarks measures it. The same
# examples come in every run, so that none fails by chance.
settings.register_profile(
    "labelveil",
    deadline=None,
    derandomize=True,
    max_examples=effort(50, 500),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("labelveil")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's job in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands under test hear it


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over libraries and collected tests: a sixth of the time."""
    gc.freeze()
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
