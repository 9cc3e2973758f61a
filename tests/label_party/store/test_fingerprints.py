"""Fingerprints of events: the same from text and integers, sorted and compared in slices."""

from __future__ import annotations

import random
from hashlib import sha256
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import DataError
from labelveil.label_party.events.tasks import user_fingerprints
from labelveil.label_party.sources.tables import USER
from labelveil.label_party.store import fingerprints
from labelveil.label_party.store.fingerprints import fingerprint, one_spelling, overlap, write

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


def test_a_user_is_no_event_of_the_same_name() -> None:
    users = user_fingerprints(pl.DataFrame({USER: ["7", None, "8"]}), SECRET)
    assert users.size == np.unique(users).size == 2
    assert not np.isin(users, fingerprint(pl.Series(["7", "8"]), SECRET)).any()


def test_a_file_is_named_by_what_was_written(tmp_path: Path) -> None:
    ordered = np.unique(prints(0, 257))
    parts = np.split(ordered, [0, 100, 100])
    digest, events = write(tmp_path / "a", parts)
    assert (tmp_path / "a").read_bytes() == ordered.tobytes()
    hashed = int((ordered & 1).sum())
    assert (digest, events) == (sha256(ordered.tobytes()).hexdigest(), hashed)


@pytest.mark.parametrize(
    "parts", [[[2, 1]], [[1, 1]], [[1, 3], [3, 4]], [[1, 3], [], [2]], [[0], [0]]]
)
def test_what_does_not_ascend_is_not_written(tmp_path: Path, parts: list[list[int]]) -> None:
    # overlap() walks both files: an event out of its place would not be seen
    with pytest.raises(DataError, match="not in their order"):
        write(tmp_path / "a", (np.array(part, dtype=np.uint64) for part in parts))


@pytest.mark.parametrize("kinds", [[0], [1], [0, 1]])
@pytest.mark.parametrize("shared", [0, 1, 99, 1000])
def test_overlap_is_the_number_of_common_events(
    tmp_path: Path, shared: int, kinds: list[int]
) -> None:
    def fingerprints(start: int, count: int) -> np.ndarray:
        every = prints(start, count)
        return np.unique([every & ~np.uint64(1) | np.uint64(kind) for kind in kinds])

    write(tmp_path / "a", [fingerprints(0, 1000)])
    write(tmp_path / "b", [fingerprints(1000 - shared, 3000)])
    assert overlap([tmp_path / "a"], [tmp_path / "b"]) == shared
    assert overlap([tmp_path / "b"], [tmp_path / "a"]) == shared


@pytest.mark.parametrize("words", [3, 64, 1 << 20])
def test_overlap_of_several_files_is_that_of_their_unions(
    tmp_path: Path, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "_SLICE", words)
    every, generator = np.unique(prints(0, 300)) | np.uint64(1), random.Random(7)
    sides: list[list[Path]] = [[], []]
    there: list[set[int]] = [set(), set()]
    for number in range(9):
        drawn = sorted(generator.sample(every.tolist(), generator.randrange(80)))
        write(tmp_path / str(number), [np.array(drawn, dtype=np.uint64)])
        sides[number % 2].append(tmp_path / str(number))
        there[number % 2] |= {*drawn}
    assert 0 < len(there[0] & there[1]) < min(map(len, there))
    assert overlap(*sides) == overlap(*reversed(sides)) == len(there[0] & there[1])
    assert overlap(sides[0], []) == 0


def test_a_key_has_one_spelling() -> None:
    spellings = ["1", "01", " 1", "1\u00a0", "+1", "1.0", "1.", "\ufeff1", "1\u200b", "\uff11"]
    for one in spellings:
        assert one_spelling(pl.Series([one])).to_list() == ["1"]
    odd = ["-01", "000", "-0", "-0.0", "0a", "e\u0301", "e\u200b\u0301", "a.0", "1.5", "-", ""]
    plain = ["-1", "0", "0", "0", "0a", "\u00e9", "\u00e9", "a.0", "1.5", "-", ""]
    assert one_spelling(pl.Series(odd)).to_list() == plain


def test_what_is_another_key_stays_one() -> None:
    keys = [
        "7",
        "-7",
        "7e0",
        "7E0",
        "7.5",
        "7,0",
        "7 0",
        "x7",
        "X7",
        "00e1",
        "0e12",
        "\u0667",
        "0x7",
    ]
    assert one_spelling(pl.Series(keys)).n_unique() == len(keys)


def test_one_spelling_is_its_own() -> None:
    signs = [
        *"+-.0017eE ,",
        "\ufeff",
        "\u200b",
        "\uff10",
        "\uff0d",
        "\u0301",
        "\u00a0",
        "\u00b4",
        "e",
    ]
    generator = random.Random(2)
    drawn = ["".join(generator.choices(signs, k=generator.randrange(7))) for _ in range(20_000)]
    once = one_spelling(pl.Series(drawn))
    assert (one_spelling(once) == once).all()
    # one alone, without the short cut that a column of usual keys takes
    together = one_spelling(pl.Series([*drawn, "\u00e9"]))[:-1]
    assert (together == once).all()


def test_nothing_meets_nothing(tmp_path: Path) -> None:
    assert write(tmp_path / "none", [])[1] == 0
    write(tmp_path / "some", [np.unique(prints(0, 3))])
    assert overlap([tmp_path / "none"], [tmp_path / "some"]) == 0


def test_fingerprints_that_were_cut_off_are_refused(tmp_path: Path) -> None:
    # an event without its fingerprint could be charged twice
    write(tmp_path / "a", [np.unique(prints(0, 1000))])
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-1])
    with pytest.raises(DataError, match="ends after"):
        fingerprints._read(tmp_path / "a", 0, 1000)
