"""Which events an account has paid for: sorted files of 8-byte fingerprints, compared in slices.

A fingerprint is the first half of AES-256-CMAC of an event's key under a secret of the ledger, so
that a file says nothing about keys to anyone who lacks the secret. Two different events share one
with probability 2^-64: among 10^7 events and 10^8 others, 5·10^-5 is the chance of one false match.

Memory is bounded whatever the number of events: they come a range of values at a time, and two
files are compared by walking both.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl

from common.engine.shuffle import WORD_TYPE, read_rows
from common.entropy import Words
from common.errors import DataError
from common.release.cmac import CMAC
from common.release.event_keys import canonical_keys

Prints = Words

_WORD = np.dtype(WORD_TYPE)
_SLICE = 1 << 20

_ODD = r"^[\s+0]|^-0|\s$|\.0*$|[^\x00-\x7f]"
_NUMBER = r"^(?:\+|(-))?0*(\d+)(?:\.0*)?$"


def fingerprint(keys: pl.Series, secret: bytes, mark: str = "") -> Prints:
    """Return the fingerprints of a column of event keys, (n,), in its order.

    Parameters
    ----------
    keys
        (n,) strings or integers without missing values.
    secret
        32 bytes of the ledger.
    mark
        Stands before each, to tell other names from events' keys.
    """
    texts = one_spelling(keys)
    tags = CMAC(secret).column(mark + texts if mark else texts)
    return np.ascontiguousarray(tags[:, : _WORD.itemsize]).view(_WORD)[:, 0]


def one_spelling(keys: pl.Series) -> pl.Series:
    """Return the text of keys, (n,), alike for what a file's way through other hands changes.

    White space around it, Unicode's two ways to write a letter, and what makes a number of a text:
    the same event must not pay from another account as ``007`` or ``7.0``.
    """
    texts = canonical_keys(keys)
    if keys.dtype.is_integer():
        return texts
    odd = texts.str.contains(_ODD)
    if not odd.any():
        return texts
    plain = texts.filter(odd).str.strip_chars().str.normalize("NFC").str.replace(_NUMBER, "$1$2")
    return texts.scatter(odd.arg_true(), plain)


def write(path: Path, parts: Iterable[Prints]) -> tuple[str, int]:
    """Write fingerprints to a new file, and sync it; return its SHA-256 and how many there are.

    Parameters
    ----------
    parts
        (n,) fingerprints each, strictly ascending from one part to the next, too: so that the file
        is compared by walking it.

    Raises
    ------
    DataError
        If they do not ascend.
    """
    digest, count, last = hashlib.sha256(), 0, -1
    with path.open("xb") as file:
        for part in parts:
            if part.size and (int(part[0]) <= last or (part[1:] <= part[:-1]).any()):
                raise DataError(
                    "fingerprints of events are not in their order, so that a scratch file was"
                    " changed; nothing was spent; see that nothing else writes there, and start"
                    " again"
                )
            data = part.astype(_WORD, copy=False).data
            file.write(data)
            digest.update(data)
            count, last = count + part.size, int(part[-1]) if part.size else last
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), count


def overlap(one: Path, other: Path) -> int:
    """Return how many fingerprints stand in both of two sorted files."""
    here, there = (path.stat().st_size // _WORD.itemsize for path in (one, other))
    i = j = common = 0
    while i < here and j < there:
        a, b = _read(one, i, min(i + _SLICE, here)), _read(other, j, min(j + _SLICE, there))
        last = min(a[-1], b[-1])
        # up to the smaller end both slices are complete, so what they share shows
        a, b = a[: a.searchsorted(last, side="right")], b[: b.searchsorted(last, side="right")]
        places = np.minimum(b.searchsorted(a), b.size - 1)
        common += int((b[places] == a).sum()) if b.size else 0
        i, j = i + a.size, j + b.size
    return common


def _read(path: Path, start: int, end: int) -> Prints:
    return read_rows(path, start * _WORD.itemsize, end - start, WORD_TYPE)
