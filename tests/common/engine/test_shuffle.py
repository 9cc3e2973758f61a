"""Sorting and looking up 16-byte keys, with ties in the last bits and equal keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labelveil.common.engine import shuffle
from labelveil.common.engine.shuffle import (
    Exchange,
    Files,
    count_repeated,
    key_buckets,
    match_keys,
    sort_keys,
)
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import DataError


def keys(heads: np.ndarray, tails: np.ndarray) -> np.ndarray:
    return np.stack([heads, tails], axis=1).astype(">u8").view("S16").reshape(-1)


def drawn(count: int, heads: int, tails: int) -> np.ndarray:
    """Keys with so many different first and last halves, the first ones alike but for some bits."""
    words = seeded_entropy(count).words("keys", 0, 2 * count)
    return keys(words[:count] % np.uint64(heads), words[count:] % np.uint64(tails))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 5000])
@pytest.mark.parametrize(("heads", "tails"), [(2**64 - 1, 9), (3000, 3), (3, 2**64 - 1), (1, 1)])
def test_keys_are_sorted_and_equal_ones_keep_their_order(
    count: int, heads: int, tails: int
) -> None:
    given = drawn(count, heads, tails)
    # bytes of a fixed width: what NumPy compares leaves out zeros at the end, which change nothing
    assert sort_keys(given).tolist() == np.argsort(given, kind="stable").tolist()


@pytest.mark.parametrize(("heads", "tails"), [(2**64 - 1, 9), (300, 30), (1, 2**64 - 1)])
@pytest.mark.parametrize("ascending", [True, False])
def test_keys_are_found(heads: int, tails: int, ascending: bool) -> None:
    known = np.unique(drawn(500, heads, tails))
    near = known[::5].copy()  # and keys that differ in the last bit, or the middle one
    near.view(np.uint8).reshape(-1, 16)[:, 7] ^= np.arange(near.size, dtype=np.uint8) % 2
    near.view(np.uint8).reshape(-1, 16)[:, 15] ^= 1 - np.arange(near.size, dtype=np.uint8) % 2
    wanted = np.concatenate([known[::3], drawn(501, heads, tails), near])
    wanted = np.sort(wanted) if ascending else wanted
    at, there = match_keys(known, wanted)
    assert there.tolist() == np.isin(wanted, known).tolist()
    assert there.sum() >= known[::3].size
    assert (known[at[there]] == wanted[there]).all()


@pytest.mark.parametrize(("heads", "tails"), [(2**64 - 1, 9), (300, 30), (3, 2**64 - 1), (1, 1)])
@pytest.mark.parametrize("at_once", [7, 1 << 20])
def test_repeated_keys_are_counted(
    heads: int, tails: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few are sorted at a time."""
    monkeypatch.setattr(shuffle, "_SORTED_AT_ONCE", 60 * at_once)
    monkeypatch.setattr(shuffle, "_KEYS_AT_ONCE", at_once)
    given = drawn(500, heads, tails)
    for some in (given, given[:0], given[:1], np.sort(given)[-2:], np.repeat(given[-1:], 3)):
        assert count_repeated(some) == len(some) - len(set(some.tolist()))


def test_buckets_are_as_many_as_there_may_be(tmp_path: Path) -> None:
    ends = keys(np.array([0, 2**64 - 1], dtype=np.uint64), np.zeros(2, dtype=np.uint64))
    for most in (1, (1 << 16) + 1, 1 << 31):
        assert key_buckets(ends, most).tolist() == [0, most - 1]
    for none in (0, (1 << 31) + 1):
        with pytest.raises(ValueError, match="must lie in 1"):
            key_buckets(ends, none)
    # more than two bytes tell apart
    exchange = Exchange(Files(tmp_path / "rows", 1), (1 << 16) + 1, {"key": "S16"})
    exchange.send(0, np.array([1 << 16, 0]), {"key": ends})
    assert exchange.receive(0)["key"].tolist() == ends[1:].tolist()
    assert exchange.receive(1 << 16)["key"].tolist() == ends[:1].tolist()


def exchanged(folder: Path) -> tuple[Exchange, list[dict[str, np.ndarray]]]:
    """Two files of rows with two values each, sent to three buckets; the second has no row."""
    exchange = Exchange(Files(folder / "rows", 2), 3, {"key": "S16", "label": "(2,)<f8"})
    sent = []
    for index, count in enumerate((700, 0)):
        some = drawn(count, 2**64 - 1, 9)
        sent.append({"key": some, "label": np.arange(2.0 * count).reshape(count, 2)})
        exchange.send(index, key_buckets(some, 3), sent[-1])
    return exchange, sent


def test_buckets_receive_what_was_sent_in_its_order(tmp_path: Path) -> None:
    exchange, (sent, _) = exchanged(tmp_path)
    buckets = key_buckets(sent["key"], 3)
    for bucket in range(3):
        received = exchange.receive(bucket)
        assert (received["key"] == sent["key"][buckets == bucket]).all()
        assert (received["label"] == sent["label"][buckets == bucket]).all()


@pytest.mark.parametrize("kept", [0, 20, 5000, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    exchange, _ = exchanged(tmp_path)
    file = exchange.files[0]
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(DataError, match="ends after"):
        exchange.receive(2)
