"""A backup onto a disk that is full, from any step on, says in a line what it cannot write."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelveil.label_party.store.backup import make_backup
from labelveil.label_party.store.release_store import Store
from tests.faults import Mode, experiments
from tests.label_party.conftest import Party


def backed_up(store: str, path: str) -> None:
    make_backup(Store(Path(store)), Path(path), quiet=True)


@pytest.mark.slow
def test_a_backup_without_room_is_one_line_from_any_step_on(
    party: Party, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert party.release().code == 0
    folder = tmp_path_factory.mktemp("backups")
    asked = (f"{__name__}:backed_up", str(party.store), str(folder / "backup.tar"))
    with experiments(tmp_path_factory.mktemp("faults"), __name__) as patient:
        whole = patient.run(*asked, folder=folder)
        assert (whole.error, whole.steps > 50) == ("", True)
        (folder / "backup.tar").unlink()
        for nth in range(1, whole.steps, 4):
            ended = patient.run(*asked, folder=folder, mode=Mode.FAIL_FROM, nth=nth)
            assert not ended.error.startswith("unforeseen"), (nth, ended.error)
            assert str(folder) in ended.error, (nth, ended.error)
