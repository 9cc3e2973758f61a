"""A question as it is sent and kept: every number at a place that follows from those before it.

    21 bytes           ``labelveil-question/2`` and a line feed
    n bytes            each event's stratum
    4 bytes, 4 bytes   k points, S strata: unsigned
    8 k bytes          the grid: float64
    8 S k bytes        the laws, one after another: signed whole numbers

All are little endian. Nothing has to be parsed, so that what is no question costs no more than to
compare its length with two numbers. Format 1 has no first line: its first byte is a stratum, and so
never a letter.

Where sums over groups of the events are asked for, the line is ``labelveil-groups/1`` and a line
feed, and what follows is :meth:`GroupQuestion.encode's
<labelveil.common.mechanisms.group_sums.question.GroupQuestion.encode>`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from labelveil.common.errors import ConfigError, ReleaseError
from labelveil.common.files import appearing, writing
from labelveil.common.formats import GROUPS, QUESTION, Format
from labelveil.common.mechanisms.group_sums.question import GroupQuestion
from labelveil.common.randomizers.grid import MAX_POINTS, Grid
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.randomizers.message.strata import MOST_STRATA

_SIZES = 8
_NUMBER = 8

_NAME = QUESTION.name.encode() + b"/"
_LINE = f"{QUESTION}\n".encode()
_GROUPS_NAME = GROUPS.name.encode() + b"/"
_GROUPS_LINE = f"{GROUPS}\n".encode()
_LONGEST_LINE = 64

_LAWS_BYTES = len(_LINE) + _SIZES + _NUMBER * MAX_POINTS * (1 + MOST_STRATA)
"""The most that stands before and behind the events' strata."""

AnyQuestion = Question | GroupQuestion


def most_bytes(rows: int) -> int:
    """The most bytes that a question about n events has."""
    return max(rows + _LAWS_BYTES, _LONGEST_LINE + GroupQuestion.most_bytes(rows))


def encode_question(question: AnyQuestion) -> bytes:
    """Write a question about n events."""
    if isinstance(question, GroupQuestion):
        return _GROUPS_LINE + question.encode()
    strata, laws = question.strata.astype(np.uint8), question.laws.astype("<i8")
    sizes = np.array(laws.shape[::-1], dtype="<u4")
    grid = question.grid.points.astype("<f8")
    return _LINE + b"".join(part.tobytes() for part in (strata, sizes, grid, laws))


def write_question(question: AnyQuestion, path: str | Path) -> None:
    """Write a question to a file, for ``feature-party submit --question``.

    ::

        lv.write_question(lv.ask_groups(X, epsilon=0.1, lower=0, upper=1000), "question.bin")
    """
    path = Path(path)
    with writing(path), appearing(path) as file:
        file.write(encode_question(question))


def decode_question(data: bytes, rows: int) -> AnyQuestion:
    """Read a question about n events; ``ReleaseError`` if it is none."""
    try:
        if asks_groups(data):
            at = _after_line(data[:_LONGEST_LINE], GROUPS)
            return GroupQuestion.decode(memoryview(data)[at:], rows)
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
    return _after_line(begin, QUESTION)


def _after_line(begin: bytes, read: Format) -> int:
    """Where what follows the first line is, which must be of a format that is read here."""
    line, _, _ = begin.partition(b"\n")
    who = "the labels party must update labelveil"
    read.check(line.decode("latin-1"), "the question", ReleaseError, update=who)
    return len(line) + 1


def asks_groups(begin: bytes) -> bool:
    """Whether a question that begins so asks for sums over groups."""
    return begin.startswith(_GROUPS_NAME)


def strata_at(path: Path) -> int | None:
    """At which byte of a file with a question the events' strata begin, one byte each; None where
    it gathers none."""
    with path.open("rb") as file:
        begin = file.read(_LONGEST_LINE)
    return None if asks_groups(begin) else _strata_at(begin)


def read_question(path: Path, rows: int) -> AnyQuestion:
    """Read a file with a question about n events; ``ReleaseError`` if it is none."""
    with path.open("rb") as file:
        return decode_question(file.read(most_bytes(rows) + 1), rows)
