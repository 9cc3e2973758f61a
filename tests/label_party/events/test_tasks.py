"""What tasks leave for each other on a disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.engine.shuffle import KEY_TYPE
from common.errors import DataError
from label_party.events.tasks import Piece, Range

ROWS, LABELS = 10, 2


def test_a_range_lies_in_pieces_and_what_was_cut_off_is_missed(tmp_path: Path) -> None:
    keys = np.arange(2 * ROWS, dtype=np.int64).repeat(2).view(KEY_TYPE)
    labels = np.arange(2.0 * ROWS * LABELS).reshape(-1, LABELS)
    pieces = []
    for start in (0, ROWS):
        rows, path = slice(start, start + ROWS), tmp_path / f"{start}"
        path.write_bytes(keys[rows].tobytes() + labels[rows].tobytes())
        pieces.append(Piece(path, start, start + ROWS, LABELS))
    across = Range(ROWS - 3, ROWS + 4, tuple(pieces))
    assert np.array_equal(across.keys(), keys[ROWS - 3 : ROWS + 4])
    assert np.array_equal(across.labels(), labels[ROWS - 3 : ROWS + 4])

    last = pieces[1].path
    last.write_bytes(last.read_bytes()[: -8 * LABELS])  # of the last row
    assert np.array_equal(across.labels(), labels[ROWS - 3 : ROWS + 4])
    with pytest.raises(DataError, match="ends after 304 bytes where 320 were written"):
        Range(ROWS, 2 * ROWS, (pieces[1],)).labels()
