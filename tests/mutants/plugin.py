"""In the pytest of a mutant: which lines each test reaches, or only the tests that were chosen.

``LABELVEIL_REACH=FILE`` measures and writes ``{test: [seconds, {source: [lines]}]}``, seconds of a
processor, and lines that run while modules are imported under the test ``""``.
``LABELVEIL_CHOSEN=FILE`` runs the tests of which the file has a line each, in its order. Processes
that a test starts are not measured.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from tests.imports import PACKAGES, ROOT

REACH, CHOSEN = os.environ.get("LABELVEIL_REACH"), os.environ.get("LABELVEIL_CHOSEN")

_measured = coverage.Coverage(
    data_file=None, config_file=False, include=[str(ROOT / f"{name}/*") for name in PACKAGES]
)
_seconds: dict[str, float] = {}

if REACH:
    _measured.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    start = sum(os.times()[:4])
    if REACH:
        _measured.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if REACH:
            _measured.switch_context("")
        _seconds[item.nodeid] = sum(os.times()[:4]) - start


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHOSEN:
        order = {name: n for n, name in enumerate(Path(CHOSEN).read_text("utf-8").split("\n"))}
        items[:] = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )


def pytest_unconfigure() -> None:
    if REACH:
        _measured.stop()
        data = _measured.get_data()
        reached: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for path in data.measured_files():
            name = str(Path(path).resolve().relative_to(ROOT))
            for line, contexts in data.contexts_by_lineno(path).items():
                for context in contexts:
                    reached[context][name].append(line)
        found = {test: [_seconds.get(test, 0.0), reached[test]] for test in {"", *_seconds}}
        Path(REACH).write_text(json.dumps(found), "utf-8")
