"""What a cell of text says, whichever table it stands in: the rules that both parties read by.

A cell is read by itself. Space around it says nothing.
"""

from __future__ import annotations

import polars as pl

MISSING_WORDS = frozenset(
    ("", "na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "none", "\\n", "-", "--", "?")
)
"""Texts, in lower case, that people and programs write where there is no value: pandas, R, SQL's
dumps, spreadsheets, the UCI repository."""
BOOLEANS = {"true": "1", "false": "0"}


def stripped(cells: pl.Series) -> pl.Series:
    """(n,) texts without space around them, of any kind that Unicode has."""
    return cells.str.strip_chars()


def absent(cells: pl.Series) -> pl.Series:
    """(n,) whether a cell has no value: null, or one of ``MISSING_WORDS``."""
    words = stripped(cells).str.to_lowercase()
    return words.is_null() | words.is_in(list(MISSING_WORDS))
