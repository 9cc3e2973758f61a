"""Which tests reach a line: measured once for each test file, and kept until a file changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from tests.imports import house_name, imported, parsed
from tests.mutants.forked import pytest_in


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


@dataclass(frozen=True)
class Measured:
    """A test, the seconds of a processor that it took, and lines that it reached."""

    name: str
    seconds: float
    reached: Mapping[str, frozenset[int]]


@dataclass(frozen=True)
class Reach:
    """The tests of a tree; what is measured is kept in a folder."""

    root: Path
    kept: Path

    def files(self, path: str) -> Iterator[list[Path]]:
        """Yield the test files of a module's folder, then of its package those that import it, and
        at last of other packages those that import anything of its folder."""
        module = ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")
        tests = self.root / "tests"
        known = sorted((tests / Path(path).parent).glob("test_*.py"))
        yield known
        for folder, wanted in (
            (tests / Path(path).parts[0], module),
            (tests, module.rpartition(".")[0]),
        ):
            found = [
                each
                for each in sorted(folder.rglob("test_*.py"))
                if each not in known
                and any(f"{name}.".startswith(f"{wanted}.") for name in names(each))
            ]
            known = known + found
            yield found

    def of(self, path: str, line: int, *, near: bool = False) -> Iterator[list[Measured]]:
        """Yield the tests that reach a line, the quickest first: those nearest to it, then others,
        which are not measured if only those of its folder are wanted.

        Where the line runs while its module is imported, or in processes that tests start, they
        are those that reach another line of the module; and if none does, all of the folder's.
        """
        known: list[Measured] = []
        reaching = False
        for files in islice(self.files(path), 1 if near else None):
            tests = [test for file in files for test in self._measured(file)]
            found = [test for test in tests if line in test.reached.get(path, ())]
            reaching |= bool(found)
            known += tests
            if found:
                yield sorted(found, key=lambda test: (test.seconds, test.name))
        if not reaching:
            found = [test for test in known if path in test.reached] or known
            yield sorted(found, key=lambda test: (test.seconds, test.name))

    def _measured(self, file: Path) -> list[Measured]:
        name = file.relative_to(self.root).as_posix()
        kept = self.kept / f"{name.replace('/', '.')}.json"
        if kept.is_file():
            known, found = json.loads(kept.read_text("utf-8"))
            if all(digest(self.root / path) == value for path, value in known.items()):
                return [
                    Measured(t, s, {p: frozenset(n) for p, n in r.items()}) for t, s, r in found
                ]
        kept.parent.mkdir(parents=True, exist_ok=True)
        out = kept.with_suffix(".new")
        out.unlink(missing_ok=True)
        code, said = pytest_in(self.root, [name], {"LABELVEIL_REACH": str(out)})
        if code not in (0, 5) or not out.exists():  # 5: all tests are slow
            raise SystemExit(f"error: without a mutation {name} fails:\n{said[-3000:]}")
        measured = json.loads(out.read_text("utf-8"))
        found = [[test, *measured[test]] for test in sorted(measured) if test]
        paths = {name, *(path for _, _, reached in found for path in reached)}
        known = {path: digest(self.root / path) for path in sorted(paths)}
        kept.write_text(json.dumps([known, found]), "utf-8")
        out.unlink()
        return read(found)


def read(kept: list[Any]) -> list[Measured]:
    """Return tests from what is kept of a file."""
    return [
        Measured(name, seconds, {path: frozenset(lines) for path, lines in reached.items()})
        for name, seconds, reached in kept
    ]


@cache
def names(file: Path) -> frozenset[str]:
    """Return the modules of ours that a file imports."""
    return frozenset(house_name(name) for name in imported(parsed(file)))
