"""Entropy: AES-256-CTR as specified, seekable, streams apart, the seeded twin marked."""

from __future__ import annotations

import copy
import hashlib
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from labelveil.common.entropy import Entropy, seeded_entropy, system_entropy, unit_floats
from labelveil.common.errors import PrivacyError
from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.prior import private_prior

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


def test_the_first_block_is_the_standards(monkeypatch: pytest.MonkeyPatch) -> None:
    """NIST's AESAVS (2002), appendix C.3: key 0 of KeySbox for 256 bits, of an empty block."""
    key = bytes.fromhex("c47b0294dbbbee0fec4757f22ffeee3587ca4730c3d33b691df38bab076bc558")
    monkeypatch.setattr("labelveil.common.entropy.hmac.digest", lambda *_: key)
    words = Entropy(bytes(32), secure=False).words("any", 0, 2)
    assert words.tobytes().hex() == "46f2fb342d6f0ab477476fc501242c5f"


@given(first=st.integers(0, 500), sizes=st.lists(st.integers(0, 40), max_size=8))
def test_any_chunking_gives_the_same_words(first: int, sizes: list[int]) -> None:
    entropy = Entropy(KEY)
    parts, at = [], first
    for size in sizes:
        parts.append(entropy.words("s", at, size))
        at += size
    whole = Entropy(KEY).words("s", first, at - first)
    assert np.concatenate([*parts, whole[:0]]).tolist() == whole.tolist()


@given(sizes=st.lists(st.integers(0, 3000), max_size=8))
def test_a_source_reads_its_stream_in_order(sizes: list[int]) -> None:
    entropy = Entropy(KEY)
    source = entropy.source("s")
    taken = [source.take(size) for size in sizes]
    assert [part.size for part in taken] == sizes
    read = np.concatenate([*taken, np.empty(0, np.uint64)])
    assert read.tolist() == Entropy(KEY).words("s", 0, sum(sizes)).tolist()


def test_streams_and_keys_are_apart() -> None:
    names = ["labels", "rounding", "prior", "", "label", "labels "]
    entropies = [seeded_entropy(0), seeded_entropy(1), Entropy(KEY)]
    words = {
        word for entropy in entropies for n in names for word in entropy.words(n, 0, 100).tolist()
    }
    assert len(words) == len(names) * len(entropies) * 100


@given(
    ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=30),
    streams=st.integers(1, 2),
)
def test_no_word_is_given_out_twice(ranges: list[tuple[int, int]], streams: int) -> None:
    entropy, given_out = Entropy(KEY), set()
    for i, (start, count) in enumerate(ranges):
        stream = str(i % streams)
        asked = {(stream, word) for word in range(start, start + count)}
        if asked & given_out:
            with pytest.raises(PrivacyError, match="have been drawn"):
                entropy.words(stream, start, count)
        else:
            assert entropy.words(stream, start, count).size == count
            given_out |= asked
    assert Entropy(KEY).words("0", 0, 72).size == 72  # another object of the key repeats them


class Repeating(Entropy):
    """The twin that gives words out again."""

    def _claim(self, stream: str, start: int, end: int) -> None:
        pass


def test_two_histograms_from_one_entropy_do_not_share_their_noise() -> None:
    """Their difference would be that of the exact ones, at no price."""
    one, other = np.array([5, 900, 3]), np.array([7, 880, 21])

    def stolen(entropy: Entropy) -> list[int]:
        first, second = (
            private_prior(counts, 1.0, entropy).noisy_counts for counts in (one, other)
        )
        return (second - first).tolist()

    with pytest.raises(PrivacyError, match="system_entropy"):
        stolen(system_entropy())
    assert stolen(Repeating(KEY)) == (other - one).tolist()


def test_two_columns_from_one_entropy_do_not_share_their_noise() -> None:
    """Where both columns' outputs are far apart, shared noise would say what both labels are."""
    randomizer = build_randomizer("randomized-response", labels=[0, 1], prior=[1, 1], epsilon=0.1)
    columns = np.zeros(4000, dtype=np.int64), np.ones(4000, dtype=np.int64)

    def known(entropy: Entropy) -> float:
        first, second = (randomizer.randomize_indices(column, entropy) for column in columns)
        return float(np.mean(first != second))

    with pytest.raises(PrivacyError, match="system_entropy"):
        known(system_entropy())
    assert 0.01 < known(Repeating(KEY)) < 0.06  # independent noise differs in half of the rows


def test_chunks_of_one_column_are_one_release() -> None:
    labels = np.arange(100) % 2
    randomizer = build_randomizer("randomized-response", labels=[0, 1], prior=[1, 1], epsilon=1)
    whole = randomizer.randomize_indices(labels, Entropy(KEY))
    entropy = Entropy(KEY)
    chunks = [
        randomizer.randomize_indices(labels[at : at + 30], entropy, at) for at in (60, 0, 90, 30)
    ]
    assert np.array_equal(whole, np.concatenate([chunks[1], chunks[3], chunks[0], chunks[2]]))


def test_coins_may_be_read_again_and_are_the_words_of_their_stream() -> None:
    entropy = Entropy(KEY)
    first, again = (entropy.coins("rounding", 3, 9).tolist() for _ in range(2))
    assert first == again == entropy.words("rounding", 3, 9).tolist()


def test_entropy_is_not_copied_and_its_seeded_twin_is() -> None:
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(PrivacyError, match="copied"):
            duplicate(system_entropy())
    twin = pickle.loads(pickle.dumps(seeded_entropy(3)))
    assert twin.key == seeded_entropy(3).key
    assert not twin.secure


def test_floats_of_words_are_evenly_between_0_and_1() -> None:
    ends = unit_floats(np.array([0, (1 << 64) - 1, 1 << 63], dtype=np.uint64))
    assert ends.tolist() == [2.0**-54, 1 - 2.0**-53, 0.5]
    found = unit_floats(Entropy(KEY).words("floats", 0, 10_000))
    assert np.abs(np.sort(found) - (np.arange(10_000) + 0.5) / 10_000).max() < 0.03
    assert unit_floats(np.array([5 << 11], dtype=np.uint64)) == 5.5 / 2.0**53


def test_a_stream_ends() -> None:
    entropy = Entropy(KEY)
    assert entropy.words("s", 2**62 - 1, 1).size == 1
    with pytest.raises(ValueError, match="end"):
        entropy.words("s", 2**62 - 1, 2)
    for start, count in ((-1, 2), (2, -1)):
        with pytest.raises(ValueError, match=">= 0"):
            entropy.words("s", start, count)


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
