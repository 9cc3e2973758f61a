"""A question as it is sent and kept: each event's stratum, one byte, then grid and laws as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from common.errors import ConfigError, ReleaseError
from common.randomizers.grid import Grid
from common.randomizers.message.questions import Question
from common.release.limits import MANIFEST_BYTES
from common.release.strict_json import parse_json


def encode_question(question: Question) -> bytes:
    """Write a question about n events: n bytes, and those of the laws."""
    laws = {"grid": question.grid.points.tolist(), "laws": question.laws.tolist()}
    return question.strata.astype(np.uint8).tobytes() + json.dumps(laws).encode()


def decode_question(data: bytes, rows: int) -> Question:
    """Read a question about so many events.

    ``ReleaseError`` if it is none, or its laws are more than a manifest could state.
    """
    if len(data) > rows + MANIFEST_BYTES:
        raise ReleaseError(
            f"laws of {len(data) - rows:,} bytes are more than the {MANIFEST_BYTES:,} that a"
            " manifest may have; ask about fewer points"
        )
    document = parse_json(data[rows:])
    try:
        if document.keys() != {"grid", "laws"}:
            raise ConfigError("it must have grid and laws, and nothing else")
        strata = np.frombuffer(data, dtype=np.uint8, count=rows)  # of many events: no copy
        grid, laws = np.asarray(document["grid"], dtype=np.float64), np.asarray(document["laws"])
        return Question(strata, Grid(grid), laws)
    except (ConfigError, AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ReleaseError(f"the question about {rows:,} events is none: {error}") from error


def read_question(path: Path, rows: int) -> Question:
    """Read a file with a question about so many events."""
    with path.open("rb") as file:
        return decode_question(file.read(rows + MANIFEST_BYTES + 1), rows)
