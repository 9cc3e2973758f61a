"""Random words for everything that leaves the labels party: AES-256-CTR, seekable by row.

A :class:`Entropy` is one 256-bit key. Each named *stream* of it is an independent sequence of
64-bit words, and word ``i`` of a stream depends on the key, the stream's name and ``i`` alone, so
that workers which share the key draw the same noise for the same row in whatever order they run,
and a retried task repeats its noise instead of drawing it again.

*Every word is drawn once.* Two releases that share words share noise: the difference of two noisy
histograms is then the difference of the histograms, exactly. So an object refuses words that it has
given out already, of the same stream and index, and is itself there once: it is not copied, and a
process that was forked asks for entropy of its own (:mod:`labelveil.common.noncopyable`). Whoever
has to repeat noise says so by building another object from the *key*: a task that is retried or
that does another's rows, an answer that was drawn but not written. There the place that holds the
key sees to it that both are one release.

The key comes from the operating system (:func:`system_entropy`). Tests that need repeatable words
ask for :func:`seeded_entropy` by name; its ``secure`` attribute is False, so that it repeats words,
in copies and forks as well, and a release refuses it.

Source: CTR mode, NIST SP 800-38A; AES, FIPS 197; HMAC, FIPS 198-1, as in the key derivation of
NIST SP 800-108.
"""

from __future__ import annotations

import bisect
import hashlib
import hmac
import os
from functools import partial
from typing import Any, SupportsIndex

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from labelveil.common.arrays import Floats, Words
from labelveil.common.errors import PrivacyError
from labelveil.common.noncopyable import NonCopyable

_KEY_BYTES = 32
_BLOCK_BYTES = 16
_WORD_BYTES = 8
_WORDS_PER_BLOCK = _BLOCK_BYTES // _WORD_BYTES
_MAX_WORDS = 1 << 62
_BUFFER = 1 << 10


class Entropy(NonCopyable):
    """Named streams of uniform 64-bit words under one AES-256 key, of 32 secret bytes.

    Use :func:`system_entropy` rather than calling this directly, but where noise must be repeated.
    ``secure`` says whether the key came from the operating system: releases refuse an insecure one,
    and it alone gives words out twice.
    """

    __slots__ = ("_drawn", "_key", "secure")

    def __init__(self, key: bytes, *, secure: bool = True) -> None:
        super().__init__(anywhere=not secure)
        if len(key) != _KEY_BYTES:
            raise ValueError(f"key of {len(key)} bytes must have {_KEY_BYTES}; use os.urandom(32)")
        self._key: bytes | None = bytes(key)
        self._drawn: dict[str, list[tuple[int, int]]] = {}
        self.secure = secure

    @property
    def key(self) -> bytes:
        """The secret key, for tasks that draw this release's noise. Never log or store it.

        What is drawn from it elsewhere is not known here. A forked process gets none from here.

        Raises
        ------
        ValueError
            If it has been destroyed.
        """
        self._lock.check_process()
        if self._key is None:
            raise ValueError("this entropy has been destroyed; ask for a fresh system_entropy()")
        return self._key

    def destroy(self) -> None:
        """Forget the key; every later use raises ``ValueError``."""
        self._key = None

    def words(self, stream: str, start: int, count: int) -> Words:
        """(count,) words of a stream from index ``start`` on, uniform on 0 … 2**64 - 1.

        Streams of different names are independent. One word a row: ``start`` is the row's index.

        Raises
        ------
        PrivacyError
            If some of the words have been given out, or this process was forked since; but not if
            the key is no secure one.
        ValueError
            If the stream has no such words.
        """
        if start < 0 or count < 0:
            raise ValueError(f"start={start} and count={count} must be >= 0")
        if start + count > _MAX_WORDS:
            raise ValueError(f"start={start} and count={count} pass the stream's end at 2**62")
        if self.secure and count:
            self._claim(stream, start, start + count)
        block, skip = divmod(start, _WORDS_PER_BLOCK)
        blocks = -(-(skip + count) // _WORDS_PER_BLOCK)
        key = hmac.digest(self.key, b"labelveil stream:" + stream.encode(), "sha256")
        cipher = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(_BLOCK_BYTES, "big")))
        out = cipher.encryptor().update(bytes(blocks * _BLOCK_BYTES))
        return np.frombuffer(out, dtype="<u8")[skip : skip + count]

    def coins(self, stream: str, start: int, count: int) -> Words:
        """Words that may be read again, for what no guarantee rests on.

        Such as those that round labels to a grid before any noise: prior and codes are to see the
        same rounded label, and would keep their guarantee if everybody knew these words.
        """
        whole = Entropy(self.key, secure=False) if self.secure else self
        return whole.words(stream, start, count)

    def _claim(self, stream: str, start: int, end: int) -> None:
        """Note that words are drawn, as intervals that are apart; those side by side are one."""
        with self._lock:
            drawn = self._drawn.setdefault(stream, [])
            after = bisect.bisect_right(drawn, (start, _MAX_WORDS))
            if (after and drawn[after - 1][1] > start) or (
                after < len(drawn) and drawn[after][0] < end
            ):
                raise PrivacyError(
                    f"words {start} … {end - 1} of the stream {stream!r} have been drawn, in part"
                    " at least; every release needs a system_entropy() of its own"
                )
            if after < len(drawn) and drawn[after][0] == end:
                end = drawn.pop(after)[1]
            if after and drawn[after - 1][1] == start:
                after -= 1
                start = drawn.pop(after)[0]
            drawn.insert(after, (start, end))

    def source(self, stream: str) -> WordSource:
        """Read a stream from its start, word after word."""
        return WordSource(self, stream)

    def __repr__(self) -> str:
        return f"Entropy(secure={self.secure})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Copy what repeats words anyway; a copy of another would not know what has been drawn."""
        if self.secure:
            return super().__reduce_ex__(protocol)
        return partial(Entropy, secure=False), (self.key,)


class WordSource(NonCopyable):
    """A cursor over one stream, for samplers that reject and so need an unknown number of words.

    Words are made a thousand at a time, because starting the cipher costs as much as they do.
    """

    __slots__ = ("_entropy", "_left", "_position", "_stream")

    def __init__(self, entropy: Entropy, stream: str) -> None:
        super().__init__(anywhere=not entropy.secure)
        self._entropy = entropy
        self._stream = stream
        self._position = 0
        self._left: Words = np.empty(0, np.uint64)

    def take(self, count: int) -> Words:
        """Return the next ``count`` words, (count,) uint64."""
        with self._lock:
            if count > self._left.size:
                short = count - self._left.size
                fresh = self._entropy.words(self._stream, self._position, short + _BUFFER)
                self._position += fresh.size
                words = np.concatenate([self._left, fresh[:short]])
                self._left = fresh[short:].copy()
                return words
            words, self._left = self._left[:count], self._left[count:]
            return words


def system_entropy() -> Entropy:
    """Return entropy under a fresh key from the operating system's generator."""
    return Entropy(os.urandom(_KEY_BYTES))


def seeded_entropy(seed: int) -> Entropy:
    """Return the repeatable twin, for tests only: a key derived from ``seed``, marked insecure."""
    digest = hashlib.sha256(b"labelveil seeded entropy, for tests only:" + str(seed).encode())
    return Entropy(digest.digest(), secure=False)


def unit_floats(words: Words) -> Floats:
    """Words as uniform numbers between 0 and 1 and never either, of which quantiles are finite.

    Each is the middle of one of 2**53 equal cells, as far as floats tell it. For experiments and
    random directions: what noise hides a secret is drawn in integers.
    """
    middles = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
    return np.asarray(np.minimum(middles, 1 - 2.0**-53))  # not 1, to which the last one rounds
