"""Reading a ledger into memory, where nothing has to be written beside it.

SQLite needs a file of shared memory beside a ledger with a log, even to read: none can be made on a
disk that is full or read-only, where a server must go on. But the log is empty except while
somebody writes, for every transaction moves it into the ledger. So the ledger's bytes are read, and
SQLite is asked only where the log holds something: it alone knows what of that is on the disk, and
what may be taken back. Nobody is kept from writing meanwhile: what is read may be torn, its seal
tells, and it is read again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Generic, TypeVar

from labelveil.label_party.store.schema import check, make_tables, transaction
from labelveil.label_party.store.seal import Seal, SealError, key_path

T = TypeVar("T")

_TRIES = 8
"""How often a ledger is read that others write, before it is called damaged."""

_SETTLED_NS = 2_000_000_000
"""How old a file's last change must be, for a later one to have another time for certain."""

_FORMAT = slice(18, 20)
"""In a ledger's bytes, two that say whether it has a log."""

_State = tuple[int, int, int, int]
"""Size, times of the last change of the bytes and of any, and inode of a file."""

Stamp = tuple[_State | None, ...]
"""What tells the ledger, its log and its secret from themselves written again."""


def stamp(ledger: Path) -> Stamp:
    """Return how a ledger's files are now; None for one that is not there."""
    log = ledger.with_name(f"{ledger.name}-wal")
    return tuple(_state(path) for path in (ledger, log, key_path(ledger)))


def copy(ledger: Path, database: sqlite3.Connection) -> None:
    """Fill an empty database in memory with a ledger, checked; with empty tables if there is none.

    ``OSError`` if its bytes cannot be read; ``SealError``, or an error of SQLite's, if it is
    damaged.
    """
    for number in range(_TRIES):
        before = stamp(ledger)
        try:
            _fill(database, ledger, before)
            with transaction(database):
                check(database, ledger, Seal(ledger))
                make_tables(database)
            return
        except (sqlite3.Error, SealError):
            # one more time in any case: two changes within a tick of the clock have one time
            if number == _TRIES - 1 or (number and before == stamp(ledger)):
                raise


def _fill(database: sqlite3.Connection, ledger: Path, now: Stamp) -> None:
    if now[0] is None:
        return
    if _logged(now):
        with closing(sqlite3.connect(ledger, isolation_level=None)) as source:
            source.backup(database)
        return
    data = bytearray(ledger.read_bytes())
    if data:
        data[_FORMAT] = b"\1\1"
        database.deserialize(data)


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
                # what the log holds may come to count without a change of any file
                settled = all(abs(began - at) > _SETTLED_NS for at in times) and not _logged(now)
                self._made = (now if settled else None), made
            return self._made[1]


def _logged(now: Stamp) -> bool:
    _, log, _ = now
    return log is not None and log[0] > 0


def _state(path: Path) -> _State | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
