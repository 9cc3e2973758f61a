"""Mutations are drawn repeatably, are programs, and are noticed where a test looks."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest

from tests.imports import ROOT
from tests.mutants.__main__ import affordable, copied, noticed, sources
from tests.mutants.draw import Mutation, compiles, drawn, mutations, room
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.reach import Measured, Reach

SOURCE = b'''"""Says 3 < 4."""

STEP: int = 2


def paid(spent: int, limit: int, *, strict: bool = False) -> bool:
    """At most 5."""
    if spent < 0:
        raise ValueError(f"spent={spent + 1} must be at least {0}")
    log(spent)
    return max(cost(spent, STEP), 2) * 2 <= limit and not strict and zip(strict=True)
'''


def changed() -> set[str]:
    found = [each for each in mutations("a.py", SOURCE) if compiles(each, SOURCE)]
    return {f"{each.old} > {each.new}" for each in found}


def test_each_kind_of_fault_is_made_and_words_are_left_alone() -> None:
    kinds = {each.kind for each in mutations("a.py", SOURCE)}
    assert kinds == {
        *("comparison", "operator", "dropped", "sign", "logic", "constant", "name", "argument"),
        *("check", "statement"),
    }
    wanted = {
        "< > <=", "<= > <", "* > /", "spent < 0 > False", "log(spent) > pass", "max > min",
        "False > True", "2 > 3", "not strict > (strict)", "limit > spent", "and > or",
        "spent, STEP > STEP, spent",
    }  # fmt: skip
    assert wanted <= changed()
    assert "cost(spent, STEP), 2 > 2, cost(spent, STEP)" not in changed()  # of either order
    said = {number for number, text in enumerate(SOURCE.decode().split("\n"), 1) if "ay" in text}
    assert not {each.line for each in mutations("a.py", SOURCE)} & {*said, 7, 9}


def test_a_mutation_changes_its_own_place_in_bytes_of_any_alphabet() -> None:
    source = 'name = "ε ≤ 1"; limit = 1 < 2\n'.encode()
    (one,) = [each for each in mutations("a.py", source) if (each.old, each.new) == ("<", "<=")]
    assert one.applied(source).decode() == 'name = "ε ≤ 1"; limit = 1 <= 2\n'
    assert ast.parse(one.applied(source))


@pytest.mark.slow
def test_a_seed_draws_the_same_and_as_many_of_each_room() -> None:
    files = sources(["common/exact", "label_party/store"])
    found = drawn(files, ROOT, 1, 20)
    assert found == drawn(files[::-1], ROOT, 1, 20)
    assert found != drawn(files, ROOT, 2, 20)
    assert [room(each.path) for each in found] == ["common/exact"] * 10 + ["label_party/store"] * 10
    assert len({(each.path, each.line) for each in found}) == 20
    for each in found:
        assert compiles(each, (ROOT / each.path).read_bytes())


def test_what_is_equivalent_is_still_there() -> None:
    for path, line in EQUIVALENT:
        assert line.partition(" → ")[0] in (ROOT / path).read_text("utf-8"), (path, line)


@pytest.mark.slow
def test_git_knows_of_a_copy_what_it_knows_of_the_tree(tmp_path: Path) -> None:
    """Tests that ask it what the wheel must hold fail otherwise, without a mutation."""
    copied(tmp_path)
    ours, theirs = (
        set(subprocess.check_output(["git", "ls-files", "common"], cwd=at, text=True).split())
        for at in (ROOT, tmp_path)
    )
    assert "common/errors.py" in ours <= theirs


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package with a test that looks at a boundary, and one that does not."""
    for folder in ("common/exact", "tests/common/exact", "tests/mutants"):
        (tmp_path / folder).mkdir(parents=True)
    source = "def low(x):\n    return x < 3\n\n\ndef high(x):\n    return x > 5\n"
    (tmp_path / "common/exact/limits.py").write_text(source)
    tests = "import sys\n\nsys.path.insert(0, {!r})\nimport limits\n\n\n".format(
        str(tmp_path / "common/exact")
    )
    tests += "def test_low():\n    assert limits.low(2) and not limits.low(3)\n\n\n"
    tests += "def test_high():\n    assert limits.high(9)\n"
    (tmp_path / "tests/common/exact/test_limits.py").write_text(tests)
    for name in ("imports.py", "mutants/plugin.py", "__init__.py", "mutants/__init__.py"):
        own = ROOT / "tests" / name
        (tmp_path / "tests" / name).write_text(own.read_text() if own.exists() else "")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib\nmarkers = slow\n"
    )
    return tmp_path


@pytest.mark.slow
def test_a_mutation_is_noticed_by_a_test_that_reaches_and_looks(tree: Path) -> None:
    path = "common/exact/limits.py"
    source = (tree / path).read_bytes()
    reach = Reach(tree, tree / "kept")
    ends = {}
    for old, new in (("<", "<="), (">", ">=")):
        (one,) = [e for e in mutations(path, source) if (e.old, e.new) == (old, new)]
        (tests,) = reach.of(path, one.line)
        assert [test.name.partition("::")[2] for test in tests] == [
            "test_low" if old == "<" else "test_high"
        ]
        ends[old] = noticed(one, tests, tree)
    assert ends["<"] is not None
    assert "test_low" in ends["<"]
    assert ends[">"] is None
    assert (tree / path).read_bytes() == source
    # what is kept is measured again once the module changes
    (kept,) = (tree / "kept").glob("*.json")
    known = json.loads(kept.read_text())[0]
    (tree / path).write_bytes(b"# moved\n" + source)
    assert [test.name for test in next(reach.of(path, 3))] == [
        "tests/common/exact/test_limits.py::test_low"
    ]
    assert json.loads(kept.read_text())[0] != known
    # a line that no test near it reaches sends nobody on to those of other folders
    far = tree / "tests/common/other/test_far.py"
    far.parent.mkdir()
    far.write_text(
        "import labelveil.common.exact.limits\n\n\ndef test_far():\n    raise ValueError\n"
    )
    assert len(list(reach.of(path, 99, near=True))) == 1
    with pytest.raises(SystemExit, match="without a mutation tests/common/other/test_far"):
        list(reach.of(path, 99))


def test_the_quickest_tests_are_run_as_far_as_time_allows() -> None:
    tests = [Measured(str(n), float(n), {}) for n in range(1, 6)]
    assert affordable(tests, 6.5) == tests[:3]
    assert affordable(tests[4:], 1.0) == tests[4:]
    assert affordable([], 1.0) == []
    assert str(Mutation("a.py", 1, "check", 0, 1, "x\n  y", "")) == "a.py:1: x y → nothing"
