"""Notes which outcomes each operation of ours has, in every process that finds this on its path.

Modules of ours are compiled with their operations wrapped in functions that note an outcome, and
return what the operation would. Notes are a byte an operation, a bit an outcome, in a file that all
processes map. ``python -m tests.mutants.unvaried`` puts a copy of this module, as
``sitecustomize.py``, on the path of the tests, so that it can import nothing of ours.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.machinery
import json
import mmap
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = "LABELVEIL_UNVARIED"
"""The variable that names the folder of notes."""
NOTES, FIRST = "notes", "first.json"
"""Files in it: the notes, and for each source file the number of its first operation."""

OUTCOMES = {
    "condition": ("true", "false"),
    "order": ("less", "equal", "more"),
    "sum": ("with its left", "with its right"),
    "product": ("with its left", "with its right"),
    "division": ("by more than 1",),
    "whole": ("with a remainder",),
    "any": ("true", "false", "mixed"),
    "default": ("taken",),
    "run": ("run",),
}
"""Of each kind of operation. A sum has a part that is not 0, and a product one that is not 1."""

_ORDERS: dict[type[ast.cmpop], str] = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
_PARTS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("sum", "add"),
    ast.Sub: ("sum", "sub"),
    ast.Mult: ("product", "mul"),
    ast.Div: ("division", "truediv"),
    ast.FloorDiv: ("whole", "floordiv"),
}
_LEAST_OR_LARGEST = {"min", "max", "np.minimum", "np.maximum"}


class Operation(NamedTuple):
    path: str
    line: int
    kind: str
    source: str


class Wrapping(ast.NodeTransformer):
    """Wraps the operations of a module, numbered from ``first``."""

    def __init__(self, path: str, first: int) -> None:
        self.path, self.first = path, first
        self.operations: list[Operation] = []

    def _noted(self, kind: str, node: ast.expr | ast.stmt, source: str, *given: ast.expr) -> Any:
        number = self.first + len(self.operations)
        self.operations.append(Operation(self.path, node.lineno, kind, source))
        call = ast.Call(ast.Name(f"_noted_{kind}", ast.Load()), [ast.Constant(number), *given], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def _condition(self, node: ast.expr) -> ast.expr:
        source = ast.unparse(node)
        wrapped = self._noted("condition", node, source)
        wrapped.args.append(self.visit(node))
        return wrapped  # type: ignore[no-any-return]

    def _branch(self, node: Any) -> Any:
        if not isinstance(node.test, ast.Constant):
            node.test = self._condition(node.test)
        for name in ("body", "orelse"):
            part = getattr(node, name)
            whole = isinstance(part, ast.expr)
            setattr(node, name, self.visit(part) if whole else [self.visit(each) for each in part])
        return node

    visit_If = visit_While = visit_IfExp = _branch

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        node.values = [self._condition(value) for value in node.values]
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        node.iter, node.ifs = self.visit(node.iter), [self._condition(each) for each in node.ifs]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if len(node.ops) == 2 and isinstance(middle := node.comparators[0], ast.Name):
            left = ast.Compare(node.left, node.ops[:1], [middle])
            right = ast.Compare(middle, node.ops[1:], node.comparators[1:])
            both = ast.BoolOp(ast.And(), [ast.copy_location(each, node) for each in (left, right)])
            return ast.copy_location(self.generic_visit(both), node)  # type: ignore[return-value]
        name, source = _ORDERS.get(type(node.ops[0])), ast.unparse(node)
        self.generic_visit(node)
        if name is None or len(node.ops) > 1:
            return node
        given = ast.Constant(name), node.left, node.comparators[0]
        return self._noted("order", node, source, *given)  # type: ignore[no-any-return]

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        kind, name = _PARTS.get(type(node.op), ("", ""))
        source = ast.unparse(node)
        self.generic_visit(node)
        given = ast.Constant(name), node.left, node.right
        return self._noted(kind, node, source, *given) if kind else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name, source = ast.unparse(node.func), ast.unparse(node)
        self.generic_visit(node)
        if node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            return node
        if name in _LEAST_OR_LARGEST and len(node.args) == 2:
            return self._noted("order", node, source, node.func, *node.args)  # type: ignore[no-any-return]
        if name in ("any", "all") and len(node.args) == 1:
            return self._noted("any", node, source, ast.Constant(name == "any"), *node.args)  # type: ignore[no-any-return]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        arguments = node.args
        places = [*arguments.posonlyargs, *arguments.args]
        defaults = [*zip(reversed(places), reversed(arguments.defaults), strict=False)]
        defaults += [
            (place, default)
            for place, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is not None
        ]
        notes = [self._noted("run", node, f"def {node.name}")]
        notes += [
            self._noted("default", node, f"{node.name}({place.arg}={default.value!r})",
                        ast.Constant(default.value), ast.Name(place.arg, ast.Load()))
            for place, default in defaults
            if isinstance(default, ast.Constant)
        ]  # fmt: skip
        node.body = [self.visit(each) for each in node.body]
        lead = 1 if ast.get_docstring(node, clean=False) is not None else 0
        node.body[lead:lead] = [ast.copy_location(ast.Expr(note), node) for note in notes]
        ast.fix_missing_locations(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node  # an annotation is no operation


def wrapped(source: str, path: str, first: int) -> tuple[ast.Module, list[Operation]]:
    """A module with its operations wrapped, and which these are."""
    wrapping = Wrapping(path, first)
    return wrapping.visit(ast.parse(source)), wrapping.operations


def _some(found: Any) -> bool:
    return bool(found.any()) if hasattr(found, "any") else bool(found)


def _counts(value: Any, nothing: int) -> bool:
    if isinstance(value, str | bytes | list | tuple):
        return bool(value)
    return _some(value != nothing)


class Notes:
    """What wrapped operations call."""

    def __init__(self, noted: Any) -> None:
        self.noted = noted

    def add(self, number: int, outcomes: Callable[[], Sequence[Any]]) -> None:
        """Note which of the outcomes there are, unless all are noted or they cannot be told."""
        known = self.noted[number]
        with contextlib.suppress(Exception):
            new = sum(1 << place for place, found in enumerate(outcomes()) if _some(found))
            if new & ~known:
                self.noted[number] = known | new

    def run(self, number: int) -> None:
        self.noted[number] = 1

    def default(self, number: int, default: Any, given: Any) -> None:
        self.add(number, lambda: (type(given) is type(default) and given == default,))

    def condition(self, number: int, value: Any) -> Any:
        if self.noted[number] != 3:
            self.add(number, lambda: (bool(value), not value))
        return value

    def order(self, number: int, how: Any, left: Any, right: Any) -> Any:
        if self.noted[number] != 7:
            self.add(number, lambda: (left < right, left == right, left > right))
        return (getattr(operator, how) if isinstance(how, str) else how)(left, right)

    def _parts(self, nothing: int) -> Callable[[int, str, Any, Any], Any]:
        def of(number: int, name: str, left: Any, right: Any) -> Any:
            if self.noted[number] != 3:
                self.add(number, lambda: (_counts(left, nothing), _counts(right, nothing)))
            return getattr(operator, name)(left, right)

        return of

    def division(self, number: int, name: str, left: Any, right: Any) -> Any:
        if not self.noted[number]:
            self.add(number, lambda: (_counts(right, 1),))
        return getattr(operator, name)(left, right)

    def whole(self, number: int, name: str, left: Any, right: Any) -> Any:
        if not self.noted[number]:
            self.add(number, lambda: (_counts(left % right, 0),))
        return getattr(operator, name)(left, right)

    def any(self, number: int, wanted: bool, values: Iterable[Any]) -> bool:
        others = False
        for value in values:
            if bool(value) == wanted:
                self.add(number, lambda: (wanted, not wanted, others))  # noqa: B023
                return wanted
            others = True
        self.add(number, lambda: (not wanted, wanted))
        return not wanted


def install(folder: Path) -> None:
    """Note the outcomes of all modules of ours that are imported from now on."""
    with (folder / NOTES).open("r+b") as file:
        notes = Notes(mmap.mmap(file.fileno(), 0))
    for kind in OUTCOMES:
        parts = {"sum": 0, "product": 1}
        function = notes._parts(parts[kind]) if kind in parts else getattr(notes, kind)
        setattr(builtins, f"_noted_{kind}", function)
    firsts = json.loads((folder / FIRST).read_text("utf-8"))
    usual = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> Any:
        path = os.path.realpath(self.path)
        if path not in firsts:
            return usual(self, fullname)
        tree, _ = wrapped(Path(path).read_text("utf-8"), path, firsts[path])
        return compile(tree, self.path, "exec", dont_inherit=True)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]


if FOLDER in os.environ:
    install(Path(os.environ[FOLDER]))
