"""A withdrawn release: spent for ever, served no more, whatever happens to the ledger."""

from __future__ import annotations

import errno
import json
import random
import shutil
import sqlite3
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from labelveil.common.errors import ReleaseError
from labelveil.common.release.folder import WITHDRAWN_FILE, withdrawn_reason
from labelveil.label_party.server.http_probes import BudgetMetrics
from labelveil.label_party.store import recovery
from labelveil.label_party.store.account import read_accounts
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.recovery import recover
from labelveil.label_party.store.release_store import Store
from labelveil.label_party.store.withdrawal import withdraw
from tests.effort import EXHAUSTIVE
from tests.faults import Ended, Experiments, Mode
from tests.label_party import fault_bodies
from tests.label_party.conftest import BODIES, Party, Result
from tests.label_party.store.ledgers import reserve

WRONG = "amounts were read in cents"


def _withdraw(party: Party, epoch: str, reason: str = WRONG, *more: str) -> Result:
    return party.run("withdraw", epoch, "--reason", reason, "--yes", *more)


def _charges(party: Party) -> dict[str, Any]:
    (account,) = json.loads(party.run("budget", "--json").out)
    charges = {charge["epoch"]: charge["withdrawn"] for charge in account["charges"]}
    return {"left": account["left"]["epsilon"]} | charges


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _lose(store: Path) -> None:
    for path in store.glob("ledger.sqlite*"):
        path.unlink()


@pytest.fixture
def two(party: Party) -> Party:
    """A labels party with epochs 1 and 2 of its total of three."""
    for epoch in ("1", "2"):
        assert party.release(data__epoch=epoch).code == 0
    return party


def test_it_stays_spent_and_its_epoch_is_never_built_again(two: Party) -> None:
    before = _files(two.store / "releases/labels/2")
    done = _withdraw(two, "2")
    assert done.code == 0, done
    assert f"withdrawn: data set labels, epoch 2: {WRONG}" in done.out
    assert "it stays spent: ε = 1" in done.out
    assert "the latest release is epoch 1 now" in done.out
    found = _charges(two)
    assert (found["left"], found["1"]) == ("1", None)
    assert found["2"]["reason"] == WRONG
    for again in ({}, {"privacy__epsilon": 0.5}):
        refused = two.release(data__epoch="2", **again).error
        assert f"({WRONG}): it stays spent, and is never built again" in refused
    assert "was withdrawn" in two.run("release", "--epoch", "2", "--dry-run").error
    assert {**_files(two.store / "releases/labels/2"), WITHDRAWN_FILE: b""} == before | {
        WITHDRAWN_FILE: b""
    }
    shown = two.run("budget").out
    assert "withdrawn" in shown
    assert WRONG in shown
    assert f"withdrawn: {WRONG}" in two.run("status").out
    assert two.release(data__epoch="3").code == 0
    assert "left of" in two.release(data__epoch="4").error


@pytest.mark.slow
def test_withdrawing_twice_changes_nothing(two: Party) -> None:
    assert _withdraw(two, "2").code == 0
    before = {**_files(two.store / "releases/labels/2"), **_charges(two)}
    again = _withdraw(two, "2", "another reason")
    assert again.code == 0
    assert f": {WRONG}" in again.out
    assert "withdrawn already" in again.out
    assert {**_files(two.store / "releases/labels/2"), **_charges(two)} == before
    two.write_population({"key": ["of another list"]})
    assert two.release(data__data_set="other").code == 0
    both = _withdraw(two, "1", WRONG, "--json")
    assert json.loads(both.out)["latest"] is None


@pytest.mark.parametrize("reason", ["", "   ", "x" * 201])
def test_a_reason_is_needed_and_is_a_line(two: Party, reason: str) -> None:
    before = _charges(two)
    bound = "must say why" if reason.isspace() else "must be text of 1 to 200 characters"
    assert bound in _withdraw(two, "2", reason).error
    assert _charges(two) == before
    assert _withdraw(two, "2", "two\nlines \x1b[31m").code == 0
    assert _charges(two)["2"]["reason"] == "two lines \\u001b[31m"


def test_what_is_no_release_cannot_be_withdrawn(two: Party) -> None:
    assert "has no release of epoch '9'; its epochs are 1, 2" in _withdraw(two, "9").error
    assert "it has none" in _withdraw(two, "1", WRONG, "--data-set", "other").error
    assert "has no release of epoch '../1'" in _withdraw(two, "../1").error
    store, privacy = Store(two.store), two.config().privacy
    with store.open_ledger() as ledger:
        reserve(ledger, "labels", "3", privacy.charge, privacy.limit)
    assert "is being built" in _withdraw(two, "3").error
    shutil.rmtree(two.store)
    (two.folder / "label_party.toml.receipt").unlink()
    assert "it has none" in _withdraw(two, "1").error
    assert not two.store.exists()


def test_without_a_terminal_nothing_is_done_unless_with_yes(two: Party) -> None:
    refused = two.run("withdraw", "2", "--reason", WRONG).error
    assert "stays spent; nothing was done; add --yes" in refused
    assert _charges(two)["2"] is None


def test_it_is_withdrawn_while_another_release_is_built(two: Party) -> None:
    with Store(two.store).building():
        assert _withdraw(two, "2").code == 0


def test_of_several_at_once_the_first_reason_stays(two: Party) -> None:
    def one(number: int) -> tuple[str, bool]:
        done = withdraw(Store(two.store), "labels", "2", f"reason {number}")
        return done.withdrawal.reason, done.before

    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(one, range(8))]
    assert len({reason for reason, _ in found}) == 1
    assert sorted(before for _, before in found) == [False] + 7 * [True]
    assert withdrawn_reason(two.store / "releases/labels/2") == found[0][0]


def test_a_withdrawal_is_not_taken_back_nor_changed(two: Party) -> None:
    assert _withdraw(two, "2").code == 0
    with sqlite3.connect(two.store / "ledger.sqlite") as database:
        for statement in ("DELETE FROM withdrawals", "UPDATE withdrawals SET reason = ''"):
            with pytest.raises(sqlite3.IntegrityError, match="a withdrawal"):
                database.execute(statement)


def test_a_disk_that_is_full_after_the_ledger_says_so_and_the_next_start_goes_on(
    two: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, reason: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "mark_withdrawn", full)
        assert "No space left" in _withdraw(two, "2").error
    assert _charges(two)["2"]["reason"] == WRONG  # which counts
    store = Store(two.store)
    assert withdrawn_reason(store.path("labels", "2")) is None
    with store.building(), store.open_ledger() as ledger:
        recover(store, ledger)
    assert withdrawn_reason(store.path("labels", "2")) == WRONG


def test_killed_or_failing_at_every_step_it_is_withdrawn_or_not(
    party: Party, patient: Experiments
) -> None:
    """An epoch a step; afterwards the next one finds both places to agree, and none is taken back.

    Killed, a withdrawal that the ledger has may have no note; a note that the ledger lacks is none.
    """
    fault_bodies.release(str(party.folder), "0")
    store = Store(party.store)

    def state(epoch: str) -> tuple[bool, bool]:
        with store.read_ledger() as ledger:
            known = {sold.epoch: sold.withdrawn is not None for sold in ledger.releases()}
        return known[epoch], withdrawn_reason(store.path("labels", epoch)) is not None

    def run(epoch: str, mode: Mode, nth: int) -> Ended:
        return patient.run(
            f"{BODIES}:withdrawn", str(party.folder), epoch, folder=party.store, mode=mode, nth=nth
        )

    steps = run("0", Mode.COUNT, 0).steps
    assert state("0") == (True, True)
    assert steps > 10
    found = set()
    modes = Mode.KILL_TORN, Mode.FAIL_FROM
    tries = [(mode, nth) for mode in modes for nth in range(1, steps + 1)]
    few = [tries[0], tries[steps - 1], *random.Random(steps).sample(tries, 4)]
    for number, (mode, nth) in enumerate(tries if EXHAUSTIVE else few, 1):
        epoch = str(number)
        fault_bodies.release(str(party.folder), epoch)
        ended = run(epoch, mode, nth)
        assert not ended.error.startswith("unforeseen"), ended.error
        known, noted = state(epoch)
        assert known or not noted
        assert known or ended.killed or ended.error
        found.add((known, noted))
        again = run(epoch, Mode.COUNT, 0)
        assert again.error == ""
        assert state(epoch) == (True, True)
    assert {(False, False), (True, True)} <= found


def test_an_older_ledger_over_the_same_store_learns_of_it(two: Party) -> None:
    """From the note beside the bytes: a backup from before, or none at all."""
    assert two.run("backup", "--to", "before.tar").code == 0
    assert _withdraw(two, "2").code == 0
    for restore in (["restore", "before.tar"], ["restore"]):
        _lose(two.store)
        done = two.run(*restore, "--nothing-since")
        assert done.code == 0, done
        assert "withdrawn, as before: labels/2" in done.out
        assert _charges(two)["2"]["reason"] == WRONG
    # a note that is damaged is one all the same
    (two.store / "releases/labels/2" / WITHDRAWN_FILE).write_bytes(b"{")
    _lose(two.store)
    assert two.run("restore", "--nothing-since").code == 0
    assert _charges(two)["2"]["reason"] == "its note cannot be read"


def test_a_disk_that_cannot_be_read_for_a_moment_withdraws_nothing(two: Party) -> None:
    """It cannot be taken back, and nobody withdrew anything."""
    note = two.store / "releases/labels/2" / WITHDRAWN_FILE
    note.mkdir()  # an error of the system's, where rights do not hold root back
    assert f"{WITHDRAWN_FILE} cannot be read: Is a dir" in two.release(data__epoch="3").error
    assert _charges(two) == {"left": "1", "1": None, "2": None}
    withdrawn = _withdraw(two, "2").error  # but who does withdraw it is told that it counts
    assert "epoch '2' is withdrawn, as the ledger says, but not beside its bytes" in withdrawn
    assert _charges(two)["2"]["reason"] == WRONG
    note.rmdir()
    assert _withdraw(two, "2").code == 0
    assert withdrawn_reason(note.parent) == WRONG
    assert two.release(data__epoch="3").code == 0


def test_a_backup_has_no_row_of_it_and_its_restore_knows_it(two: Party) -> None:
    rows = _files(two.store / "releases/labels/2")
    for epoch in ("1", "2"):  # as if they had been submitted
        submitted = two.store / "populations" / "labels" / epoch / "current.json"
        submitted.parent.mkdir(parents=True)
        submitted.write_text("{}")
    assert _withdraw(two, "2").code == 0
    made = two.run("backup", "--to", "b.tar")
    assert made.code == 0, made
    assert "wrote b.tar: 2 releases, " in made.out
    data = (two.folder / "b.tar").read_bytes()
    assert rows["keys.bin"] in data  # of epoch 1, whose events are the same
    assert data.count(rows["keys.bin"]) == 1
    assert rows["codes.bin"] not in data
    with tarfile.open(two.folder / "b.tar") as archive:
        names = archive.getnames()
    second = [name for name in names if name.startswith("releases/labels/2/")]
    assert [name for name in names if name.startswith("populations/")] == [
        "populations/labels/1/current.json"
    ]
    assert {Path(name).name for name in second} == {
        "manifest.json", "charge.json", "withdrawn.json",
    }  # fmt: skip
    shutil.rmtree(two.store)
    done = two.run("restore", "b.tar", "--nothing-since")
    assert done.code == 0, done
    assert "withdrawn, as before: labels/2" in done.out
    found = _charges(two)
    assert (found["left"], found["1"], found["2"]["reason"]) == ("1", None, WRONG)
    assert "was withdrawn" in two.release(data__epoch="2").error
    _lose(two.store)  # and once more, of what was restored
    assert two.run("restore", "--nothing-since").code == 0
    assert _charges(two)["2"]["reason"] == WRONG


def test_a_restore_leaves_what_is_there_of_it_as_it_is(two: Party) -> None:
    """Somebody has begun to erase it, and a backup has less."""
    assert _withdraw(two, "2").code == 0
    assert two.run("backup", "--to", "b.tar").code == 0
    folder = two.store / "releases/labels/2"
    (folder / "codes.bin").unlink()
    before = _files(folder)
    _lose(two.store)
    assert two.run("restore", "b.tar", "--nothing-since").code == 0
    assert _files(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("names", ["[kc]*.bin", "*"])
def test_its_rows_may_be_removed(two: Party, names: str) -> None:
    """Whoever erases does so by hand; nothing else asks for them any more."""
    assert _withdraw(two, "2").code == 0
    for path in (two.store / "releases/labels/2").glob(names):
        path.unlink()
    if names == "*":
        (two.store / "releases/labels/2").rmdir()
    assert two.run("backup", "--to", "b.tar").code == 0
    assert two.release(data__epoch="3").code == 0
    assert _withdraw(two, "2").code == 0
    shutil.rmtree(two.store)
    assert two.run("restore", "b.tar", "--lost", "3").code == 0
    found = _charges(two)
    assert (found["left"], found["2"]["reason"]) == ("0", WRONG)


def test_one_whose_bytes_are_lost_can_be_withdrawn(two: Party) -> None:
    """Partners may have it."""
    assert two.run("backup", "--to", "b.tar").code == 0
    shutil.rmtree(two.store)
    assert two.run("restore", "b.tar", "--lost", "3").code == 0
    assert _withdraw(two, "3").code == 0
    assert _charges(two)["3"]["reason"] == WRONG
    assert f"already, which was withdrawn ({WRONG})" in two.release(data__epoch="3").error


def test_metrics_count_it(two: Party) -> None:
    assert _withdraw(two, "2").code == 0
    registry = CollectorRegistry()
    registry.register(BudgetMetrics(lambda: read_accounts(two.config())))
    text = generate_latest(registry).decode()
    assert 'label_party_releases{data_set="labels"} 2.0' in text
    assert 'label_party_releases_withdrawn{data_set="labels"} 1.0' in text


def test_errors_of_the_function_are_of_one_line(two: Party) -> None:
    with pytest.raises(ReleaseError, match="has no release"):
        withdraw(Store(two.store), "labels", "9", WRONG)
    (two.store / "ledger.sqlite").unlink()
    with pytest.raises(StoreError, match="is gone"):
        withdraw(Store(two.store), "labels", "2", WRONG)
