"""JSON that two readers cannot understand as two different claims."""

from __future__ import annotations

import json
import math
from typing import Any

from common.errors import ReleaseError
from common.release.limits import KEYS, MANIFEST_BYTES


def parse_json(data: bytes) -> Any:
    """Read JSON in UTF-8 without repeated keys, NaN or infinity, and not too big or too deep."""
    if len(data) > MANIFEST_BYTES:
        raise ReleaseError(
            f"a manifest of {len(data):,} bytes; the most allowed is {MANIFEST_BYTES:,}"
        )
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_distinct,
            parse_float=_finite,
            parse_constant=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"the manifest is not valid JSON: {error}") from error


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
    return value
