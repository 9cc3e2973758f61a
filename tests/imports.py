"""Who imports whom, read from the source files: what the rules of the house are checked against.

Imports inside functions and under ``TYPE_CHECKING`` count like any others, and so do modules named
in a text, which is how commands and processes of ours are started. A package imports what its
``__init__`` does. That importing a module also runs the packages around it is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("labelveil", "label_party", "feature_party", "common")

PARTS = PACKAGES[1:]
"""Folders beside `labelveil` that are imported as parts of it: `labelveil.common` and so on."""

Graph = Mapping[str, frozenset[str]]
"""From a name to the names that it imports."""


def sources(package: str) -> list[Path]:
    """Return a package's files, in order."""
    return sorted((ROOT / package).rglob("*.py"))


def house_name(name: str) -> str:
    """Return a module's name from its folder: `common.files` of `labelveil.common.files`."""
    face, _, rest = name.partition(".")
    return rest if face == "labelveil" and rest.partition(".")[0] in PARTS else name


def import_name(name: str) -> str:
    """Return what a module is imported by: `labelveil.common.files` for `common.files`."""
    return f"labelveil.{name}" if name.partition(".")[0] in PARTS else name


def named_module(node: ast.AST) -> str | None:
    """Return the module of ours that a text names, to be imported or run: ``a.b`` or ``a.b:c``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value.partition(":")[0]
        path = ROOT.joinpath(*name.split("."))
        if name.startswith("labelveil.") and name.replace(".", "").isidentifier():
            return house_name(name) if path.with_suffix(".py").is_file() else None
    return None


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield every module that a file imports or names in a text, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (house_name(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield house_name(node.module)
            yield from (house_name(f"{node.module}.{alias.name}") for alias in node.names)
        elif (named := named_module(node)) is not None:
            yield named


@cache
def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text())


@cache
def modules() -> dict[str, Path]:
    """Return our modules and packages, by their dotted names.

    ``__main__`` is left out: nobody imports it, and it starts at the face, above everything.
    """
    found = {}
    for package in PACKAGES:
        for path in sources(package):
            if path.stem == "__main__":
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def module_graph() -> Graph:
    """Return which of our modules imports which; a stub's imports are those of its module."""
    known = modules()

    def targets(path: Path) -> Iterator[str]:
        stub = path.with_suffix(".pyi")
        trees = [parsed(path), *([parsed(stub)] if stub.exists() else [])]
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, ast.Import):
                yield from (house_name(alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    child = house_name(f"{node.module}.{alias.name}")
                    yield child if child in known else house_name(node.module)
            elif (named := named_module(node)) is not None:
                yield named.removesuffix(".__main__")

    return {
        name: frozenset(target for target in targets(path) if target in known and target != name)
        for name, path in known.items()
    }


def grouped(graph: Graph, groups: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return the graph between groups; names without one are left out."""
    found: dict[str, set[str]] = {group: set() for group in groups.values()}
    for name, targets in graph.items():
        if name in groups:
            found[groups[name]] |= {groups[target] for target in targets if target in groups}
    return {group: frozenset(targets - {group}) for group, targets in found.items()}


def siblings(parent: str) -> dict[str, str]:
    """Return under which child of a package every module below it is."""
    start = f"{parent}." if parent else ""
    depth = start.count(".") + 1
    return {name: ".".join(name.split(".")[:depth]) for name in modules() if name.startswith(start)}


def reachable(graph: Graph, start: str) -> set[str]:
    """Return everything that is imported, directly or not."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def circles(graph: Graph) -> list[list[str]]:
    """Return every group of names that import each other, directly or not."""
    below = {name: reachable(graph, name) for name in graph}
    found = {
        tuple(sorted({name, *(other for other in below[name] if name in below[other])}))
        for name in graph
        if name in below[name]
    }
    return [list(circle) for circle in sorted(found)]


def floors(graph: Graph) -> dict[str, int]:
    """Return how many names lie below each, on the longest way down; there are no circles."""
    assert not circles(graph), circles(graph)
    found: dict[str, int] = {}

    def floor(name: str) -> int:
        if name not in found:
            found[name] = 1 + max((floor(target) for target in graph[name]), default=-1)
        return found[name]

    for name in sorted(graph):
        floor(name)
    return found


def direct(graph: Graph) -> dict[str, frozenset[str]]:
    """Return the graph without the arrows that a longer way down makes needless."""
    below = {name: reachable(graph, name) for name in graph}
    return {
        name: frozenset(
            target for target in targets if not any(target in below[other] for other in targets)
        )
        for name, targets in graph.items()
    }


def summary(path: Path) -> str:
    """Return the first sentence of a file's docstring, on one line."""
    text = ast.get_docstring(parsed(path)) or ""
    return " ".join(takewhile(str.strip, text.splitlines()))


def outside(names: Iterable[str]) -> set[str]:
    """Return the first parts of names that are none of ours."""
    return {name.split(".")[0] for name in names} - set(PACKAGES)
