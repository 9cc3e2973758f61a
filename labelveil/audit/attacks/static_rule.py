"""The static rule: no predictable generator anywhere near a release.

NumPy's generators, torch's and Python's `random` are predictable from their outputs and seeded by
habit; only :mod:`common.entropy` may make noise. The source is parsed, not run. A use that is
allowed nowhere on the way of a label is reported with its file and line.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigError
from labelveil.audit.verdict import Check, Verdict, verdict_of

GENERATORS = (
    "numpy.random",
    "random",
    "torch.rand",
    "torch.randn",
    "torch.randint",
    "torch.normal",
)
"""Dotted names under which predictable generators live."""


@dataclass(frozen=True)
class Use:
    """One use of a predictable generator."""

    path: Path
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line} {self.name}"


def generator_uses(paths: Iterable[Path]) -> list[Use]:
    """Every use of a predictable generator in some source files."""
    return [use for path in paths for use in _uses(path)]


def release_sources(package: str = "label_party") -> list[Path]:
    """Source files of the labels party, and of everything of `common` that they import.

    Nothing is imported; `import` statements are followed through the syntax trees.
    """
    root = _location(package)
    if root is None:
        raise ConfigError(f"package {package!r} is not installed; run this where it is")
    found = dict.fromkeys(sorted(root.rglob("*.py")))
    queue = list(found)
    while queue:
        for module in _imports(queue.pop()):
            path = _module_file(module, root.parent)
            if path is not None and path not in found:
                found[path] = None
                queue.append(path)
    return list(found)


def static_check(paths: Iterable[Path], what: str) -> Check:
    """No predictable generator is used in the given files."""
    files = list(paths)
    uses = generator_uses(files)
    claim = "No NumPy generator, nor any other predictable one, is used on the way of a label."
    name = "static rule: no predictable generator"
    if not files:
        return Check(name, Verdict.NOT_CHECKABLE, claim, f"Source of {what}.", "There is none.")
    return Check(
        name=name,
        confidence=1.0,
        question="Does any code on a label's way draw from a predictable generator?",
        verdict=verdict_of(not uses),
        claim=claim,
        tried=f"The syntax trees of {len(files)} source files of {what} were searched.",
        found="; ".join(map(str, uses[:8])) + "." if uses else "No use was found.",
        details={"uses": [str(use) for use in uses]},
    )


def _uses(path: Path) -> Iterator[Use]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    names = dict(_bound_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _imported(node):
                if _is_generator(name):
                    yield Use(path, node.lineno, name)
        elif isinstance(node, ast.Attribute):
            dotted = _dotted(node)
            head, _, rest = dotted.partition(".")
            if head in names and _is_generator(f"{names[head]}.{rest}"):
                yield Use(path, node.lineno, dotted)


def _bound_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name in this file, dotted origin) of everything imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    yield alias.asname, alias.name
                else:
                    top = alias.name.partition(".")[0]
                    yield top, top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.level or not node.module:
        return []
    return [f"{node.module}.{alias.name}" for alias in node.names]


def _is_generator(dotted: str) -> bool:
    return any(dotted == name or dotted.startswith(f"{name}.") for name in GENERATORS)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in modules if name.startswith("common.")}


def _module_file(module: str, root: Path) -> Path | None:
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _location(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))
