"""What tasks leave for each other, on a disk or in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelveil.common.engine.shuffle import KEY_TYPE, Exchange, Files, InMemoryExchange
from labelveil.common.engine.task import Secrets
from labelveil.common.errors import DataError
from labelveil.label_party.events.tasks import ROW, Piece, Range, SubmittedRows, SubmittedSlice
from labelveil.label_party.sources.tables import KEY, LABEL, STRATUM

ROWS, LABELS = 10, 2
TYPES = {KEY: KEY_TYPE, LABEL: f"({LABELS},)<f8"}


@pytest.mark.parametrize("kind", [Exchange, InMemoryExchange])
def test_a_range_lies_in_pieces_and_what_was_cut_off_is_missed(
    tmp_path: Path, kind: type[Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv

    def some(file: int, buffers: list[Any], offset: int) -> int:  # as of more than two gigabytes
        return real(file, [np.frombuffer(buffers[0], dtype=np.uint8)[:13]], offset)

    monkeypatch.setattr(os, "preadv", some)
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
    if kind is InMemoryExchange:
        assert not list(tmp_path.iterdir())
        return

    last = written.files[1]
    last.write_bytes(last.read_bytes()[: -8 * LABELS])  # of the last row
    assert np.array_equal(across.labels(), labels[ROWS - 3 : ROWS + 4])
    with pytest.raises(DataError, match="ends after 320 bytes where 336 were written"):
        Range(ROWS, 2 * ROWS, (pieces[1],)).labels()


def test_slices_of_what_was_submitted_are_its_rows_in_their_order(tmp_path: Path) -> None:
    """Whatever the slices are; strata begin somewhere in what is asked."""
    keys = np.arange(2 * ROWS, dtype=np.int64).view(KEY_TYPE)
    strata = np.arange(ROWS) * 7 % 5
    (tmp_path / "keys").write_bytes(keys.tobytes() + b"and what is not of them")
    (tmp_path / "question").write_bytes(b"head" + strata.astype("u1").tobytes() + b"tail")
    submitted = SubmittedRows(tmp_path / "keys", ROWS, tmp_path / "question", 4)
    for size in (1, 3, ROWS):
        ends = [(start, min(start + size, ROWS)) for start in range(0, ROWS, size)]
        loaded = [SubmittedSlice(submitted, *each).load(Secrets(bytes(32)))[0] for each in ends]
        found = {name: np.concatenate([part[name] for part in loaded]) for name in loaded[0]}
        assert found.keys() == submitted.types.keys()
        assert np.array_equal(found[KEY], keys)
        assert found[ROW].tolist() == [*range(ROWS)]
        assert found[STRATUM].tolist() == strata.tolist()
    assert (
        STRATUM
        not in SubmittedSlice(SubmittedRows(tmp_path / "keys", ROWS), 0, 1).load(
            Secrets(bytes(32))
        )[0]
    )
