"""The page of attacks names tests that exist, and that run every time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEST = re.compile(r"^def (test_\w+)", re.MULTILINE)
PAGE = ROOT / "docs" / "appendix" / "attacks.md"


def ordinary_tests(named: set[str]) -> Iterator[str]:
    """Which of these test functions ``make test`` does not leave out."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        if "pytestmark = pytest.mark.slow" in text or named.isdisjoint(TEST.findall(text)):
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                if "pytest.mark.slow" not in marks:
                    yield node.name


def test_every_test_that_it_names_is_run_every_time() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert len(named) > 20
    assert named - set(ordinary_tests(named)) == set()
