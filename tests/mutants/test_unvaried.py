"""What tests never see is listed, and operations stay what they were while they are watched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.imports import ROOT
from tests.mutants import recorder
from tests.mutants.unvaried import never, prepare

SOURCE = '''"""Words: 1 < 2."""


def price(amount: int, limit: int, rate: int = 2, *, all_at_once: bool = False) -> int:
    """At most 5."""
    if amount < limit and not all_at_once:
        return rate * amount + 0
    return min(amount, limit) if 0 < amount <= limit else amount // 2 - limit


def lonely(values: list[int]) -> bool:
    return any(x > 1 for x in values if x) or all(values)
'''
CALLS = "from priced import *; print(price(2, 3), price(3, 3), price(8, 3), price(1, 2, 1))"
MORE = (
    "from priced import *; price(1, 2, all_at_once=True); price(0, 0), price(-1, -2); price(2, 2)"
    "; [lonely(each) for each in ([0, 1, 2], [-1, 0], [1, 0], [1])]"
)


def _run(folder: Path, calls: str, **more: str) -> str:
    path = os.pathsep.join([str(folder), str(folder / "notes"), str(ROOT)])
    environment = {**os.environ, **more, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.check_output([sys.executable, "-c", calls], env=environment, text=True)


def _listed(operations: list[recorder.Operation], notes: Path) -> set[str]:
    return {
        f"{operation.line} {unseen.removeprefix('never ')}: {operation.source}"
        for operation, unseen in never(operations, notes)
    }


def test_what_no_call_sees_is_listed(tmp_path: Path) -> None:
    (tmp_path / "priced.py").write_text(SOURCE)
    notes = tmp_path / "notes"
    operations = prepare(tmp_path, ["priced.py"], notes)
    watching = {recorder.FOLDER: str(notes)}
    assert _run(tmp_path, CALLS, **watching) == _run(tmp_path, CALLS) == "4 3 1 1\n"
    assert _listed(operations, notes) == {
        "6 false: not all_at_once",
        "7 with its right: rate * amount + 0",
        "8 equal, more: 0 < amount",
        "8 less: amount <= limit",
        "8 less, more: min(amount, limit)",
        "8 with a remainder: amount // 2",
        "11 run: def lonely",
        "12 true, false: any((x > 1 for x in values if x))",
        "12 true, false, mixed: any((x > 1 for x in values if x))",
        "12 true, false: x",
        "12 less, equal, more: x > 1",
        "12 true, false: all(values)",
        "12 true, false, mixed: all(values)",
    }
    _run(tmp_path, MORE, **watching)
    assert _listed(operations, notes) == {  # of which no call could see more
        "7 with its right: rate * amount + 0",
        "8 more: min(amount, limit)",
    }
