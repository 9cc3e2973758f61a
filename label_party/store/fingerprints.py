"""Which events an account has paid for: sorted files of 8-byte fingerprints, compared in slices.

A fingerprint is the first half of AES-256-CMAC of an event's key under a secret of the ledger, so
that a file says nothing about keys to anyone who lacks the secret. Two different events share one
with probability 2^-64: among 10^7 events and 10^8 others, 5·10^-5 is the chance of one false match.

Memory is bounded whatever the number of events: a file is sorted in slices that are merged one
range of values at a time, and two files are compared by walking both.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.engine.shuffle import ascending, read_rows
from common.release.cmac import CMAC
from common.release.event_keys import canonical_keys

Prints = NDArray[np.uint64]

_WORD = np.dtype("<u8")
_SLICE = 1 << 20
_MOST_RANGES = 256


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


def write_sorted(path: Path, slices: Iterable[Prints]) -> int:
    """Write all fingerprints of all slices to one file, ascending, each once; return how many.

    The file is new and synced. One slice, or the values of one range in all slices, are in memory
    at a time; meanwhile slices lie, each ascending, in a second file beside it.
    """
    spill = path.with_name(path.name + ".unsorted")
    try:
        with spill.open("w+b") as unsorted:
            ends = [0]
            for part in slices:
                unsorted.write(ascending(part).astype(_WORD, copy=False).data)
                ends.append(ends[-1] + part.size)
            unsorted.flush()
            with path.open("xb") as file:
                written = _merge(spill, ends, file)
                file.flush()
                os.fsync(file.fileno())
    finally:
        spill.unlink(missing_ok=True)
    return written


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


def _merge(spill: Path, ends: list[int], file: BinaryIO) -> int:
    ranges = min(-(-ends[-1] // _SLICE), _MOST_RANGES)
    bounds = [np.uint64((i << 64) // ranges) for i in range(1, ranges)]
    cuts = []
    for start, end in pairwise(ends):
        part = _read(spill, start, end)
        cuts.append([start, *(start + part.searchsorted(bounds)), end])
    written = 0
    for i in range(ranges):
        together = ascending(np.concatenate([_read(spill, cut[i], cut[i + 1]) for cut in cuts]))
        first = np.ones(together.size, dtype=bool)
        np.not_equal(together[1:], together[:-1], out=first[1:])
        file.write(together[first].data)
        written += int(first.sum())
    return written


def _read(path: Path, start: int, end: int) -> Prints:
    with path.open("rb") as file:
        return read_rows(file, int(start) * _WORD.itemsize, int(end - start), _WORD)
