"""What lies in the folder of a population: the list that counts, its question, and nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from labelveil.common.errors import DataError
from labelveil.label_party.events.submitted import CURRENT_FILE, LOCK_FILE, Populations, Submitted
from labelveil.label_party.store.disk import StoreBusy, StoreError
from labelveil.label_party.store.release_store import Store


def store(populations: Populations, epoch: str, keys: bytes, question: bytes = b"") -> Submitted:
    with populations.upload() as (list_, asked), populations.exchanging("visits", epoch):
        for upload, data in ((list_, keys), (asked, question)):
            upload.append(data[:20])
            upload.append(data[20:])
            upload.seal()
            assert upload.size == len(data)
        digest = asked.sha256 if question else ""
        facts = Submitted(len(keys) // 16, list_.sha256, "00" * 8, "client", "2024-01-01", digest)
        populations.store("visits", epoch, list_, asked, facts)
    return facts


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_counts_is_kept_and_all_that_it_replaced_is_removed(tmp_path: Path) -> None:
    there = Store(tmp_path / "store")
    there.create()
    populations = Populations(there)
    first, second = bytes(range(48)), bytes(range(80))
    other = store(populations, "2", first)
    asked = store(populations, "1", first, b"a question, and more of it")
    folder = there.population("visits", "1")
    kept = {CURRENT_FILE, LOCK_FILE, f"{hashlib.sha256(first).hexdigest()}.keys"}
    assert names(folder) == {*kept, f"{asked.question}.question"}
    for name in (f".{CURRENT_FILE}.dead", "stray.keys", "stray.question", "a note"):
        (folder / name).write_bytes(b"?")
    replaced = store(populations, "1", second)
    left = {CURRENT_FILE, LOCK_FILE, f"{replaced.sha256}.keys", "a note"}
    assert names(folder) == left
    assert (folder / f"{replaced.sha256}.keys").read_bytes() == second
    assert populations.current("visits", "1") == replaced
    assert populations.current("visits", "2") == other
    assert populations.epochs("visits") == ["1", "2"]
    assert populations.epochs("clicks") == []
    assert names(there.populations) == {"visits", ".uploads"}
    assert not names(there.populations / ".uploads")


@pytest.mark.parametrize("pointer", [b"\xff", b"{", b"{}", b"[]", b"7", b'{"rows": 1, "more": 2}'])
def test_a_pointer_that_names_no_population_is_told_in_one_line(
    tmp_path: Path, pointer: bytes
) -> None:
    there = Store(tmp_path / "store")
    there.create()
    populations = Populations(there)
    store(populations, "1", bytes(32))
    (there.population("visits", "1") / CURRENT_FILE).write_bytes(pointer)
    with pytest.raises(StoreError, match="cannot be read; restore it from a backup, or remove it"):
        populations.current("visits", "1")


def test_a_pointer_leads_nowhere_else(tmp_path: Path) -> None:
    there = Store(tmp_path / "store")
    there.create()
    populations = Populations(there)
    facts = store(populations, "1", bytes(32))
    folder = there.population("visits", "1")
    for name in ("../other", str(tmp_path / "other")):
        (folder / f"{name}.keys").write_bytes(bytes(32))
        pointer = json.dumps(asdict(replace(facts, sha256=name)))
        (folder / CURRENT_FILE).write_text(pointer)
        assert populations.current("visits", "1") is None


def test_what_dead_processes_left_is_removed_but_where_a_living_one_works(tmp_path: Path) -> None:
    there = Store(tmp_path / "store")
    there.create()
    populations = Populations(there)
    for epoch in ("1", "2"):
        facts = store(populations, epoch, bytes(range(32)), b"question")
    with pytest.raises(DataError, match="no population"), populations.in_use("visits", "3"):
        pass
    assert not there.population("visits", "3").exists()
    with populations.exchanging("visits", "3"):  # the first list of an epoch never came
        pass
    folders = [there.population("visits", epoch) for epoch in "123"]
    before = [names(folder) for folder in folders]
    for folder in folders:
        for name in (f".{CURRENT_FILE}.dead", "half.keys", "half.question"):
            (folder / name).write_bytes(b"?")
    uploads = there.populations / ".uploads"
    (uploads / "dead").mkdir()
    for left in ("dead/keys", "dead.lock"):
        (uploads / left).write_bytes(b"")
    with populations.in_use("visits", "2"), populations.upload() as (alive, _):
        with pytest.raises(StoreBusy, match="epoch '2', is in use by another"):
            store(populations, "2", bytes(16))
        populations.clean()
        assert [names(folder) == own for folder, own in zip(folders, before, strict=True)] == [
            *(True, False, True)
        ]
        assert not names(uploads) & {"dead", "dead.lock"}
        assert alive.path.is_file()
    populations.clean()
    assert [names(folder) for folder in folders] == before
    with (folders[0] / f"{facts.sha256}.keys").open(
        "ab"
    ) as keys:  # another length, none that counts
        keys.write(b"?")
    assert populations.current("visits", "1") is None
