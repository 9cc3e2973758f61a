"""Reading a ledger writes nothing, and gives what SQLite itself would read."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from common.errors import LabelveilError
from common.guarantees import PureDP
from label_party.store.entries import Charge
from label_party.store.ledger import Ledger
from tests.label_party.store.ledgers import reserve

LIMIT = PureDP.of(10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of three charges: one in its file, two in a log that could not be moved into it."""
    found = tmp_path / "store" / "ledger.sqlite"
    found.parent.mkdir()
    with Ledger(found) as ledger:
        spend(ledger, "1")
        with closing(sqlite3.connect(found, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM charges").fetchall()
            ledger._database.execute("PRAGMA busy_timeout = 0")
            spend(ledger, "2")
            spend(ledger, "3")
            shutil.copytree(found.parent, tmp_path / "kept")
    shutil.rmtree(found.parent)
    (tmp_path / "kept" / "ledger.sqlite-shm").unlink()
    (tmp_path / "kept").rename(found.parent)
    return found


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


def test_what_is_in_the_log_counts_and_nothing_is_written(path: Path) -> None:
    before = files(path.parent)
    assert len(before["ledger.sqlite-wal"]) > 4096
    found = charges(path, in_memory=True)
    assert [charge.epoch for charge in found if isinstance(charge, Charge)] == ["1", "2", "3"]
    assert files(path.parent) == before
    # the log is not merely left out
    (path.parent / "ledger.sqlite-wal").unlink()
    assert len(charges(path, in_memory=True)) == 1


def test_a_log_that_was_torn_is_read_as_sqlite_reads_it(path: Path, tmp_path: Path) -> None:
    whole, chance = files(path.parent), random.Random(4)
    log = whole["ledger.sqlite-wal"]
    read = set()
    for number in range(40):
        torn = bytearray(log[: chance.randrange(len(log))] if number % 2 else log)
        if number % 4 in (0, 3) and torn:
            torn[chance.randrange(len(torn))] ^= 1 << chance.randrange(8)
        folder = tmp_path / f"torn-{number}"
        folder.mkdir()
        for name, data in {**whole, "ledger.sqlite-wal": bytes(torn)}.items():
            (folder / name).write_bytes(data)
            (folder / name).chmod(0o600)
        found = charges(folder / path.name, in_memory=True)
        assert found == charges(folder / path.name, in_memory=False)  # which mends the log
        read.add(len(found))
    assert {1, 2, 3} <= read


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
