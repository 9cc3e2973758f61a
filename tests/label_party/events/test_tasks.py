"""What tasks leave for each other, on a disk or in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labelveil.common.engine.shuffle import KEY_TYPE, Exchange, Files, Held
from labelveil.common.errors import DataError
from labelveil.label_party.events.tasks import Piece, Range
from labelveil.label_party.sources.tables import KEY, LABEL

ROWS, LABELS = 10, 2
TYPES = {KEY: KEY_TYPE, LABEL: f"({LABELS},)<f8"}


@pytest.mark.parametrize("kind", [Exchange, Held])
def test_a_range_lies_in_pieces_and_what_was_cut_off_is_missed(
    tmp_path: Path, kind: type[Exchange]
) -> None:
    keys = np.arange(2 * ROWS, dtype=np.int64).repeat(2).view(KEY_TYPE)
    labels = np.arange(2.0 * ROWS * LABELS).reshape(-1, LABELS)
    written, pieces = kind(Files(tmp_path / "written", 2), 1, TYPES), []
    for index in (0, 1):
        pieces.append(Piece(written, index, index * ROWS, (index + 1) * ROWS))
        rows = slice(index * ROWS, (index + 1) * ROWS)
        pieces[-1].write({KEY: keys[rows], LABEL: labels[rows]})
    across = Range(ROWS - 3, ROWS + 4, tuple(pieces))
    assert np.array_equal(across.keys(), keys[ROWS - 3 : ROWS + 4])
    assert np.array_equal(across.labels(), labels[ROWS - 3 : ROWS + 4])
    if kind is Held:
        assert not list(tmp_path.iterdir())
        return

    last = written.files[1]
    last.write_bytes(last.read_bytes()[: -8 * LABELS])  # of the last row
    assert np.array_equal(across.labels(), labels[ROWS - 3 : ROWS + 4])
    with pytest.raises(DataError, match="ends after 320 bytes where 336 were written"):
        Range(ROWS, 2 * ROWS, (pieces[1],)).labels()
