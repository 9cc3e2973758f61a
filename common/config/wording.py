"""What a value may be, in words and in TOML notation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import MaxLen, MinLen
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from labelveil.common.errors import ConfigError, printable

NOUNS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}
_METAVARS = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH", bool: "BOOLEAN"}
_ENDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


@dataclass(frozen=True)
class Words:
    """Beside a type: what a value may be, in words, and what the type does not check of it."""

    text: str
    holds: Callable[[Any], bool] = lambda value: True

    def __get_pydantic_core_schema__(
        self, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def check(value: Any) -> Any:
            if not self.holds(value):
                raise ValueError(f"must be {self.text}")
            return value

        return no_info_after_validator_function(check, handler(source))


def one_of(names: Iterable[str]) -> Words:
    """Beside ``str``: one of names that are known only at run time."""
    known = tuple(names)
    return Words(_choice(known), frozenset(known).__contains__)


def arms(kind: Any) -> list[Any]:
    """Return the alternatives of a type, without their notes and without None."""
    if get_origin(kind) is Annotated:
        return arms(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [arm for part in get_args(kind) for arm in arms(part)]
    return [] if kind is type(None) else [kind]


def metavar(kind: Any) -> str:
    """What stands for a value in a command's help."""
    return "|".join(
        "|".join(map(str, get_args(arm)))
        if get_origin(arm) is Literal
        else _METAVARS.get(arm, "VALUE")
        for arm in arms(kind)
    )


def in_words(kind: Any, notes: Any = ()) -> str:
    """Say what a value of a type may be, with the notes beside it: ``a number above 0``."""
    notes = [inner for note in notes for inner in getattr(note, "metadata", [note])]
    for note in notes:
        if isinstance(note, Words):
            return note.text
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return in_words(parts[0], [*parts[1:], *notes])
    if origin in (Union, UnionType):
        alternatives = {in_words(part, notes): None for part in parts if part is not type(None)}
        return " or ".join(sorted(alternatives, key=lambda words: not words.startswith('"')))
    if origin is Literal:
        return _choice(parts)
    if origin is list:
        some = " of at least one" if any(isinstance(note, MinLen) for note in notes) else ""
        most = min((note.max_length for note in notes if isinstance(note, MaxLen)), default=None)
        some += "" if most is None else f" of at most {most:,}"
        return f"a list{some}, each {in_words(parts[0])}"
    if origin is dict or kind is dict:
        return "a table"
    more = _range(notes) if kind in (int, float) else _length(notes) if kind is str else ""
    return NOUNS.get(kind, "a value") + more


def _range(notes: Any) -> str:
    shown = {
        word: f"{getattr(note, name):,}".removesuffix(".0")
        for note in notes
        for name, word in _ENDS.items()
        if hasattr(note, name)
    }
    if set(shown) == {"at least", "at most"}:
        return f" from {shown['at least']} to {shown['at most']}"
    words = " and ".join(f"{word} {end}" for word, end in shown.items())
    return f" of {words}" if words.startswith("at") else f" {words}" if words else ""


def _length(notes: Any) -> str:
    least = max((note.min_length for note in notes if isinstance(note, MinLen)), default=0)
    most = min((note.max_length for note in notes if isinstance(note, MaxLen)), default=None)
    if most is not None:
        return f" of {least} to {most:,} characters"
    return f" of at least {least} character{'s' * (least != 1)}" if least else ""


def _choice(names: tuple[Any, ...]) -> str:
    *others, last = [as_toml(name) for name in names]
    return f"{', '.join(others)} or {last}" if others else last


def as_toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else as_toml(name)


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{as_toml_key(k)} = {as_toml(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{printable(text)} is not UTF-8, and cannot stand in a configuration; rename it"
        ) from None
    # a JSON string is a TOML basic string, but that this has no DEL
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
