"""A question as it is sent and kept: every number at a place that follows from those before it.

    21 bytes           ``labelveil-question/2`` and a line feed
    n bytes            each event's stratum
    4 bytes, 4 bytes   k points, S strata: unsigned
    8 k bytes          the grid: float64
    8 S k bytes        the laws, one after another: signed whole numbers

All are little endian. Nothing has to be parsed, so that what is no question costs no more than to
compare its length with two numbers. Format 1 has no first line: its first byte is a stratum, and so
never a letter.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from labelveil.common.errors import ConfigError, ReleaseError
from labelveil.common.formats import QUESTION
from labelveil.common.randomizers.grid import MAX_POINTS, Grid
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.randomizers.message.strata import MOST_STRATA

_SIZES = 8
_NUMBER = 8

_NAME = QUESTION.name.encode() + b"/"
_LINE = f"{QUESTION}\n".encode()
_LONGEST_LINE = 64

LAWS_BYTES = len(_LINE) + _SIZES + _NUMBER * MAX_POINTS * (1 + MOST_STRATA)
"""The most that stands before and behind the events' strata."""


def encode_question(question: Question) -> bytes:
    """Write a question about n events."""
    strata, laws = question.strata.astype(np.uint8), question.laws.astype("<i8")
    sizes = np.array(laws.shape[::-1], dtype="<u4")
    grid = question.grid.points.astype("<f8")
    return _LINE + b"".join(part.tobytes() for part in (strata, sizes, grid, laws))


def decode_question(data: bytes, rows: int) -> Question:
    """Read a question about so many events; ``ReleaseError`` if it is none."""
    try:
        return _decode(memoryview(data)[_strata_at(data[:_LONGEST_LINE]) :], rows)
    except ConfigError as error:
        raise ReleaseError(f"the question about {rows:,} events is none: {error}") from error


def _decode(data: memoryview, rows: int) -> Question:
    if len(data) < rows + _SIZES:
        raise ConfigError(f"{len(data):,} bytes are too few")
    points, count = np.frombuffer(data, "<u4", 2, rows).tolist()
    if not (2 <= points <= MAX_POINTS and 1 <= count <= MOST_STRATA):
        raise ConfigError(
            f"{points:,} points must be 2 … {MAX_POINTS:,}, and {count:,} strata 1 … {MOST_STRATA}"
        )
    whole = rows + _SIZES + _NUMBER * points * (1 + count)
    if len(data) != whole:
        raise ConfigError(
            f"of {points:,} points and {count} strata it has {whole:,} bytes, not {len(data):,}"
        )
    at = rows + _SIZES
    grid = Grid(np.frombuffer(data, "<f8", points, at))
    laws = np.frombuffer(data, "<i8", offset=at + _NUMBER * points).reshape(count, points)
    strata = np.frombuffer(data, dtype=np.uint8, count=rows)
    return Question(strata, grid, laws.astype(np.int64))


def _strata_at(begin: bytes) -> int:
    """Where the events' strata are in a question that begins so."""
    if not begin.startswith(_NAME):
        return 0
    line, _, _ = begin.partition(b"\n")
    who = "the labels party must update labelveil"
    QUESTION.check(line.decode("latin-1"), "the question", ReleaseError, update=who)
    return len(line) + 1


def strata_at(path: Path) -> int:
    """At which byte of a file with a question the events' strata begin, one byte each."""
    with path.open("rb") as file:
        return _strata_at(file.read(_LONGEST_LINE))


def read_question(path: Path, rows: int) -> Question:
    """Read a file with a question about so many events."""
    with path.open("rb") as file:
        return decode_question(file.read(rows + LAWS_BYTES + 1), rows)
