"""Run tests, and list operations of which they never see an outcome: ``make unvaried``.

A condition that is always true, a comparison that is never one of equals, an addend that is always
0: whatever is wrong with the other outcome, no test can notice. Many an operation of the list is
fine, as floats that are never equal; the others want other inputs in a test, or less code.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.imports import ROOT
from tests.mutants import recorder
from tests.mutants.__main__ import sources
from tests.mutants.draw import room
from tests.mutants.recorder import OUTCOMES, Operation, wrapped

BUILD = ROOT / "build" / "unvaried"


def prepare(root: Path, paths: Sequence[str], folder: Path) -> list[Operation]:
    """Write what the recorder reads, with nothing noted yet, and return all operations."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    operations, firsts = list[Operation](), dict[str, int]()
    for path in paths:
        firsts[str((root / path).resolve())] = len(operations)
        operations += wrapped((root / path).read_text("utf-8"), path, len(operations))[1]
    (folder / recorder.FIRST).write_text(json.dumps(firsts), "utf-8")
    (folder / recorder.NOTES).write_bytes(bytes(len(operations) + 1))
    shutil.copy(recorder.__file__, folder / "sitecustomize.py")
    return operations


def never(operations: Sequence[Operation], folder: Path) -> list[tuple[Operation, str]]:
    """Return operations with outcomes that were never seen, and which."""
    found = []
    noted = (folder / recorder.NOTES).read_bytes()
    for operation, seen in zip(operations, noted, strict=False):
        outcomes = enumerate(OUTCOMES[operation.kind])
        if unseen := [outcome for place, outcome in outcomes if not seen >> place & 1]:
            found.append((operation, "never " + ", ".join(unseen)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.unvaried", description=__doc__)
    parser.add_argument("--room", action="append", default=[], help="list only this folder or file")
    parser.add_argument("arguments", nargs="*", help="of pytest, after --: all quick tests")
    given = parser.parse_args()
    operations = prepare(ROOT, sources([]), BUILD)
    path = os.pathsep.join(filter(None, [str(BUILD), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, recorder.FOLDER: str(BUILD), "PYTHONPATH": path}
    arguments = given.arguments or ["-n", "logical", "--maxprocesses", "4"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    wanted, count = set(sources(given.room)), Counter[str]()
    for operation, unseen in never(operations, BUILD):
        if operation.path in wanted:
            count[room(operation.path)] += 1
            print(f"{operation.path}:{operation.line}: {unseen}: {operation.source[:90]}")
    print(*(f"{number:6} {name}" for name, number in sorted(count.items())), sep="\n")


if __name__ == "__main__":
    main()
