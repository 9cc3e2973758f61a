"""What an option is: a field of a section, with its description, unit, bounds, default, example."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function


class Section(BaseModel):
    """Base of every section: unknown keys, NaN and infinity are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def setting(
    default: Any,
    description: str = "",
    *,
    unit: str = "",
    example: Any = None,
    write: bool = False,
    flag: str = "",
    metavar: str = "",
    **bounds: float,
) -> Any:
    """Declare an option, or a section of options.

    Parameters
    ----------
    default
        Its value where nothing is configured; ``...`` where something must be. A class (a section,
        ``list``, ``dict``) is called for it.
    description
        What it decides, in sentences. The first one alone is a command-line flag's help.
    unit
        What its number counts, in the plural: ``seconds``, ``label units``.
    example
        Where there is no default: a value, which the file that ``init`` writes shows as a comment.
    write
        Whether that file sets the example, although it is not the default.
    flag
        Its flags, ``--output -o``, where they are not ``--`` and its name.
    metavar
        What stands for its value in a command's help, where its type does not say it.
    bounds
        ``gt``, ``ge``, ``lt``, ``le``, ``min_length``. Beside a word, as in ``auto``, the number
        alone has bounds: ``Annotated[int, Field(ge=1)] | Literal["auto"]``.
    """
    told = {"unit": unit, "example": example, "write": write, "flag": flag, "metavar": metavar}
    value = {"default_factory" if isinstance(default, type) else "default": default}
    return Field(description=description, json_schema_extra=told, **value, **bounds)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Words:
    """Beside a type: what a value may be, in words, and what the type does not check of it."""

    text: str
    holds: Callable[[Any], bool] = lambda value: True

    def __get_pydantic_core_schema__(
        self, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        if not self.holds(value):
            raise ValueError(f"must be {self.text}")
        return value


class Choice(Words):
    """Beside ``str``: one of names that are known only at run time."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(_choice(tuple(names)), frozenset(names).__contains__)


@dataclass(frozen=True)
class Setting:
    """One option as files, flags and pages show it.

    Attributes
    ----------
    section, key
        Where it stands; the section is empty for a key outside all tables.
    field
        Its declaration.
    """

    section: str
    key: str
    field: FieldInfo

    @property
    def name(self) -> str:
        """``section.key``."""
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def place(self) -> str:
        """Where to set it in the file."""
        return f"[{self.section}] {self.key}" if self.section else self.key

    @property
    def description(self) -> str:
        return " ".join((self.field.description or "").split())

    @property
    def summary(self) -> str:
        """The first sentence of the description, without its full stop."""
        return re.split(r"(?<=\.)\s", self.description)[0].removesuffix(".")

    @cached_property
    def _told(self) -> Mapping[str, Any]:
        extra = self.field.json_schema_extra
        return extra if isinstance(extra, dict) else {}

    @property
    def example(self) -> Any:
        return self._told.get("example")

    @property
    def written(self) -> bool:
        """Whether ``init`` sets the example."""
        return self.required or bool(self._told.get("write"))

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(str(self._told.get("flag") or f"--{self.key.replace('_', '-')}").split())

    @property
    def flags_are_given(self) -> bool:
        """Whether the flags are named, and not made of the key."""
        return bool(self._told.get("flag"))

    @property
    def required(self) -> bool:
        return self.field.is_required()

    @property
    def default(self) -> Any:
        """The default; None where a value is required, or there is none."""
        return None if self.required else self.field.get_default(call_default_factory=True)

    @property
    def bounds(self) -> str:
        """What a value may be, in words, with its unit: ``a number above 0, in seconds``."""
        unit = self._told.get("unit")
        return _words(self.field.annotation, self.field.metadata) + (f", in {unit}" if unit else "")

    @property
    def says_more_than_its_type(self) -> bool:
        """Whether the words on what it may be tell more than an example does."""
        return self.bounds not in {_words(kind) for kind in (*_NOUNS, list[str], dict[str, Any])}

    @property
    def takes_text(self) -> bool:
        """Whether any text is a value, so that none must be read as a number."""
        return bool({str, Path} & set(_arms(self.field.annotation)))

    @property
    def kind(self) -> Any:
        """The type, without None."""
        arms = _arms(self.field.annotation)
        return arms[0] if len(arms) == 1 else self.field.annotation

    @property
    def metavar(self) -> str:
        """What stands for its value in a command's help."""
        if self._told.get("metavar"):
            return str(self._told["metavar"])
        arms = _arms(self.field.annotation)
        return "|".join(
            "|".join(map(str, get_args(arm)))
            if get_origin(arm) is Literal
            else _METAVARS.get(arm, "VALUE")
            for arm in arms
        )


def sections(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a model's tables by name; the model itself, without a name, if it has keys outside."""
    inner = {name: _section(field) for name, field in model.model_fields.items()}
    if not all(inner.values()):
        yield "", model
    yield from ((name, section) for name, section in inner.items() if section)


def declared(model: type[BaseModel]) -> Iterator[Setting]:
    """Yield every option of a model and its sections, in order."""
    for name, section in sections(model):
        for key, field in section.model_fields.items():
            if not _section(field):
                yield Setting(name, key, field)


def as_toml(value: Any) -> str:
    """Return a value in TOML notation."""
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(name)} = {as_toml(part)}" for name, part in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    # a JSON string is a TOML basic string
    return (
        repr(value)
        if isinstance(value, int | float)
        else json.dumps(str(value), ensure_ascii=False)
    )


def doc(section: type[BaseModel]) -> str:
    """Return what a section says of itself."""
    return inspect.cleandoc(section.__dict__.get("__doc__") or "")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


_NOUNS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}
_METAVARS = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH", bool: "BOOLEAN"}


def _arms(kind: Any) -> list[Any]:
    """The alternatives of a type, without their notes and without None."""
    if get_origin(kind) is Annotated:
        return _arms(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [arm for part in get_args(kind) for arm in _arms(part)]
    return [] if kind is type(None) else [kind]


def _words(kind: Any, notes: Any = ()) -> str:
    notes = [inner for note in notes for inner in getattr(note, "metadata", [note])]
    for note in notes:
        if isinstance(note, Words):
            return note.text
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _words(parts[0], [*parts[1:], *notes])
    if origin in (Union, UnionType):
        alternatives = {_words(part, notes): None for part in parts if part is not type(None)}
        return " or ".join(sorted(alternatives, key=lambda words: not words.startswith('"')))
    if origin is Literal:
        return _choice(parts)
    if origin is list:
        some = "at least one of " if any(isinstance(note, MinLen) for note in notes) else ""
        return f"a list, {some}each {_words(parts[0])}"
    if origin is dict or kind is dict:
        return "a table"
    return _NOUNS.get(kind, "a value") + (_range(notes) if kind in (int, float) else "")


def _range(notes: Any) -> str:
    ends = {
        word: getattr(note, name)
        for note in notes
        for name, law, word in (
            ("gt", Gt, "above"),
            ("ge", Ge, "at least"),
            ("lt", Lt, "below"),
            ("le", Le, "at most"),
        )
        if isinstance(note, law)
    }
    shown = {word: f"{end:,}".removesuffix(".0") for word, end in ends.items()}
    if set(shown) == {"at least", "at most"}:
        return f" from {shown['at least']} to {shown['at most']}"
    words = " and ".join(f"{word} {end}" for word, end in shown.items())
    return f" of {words}" if words.startswith("at") else f" {words}" if words else ""


def _choice(names: tuple[Any, ...]) -> str:
    *others, last = [as_toml(name) for name in names]
    return f"{', '.join(others)} or {last}" if others else last
