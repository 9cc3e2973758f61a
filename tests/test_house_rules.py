"""Rules that hold for every source file: who imports whom, and where randomness may come from."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "common": {"label_party", "feature_party", "labelveil", "tests"},
    "label_party": {"feature_party", "torch", "tests"},
    "feature_party": {"label_party", "tests"},
    "labelveil": {"torch", "tests"},
}
LONGEST_MODULE = 450


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def generators(tree: ast.AST) -> Iterator[str]:
    """Every name that leads to a generator whose words are not ours."""
    for name in imported(tree):
        if name.split(".")[0] == "random" or name.startswith("numpy.random"):
            yield name
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "random"
            and isinstance(node.value, ast.Name)
            and node.value.id in ("np", "numpy")
        ):
            yield "numpy.random"
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in ("default_rng", "RandomState", "SeedSequence"):
                yield name


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_no_package_imports_one_that_it_must_not(package: str) -> None:
    for path in sources(package):
        roots = {name.split(".")[0] for name in imported(ast.parse(path.read_text()))}
        assert not roots & FORBIDDEN[package], path


@pytest.mark.parametrize("package", ["common", "label_party"])
def test_no_other_generator_is_near_a_release(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in sources(package)
        if (names := sorted(set(generators(ast.parse(path.read_text())))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "import random",
        "from random import choice",
        "import numpy as np\nnp.random.rand()",
        "from numpy.random import default_rng",
        "import numpy\nx = numpy.random",
        "def f(default_rng): return default_rng()",
    ],
)
def test_the_rule_sees_a_generator(text: str) -> None:
    assert list(generators(ast.parse(text)))


def test_the_labels_party_starts_without_torch() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sources("label_party")
        if path.stem != "__main__"
    ]
    program = (
        "import importlib, sys\n"
        "for name in ('torch', 'feature_party', 'pandas', 'pyarrow'): sys.modules[name] = None\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_modules_stay_readable(package: str) -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources(package)
        if "wire" not in path.parts
        and (lines := len(path.read_text().splitlines())) > LONGEST_MODULE
    }
    assert long == {}
