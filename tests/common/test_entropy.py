"""Entropy: AES-256-CTR as specified, seekable, streams apart, the seeded twin marked."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from common.entropy import Entropy, seeded_entropy, system_entropy

KEY = bytes(range(32))


def block_cipher_words(stream: str, first: int, count: int) -> list[int]:
    """Words by definition: AES of the block's index, under HMAC of the key and the stream's name.

    HMAC is written out as FIPS 198-1 has it.
    """
    inner, outer = (bytes(b ^ pad for b in KEY.ljust(64, b"\0")) for pad in (0x36, 0x5C))
    name = hashlib.sha256(inner + b"labelveil stream:" + stream.encode()).digest()
    cipher = Cipher(algorithms.AES(hashlib.sha256(outer + name).digest()), modes.ECB()).encryptor()
    words = []
    for word in range(first, first + count):
        block = cipher.update((word // 2).to_bytes(16, "big"))
        words.append(int.from_bytes(block[8 * (word % 2) :][:8], "little"))
    return words


@pytest.mark.parametrize("first", [0, 1, 2, 65_535, 2**40 + 1, 2**62 - 9])
def test_words_are_the_block_cipher_of_their_counters(first: int) -> None:
    assert Entropy(KEY).words("labels", first, 9).tolist() == block_cipher_words("labels", first, 9)


@given(first=st.integers(0, 500), sizes=st.lists(st.integers(0, 40), max_size=8))
def test_any_chunking_gives_the_same_words(first: int, sizes: list[int]) -> None:
    entropy = Entropy(KEY)
    parts, at = [], first
    for size in sizes:
        parts.append(entropy.words("s", at, size))
        at += size
    whole = entropy.words("s", first, at - first)
    assert np.concatenate([*parts, whole[:0]]).tolist() == whole.tolist()


@given(sizes=st.lists(st.integers(0, 3000), max_size=8))
def test_a_source_reads_its_stream_in_order(sizes: list[int]) -> None:
    entropy = Entropy(KEY)
    source = entropy.source("s")
    taken = [source.take(size) for size in sizes]
    assert [part.size for part in taken] == sizes
    read = np.concatenate([*taken, np.empty(0, np.uint64)])
    assert read.tolist() == entropy.words("s", 0, sum(sizes)).tolist()


def test_streams_and_keys_are_apart() -> None:
    names = ["labels", "rounding", "prior", "", "label", "labels "]
    entropies = [seeded_entropy(0), seeded_entropy(1), Entropy(KEY)]
    words = {
        word for entropy in entropies for n in names for word in entropy.words(n, 0, 100).tolist()
    }
    assert len(words) == len(names) * len(entropies) * 100


def test_a_stream_ends() -> None:
    entropy = Entropy(KEY)
    assert entropy.words("s", 2**62 - 1, 1).size == 1
    with pytest.raises(ValueError, match="end"):
        entropy.words("s", 2**62 - 1, 2)
    with pytest.raises(ValueError, match=">= 0"):
        entropy.words("s", -1, 2)


def test_two_cold_starts_differ_and_say_that_they_are_secure() -> None:
    first, second = system_entropy(), system_entropy()
    assert first.secure
    assert second.secure
    assert first.words("s", 0, 4).tolist() != second.words("s", 0, 4).tolist()


def test_the_seeded_twin_repeats_and_is_marked() -> None:
    assert not seeded_entropy(7).secure
    assert seeded_entropy(7).key == seeded_entropy(7).key
    # changed words would silently change every seeded result of the project
    assert seeded_entropy(0).words("labels", 0, 3).tolist() == [
        2984257212666576368,
        7046855904522920130,
        2230808383122794050,
    ]


def test_a_key_is_never_shown_and_can_be_forgotten() -> None:
    entropy = Entropy(KEY)
    assert KEY.hex() not in repr(entropy)
    entropy.destroy()
    with pytest.raises(ValueError, match="destroyed"):
        entropy.words("labels", 0, 1)
    with pytest.raises(ValueError, match="32"):
        Entropy(b"short")
