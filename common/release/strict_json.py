"""JSON that two readers cannot understand as two different claims, and that is small when read.

How deep it is and how many values it has is counted among its bytes, before anything is made of
them.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np

from labelveil.common.errors import ReleaseError
from labelveil.common.release.limits import DEPTH, KEYS, MANIFEST_BYTES, VALUES

_QUOTE, _COMMA = b'",'
_OPENING, _CLOSING = b"[{", b"]}"


def parse_json(data: bytes) -> Any:
    """Read JSON in UTF-8 without repeated keys, of finite numbers, and not too big or too deep."""
    if len(data) > MANIFEST_BYTES:
        raise ReleaseError(
            f"a manifest of {len(data):,} bytes; the most allowed is {MANIFEST_BYTES:,}"
        )
    try:
        _check_shape(data)
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_distinct,
            parse_float=_finite,
            parse_constant=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"the manifest is not valid JSON: {error}") from error


def _check_shape(data: bytes) -> None:
    """Raise ``ValueError`` for too many values, or too many within each other.

    What is counted is exact up to the first byte that is no JSON, where reading ends.
    """
    text = np.frombuffer(data.replace(b"\\\\", b"").replace(b'\\"', b""), dtype=np.uint8)
    outside = ~np.logical_xor.accumulate(text == _QUOTE)  # of texts
    opened = outside & np.isin(text, list(_OPENING))
    closed = outside & np.isin(text, list(_CLOSING))
    values = np.count_nonzero(outside & (text == _COMMA)) + np.count_nonzero(opened)
    if values > VALUES:
        raise ValueError(f"{values:,} values are more than {VALUES:,}")
    steps = opened.astype(np.int8) - closed.astype(np.int8)
    deepest = int(np.cumsum(steps, dtype=np.int32).max(initial=0))
    if deepest > DEPTH:
        raise ValueError(f"{deepest:,} lists within each other are more than {DEPTH}")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > KEYS:
        raise ValueError(f"an object has {len(pairs):,} keys, more than {KEYS}")
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a key is repeated")
    return data


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is not a finite number")
    if abs(value) < sys.float_info.min and text.lower().partition("e")[0].strip("-0."):
        raise ValueError(f"{text:.40} is closer to 0 than numbers with all of their digits")
    return value
