"""How much is tried of what takes hours: a sample, or all of it with ``make test-exhaustive``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

EXHAUSTIVE = os.environ.get("LABELVEIL_EXHAUSTIVE") == "1"
"""Whether all of it is tried, as ``make test-exhaustive`` does."""


def effort(sample: int, everything: int) -> int:
    """How many: a sample's, or everything's where all of it is tried."""
    return everything if EXHAUSTIVE else sample


def one_in(step: int, cases: Iterable[Any], first: int = 0) -> list[Any]:
    """Sizes of one statement: every ``step``-th from ``first`` on runs each time, others are slow.

    Of cases that differ in kind the smallest of each should run each time. A tuple has a value for
    each of several arguments.
    """
    return [
        case if place % step == first else pytest.param(*_values(case), marks=pytest.mark.slow)
        for place, case in enumerate(cases)
    ]


def some_of(step: int, cases: Iterable[Any], first: int = 0) -> list[Any]:
    """Cases of one slow statement: every ``step``-th from ``first`` on; all where all is tried."""
    return [*cases] if EXHAUSTIVE else [*cases][first::step]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
