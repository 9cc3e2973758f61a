"""Settings that every test shares."""

from __future__ import annotations

import atexit
import contextlib
import copy
import faulthandler
import gc
import hashlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

if "PYTEST_XDIST_WORKER" in os.environ:  # there are as many of these as cores
    for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(name, "1")
    gc.disable()  # until all is imported and collected: a sixth of that time

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings
from markupsafe import Markup

from labelveil.common.command_line import Command
from labelveil.common.randomizers import denoising, prior
from labelveil.common.randomizers.design import optimal_design
from labelveil.common.security.tls import only_tls13
from tests.commands import run_command, same_environment
from tests.effort import effort
from tests.engines import spark
from tests.noise import SEED, install, noise_of
from tests.statistics import repeatable

only_tls13()  # as programs do, before any test module imports gRPC

__all__ = ["repeatable", "run_command", "spark"]

# Time says more about the machine than about the code; `make bench` measures it. The same
# examples come in every run, so that none fails by chance.
settings.register_profile(
    "labelveil",
    deadline=None,
    derandomize=True,
    max_examples=effort(30, 500),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("labelveil")

# Spark's Java ends after seconds: what it compiles well never pays
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# What is durable is synced again and again: in memory that takes no time. When what is synced, a
# recorder is asked (tests/power_cut.py), no disk.
with contextlib.suppress(OSError):
    memory = os.statvfs("/dev/shm")
    if memory.f_bavail * memory.f_frsize > 8 << 30 and not memory.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's job in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands under test hear it


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over libraries and collected tests: a sixth of the time."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()
    atexit.register(gc.freeze)


install(pytest.MonkeyPatch())  # for as long as tests run


def pytest_report_header() -> str:
    """Say what the noise of this run follows from."""
    return f"noise: LABELVEIL_TEST_SEED={SEED}"


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Let what fixtures draw not depend on which test of a file, or of a worker, comes first."""
    case = getattr(request, "param_index", 0)
    alone = request.node.nodeid if fixturedef.scope == "function" else fixturedef.baseid
    with noise_of(f"{alone} {fixturedef.argname} {case}"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let what a test draws depend on its name alone."""
    with noise_of(item.nodeid):
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where a worker crashes is written to the run's own output: servers move it to theirs."""
    faulthandler.enable(file=item.config.stash[fault_handler_stderr_fd_key])


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What a program sets for itself is not there in the next test: gRPC's silence, for one."""
    with same_environment():
        yield


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay out no picture of a page, which takes most of its time: other tests look at them."""
    monkeypatch.setattr("labelveil.common.report.figures._inline_svg", lambda *picture: Markup())


def once(function: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """What depends on its arguments alone, worked out once for the same ones by all workers."""
    known: dict[str, Any] = {}

    def remembered(*given: Any, **named: Any) -> Any:
        key = hashlib.sha256(pickle.dumps((given, named))).hexdigest()
        if key not in known:
            path = folder / f"{function.__name__}-{key}"
            try:
                known[key] = pickle.loads(path.read_bytes())
            except FileNotFoundError:
                known[key] = function(*given, **named)
                part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
                with contextlib.suppress(OSError):  # where a test has disks fail
                    part.write_bytes(pickle.dumps(known[key]))
                    part.replace(path)
        return copy.deepcopy(known[key])

    return remembered


@pytest.fixture(autouse=True, scope="session")
def every_estimate_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Estimate each histogram and design each channel once.

    It takes longer than most tests, and they ask for the same few releases' again and again.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers of this run
    histogram = once(denoising.denoise_histogram, folder)
    design = once(optimal_design.identifying_design, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimal_design, "identifying_design", design)
        patch.setattr(prior, "denoise_histogram", histogram)
        if problem := sys.modules.get("labelveil.feature_party.learning.problem"):
            patch.setattr(problem, "denoise_histogram", histogram)
        yield


@pytest.fixture(autouse=True, scope="session")
def every_command_once() -> Iterator[None]:
    """Make each command of a program once: typer takes longer for it than many commands do."""
    known: dict[Any, Any] = {}
    load = Command.load

    def remembered(command: Command, name: str) -> Any:
        module, _, attribute = command.target.partition(":")
        key = command, name, getattr(import_module(module), attribute)  # which a test may replace
        if key not in known:
            known[key] = load(command, name)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Command, "load", remembered)
        yield
