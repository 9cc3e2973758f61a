"""What may be said about a randomizer: the names and types of its options and details, by name.

Whatever a manifest says must be rebuilt or shown. So it has no place for anything else, and an
option, which can only be shown, is short: a label could hide in the last digits of a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.base import detail_types, option_types

MOST_DIGITS = 6
"""Significant digits of a number that somebody chose."""

MOST = 1 << 16
"""The largest count: no channel has more outputs."""

MOST_ITEMS = 8 * MOST
"""Of all lists together: each of those that an item is in has one for each output."""


@cache
def _shape(types: Callable[[str], Mapping[str, Any]], name: str) -> type[BaseModel]:
    """Any of these fields, of exactly these types, and no others."""
    fields: dict[str, Any] = {field: (type_, None) for field, type_ in types(name).items()}
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return create_model("Facts", __config__=config, **fields)


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` unless a randomizer takes options of these names and types."""
    _check(option_types, "options", name, options)


def check_details(name: str, details: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` unless a randomizer states details of these names and types."""
    _check(detail_types, "details", name, details)


def check_digits(chosen: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a number of more than six significant digits."""
    for name, value in chosen.items():
        for number in value if isinstance(value, list) else [value]:
            if not isinstance(number, int | float):
                continue
            if abs(number) >= 1 << 53 or float(f"{number:.{MOST_DIGITS}g}") != number:
                raise ConfigError(
                    f"{name}={number!r:.30} has more than {MOST_DIGITS} significant digits, and a"
                    " manifest, which shows it, must have no room for labels; round it"
                )


def items(value: Any) -> int:
    """Count what lists within lists hold; an empty one is something, too."""
    return sum(map(items, value)) or 1 if isinstance(value, list) else 1


def _check(
    types: Callable[[str], Mapping[str, Any]], kind: str, name: str, facts: Mapping[str, Any]
) -> None:
    if (count := sum(map(items, facts.values()))) > MOST_ITEMS:
        raise ConfigError(f"{kind} have {count:,} items, more than {MOST_ITEMS:,}")
    for key, value in facts.items():
        if type(value) is int and value > MOST:
            raise ConfigError(f"{kind}: {key:.60}={value:.6g} must be at most {MOST:,}")
    shape = _shape(types, name)
    try:
        shape.model_validate(dict(facts))
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{kind}: {place:.60}: {first['msg']}; those of randomizer {name!r} are"
            f" {', '.join(sorted(shape.model_fields)) or 'none'}"
        ) from error
