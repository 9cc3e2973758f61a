"""A question about codes: the bytes that docs/formats.md says, written here by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from labelveil.common.errors import ReleaseError
from labelveil.common.formats import QUESTION
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.release.question import decode_question, encode_question, strata_at

LINE = f"{QUESTION}\n".encode()
EVENTS = bytes([1, 0, 1, 1])


def written(points: int, strata: int, laws: list[int], events: bytes = EVENTS) -> bytes:
    grid = [float(2 * place) for place in range(points)]
    sizes = struct.pack(f"<2I{points}d", points, strata, *grid)
    return LINE + events + sizes + struct.pack(f"<{len(laws)}q", *laws)


def test_a_question_has_strata_sizes_points_and_laws_in_this_order(tmp_path: Path) -> None:
    question = Question(
        np.frombuffer(EVENTS, np.uint8),
        Grid.from_edges([0.0, 2.0, 4.0]),
        np.array([[1, 2, 3], [4, 5, 1 << 40]]),
    )
    data = written(3, 2, [1, 2, 3, 4, 5, 1 << 40])
    assert encode_question(question) == data
    read = decode_question(data, 4)
    assert isinstance(read, Question)
    assert (read.strata.tolist(), read.grid.points.tolist()) == ([1, 0, 1, 1], [0, 2, 4])
    assert read.laws.tolist() == [[1, 2, 3], [4, 5, 1 << 40]]
    (tmp_path / "question.bin").write_bytes(data)
    assert strata_at(tmp_path / "question.bin") == len(LINE)
    assert isinstance(decode_question(written(2, 32, [1] * 64), 4), Question)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (LINE + EVENTS + bytes(7), "11 bytes are too few"),
        (written(3, 2, [1] * 6)[:-1], "of 3 points and 2 strata it has 84 bytes, not 83"),
        (written(3, 2, [1] * 7), "of 3 points and 2 strata it has 84 bytes, not 92"),
        (written(1, 2, [1] * 2), r"1 points must be 2 … 8,192"),
        (written(3, 0, []), "0 strata 1 … 32"),
        (written(3, 33, [1] * 99), "33 strata 1 … 32"),
        (written(3, 1, [1] * 3), "every event's stratum must be one of 0 … 0"),
        (written(3, 2, [1, 1, 1, 0, 0, 0]), "not all of them 0"),
        (written(3, 2, [1, 1, 1, 1, 1, (1 << 40) + 1]), "weights must be 0 … "),
    ],
)
def test_bytes_that_are_no_question_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(ReleaseError, match=f"the question about 4 events is none: .*{said}"):
        decode_question(data, 4)
