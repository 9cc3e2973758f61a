"""Reading a configuration: a TOML file, then settings, then flags; one line for every mistake."""

from __future__ import annotations

import codecs
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from labelveil.common.config.declare import Setting, declared, sections
from labelveil.common.config.wording import arms, as_toml_key
from labelveil.common.errors import ConfigError

MOST_BYTES = 1 << 19
"""Of a configuration: a grid of 8,192 points takes a third of them."""

MOST_PARTS = 12
"""Of a name with dots, which takes the square of its parts to read."""

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_TOO_MANY_PARTS = re.compile(
    rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MOST_PARTS}}}", re.ASCII
)

_QUOTED = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY_PART = re.compile(rf"""\s*({_QUOTED}\s*|[^\s."'=][^.=]*)(\.|=)""")
_ITEM = re.compile(rf"""\s*({_QUOTED}\s*|[^\s,"'\[\]{{}}][^,"'\[\]{{}}]*)(?:,|$)""")

_NO_SECTION = ("model_type", "model_attributes_type")
"""What pydantic says of a value where a table is to be."""

_Named = Literal["setting", "flag", "keyword"]
ModelT = TypeVar("ModelT", bound=BaseModel)


def load_config(
    model: type[ModelT],
    path: Path | None,
    overrides: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
) -> ModelT:
    """Read and check a configuration; an error is one line: file, key, value, bound and remedy.

    Without a file it is made of defaults and of what wins over one: first ``settings``,
    ``section.key=value`` in TOML notation, bare words being taken as text, from a repeatable
    ``--set``; then ``overrides`` by dotted key, unless None, from dedicated options. What a setting
    takes as text needs no quotes, whatever it looks like, alone or in a list: ``data.epoch=2``,
    ``data.ignore=[id, 7]``. A name that has dots is quoted: ``data.columns."a.b"=number``.
    """
    data = _read(path) if path is not None else {}
    _apply(data, settings, {option.name: option for option in declared(model)})
    for key, value in (overrides or {}).items():
        if value is not None:
            _assign(data, key.split("."), value)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_problem(model, error, data, path)) from error


def checked(model: type[ModelT], values: Mapping[str, Any], *, keywords: bool = False) -> ModelT:
    """Build a section of a command's flags, or a function's keywords, which a mistake names."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        named: _Named = "keyword" if keywords else "flag"
        raise ConfigError(_problem(model, error, values, None, named)) from error


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """Read ``section.key=value`` strings alone, as nested dictionaries."""
    data: dict[str, Any] = {}
    _apply(data, settings)
    return data


def parse_value(text: str) -> Any:
    """Read a value in TOML notation; what is none is text."""
    try:
        return parse_toml(f"value = {text}".encode())["value"]
    except (ValueError, RecursionError):  # ValueError: also an integer of thousands of digits
        return text


def parse_toml(data: bytes) -> dict[str, Any]:
    """Read TOML in time and memory of the size of its text, in UTF-8.

    ``ValueError`` if it is none, or too long; ``RecursionError`` if it is too deep.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than the {MOST_BYTES:,} bytes that it may have")
    text = data.removeprefix(codecs.BOM_UTF8).decode()  # an editor's mark
    if found := _TOO_MANY_PARTS.search(text):
        raise ValueError(f"{found[0]:.40}… has more than {MOST_PARTS} parts with dots between")
    return tomllib.loads(text)


def _apply(
    data: dict[str, Any],
    settings: Iterable[str],
    known: Mapping[str, Setting] = MappingProxyType({}),
) -> None:
    for setting in settings:
        names, text = _split(setting)
        whole, table = known.get(".".join(names)), known.get(".".join(names[:-1]))
        kinds = arms(whole.field.annotation) if whole else []
        if table:  # one entry of it
            tables = [kind for kind in arms(table.field.annotation) if get_origin(kind) is dict]
            kinds = [arm for kind in tables for arm in arms(get_args(kind)[-1])]
        _assign(data, names, _value(kinds, text))


def _split(setting: str) -> tuple[list[str], str]:
    """Return the parts of a setting's name, of which some may be quoted, and its value's text."""
    names, at = list[str](), 0
    while part := _KEY_PART.match(setting, at):
        names.append(_unquoted(part[1].strip()))
        at = part.end()
        if part[2] == "=":
            return names, setting[at:].strip()
    raise ConfigError(f"setting {setting!r:.200} must look like section.key=value")


def _value(kinds: Sequence[Any], text: str) -> Any:
    """Read a value of one of some types: what may be text is text, in a list, too."""
    value = parse_value(text)
    if {str, Path} & {*kinds}:
        return value if isinstance(value, str | list | dict) else text
    lists = [arms(get_args(kind)[0]) for kind in kinds if get_origin(kind) is list]
    if not any({str, Path} & {*inner} for inner in lists):
        return value
    inside, items, at = text[1:-1].strip(), list[str](), 0
    while item := _ITEM.match(inside, at):
        items.append(_unquoted(item[1].strip()))
        at = item.end()
    whole = text[:1] + text[-1:] == "[]" and at == len(inside)
    return items if whole else value if isinstance(value, list) else text


def _unquoted(text: str) -> str:
    value = parse_value(text) if text[0] in "\"'" else text
    return value if isinstance(value, str) else text


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return parse_toml(file.read(MOST_BYTES + 1))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist; write one with the init command, or name another with --config"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _assign(data: dict[str, Any], names: Sequence[str], value: Any) -> None:
    *outer, key = names
    dotted = ".".join(names)
    for section in outer:
        inner = data.setdefault(section, {})
        if isinstance(inner, list) and len(inner) == 1:
            (inner,) = inner
        if isinstance(inner, list):
            raise ConfigError(
                f"{dotted} could be set in any of {len(inner)} [[{section}]]; set it in the file"
            )
        if not isinstance(inner, dict):
            raise ConfigError(f"{dotted}: {section} is a value, not a section")
        data = inner
    data[key] = value


def _problem(
    model: type[BaseModel],
    error: ValidationError,
    data: Mapping[str, Any],
    path: Path | None,
    named: _Named = "setting",
) -> str:
    # an unknown name explains what else is missing
    problem = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    kind, source = problem["type"], f" in {path}" if path else ""
    table = next((part for part in problem["loc"][1:2] if isinstance(part, int)), 0)
    # of a table that may stand several times, which of them it is comes behind its name
    names = [str(part) for at, part in enumerate(problem["loc"]) if at != 1 or part != table]
    where, option = ".".join(names), _option_at(model, names)
    several = isinstance(data.get(names[0]), list) if names else False
    if kind == "extra_forbidden":
        return f"{where:.200} is not a known setting{source}; {_nearest(where, model)}"
    if kind == "missing" and several:
        return (
            f"{names[-1]} is missing in table {table + 1} of [[{names[0]}]]{source}; set it there"
        )
    if kind == "missing":
        return f"{where} is missing{source}; set it there or with --set {where}=…"
    if kind in _NO_SECTION or (kind == "list_type" and option is None):
        return f"{where} is a section{source}; write [{where}] and its settings below"
    message = problem["msg"].removeprefix("Value error, ")
    if option is None:  # a rule about several settings; its message names them
        return f"{path}: {message}" if path else message
    value: Any = data
    for part in option.name.split("."):
        value = (value[table] if isinstance(value, list) else value)[part]
    key = option.key
    if kind != "value_error":  # pydantic's own check, whose words are not for users
        below, finite = names[option.name.count(".") + 1 :], kind == "finite_number"
        key, value, message = _out_of_bounds(option, value, below, finite=finite)
    if named != "setting":
        name = option.flags[0] if named == "flag" else key
        return f"{name}={value!r:.200} {message}"
    which = f" of table {table + 1}" if several and option.section else ""
    return f"{key}={value!r:.200} {message}; set {option.place}{which}{source}"


def _option_at(model: type[BaseModel], names: Sequence[str]) -> Setting | None:
    """The option that a place in a configuration is, or lies within."""
    known = {option.name: option for option in declared(model)}
    paths = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((known[name] for name in paths if name in known), None)


def _out_of_bounds(
    option: Setting, value: Any, below: Sequence[str], *, finite: bool
) -> tuple[str, Any, str]:
    """Which key has which value, and what that must be.

    ``below`` are the names within the value where something is wrong: of a table whose entries are
    all alike, the entry is what is named. ``finite`` says that the value is not.
    """
    message = f"must be {option.bounds}"
    if finite:
        message = message.replace("a number", "a finite number")
    if not (isinstance(value, dict) and below):
        return option.key, value, message
    entry: Any = value.get(below[0])
    quotes = "; a name with dots stands in quotes" if isinstance(entry, dict) else ""
    if option.says_more_than_its_type:
        return option.key, value, message + quotes
    key = f"{option.key}.{as_toml_key(below[0])}"
    return key, entry, f"must be {option.bounds_of_entry}{quotes}"


def _nearest(where: str, model: type[BaseModel]) -> str:
    """Say which name was meant: the same key elsewhere, or the most similar name."""
    known = [option.name for option in declared(model)]
    known += [name for name, _ in sections(model) if name]
    key = where.rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == key]
    near = same or get_close_matches(where, known, n=1, cutoff=0.7)
    return f"did you mean {' or '.join(near)}?" if near else "remove it or correct its name"
