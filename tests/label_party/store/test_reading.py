"""Reading a ledger writes nothing, and gives what was committed: not less, and not more."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from labelveil.common.errors import LabelveilError
from labelveil.common.guarantees import PureDP
from labelveil.label_party.store import reading
from labelveil.label_party.store.entries import Charge
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.reading import Current
from labelveil.label_party.store.seal import SealError
from tests.label_party.store.ledgers import reserve

LIMIT = PureDP.of(10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of three charges, closed."""
    found = tmp_path / "store" / "ledger.sqlite"
    found.parent.mkdir()
    with Ledger(found) as ledger:
        for epoch in ("1", "2", "3"):
            spend(ledger, epoch)
    return found


@contextmanager
def logging_on(path: Path) -> Iterator[Ledger]:
    """A ledger whose log stays where it is: somebody reads, and never ends."""
    with Ledger(path) as ledger, closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM charges").fetchall()
        ledger._database.execute("PRAGMA busy_timeout = 0")
        yield ledger


def spend(ledger: Ledger, epoch: str) -> None:
    ledger.commit(reserve(ledger, "d", epoch, PureDP.of(1), LIMIT), "ab" * 32, 1)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def charges(path: Path, *, in_memory: bool) -> list[Charge] | str:
    """What a ledger holds, or the kind of its error."""
    try:
        with Ledger(path, in_memory=in_memory) as ledger:
            return ledger.charges()
    except LabelveilError as error:
        return type(error).__name__


def test_reading_writes_nothing(path: Path) -> None:
    before = files(path.parent)
    assert len(charges(path, in_memory=True)) == 3
    assert files(path.parent) == before
    assert set(before) == {"ledger.sqlite", "ledger.sqlite-key"}


def test_what_is_in_the_log_counts(path: Path) -> None:
    with logging_on(path) as ledger:
        spend(ledger, "4")
        assert path.with_name(f"{path.name}-wal").stat().st_size > 4096
        assert len(charges(path, in_memory=True)) == 4


def test_a_commit_that_is_not_on_the_disk_yet_is_not_seen(path: Path, tmp_path: Path) -> None:
    """Its pages lie in the log, as when their sync lasts, or has failed and it is taken back.

    Whoever took them for a commit would serve what is charged to nobody.
    """
    with logging_on(path) as ledger:
        number = reserve(ledger, "d", "4", PureDP.of(1), LIMIT)
        log = path.with_name(f"{path.name}-wal")
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        for name in (path.name, log.name, f"{path.name}-key"):
            shutil.copy(path.parent / name, elsewhere)
        with logging_on(elsewhere / path.name) as other:
            other.commit(number, "ab" * 32, 1)
            pages = (elsewhere / log.name).read_bytes()
        assert pages.startswith(log.read_bytes())
        assert len(pages) > log.stat().st_size
        log.write_bytes(pages)
        with Ledger(path, in_memory=True) as read:
            assert [entry.epoch for entry in read.reservations()] == ["4"]
            assert read.committed("d", "4") is None


def test_a_copy_that_is_written_while_it_is_read_is_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a file before a charge, half after it: what the seal refuses is read once more."""
    real, torn = Path.read_bytes, [2]

    def read_bytes(self: Path) -> bytes:
        data = real(self)
        if self == path and torn[0]:
            torn[0] -= 1
            with Ledger(path) as ledger:
                spend(ledger, f"new {torn[0]}")
            return data[: len(data) // 2] + real(self)[len(data) // 2 :]
        return data

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert len(charges(path, in_memory=True)) == 5


def test_what_changes_whenever_it_is_read_is_refused_in_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[int]()

    def check(*given: Any) -> bool:
        path.touch()
        tried.append(1)
        raise SealError("changed from outside")

    monkeypatch.setattr(reading, "check", check)
    assert charges(path, in_memory=True) == "SealError"
    assert len(tried) == 8


def test_two_changes_within_a_tick_of_the_clock_are_read_once_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was torn says nothing: the file is as it was before, and whole."""
    real, torn = Path.read_bytes, [True]

    def read_bytes(self: Path) -> bytes:
        data = real(self)
        return data[: len(data) // 2] if self == path and torn and torn.pop() else data

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert len(charges(path, in_memory=True)) == 3


def test_what_was_made_of_a_ledger_is_kept_while_no_file_can_have_changed(tmp_path: Path) -> None:
    path, made = tmp_path / "ledger.sqlite", list[bytes]()
    log = path.with_name(f"{path.name}-wal")

    def write(file: Path, data: bytes) -> None:
        file.write_bytes(data)
        os.utime(file, (1_000_000_000, 1_000_000_000))

    write(path, b"one")
    current = Current(path, lambda: made.append(path.read_bytes()))
    for write_it, times in (
        (lambda: None, 1),
        (lambda: write(path, b"two"), 2),  # as long, with the old time set again
        (lambda: write(log, b""), 3),
        (lambda: write(log, b"x"), 5),  # its end may come to count at any time
        (
            lambda: (write(log, b""), path.touch()),
            7,
        ),  # and within a tick of the clock there may be more to come
    ):
        write_it()
        current.value()
        current.value()
        assert len(made) == times, made
        log.exists() and times > 3 and log.unlink()


def test_a_server_without_space_reads_without_a_log_of_its_own(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is made, so that none can fail to be: not even SQLite's shared memory."""
    real, opened = sqlite3.connect, list[str]()

    def connect(place: str, **how: Any) -> sqlite3.Connection:
        opened.append(str(place))
        return real(place, **how)

    monkeypatch.setattr(sqlite3, "connect", connect)
    assert len(charges(path, in_memory=True)) == 3
    assert opened == [":memory:"]
