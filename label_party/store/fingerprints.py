"""Which events an account has paid for: sorted files of 8-byte fingerprints, compared in slices.

They are of the *population's* events: the keys that were listed or submitted, which are public, and
never of rows of labels, whose presence is as secret as a label; and of their users, one an event.
A fingerprint is 63 bits of AES-256-CMAC under a secret of the ledger, so that a file says nothing
about keys to anyone who lacks the secret, and a bit that says of what:

- *of a hashed key* (1), as the message has it. Every event has one, submitted or listed; the same
  event has the same one wherever both releases hash under one join secret;
- *of a name* (0), of an event or a user, in its one spelling. It is the same under any join secret,
  and there only where the labels party has the names: not of a population that was submitted.

Two different events share one with probability 2^-63: among 10^7 events and 10^8 others, 10^-4 is
the chance of one false match.

Memory is bounded whatever the number of events: they come a range of values at a time, and two
files are compared by walking both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labelveil.common.arrays import Words
from labelveil.common.engine.shuffle import WORD_TYPE, Keys, read_rows
from labelveil.common.errors import DataError
from labelveil.common.files import sync, writing
from labelveil.common.release.blocks import KEY_BYTES
from labelveil.common.release.cmac import CMAC, Bytes
from labelveil.common.release.event_keys import canonical_keys

if TYPE_CHECKING:
    import polars as pl

Prints = Words

_WORD = np.dtype(WORD_TYPE)
_SLICE = 1 << 20
_HASHED = np.uint64(1)

_ODD = r"^[\s+0]|^-0|\s$|\.0*$|[^\x00-\x7f]"
_ZERO = r"^[+-]?0+(?:\.0*)?$"
_NUMBER = r"^(?:\+|(-))?0*([1-9][0-9]*)(?:\.0*)?$"


def fingerprint(keys: pl.Series, secret: bytes, mark: str = "") -> Prints:
    """Return the fingerprints of (n,) names, texts or integers without gaps, in their order.

    ``secret`` is 32 bytes of the ledger. A mark stands before each, to tell other names from
    events' keys.
    """
    texts = one_spelling(keys)
    return _words(CMAC(secret).column(mark + texts if mark else texts)) & ~_HASHED


def fingerprint_hashed(keys: Keys, secret: bytes) -> Prints:
    """Return the fingerprints of (n,) hashed keys, in their order."""
    lengths = np.full(keys.size, KEY_BYTES, dtype=np.int64)
    return _words(CMAC(secret).messages(keys.tobytes(), lengths)) | _HASHED


def _words(tags: Bytes) -> Prints:
    return np.ascontiguousarray(tags[:, : _WORD.itemsize]).view(_WORD)[:, 0]


def one_spelling(keys: pl.Series) -> pl.Series:
    """Return the text of keys, (n,), alike for what a file's way through other hands changes.

    The same event must not pay from another account as ``007`` or ``7.0``. So this is left out or
    written in one way, and nothing else is: Unicode's characters of format (category Cf, such as
    U+FEFF and U+200B), its compatible forms (NFKC: full-width digits, letters in two parts), white
    space around, and of a whole number plus sign, leading zeros, a point with zeros, and the minus
    of zero. Another case, an exponent (``7e0`` may be hexadecimal) or a sign for thousands makes
    another key.
    """
    texts = canonical_keys(keys)
    if keys.dtype.is_integer():
        return texts
    odd = texts.str.contains(_ODD)
    if not odd.any():
        return texts
    plain = texts.filter(odd).str.replace_all(r"\p{Cf}", "").str.normalize("NFKC")
    plain = plain.str.strip_chars().str.replace(_ZERO, "0").str.replace(_NUMBER, "$1$2")
    return texts.scatter(odd.arg_true(), plain)


def write(path: Path, parts: Iterable[Prints]) -> tuple[str, int]:
    """Write fingerprints to a new file, and sync it; return its SHA-256 and how many events it has.

    They must ascend strictly, from one part to the next, too, so that the file is compared by
    walking it; ``DataError`` if they do not.
    """
    digest, count, last = hashlib.sha256(), 0, -1
    with writing(path), path.open("xb") as file:
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
            count += int(np.count_nonzero(part & _HASHED))
            last = int(part[-1]) if part.size else last
        sync(file)
    return digest.hexdigest(), count


def overlap(ones: Sequence[Path], others: Sequence[Path]) -> int:
    """Return how many events, or else names, have fingerprints in some of both lists of files."""
    here, there, hashed, names = _united(ones), _united(others), 0, 0
    a, b = next(here, None), next(there, None)
    while a is not None and b is not None:
        last = min(a[-1], b[-1])
        # up to the smaller end both slices are complete, so what they share shows
        cuts = a.searchsorted(last, side="right"), b.searchsorted(last, side="right")
        shared = np.intersect1d(a[: cuts[0]], b[: cuts[1]], assume_unique=True)
        of_hashed = int(np.count_nonzero(shared & _HASHED))
        hashed, names = hashed + of_hashed, names + shared.size - of_hashed
        a, b = a[cuts[0] :], b[cuts[1] :]
        a = a if a.size else next(here, None)
        b = b if b.size else next(there, None)
    return max(hashed, names)


def _united(paths: Sequence[Path]) -> Iterator[Prints]:
    """Yield the fingerprints of sorted files together, ascending, each once, in slices."""
    starts = dict.fromkeys(paths, 0)
    sizes = {path: path.stat().st_size // _WORD.itemsize for path in paths}
    most = max(1, _SLICE // max(1, len(starts)))
    while left := [path for path in starts if starts[path] < sizes[path]]:
        slices = [_read(p, starts[p], min(starts[p] + most, sizes[p])) for p in left]
        last = min(part[-1] for part in slices)  # up to here all of them are complete
        parts = [part[: part.searchsorted(last, side="right")] for part in slices]
        for path, part in zip(left, parts, strict=True):
            starts[path] += part.size
        yield parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))


def _read(path: Path, start: int, end: int) -> Prints:
    return read_rows(path, start * _WORD.itemsize, end - start, WORD_TYPE)
