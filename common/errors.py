"""Mistakes and refusals that a person can act on, each one line long."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TypeVar

ValueT = TypeVar("ValueT")


class LabelveilError(Exception):
    """Base of every error that the command lines print as one line.

    The message names the offending value, the bound it broke and the remedy.
    """


class ConfigError(LabelveilError):
    """A configuration file or command-line option is missing, unknown or out of range."""


class DataError(LabelveilError):
    """An input file, column, key or label cannot be used as it is."""


class PrivacyError(LabelveilError):
    """A privacy parameter is impossible, or a mechanism would break its guarantee."""


class BudgetError(LabelveilError):
    """A release would pass the budget configured for its data set."""


class ReleaseError(LabelveilError):
    """A stored or received release is missing, damaged or not the one asked for."""


class ConnectionFailed(LabelveilError):
    """The other party cannot be reached, or refused the connection."""


class OutputFailed(LabelveilError):
    """Standard output is closed, its reader is gone, or its disk is full."""


def not_none(value: ValueT | None) -> ValueT:
    """Return what cannot be None here; an ``assert`` would vanish with ``python -O``."""
    if value is None:
        raise RuntimeError("a value that is always there is missing: a mistake of this program")
    return value


_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""What moves a cursor, ends a line, turns the order of letters, cannot be seen, or is no text. Not
the joiners U+200C and U+200D, which some languages are written with."""


def printable(text: str, *, lines: bool = False) -> str:
    """Text for a line of a terminal, a log or a page, whatever data it was made of.

    Control characters become escapes as in JSON (``\\n``, ``\\u001b``): a name forges no line, and
    commands no terminal. Of several ``lines`` their ends stay.
    """
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    return _UNPRINTABLE.sub(lambda found: json.dumps(found[0])[1:-1], text)


_LONGEST_NAME = 80


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names for a message: the first few, none at length, and how many there are in all."""
    cut = _LONGEST_NAME
    shown = ", ".join(n if len(n) <= cut else f"{n[: cut - 1]}…" for n in names[:most])
    return f"{shown}, … ({len(names)} in all)" if len(names) > most else shown
