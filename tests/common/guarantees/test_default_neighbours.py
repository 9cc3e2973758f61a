"""What a guarantee is about where nobody says: it must be what its noise is drawn for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.imports import ROOT, parsed

RELABELLED = "REPLACE_LABEL"
OTHERS = {
    "common.guarantees.gaussian": "ADD_REMOVE",
    "common.mechanisms.continual": "ADD_REMOVE",
    "common.mechanisms.interactive.sparse_vector": "ADD_REMOVE",
    "common.mechanisms.thresholdout": "REPLACE_RECORD",
}
"""Modules whose records come and go, or are replaced, and not their labels alone."""
OF_USERS = {"common.mechanisms.interactive.sparse_vector"}


def defaults(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Every default of a field or an argument that is a member of ``Unit`` or ``Adjacency``."""
    for node in ast.walk(tree):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.ClassDef):
            values = [each.value for each in node.body if isinstance(each, ast.AnnAssign)]
        elif isinstance(node, ast.FunctionDef):
            values = [*node.args.defaults, *node.args.kw_defaults]
        for value in values:
            match value:
                case ast.Attribute(value=ast.Name(id="Unit" | "Adjacency" as kind), attr=member):
                    yield kind, member


def test_a_label_of_one_record_is_protected_unless_more_is_said() -> None:
    found = set()
    for room in ("guarantees", "mechanisms"):
        for path in sorted((ROOT / "common" / room).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for kind, member in defaults(parsed(path)):
                found.add(kind)
                unit = "USER" if module in OF_USERS else "RECORD"
                assert member == (OTHERS.get(module, RELABELLED) if kind == "Adjacency" else unit)
    assert found == {"Unit", "Adjacency"}
