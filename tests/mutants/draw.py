"""Small faults of a source file, of the kind that a tired engineer makes.

A mutation replaces the text of one node: a comparison's boundary or direction, a sign, an operator,
a factor or term that is dropped, a constant, an argument, a swapped name, a check or statement that
is left out. What is only said (docstrings, annotations, messages of errors, help) is left alone.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">"),
    ast.LtE: ("<", ">="),
    ast.Gt: (">=", "<"),
    ast.GtE: (">", "<="),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
}
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil",
    "minimum": "maximum", "maximum": "minimum", "sorted": "list", "sum": "max", "round": "int",
}  # fmt: skip
SYMMETRIC = {"min", "max", "minimum", "maximum", "gcd", "lcm"}
"""Calls whose arguments may come in any order."""
SAID = {"setting", "warn", "debug", "info", "warning", "cite"}
"""Calls whose arguments are words for people."""


@dataclass(frozen=True)
class Mutation:
    """One replacement in a file; offsets count bytes of its text in UTF-8."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    def whole(self, root: Path) -> str:
        """Return the line before and after, without the spaces around it."""
        source = (root / self.path).read_bytes()
        lines = [
            text.decode().splitlines()[self.line - 1] for text in (source, self.applied(source))
        ]
        return " → ".join(line.strip() for line in lines)

    def __str__(self) -> str:
        shown = [" ".join(text.split())[:70] for text in (self.old, self.new)]
        return f"{self.path}:{self.line}: {shown[0]} → {shown[1] or 'nothing'}"


def mutations(path: str, source: bytes) -> list[Mutation]:
    """Return every mutation of a file, in the order of its text."""
    tree = ast.parse(source)
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))

    def span(node: ast.AST) -> tuple[int, int]:
        return (
            starts[node.lineno - 1] + node.col_offset,  # type: ignore[attr-defined]
            starts[node.end_lineno - 1] + node.end_col_offset,  # type: ignore[attr-defined]
        )

    def written(node: ast.AST) -> str:
        start, end = span(node)
        return source[start:end].decode()

    def between(
        kind: str, left: ast.AST, right: ast.AST, new: str
    ) -> Iterator[tuple[str, int, int, str]]:
        """Replace the operator between two operands, and no parenthesis around them."""
        start, end = span(left)[1], span(right)[0]
        gap = source[start:end].decode()
        found = gap.strip().strip("()").strip()
        if found and "\n" not in found and "#" not in found:
            at = start + len(gap[: gap.index(found)].encode())
            yield kind, at, at + len(found.encode()), new

    def changes(node: ast.AST, names: list[str]) -> Iterator[tuple[str, int, int, str]]:
        whole = span(node) if hasattr(node, "lineno") else (0, 0)
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                for new in COMPARISONS[type(operator)]:
                    yield from between("comparison", left, right, new)
            case ast.BinOp(left=left, op=operator, right=right) if not words(left):
                if type(operator) in OPERATORS:
                    yield from between("operator", left, right, OPERATORS[type(operator)])
                yield "dropped", *whole, f"({written(left)})"
                yield "dropped", *whole, f"({written(right)})"
            case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
                yield "sign", *whole, f"({written(operand)})"
            case ast.BoolOp(op=operator, values=values):
                word = "or" if isinstance(operator, ast.And) else "and"
                for left, right in pairwise(values):
                    yield from between("logic", left, right, word)
                for dropped in values:
                    others = [f"({written(value)})" for value in values if value is not dropped]
                    yield "logic", *whole, f"({(' and ' if word == 'or' else ' or ').join(others)})"
            case ast.Constant(value=bool() as value):
                yield "constant", *whole, str(not value)
            case ast.Constant(value=int() as value):
                yield "constant", *whole, str(value + 1)
                yield "constant", *whole, f"({value - 1})"
            case ast.Constant(value=float() as value) if value > 1e-200:  # not a guard against 0
                yield "constant", *whole, repr(2 * value)
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                if name in NAMES:
                    yield "name", whole[1] - len(name.encode()), whole[1], NAMES[name]
                if isinstance(node, ast.Name) and name in names:
                    for other in names:
                        if other != name:
                            yield "name", *whole, other
            case ast.Call(func=called, args=positional, keywords=named):
                name = getattr(called, "id", getattr(called, "attr", ""))
                for left, right in () if name in SYMMETRIC else pairwise(positional):
                    if written(left) != written(right) and not isinstance(right, ast.Starred):
                        swapped = f"{written(right)}, {written(left)}"
                        yield "argument", span(left)[0], span(right)[1], swapped
                for keyword in () if name == "zip" else named:
                    start, end = span(keyword)
                    comma = source[end:].lstrip().startswith(b",")
                    yield "argument", start, source.index(b",", end) + 1 if comma else end, ""
            case ast.comprehension(ifs=[first]):
                yield "check", *span(first), "True"
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.If(test=test) | ast.IfExp(test=test):
                yield "check", *span(test), "False"
                yield "check", *span(test), "True"
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
                yield "statement", *whole, "pass"
            case _:
                pass

    found = []

    def visit(node: ast.AST, names: list[str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            names = [name for name in names if name not in ("self", "cls")]
        for kind, start, end, new in () if is_said(node) else changes(node, names):
            line = source[:start].count(b"\n") + 1
            old = source[start:end].decode()
            found.append(Mutation(path, line, kind, start, end, old, new))
        for child in acting(node):
            visit(child, names)

    visit(tree, [])
    return sorted(found, key=lambda each: (each.start, each.end, each.new))


def is_said(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "id", getattr(function, "attr", None)) in SAID


def words(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def acting(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of a node whose change would change what is done."""
    match node:
        case ast.Raise() | ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.Assert():
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Call() if is_said(node):
            return
        case ast.Call(func=ast.Name(id="zip"), args=given):  # strict= asserts, and changes nothing
            yield from given
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body)
        case ast.AnnAssign():
            yield from filter(None, [node.value])
        case ast.ClassDef():
            yield from node.body
        case ast.Subscript(value=ast.Name(id="Literal")):
            return
        case _:
            yield from ast.iter_child_nodes(node)


def compiles(mutation: Mutation, source: bytes) -> bool:
    """Whether a mutated file is a program, and another one."""
    try:
        return ast.dump(ast.parse(mutation.applied(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def room(path: str) -> str:
    """Return the folder of a file, two levels deep at most."""
    return "/".join(Path(path).parts[:-1][:2])


def drawn(files: Iterable[str], root: Path, seed: int, count: int) -> list[Mutation]:
    """Draw mutations of files, as many of each room, each of another line: lines are as likely."""
    rooms = defaultdict(list)
    for path in sorted(files):
        rooms[room(path)].append(path)
    found = []
    for place, (name, paths) in enumerate(sorted(rooms.items())):
        chance = random.Random(f"{seed} {name}")
        share = count * (place + 1) // len(rooms) - count * place // len(rooms)
        sources = {path: (root / path).read_bytes() for path in paths}
        lines = [(p, n) for p, text in sources.items() for n in range(1, text.count(b"\n") + 2)]
        chance.shuffle(lines)
        known: dict[str, list[Mutation]] = {}
        for path, line in lines:
            if share == 0:
                break
            if path not in known:
                known[path] = mutations(path, sources[path])
            here = [each for each in known[path] if each.line == line]
            kinds = sorted({each.kind for each in here})
            if kinds:
                kind = chance.choice(kinds)
                mutation = chance.choice([each for each in here if each.kind == kind])
                if compiles(mutation, sources[path]):
                    found.append(mutation)
                    share -= 1
    return found
