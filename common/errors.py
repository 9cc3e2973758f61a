"""Mistakes and refusals that a person can act on, each one line long."""

from __future__ import annotations

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


def present(value: ValueT | None) -> ValueT:
    """Return what cannot be None here; an ``assert`` would vanish with ``python -O``."""
    if value is None:
        raise RuntimeError("a value that is always there is missing: a mistake of this program")
    return value


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names for a message: the first few, and how many there are in all."""
    shown = ", ".join(names[:most])
    return f"{shown}, … ({len(names)} in all)" if len(names) > most else shown
