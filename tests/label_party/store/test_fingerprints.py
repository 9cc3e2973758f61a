"""Fingerprints of events: the same from text and integers, sorted and compared in slices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from common.entropy import seeded_entropy
from common.errors import DataError
from label_party.store import fingerprints
from label_party.store.fingerprints import fingerprint, one_spelling, overlap, write_sorted

SECRET = bytes(range(32))


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_SLICE", 100)


def prints(start: int, count: int) -> np.ndarray:
    return seeded_entropy(1).words("events", start, count)


def test_integers_and_their_spelling_agree_under_one_secret_alone() -> None:
    numbers = pl.Series([7, 8, 10**15])
    assert (fingerprint(numbers, SECRET) == fingerprint(numbers.cast(pl.String), SECRET)).all()
    assert not (fingerprint(numbers, SECRET) == fingerprint(numbers, bytes(32))).any()


def test_written_sorted_and_once(tmp_path: Path) -> None:
    parts = [prints(0, 250), prints(200, 30), prints(500, 7), prints(0, 0)]
    assert write_sorted(tmp_path / "a", parts) == 257
    found = np.fromfile(tmp_path / "a", "<u8")
    assert (found == np.unique(np.concatenate(parts))).all()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("shared", [0, 1, 99, 1000])
def test_overlap_is_the_number_of_common_events(tmp_path: Path, shared: int) -> None:
    write_sorted(tmp_path / "a", [prints(0, 1000)])
    write_sorted(tmp_path / "b", [prints(1000 - shared, 3000)])
    assert overlap(tmp_path / "a", tmp_path / "b") == shared
    assert overlap(tmp_path / "b", tmp_path / "a") == shared


def test_a_key_has_one_spelling() -> None:
    for one in ("1", "01", " 1", "1 ", "+1", "1.0", "1."):
        assert one_spelling(pl.Series([one])).to_list() == ["1"]
    odd = ["-01", "000", "0a", "e\u0301", "a.0", "1.5", "-", ""]
    plain = ["-1", "0", "0a", "\u00e9", "a.0", "1.5", "-", ""]
    assert one_spelling(pl.Series(odd)).to_list() == plain


def test_nothing_meets_nothing(tmp_path: Path) -> None:
    assert write_sorted(tmp_path / "none", []) == 0
    write_sorted(tmp_path / "some", [prints(0, 3)])
    assert overlap(tmp_path / "none", tmp_path / "some") == 0


def test_fingerprints_that_were_cut_off_are_refused(tmp_path: Path) -> None:
    # an event without its fingerprint could be charged twice
    write_sorted(tmp_path / "a", [prints(0, 1000)])
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-1])
    with pytest.raises(DataError, match="ends after"):
        fingerprints._read(tmp_path / "a", 0, 1000)
