"""The static rule: no predictable generator anywhere near a release.

NumPy's generators, torch's and Python's `random` are predictable from their outputs and seeded by
habit; only :mod:`common.entropy` may make noise. The source is parsed, not run. A use that is
allowed nowhere on the way of a label is reported with its file and line.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
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


def static_check(paths: Iterable[Path], subject: str) -> Check:
    files = list(paths)
    uses = [use for path in files for use in _uses(path)]
    claim = "No NumPy generator, nor any other predictable one, is used on the way of a label."
    name = "static rule: no predictable generator"
    if not files:
        return Check(name, Verdict.NOT_CHECKABLE, claim, f"Source of {subject}.", "There is none.")
    return Check(
        name=name,
        question="Does any code on a label's way draw from a predictable generator?",
        verdict=verdict_of(not uses),
        claim=claim,
        tried=f"The syntax trees of {len(files)} source files of {subject} were searched.",
        found="; ".join(uses[:8]) + "." if uses else "No use was found.",
        details={"uses": uses},
    )


def release_sources() -> list[Path]:
    """Source files of the labels party, and of everything of `common` that they import.

    Nothing is imported; `import` statements are followed through the syntax trees.
    """
    spec = importlib.util.find_spec("label_party")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("package 'label_party' is not installed; run this where it is")
    root = Path(next(iter(spec.submodule_search_locations)))
    files = dict.fromkeys(sorted(root.rglob("*.py")))
    queue = list(files)
    while queue:
        for _, _, origin in _imports(_parsed(queue.pop())):
            # a name may be a module's, or that of something in it
            for module in (origin, origin.rpartition(".")[0]):
                base = root.parent.joinpath(*module.split("."))
                for path in (base.with_suffix(".py"), base / "__init__.py"):
                    if module.startswith("common.") and path.is_file() and path not in files:
                        files[path] = None
                        queue.append(path)
    return list(files)


def _uses(path: Path) -> list[str]:
    """Where a file imports a generator, or reaches one through what it imports."""
    tree = _parsed(path)
    imports = list(_imports(tree))
    uses = [(line, origin) for line, _, origin in imports if _is_generator(origin)]
    origins = {name: origin for _, name, origin in imports}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            head, _, rest = dotted.partition(".")
            if head in origins and _is_generator(f"{origins[head]}.{rest}"):
                uses.append((node.lineno, dotted))
    return [f"{path.name}:{line} {name}" for line, name in dict.fromkeys(uses)]


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _imports(tree: ast.Module) -> Iterable[tuple[int, str, str]]:
    """Line, name in this file and dotted origin of everything imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield node.lineno, alias.asname or top, alias.name if alias.asname else top
                yield node.lineno, "", alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, alias.asname or alias.name, f"{node.module}.{alias.name}"


def _is_generator(dotted: str) -> bool:
    return any(dotted == name or dotted.startswith(f"{name}.") for name in GENERATORS)
