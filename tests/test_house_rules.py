"""Rules of the house: floors and walls, names, and where randomness may come from."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from tests.imports import (
    PACKAGES,
    PARTS,
    ROOT,
    circles,
    floors,
    grouped,
    import_name,
    imported,
    module_graph,
    modules,
    outside,
    parsed,
    siblings,
    sources,
    summary,
)

FORBIDDEN = {
    "common": {"labelveil", "label_party", "feature_party", "tests", "benchmarks"},
    "label_party": {"labelveil", "feature_party", "torch", "tests", "benchmarks"},
    "feature_party": {"labelveil", "label_party", "tests", "benchmarks"},
    "labelveil": {"tests", "benchmarks"},
}

MATHEMATICS = ("common.exact", "common.guarantees", "common.randomizers", "common.mechanisms")
"""What they say is proved on paper, so nothing may come in but arguments, nor out but results."""

NUMBERS = {"numpy", "scipy"}

INPUT_OUTPUT = {
    "asyncio", "datetime", "http", "io", "json", "logging", "multiprocessing", "os", "pathlib",
    "pickle", "random", "secrets", "shutil", "signal", "socket", "sqlite3", "subprocess",
    "tempfile", "threading", "time", "urllib",
}  # fmt: skip

REASONS = {
    ("common.mechanisms.central.estimators", "sklearn"): "they are scikit-learn's estimators",
    ("common.mechanisms.central.dp_sgd", "sklearn"): "they are scikit-learn's estimators",
    ("common.mechanisms.pate.teachers", "torch"): "a teacher is a network",
}
"""Other libraries in the mathematics, by module."""

TESTS_ALONE = {"formats", "mutants", "twins"}
"""Folders that hold measurements or broken builds, and so mirror no folder."""


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
        if path.stem == "__main__":  # starts at the face
            continue
        roots = {name.split(".")[0] for name in imported(parsed(path))}
        assert not roots & FORBIDDEN[package], path


@pytest.mark.slow
def test_parts_are_imported_as_parts_of_labelveil() -> None:
    """From the repository's root, `import common` works by chance; from a wheel it does not."""
    python = subprocess.check_output(["git", "ls-files", "*.py", "*.pyi"], cwd=ROOT, text=True)
    for path in python.splitlines():
        for node in ast.walk(parsed(ROOT / path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            assert not {name.split(".")[0] for name in names} & set(PARTS), (path, names)


@pytest.mark.slow
def test_the_neutral_program_needs_torch_only_where_it_trains() -> None:
    """In a process of its own: the face and the commands start without it."""
    training = {
        name for name, path in modules().items() if "torch" in outside(imported(parsed(path)))
    }
    ours = {name for name in training if name.startswith("labelveil.")}
    assert {name.rpartition(".")[0] for name in ours} == {"labelveil.comparison"}


def test_a_wall_sees_what_a_text_names() -> None:
    """Commands and processes are named, not imported: a hole of that kind is seen, too."""
    tree = ast.parse(
        'run("labelveil.label_party.commands.cli:main"); run("labelveil.label_party.__main__")'
    )
    assert list(imported(tree)) == ["label_party.commands.cli", "label_party.__main__"]
    assert not list(imported(ast.parse('"label_party.toml", "labelveil", "labelveil.absent"')))


def test_no_module_imports_itself_in_a_circle() -> None:
    assert circles(module_graph()) == []


def test_no_package_imports_another_in_a_circle() -> None:
    """At every level: between the packages and modules that lie side by side."""
    for parent in ("", *(name for name, path in modules().items() if path.name == "__init__.py")):
        assert circles(grouped(module_graph(), siblings(parent))) == [], parent


def test_circles_and_floors_are_found() -> None:
    """The rules could fail."""
    graph = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b"), "d": frozenset("a")}
    assert circles(graph) == [["b", "c"]]
    assert floors({**graph, "c": frozenset()}) == {"a": 2, "b": 1, "c": 0, "d": 3}


def test_the_mathematics_reads_and_writes_nothing() -> None:
    standard = set(sys.stdlib_module_names) - INPUT_OUTPUT
    for name, path in modules().items():
        if name.startswith(tuple(f"{package}." for package in MATHEMATICS)):
            others = outside(imported(parsed(path))) - NUMBERS - standard
            assert {other for other in others if (name, other) not in REASONS} == set(), name
            calls = (node.func for node in ast.walk(parsed(path)) if isinstance(node, ast.Call))
            called = {function.id for function in calls if isinstance(function, ast.Name)}
            assert not called & {"open", "print", "input"}, name


def test_every_exception_is_needed() -> None:
    for name, library in REASONS:
        assert library in outside(imported(parsed(modules()[name])))


def test_the_mathematics_stands_on_itself() -> None:
    """Below it are only names of types and errors, the source of randomness, and who holds it."""
    ground = {"common.arrays", "common.entropy", "common.errors", "common.noncopyable"}
    for name, targets in module_graph().items():
        if name.startswith(MATHEMATICS):
            above = {target for target in targets if not target.startswith(MATHEMATICS)}
            assert above <= ground, name


def test_every_package_says_its_purpose_in_one_line() -> None:
    for name, path in modules().items():
        if path.name == "__init__.py":
            assert 20 <= len(summary(path)) <= 100, name
            assert summary(path).endswith("."), name


def test_classes_that_meet_have_different_names() -> None:
    """In one package, or in two of which one imports the other; generated stubs aside."""
    room = {name: name.rpartition(".")[0] for name in modules() if "." in name}
    graph = grouped(module_graph(), room)
    owners = defaultdict(list)
    for name, path in modules().items():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners[node.name].append(name)
    for owned, names in owners.items():
        for one, other in combinations([n for n in names if ".wire." not in n], 2):
            for a, b in ((room[one], room[other]), (room[other], room[one])):
                assert a != b, (owned, one, other)
                assert b not in graph[a], (owned, one, other)


def compared_arrays(trees: list[ast.Module]) -> Iterator[str]:
    """Fields of dataclasses with ``==`` that hold arrays, of which ``==`` is no truth value."""
    arrays = {"NDArray", "ndarray", "ArrayLike", "Tensor", "DataFrame", "Series"}
    for node in (node for tree in trees for node in tree.body if isinstance(node, ast.Assign)):
        named = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
        if named & {"NDArray"} and "TypeVar" not in named:
            arrays |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in (node for tree in trees for node in tree.body):
        if not isinstance(node, ast.ClassDef):
            continue
        made = " ".join(map(ast.unparse, node.decorator_list))
        own = any(isinstance(part, ast.FunctionDef) and part.name == "__eq__" for part in node.body)
        if "dataclass" not in made or "eq=False" in made or own:
            continue
        for field in (part for part in node.body if isinstance(part, ast.AnnAssign)):
            kind = ast.unparse(field.annotation)
            named = {each.id for each in ast.walk(field.annotation) if isinstance(each, ast.Name)}
            if named & arrays and not kind.startswith("Callable"):
                yield f"{node.name}.{ast.unparse(field.target)}"


def test_what_holds_arrays_is_not_compared_by_value() -> None:
    """``==`` of two such objects would raise: they are told apart by identity."""
    assert not [*compared_arrays([parsed(path) for part in PACKAGES for path in sources(part)])]


def test_the_rule_sees_an_array() -> None:
    twin = "Rows = NDArray[int]\n@dataclass(frozen=True{})\nclass Twin:\n    rows: tuple[Rows, ...]"
    assert [*compared_arrays([ast.parse(twin.format(""))])] == ["Twin.rows"]
    assert not [*compared_arrays([ast.parse(twin.format(", eq=False"))])]


def folders(root: str) -> list[Path]:
    return sorted({path.parent for path in sources(root)})


def test_tests_mirror_the_folders() -> None:
    for folder in folders("tests"):
        mirrored = folder.relative_to(ROOT / "tests")
        if not {*mirrored.parts} & TESTS_ALONE:
            assert (ROOT / mirrored).is_dir(), mirrored


@pytest.mark.parametrize("package", ["common", "label_party"])
def test_no_other_generator_is_near_a_release(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in sources(package)
        if (names := sorted(set(generators(parsed(path)))))
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


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_no_bound_vanishes_with_an_option_of_the_interpreter(package: str) -> None:
    """``python -O`` drops every assert, one that guards a guarantee too."""
    asserts = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources(package)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Assert)
    ]
    assert asserts == []


def test_the_labels_party_starts_without_torch() -> None:
    ours = [import_name(name) for name in modules() if name.partition(".")[0] == "label_party"]
    program = (
        "import importlib, sys\n"
        "for name in ('torch', 'labelveil.feature_party', 'pandas', 'pyarrow'):\n"
        "    sys.modules[name] = None\n"
        f"for name in {ours!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_server_starts_without_what_reads_tables() -> None:
    """They take a third of its memory and time; it reads no table until it is asked a question."""
    program = "import sys, labelveil.label_party.server.run; sys.exit('polars' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == 0


def patterns(tree: ast.AST) -> Iterator[int]:
    """Lines where Polars would read text that comes from elsewhere as a pattern.

    A name of columns ``^…$``, or ``*``, in ``pl.col``; stars and brackets in the path of a file.
    ``polars.selectors.by_name`` and ``glob=False`` take them as they are.
    """
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in ("col", "exclude"):
            for given in node.args:
                constant = isinstance(given, ast.Name) and given.id.isupper()
                if not (constant or isinstance(given, ast.Constant)):
                    yield node.lineno
        files = ("scan_parquet", "read_parquet", "scan_csv", "read_csv")
        ours = node.func.attr in files and ast.unparse(node.func.value) == "pl"
        if ours and not any(keyword.arg == "glob" for keyword in node.keywords):
            yield node.lineno


def test_no_name_from_data_is_a_pattern() -> None:
    for path in modules().values():
        assert not list(patterns(parsed(path))), path
    for twin in ("pl.col(name)", "pl.scan_csv(path)", "pl.exclude(*names)", "pl.read_parquet(p)"):
        assert list(patterns(ast.parse(twin)))
