"""Names of data sets and epochs."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from pydantic import BeforeValidator, StringConstraints

from labelveil.common.config import Words
from labelveil.common.errors import ConfigError

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
NAME_WORDS = (
    "a name of up to 64 letters, digits, dots, dashes and underscores that begins with a letter or"
    " digit"
)


def _as_text(value: Any) -> Any:
    """Take ``epoch = 2`` and ``epoch = 2024-06-02`` for the names that they look like."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if whole or type(value) is date else value


Name = Annotated[
    str, BeforeValidator(_as_text), StringConstraints(pattern=NAME_PATTERN), Words(NAME_WORDS)
]
"""Names a directory and travels in requests."""

NameOrLatest = Annotated[
    str,
    BeforeValidator(_as_text),
    StringConstraints(pattern=f"^$|{NAME_PATTERN}"),
    Words(f"{NAME_WORDS}, or empty"),
]
"""An epoch's name; empty for the latest."""

WHOLE = "whole"
"""Says that labels are whole numbers."""


def bounded_column(flag: str, text: str) -> tuple[str, float, float, bool]:
    """Read ``COLUMN:LOWER:UPPER`` of a flag; ``:whole`` behind it says that labels are whole."""
    bounded = text.removesuffix(f":{WHOLE}")
    try:
        column, lower, upper = bounded.rsplit(":", 2)
        ends = float(lower), float(upper)
    except ValueError:
        column, ends = "", (0.0, 0.0)
    if not column:
        raise ConfigError(
            f"{flag} {text!r:.100} must be COLUMN:LOWER:UPPER, as in amount:0:100, or"
            f" COLUMN:LOWER:UPPER:{WHOLE} for whole numbers"
        )
    return column, *ends, bounded != text
