"""Reading a configuration: a TOML file, then settings, then flags; one line for every mistake."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Set
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from common.config.declare import declared, sections
from common.errors import ConfigError

MOST_BYTES = 1 << 19
"""Of a configuration: a grid of 8,192 points takes a third of them."""

MOST_PARTS = 12
"""Of a name with dots, which takes the square of its parts to read."""

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_TOO_MANY_PARTS = re.compile(
    rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MOST_PARTS}}}", re.ASCII
)

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
    takes as text needs no quotes, whatever it looks like: ``data.epoch=2``.
    """
    data = _read(path) if path is not None else {}
    _apply(data, settings, {option.name for option in declared(model) if option.takes_text})
    for key, value in (overrides or {}).items():
        if value is not None:
            _assign(data, key, value)
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
    text = data.decode()
    if found := _TOO_MANY_PARTS.search(text):
        raise ValueError(f"{found[0]:.40}… has more than {MOST_PARTS} parts with dots between")
    return tomllib.loads(text)


def _apply(data: dict[str, Any], settings: Iterable[str], texts: Set[str] = frozenset()) -> None:
    for setting in settings:
        key, separator, text = (part.strip() for part in setting.partition("="))
        if not separator or not key:
            raise ConfigError(f"setting {setting!r} must look like section.key=value")
        value = parse_value(text)
        as_typed = key in texts and not isinstance(value, str | list | dict)
        _assign(data, key, text if as_typed else value)


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


def _assign(data: dict[str, Any], dotted: str, value: Any) -> None:
    *outer, key = dotted.split(".")
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
    table = next((part for part in problem["loc"][1:2] if isinstance(part, int)), 0)
    # of a table that may stand several times, which of them it is comes behind its name
    names = [str(part) for at, part in enumerate(problem["loc"]) if at != 1 or part != table]
    where, known = ".".join(names), {option.name: option for option in declared(model)}
    source = f" in {path}" if path else ""
    if problem["type"] == "extra_forbidden":
        return f"{where:.200} is not a known setting{source}; {_nearest(where, model)}"
    several = isinstance(data.get(names[0]), list) if names else False
    if problem["type"] == "missing" and several:
        return (
            f"{names[-1]} is missing in table {table + 1} of [[{names[0]}]]{source}; set it there"
        )
    if problem["type"] == "missing":
        return f"{where} is missing{source}; set it there or with --set {where}=…"
    if problem["type"] in ("model_type", "model_attributes_type") or (
        problem["type"] == "list_type" and where not in known
    ):
        return f"{where} is a section{source}; write [{where}] and its settings below"
    message = problem["msg"].removeprefix("Value error, ")
    paths = [".".join(names[:length]) for length in range(len(names), 0, -1)]
    option = next((known[name] for name in paths if name in known), None)
    if option is None:  # a rule about several settings; its message names them
        return f"{path}: {message}" if path else message
    if problem["type"] != "value_error":
        message = f"must be {option.bounds}"
        if problem["type"] == "finite_number":
            message = message.replace("a number", "a finite number")
    value: Any = data
    for part in option.name.split("."):
        value = (value[table] if isinstance(value, list) else value)[part]
    if named != "setting":
        name = option.flags[0] if named == "flag" else option.key
        return f"{name}={value!r:.200} {message}"
    which = f" of table {table + 1}" if several and option.section else ""
    return f"{option.key}={value!r:.200} {message}; set {option.place}{which}{source}"


def _nearest(where: str, model: type[BaseModel]) -> str:
    """Say which name was meant: the same key elsewhere, or the most similar name."""
    known = [option.name for option in declared(model)]
    known += [name for name, _ in sections(model) if name]
    key = where.rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == key]
    near = same or get_close_matches(where, known, n=1, cutoff=0.7)
    return f"did you mean {' or '.join(near)}?" if near else "remove it or correct its name"
