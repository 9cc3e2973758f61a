"""An asker who chooses the names of noise streams looks for two that meet, and subtracts them.

The twin places a stream at a truncated, unkeyed hash of its name under one AES key. With 64 bits
that took 3.35e9 hashes of van Oorschot and Wiener's search; here it has 24 bits, and thousands do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from labelveil.common.arrays import Words
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.mechanisms.thresholdout import RESOLUTION, Thresholdout

PLACE_BYTES = 3
RECORDS = 1000  # so that an estimate of 1 is far from ½, and is answered
GAMES = 32


def place(stream: str) -> bytes:
    return hashlib.sha256(b"labelveil stream:" + stream.encode()).digest()[:PLACE_BYTES]


class TruncatedTwin(Entropy):
    """All streams in one sequence of AES blocks, each from where its name's hash says."""

    __slots__ = ()

    def words(self, stream: str, start: int, count: int) -> Words:
        assert start == 0
        counter = place(stream).ljust(16, b"\0")
        blocks = Cipher(algorithms.AES(self.key), modes.CTR(counter)).encryptor()
        return np.frombuffer(blocks.update(bytes(8 * count)), dtype="<u8")


def meeting_questions(like: tuple[str, str]) -> tuple[str, str]:
    """One question of each kind whose answers' noise has the same place, by a birthday search."""
    first, second = (f"answer {kind}" for kind in like)
    seen: dict[bytes, int] = {}
    for i in range(1 << 16):
        seen.setdefault(place(f"{first}{i}"), i)
        met = seen.get(place(f"{second}{i}"))
        if met is not None:
            return f"{like[0]}{met}", f"{like[1]}{i}"
    raise AssertionError("a search of 2**16 names found no two of 2**24 places alike")


def stolen_label(entropy: Entropy, victim: int) -> int:
    """What two answers say about one record, the question being whether their noise cancels."""
    everyone, others = meeting_questions(("everyone", "all but the victim"))
    mechanism = Thresholdout(Fraction(1), most=2, threshold=Fraction(0))
    values = np.full(RECORDS, RESOLUTION // 2)
    values[0] = victim
    sums = []
    for used, (name, part) in enumerate(((everyone, values), (others, values[1:]))):
        answer = mechanism.draw(part, 1.0, used=used, question=name, entropy=entropy)
        assert answer.from_holdout
        sums.append(round(answer.value * part.size * RESOLUTION))
    return sums[0] - sums[1]


def wins(make: Callable[[], Entropy]) -> int:
    """Games out of GAMES in which a secret value, one of 2**16, is read off exactly."""
    secrets = system_entropy().words("victims", 0, GAMES) % np.uint64(RESOLUTION)
    return sum(stolen_label(make(), victim) == victim for victim in secrets.tolist())


def test_two_streams_that_meet_give_a_label_away() -> None:
    assert wins(lambda: TruncatedTwin(system_entropy().key)) == GAMES


def test_no_two_chosen_names_meet() -> None:
    assert wins(system_entropy) <= 1  # luck: one game in a hundred thousand
    entropy = system_entropy()
    first = {entropy.words(f"answer {i}", 0, 2).tobytes()[:8] for i in range(1 << 15)}
    assert len(first) == 1 << 15
    assert len({word[:PLACE_BYTES] for word in first}) < 1 << 15  # of 24 bits, some would be
