"""What may be said about a randomizer: the names and types of its options and details, by name.

Whatever a manifest says must be rebuilt or shown. So it has no place for anything else, and an
option, which can only be shown, is short: a label could hide in the last digits of a number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from common.errors import ConfigError

MOST_DIGITS = 6
"""Significant digits of a number in an option."""

MOST = 1 << 16
"""The largest count: no channel has more outputs."""

_OPTIONS: dict[str, type[BaseModel]] = {}
_DETAILS: dict[str, type[BaseModel]] = {}


def describe(name: str, builder: Callable[..., Any], details: Mapping[str, Any]) -> None:
    """Note the types of a builder's options, from its signature, and of what it says it did."""
    _, *options = inspect.signature(builder, eval_str=True).parameters.values()
    _OPTIONS[name] = _shape({option.name: option.annotation for option in options})
    _DETAILS[name] = _shape(details)


def _shape(fields: Mapping[str, Any]) -> type[BaseModel]:
    """Any of these fields, of exactly these types, and no others."""
    some: dict[str, Any] = {name: (type_, None) for name, type_ in fields.items()}
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return create_model("Facts", __config__=config, **some)


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` unless a randomizer takes options of these names and types."""
    _check(_OPTIONS, "options", name, options)


def check_details(name: str, details: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` unless a randomizer states details of these names and types."""
    _check(_DETAILS, "details", name, details)


def check_digits(options: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a number of more than six significant digits."""
    for name, value in options.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float) and not _short(number):
                raise ConfigError(
                    f"{name}={number!r:.30} has more than {MOST_DIGITS} significant digits, and a"
                    " manifest, which shows it, must have no room for labels; round it"
                )


def _short(number: float) -> bool:
    return abs(number) < 1 << 53 and float(f"{number:.{MOST_DIGITS}g}") == number


def _check(
    shapes: Mapping[str, type[BaseModel]], what: str, name: str, facts: Mapping[str, Any]
) -> None:
    if name not in shapes:
        raise ConfigError(f"randomizer={name!r:.60} is unknown; choose one of {_list(shapes)}")
    for key, value in facts.items():
        if type(value) is int and value > MOST:
            raise ConfigError(f"{what}: {key:.60}={value:.6g} must be at most {MOST:,}")
    try:
        shapes[name].model_validate(dict(facts))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{what}: {place:.60}: {first['msg']}; those of randomizer {name!r} are"
            f" {_list(shapes[name].model_fields) or 'none'}"
        ) from error


def _list(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names))
