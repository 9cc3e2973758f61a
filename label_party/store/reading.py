"""Reading a ledger: its bytes are copied into memory, and nothing is written beside it.

SQLite needs a file of shared memory beside a ledger with a log, even to read: none can be made on a
disk that is full or read-only, where a server must go on. So the file's bytes are read, and those
of the log put over them as SQLite would (https://sqlite.org/fileformat2.html#walformat). Nobody is
kept from writing meanwhile. What is read then may be torn; its seal tells, and it is read again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from struct import iter_unpack, unpack_from
from typing import Generic, TypeVar

from label_party.store.schema import check, make_tables, transaction
from label_party.store.seal import Seal, SealError, key_path

T = TypeVar("T")

_TRIES = 8
"""How often a ledger is read that others write, before it is called damaged."""

_SETTLED_NS = 2_000_000_000
"""How old a file's last change must be, for a later one to have another time for certain."""

_LOG_HEADER, _FRAME_HEADER = 32, 24
_PAIRS = {0x377F0682: "<II", 0x377F0683: ">II"}
"""What a log's checksums are of, by the number that it begins with."""

_FORMAT = slice(18, 20)
"""In a ledger's bytes, two that say whether it has a log."""

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Size, time of the last change and inode of the ledger, its log and its secret."""


def stamp(ledger: Path) -> Stamp:
    """Return what tells a ledger's files from themselves written again."""
    return tuple(_state(path) for path in (ledger, _log_of(ledger), key_path(ledger)))


def copy(ledger: Path, database: sqlite3.Connection) -> None:
    """Fill an empty database in memory with a ledger, checked; with empty tables if there is none.

    ``OSError`` if its bytes cannot be read; ``SealError``, or an error of SQLite's, if it is
    damaged.
    """
    for number in range(_TRIES):
        before = stamp(ledger)
        try:
            if data := _contents(ledger):
                database.deserialize(data)
            with transaction(database):
                check(database, ledger, Seal(ledger))
                make_tables(database)
            return
        except (sqlite3.Error, SealError):
            # one more time in any case: two changes within a tick of the clock have one time
            if number == _TRIES - 1 or (number and before == stamp(ledger)):
                raise


def _contents(ledger: Path) -> bytes:
    """Return the bytes that a ledger would have if its log were empty; none if there is no file."""
    try:
        data = bytearray(ledger.read_bytes())
    except FileNotFoundError:
        return b""
    try:
        log = _log_of(ledger).read_bytes()
    except FileNotFoundError:
        log = b""
    end, pages = _committed_pages(log)
    if pages:
        data.extend(bytes(max(end - len(data), 0)))
        for offset, page in pages.items():
            data[offset : offset + len(page)] = page
        del data[end:]
    data[_FORMAT] = b"\1\1"[: len(data[_FORMAT])]
    return bytes(data)


def _committed_pages(log: bytes) -> tuple[int, dict[int, bytes]]:
    """Return the size of the whole, and the pages that a log's transactions wrote, by place."""
    end, committed, pending = 0, dict[int, bytes](), dict[int, bytes]()
    if len(log) < _LOG_HEADER:
        return end, committed
    magic, _, size, _, *salts, one, two = unpack_from(">8I", log)
    pairs, step = _PAIRS.get(magic), _FRAME_HEADER + size
    if pairs is None or _checksum(pairs, log[:24]) != (one, two):
        return end, committed
    sums = one, two
    for start in range(_LOG_HEADER, len(log) - step + 1, step):
        number, pages, *salted, one, two = unpack_from(">6I", log, start)
        page = log[start + _FRAME_HEADER : start + step]
        sums = _checksum(pairs, log[start : start + 8] + page, *sums)
        if salted != salts or sums != (one, two):
            break  # of an older log, or never written to its end
        pending[(number - 1) * size] = page
        if pages:  # a transaction's last frame says how many there are now
            end = pages * size
            committed |= pending
            pending.clear()
    return end, {offset: page for offset, page in committed.items() if offset < end}


def _checksum(pairs: str, data: bytes, one: int = 0, two: int = 0) -> tuple[int, int]:
    for first, second in iter_unpack(pairs, data):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two


class Current(Generic[T]):
    """What is made of a ledger, made again when its files have changed; for any number of threads.

    Threads wait for one that makes it, and for no other.
    """

    def __init__(self, ledger: Path, make: Callable[[], T]) -> None:
        self._ledger, self._make = ledger, make
        self._lock = threading.Lock()
        self._made: tuple[Stamp | None, T] | None = None

    def value(self) -> T:
        """Return it; raises what making it raises."""
        with self._lock:
            now = stamp(self._ledger)
            if self._made is None or self._made[0] != now:
                began = time.time_ns()
                made = self._make()
                times = [state[1] for state in now if state is not None]
                settled = all(abs(began - at) > _SETTLED_NS for at in times)
                self._made = (now if settled else None), made
            return self._made[1]


def _log_of(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}-wal")


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino
