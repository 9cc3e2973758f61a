"""Curves of few orders, written down by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from labelveil.common.guarantees import (
    Adjacency,
    RenyiDP,
    Unit,
)

F = Fraction
ADD = Adjacency.ADD_REMOVE


def renyi(orders: list[Any], values: list[Any], delta: Any = 0, **of: Any) -> RenyiDP:
    given = tuple(map(F, orders)), tuple(map(F, values)), F(delta)
    return RenyiDP(of.get("adjacency", Adjacency.REPLACE_LABEL), Unit.RECORD, *given)
