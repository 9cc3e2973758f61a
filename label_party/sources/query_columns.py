"""What the columns of a query are made of, as far as its text says so.

A label under another name is still the label. Whoever configures a query may select it twice, or
what is computed from it; the names that the query gives do not show that, its text mostly does.
Views, functions and what else a database does are beyond this: it is a check against mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

Made = tuple[str, ...]
"""A column's name in a query's text, in small letters: the last of its parts, then those before."""

_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/|(?P<text>'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\])"""
    r"|(?P<word>[^\W\d][\w$]*)|(?P<number>\d[\w.]*)|(?P<mark>::|\S)",
    re.DOTALL,
)
_WORDS = {
    *("all", "and", "as", "asc", "at", "between", "by", "case", "cast", "collate"),
    *("desc", "distinct", "else", "end", "escape"),
    *("exists", "false", "following", "from", "glob", "group", "having"),
    *("ilike", "in", "inner", "is", "isnull", "join", "left", "like"),
    *("limit", "not", "notnull", "null", "nulls", "offset", "on", "or", "order", "outer"),
    *("over", "partition", "preceding", "range", "right", "row", "rows", "select", "similar"),
    *("then", "to", "true", "unbounded", "union", "using", "when"),
    *("where", "window", "with", "within", "without"),
}
_ENDS = frozenset(("from", "union", "except", "intersect", "where", "order", "limit", ";"))


def made_of(query: str, column: str) -> frozenset[Made]:
    """Return the columns that a query's column is made of; itself where no more is said of it."""
    return _resolved(column.casefold(), _definitions(query), frozenset())


def tables_of(query: str) -> set[str]:
    """Return the last parts of the names of tables that a query reads."""
    tokens, found = _tokens(query), set[str]()
    for at, token in enumerate(tokens):
        if token in ("from", "join"):
            name = _name_at(tokens, at + 1)
            found |= {name[0]} if name else set()
    return found


def names_in(query: str) -> set[str]:
    """Return all names that stand in a query's text, in small letters."""
    return {token.removeprefix(".") for token in _tokens(query) if _is_name(token)}


def gives_away(label: frozenset[Made], other: frozenset[Made]) -> bool:
    """Whether a column is made of all that a label is made of."""
    return bool(label) and all(any(_same(part, there) for there in other) for part in label)


def _same(one: Made, other: Made) -> bool:
    """Whether two names may be one column's: where one says a table, the other need not."""
    return all(a == b for a, b in zip(one, other, strict=False))


def _resolved(
    name: str, definitions: dict[str, list[frozenset[Made]]], seen: frozenset[str]
) -> frozenset[Made]:
    parts = frozenset[Made]().union(*definitions.get(name, []))
    inner = {part for part in parts if part[0] != name}
    if name in seen or not definitions.get(name):
        return frozenset({(name,)})
    if not inner:
        return parts
    made = [
        _resolved(part[0], definitions, seen | {name}) if part[0] in definitions else {part}
        for part in inner
    ]
    return frozenset[Made]().union(*made)


def _definitions(query: str) -> dict[str, list[frozenset[Made]]]:
    """What each name is made of that stands in a list behind a SELECT, at any depth."""
    tokens, found = _tokens(query), dict[str, list[frozenset[Made]]]()
    for at, token in enumerate(tokens):
        if token == "select":
            for item in _items(tokens[at + 1 :]):
                name, made = _defined(item)
                found.setdefault(name, []).append(made)
    return found


def _tokens(query: str) -> list[str]:
    """Words in small letters; quoted names with a dot in front, which no word has; marks."""
    tokens = []
    for match in _TOKEN.finditer(query):
        kind, text = match.lastgroup, match.group()
        if kind == "word" or kind == "mark":
            tokens.append(text.casefold())
        elif kind == "quoted":
            tokens.append("." + text[1:-1].replace('""', '"').casefold())
        elif kind is not None:
            tokens.append("0")  # a value
    return tokens


def _items(tokens: Sequence[str]) -> Iterator[list[str]]:
    depth, item = 0, list[str]()
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if depth < 0 or (not depth and token in _ENDS):
            break
        if not depth and token == ",":
            yield item
            item = []
        else:
            item.append(token)
    yield item


def _is_name(token: str) -> bool:
    return (len(token) > 1 and token[0] == ".") or (token.isidentifier() and token not in _WORDS)


def _name_at(tokens: Sequence[str], at: int) -> Made:
    """The name that begins at a token, its last part first; empty where none does."""
    parts = list[str]()
    while at < len(tokens) and _is_name(tokens[at]):
        parts.append(tokens[at].removeprefix("."))
        at += 2
        if at > len(tokens) or tokens[at - 1 : at] != ["."]:
            break
    return tuple(reversed(parts))


def _defined(item: list[str]) -> tuple[str, frozenset[Made]]:
    """The name of a list's item, and the columns that its text names."""
    name, said = "", item
    before = item[-2] if len(item) > 1 else "."
    if before == "as":
        name, said = item[-1].removeprefix("."), item[:-2]
    elif item and _is_name(item[-1]):
        name = item[-1].removeprefix(".")
        if before in (")", "0", "end") or _is_name(before):
            said = item[:-1]
    made = set[Made]()
    for at, token in enumerate(said):
        before = said[at - 1] if at else ""
        # f(…) is a function, and DATE '…' a type
        is_none = said[at + 1 : at + 2] in (["("], ["0"]) and not token.startswith(".")
        if _is_name(token) and before not in (".", "::", "as") and not is_none:
            made.add(_name_at(said, at))
    return name, frozenset(made)
