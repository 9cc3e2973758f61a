"""A restore that has not ended: no ledger begins beside it, as one that counts nothing would."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from labelveil.label_party.store import restore
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import Party

_COMMANDS = (["release"], ["release", "--epoch", "2"], ["budget"], ["status"], ["serve"])


@pytest.fixture
def backup(party: Party) -> Path:
    """Of a store that is gone, on a machine where nothing remembers it."""
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    shutil.rmtree(party.store)
    (party.folder / "label_party.toml.receipt").unlink()
    return party.folder / "b.tar"


def _refused(party: Party) -> None:
    for command in _COMMANDS:
        error = party.run(*command).error
        assert "was begun and has not ended" in error, command
        assert str(Store(party.store).restoring.name) in error
    assert not Store(party.store).ledger_path.exists()


def test_no_ledger_begins_where_a_restore_failed(party: Party, backup: Path) -> None:
    whole = backup.read_bytes()
    backup.write_bytes(whole[:5_000])
    assert "is not a backup" in party.run("restore", "b.tar", "--nothing-since").error
    _refused(party)
    assert "cannot be read" in party.run("restore", "other.tar", "--nothing-since").error
    _refused(party)
    backup.write_bytes(whole)
    assert party.run("restore", "b.tar", "--nothing-since").code == 0
    assert not Store(party.store).restoring.exists()
    assert "already released" in party.release().out


def test_no_ledger_begins_where_a_restore_was_ended(
    party: Party, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*of: object) -> None:
        raise KeyboardInterrupt

    for ended, sign in (("_place_folders", "has not ended"), ("recover", "is gone, but 1 of the")):
        with monkeypatch.context() as patch:
            patch.setattr(restore, ended, interrupted)
            assert party.run("restore", "b.tar", "--nothing-since").code == 130
        assert not [*Store(party.store).restoring.iterdir()]  # nothing that was unpacked
        assert sign in party.release().error
    assert party.run("restore", "b.tar", "--nothing-since").code == 0
    assert "already released" in party.release().out


def test_where_nothing_is_to_be_restored_a_ledger_begins(party: Party, backup: Path) -> None:
    backup.write_bytes(b"")
    assert party.run("restore", "b.tar", "--nothing-since").code == 1
    _refused(party)
    Store(party.store).restoring.rmdir()
    assert party.release().code == 0
