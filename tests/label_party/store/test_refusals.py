"""What a store refuses, each of its reasons alone."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labelveil.common.errors import ReleaseError
from labelveil.common.release.folder import part_paths
from labelveil.label_party.store.coverage import cover
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.ledger import Ledger, LedgerError, ledger_errors
from labelveil.label_party.store.release_store import ReleaseWriter, Store
from labelveil.label_party.store.seal import SealError, key_path
from tests.label_party.conftest import EVENTS, Party


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/"])
def test_names_lead_to_no_other_place(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "store")
    inside = store.path("labels", "1")
    assert inside.is_relative_to(tmp_path / "store")
    for place in (store.path, store.population):
        for names in ((name, "1"), ("labels", name)):
            with pytest.raises(StoreError, match="cannot be the name"):
                place(*names)


def test_a_ledger_to_write_in_needs_a_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    with pytest.raises(StoreError, match="none does not exist; make a release first"):
        store.open_ledger()
    assert not store.directory.exists()
    store.create()
    with store.open_ledger() as ledger:
        assert ledger.charges() == []


def test_events_that_cannot_be_noted_are_charged_to_nobody_and_the_folder_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "covered").touch()
    events: Any = SimpleNamespace(fingerprints=lambda secret: [])
    with pytest.raises(StoreError, match="covered cannot be written"):
        cover(tmp_path / "covered", events, b"s" * 32)


@pytest.mark.parametrize("key", ["", "ab", "zz" * 32, "0" * 62, "0" * 66, "0" * 63, "é" * 32])
def test_a_secret_of_another_length_seals_nothing(tmp_path: Path, key: str) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path):
        pass
    whole = key_path(path).read_bytes()
    key_path(path).write_text(key, "utf-8")
    with pytest.raises(SealError, match="must hold 64 hexadecimal digits; nothing was spent"):
        Ledger(path)
    key_path(path).write_bytes(whole)
    with Ledger(path) as ledger:
        assert ledger.charges() == []


@pytest.mark.parametrize(
    ("code", "extended", "of_the_disk"),
    [
        (sqlite3.SQLITE_FULL, 0, True),
        (sqlite3.SQLITE_IOERR, 3, True),  # as SQLITE_IOERR_WRITE, whose number has more bits
        (sqlite3.SQLITE_READONLY, 1, True),
        (sqlite3.SQLITE_CANTOPEN, 2, True),
        (sqlite3.SQLITE_CORRUPT, 0, False),
        (sqlite3.SQLITE_NOTADB, 0, False),
    ],
)
def test_errors_of_the_disk_are_told_from_damage(
    tmp_path: Path, code: int, extended: int, of_the_disk: bool
) -> None:
    error = sqlite3.OperationalError("it\nfailed")
    error.sqlite_errorcode = code | extended << 8
    found = []
    for each in (error, OSError(28, "full") if of_the_disk else error):
        with (
            pytest.raises(LedgerError, match="nothing was spent") as caught,
            ledger_errors(tmp_path / "ledger.sqlite"),
        ):
            raise each
        found.append(str(caught.value))
    remedy = "check the disk's space and rights" if of_the_disk else "restore it from a backup"
    assert all(said.endswith(remedy) and "\n" not in said for said in found)


def _without_ledger(party: Party) -> None:
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()


def test_a_log_that_is_left_is_no_empty_place(party: Party) -> None:
    """It may hold what was spent: a ledger of the backup beside it would be another one's."""
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    _without_ledger(party)
    log = party.store / "ledger.sqlite-wal"
    log.write_bytes(b"spent")
    for arguments in (["b.tar"], []):
        refused = party.run("restore", *arguments, "--nothing-since")
        assert "ledger.sqlite exists already, or its log does" in refused.error
    assert log.read_bytes() == b"spent"
    log.write_bytes(b"")  # of a ledger that was closed
    assert party.run("restore", "b.tar", "--nothing-since").code == 0
    again = party.run("restore", "b.tar", "--nothing-since")
    assert "exists already" in again.error


def test_of_nothing_no_ledger_is_made(party: Party) -> None:
    refused = party.run("restore", "--nothing-since")
    assert "has nothing to make a ledger of" in refused.error
    assert not party.store.exists()


def test_what_another_ledger_sold_and_is_damaged_makes_place(party: Party) -> None:
    assert party.release().code == 0
    codes = party.store / "releases/labels/1/codes.bin"
    before = codes.read_bytes()
    assert party.run("backup", "--to", "b.tar").code == 0
    shutil.rmtree(party.store)
    (party.folder / "label_party.toml.receipt").unlink()
    assert party.release().code == 0  # with other noise
    _without_ledger(party)
    other = codes.read_bytes()
    codes.write_bytes(bytes([other[0] ^ 1]) + other[1:])
    assert codes.read_bytes() != before
    assert party.run("restore", "b.tar", "--nothing-since").code == 0
    assert codes.read_bytes() == before


@pytest.mark.parametrize("there", [True, False])
def test_a_note_of_a_withdrawn_release_is_missed_where_the_release_is_there(
    party: Party, there: bool
) -> None:
    assert party.release().code == 0
    assert party.run("withdraw", "1", "--reason", "wrong", "--yes").code == 0
    folder = party.store / "releases/labels/1"
    (folder / "charge.json").write_text("{}")
    if not there:
        shutil.rmtree(folder)
    made = party.run("backup", "--to", "b.tar", "--json")
    assert [*json.loads(made.out)["damaged"]] == ["releases/labels/1/charge.json"] * there
    assert made.code == int(there)


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"other"), Path.unlink])
def test_fingerprints_of_events_are_backed_up_as_what_they_are_named_after(
    party: Party, spoil: Callable[[Path], object]
) -> None:
    assert party.release().code == 0
    (covered,) = (party.store / "covered").iterdir()
    spoil(covered)
    made = party.run("backup", "--to", "b.tar", "--json")
    assert [*json.loads(made.out)["damaged"]] == [f"covered/{covered.name}"]
    shutil.rmtree(party.store)
    restored = party.run("restore", "b.tar", "--nothing-since")
    assert restored.code == 1
    assert f"covered/{covered.name} (" in restored.err
    assert not covered.exists()


def test_a_part_of_another_size_is_damage(party: Party) -> None:
    """Of rows in several files all but the last have as many: no byte may move from one to one."""
    assert party.release().code == 0
    store, folder = Store(party.store), party.store / "releases/labels/1"
    with store.read_ledger() as ledger:
        (charge,) = ledger.charges()
    keys, codes = (path.read_bytes() for path in part_paths(folder, 0))
    width = len(keys) // len(codes)
    for ends, whole in (
        ([80, 160], True),
        ([80, 159], False),
        ([80, 161], False),
        ([79, 160], False),
        ([100], True),
        ([99], False),
        ([101], True),
        ([0, 100], False),
        ([100, 100], False),
    ):
        for path in [*folder.glob("keys*.bin"), *folder.glob("codes*.bin")]:
            path.unlink()
        for part, (start, stop) in enumerate(pairwise([0, *ends, EVENTS])):
            for path, data, size in zip(
                part_paths(folder, part), (keys, codes), (width, 1), strict=True
            ):
                path.write_bytes(data[start * size : stop * size])
        if whole:
            assert store.open_release(charge).read(0, EVENTS) == (keys, codes)
        else:
            with pytest.raises(ReleaseError, match="do not match its manifest"):
                store.open_release(charge)


def test_a_disk_that_fails_while_a_release_is_written_is_one_line(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.create()
    written: list[Callable[[ReleaseWriter], object]] = [
        lambda writer: writer.adopt(tmp_path / "none", tmp_path / "none"),
        lambda writer: writer.finish(b"{}"),
        ReleaseWriter.publish,
    ]
    for step in written:
        writer = store.writer("labels", "1")
        shutil.rmtree(writer.folder, ignore_errors=True)
        with pytest.raises(StoreError, match=r"cannot be written.*; nothing was spent") as caught:
            step(writer)
        assert "\n" not in str(caught.value)
