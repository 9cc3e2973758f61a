"""Backups: taken while serving and building, restored to the same bytes, never spent twice."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest

from labelveil.common.guarantees import (
    ApproximateDP,
    BoundedRange,
    Guarantee,
    PureDP,
    RenyiDP,
    Unit,
    ZeroConcentratedDP,
    guarantee_from_json,
)
from labelveil.common.guarantees.base import _KINDS
from labelveil.label_party.events.open import open_events
from labelveil.label_party.events.steps import Events
from labelveil.label_party.server.run import running
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.purchase import _paid
from labelveil.label_party.store.release_store import ReleaseWriter, Store
from labelveil.label_party.store.seal import adopt
from tests.effort import EXHAUSTIVE
from tests.faults import Ended, Experiments, Mode
from tests.label_party.conftest import BODIES, Party, Result
from tests.label_party.store.backups import Connect, account_of, damage, lose_store, restore
from tests.label_party.store.ledgers import reserve

KINDS = (PureDP, ApproximateDP, ZeroConcentratedDP, RenyiDP, BoundedRange)


def test_a_backup_taken_while_serving_and_building_is_a_working_store(
    party: Party, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert party.release().code == 0
    taken: list[Result] = []
    publish = ReleaseWriter.publish

    def publish_and_back_up(writer: ReleaseWriter) -> None:
        publish(writer)  # the bytes are there, the charge is reserved, and nothing is committed
        taken.append(party.run("backup", "--to", "b.tar", "--quiet"))

    with running(party.config()) as address:
        client = connect(address)
        described = client.describe(epoch="1")
        before = client.fetch(described)
        with monkeypatch.context() as patch:
            patch.setattr(ReleaseWriter, "publish", publish_and_back_up)
            assert party.release(data__epoch="2").code == 0
        assert client.fetch(described) == before
    assert [result.code for result in taken] == [0]
    lose_store(party)
    done = restore(party, "--lost", "2")
    assert done.code == 0, done
    account = account_of(party)
    assert [(c["epoch"], c["state"]) for c in account["charges"]] == [
        ("1", "committed"),
        ("2", "committed"),
    ]
    assert account["left"]["epsilon"] == "1"
    with running(party.config()) as address:
        client = connect(address)
        again = client.describe()  # the latest that is at hand
        assert again.manifest == described.manifest
        assert client.fetch(again) == before
    assert "already released" in party.release().out
    assert "bytes are lost" in party.release(data__epoch="2").error
    assert party.release(data__epoch="3").code == 0
    assert "left of" in party.release(data__epoch="4").error
    table = party.run("budget").out
    assert "lost 2 labels" in table


def test_the_copy_holds_no_reservation_and_is_one_file(party: Party) -> None:
    assert party.release().code == 0
    store, privacy = Store(party.store), party.config().privacy
    with store.open_ledger() as ledger:
        reserve(ledger, "labels", "2", privacy.charge, privacy.limit)
        (party.store / "releases/labels/1/.codes.bin.new").write_bytes(b"of a dead process")
        made = party.run("backup", "--to", "b.tar")
        assert "1 release" in made.out
        assert len(ledger.reservations()) == 1
    assert (party.folder / "b.tar").stat().st_mode & 0o777 == 0o600
    with tarfile.open(party.folder / "b.tar") as archive:
        archive.extract("ledger.sqlite", party.folder / "out", filter="data")
        names = archive.getnames()
    copied = party.folder / "out" / "ledger.sqlite"
    # "file format write and read version": 1 is of a file without a log, as a read-only disk needs
    assert copied.read_bytes()[18:20] == b"\1\1"
    adopt(copied)
    with Ledger(copied) as ledger:
        assert [entry.epoch for entry in ledger.charges()] == ["1"]
    assert (names[0], names[1], names[-1]) == ("ledger.sqlite", "backup.json", "digests.json")
    assert "releases/labels/1/codes.bin" in names
    assert not [name for name in names if "/." in name]
    assert not list(party.folder.glob(".b*"))


@pytest.mark.parametrize("stated", [["--nothing-since"], ["--lost", "2=0.25"]])
def test_releases_since_the_backup_that_are_still_there_count(
    party: Party, stated: list[str]
) -> None:
    """The ledger is damaged, the releases are not: what they say counts, whatever is stated."""
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    assert party.release(data__epoch="2").code == 0
    codes = (party.store / "releases" / "labels" / "2" / "codes.bin").read_bytes()
    assert "exists already" in restore(party, "--nothing-since").error
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    done = restore(party, *stated)
    assert "counted as spent: labels/2" in done.out
    assert account_of(party)["left"]["epsilon"] == "1"
    assert "already released" in party.release(data__epoch="2").out
    assert (party.store / "releases" / "labels" / "2" / "codes.bin").read_bytes() == codes


def test_other_outcomes_come_back_and_can_be_lost(party: Party) -> None:
    labels = party.folder / "labels.csv"
    rows = labels.read_text().splitlines()
    labels.write_text("\n".join([rows[0] + ",kind", *(row + ",a" for row in rows[1:])]) + "\n")
    (party.folder / "kinds.txt").write_text("a\nb\n")
    ask = ["top-k", "--by", "kind", "--categories", "kinds.txt", "--k", "1"]
    assert party.run(*ask, "--out", "one.json").code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    lose_store(party)
    done = restore(party, "--lost", "2:top-k by kind=0.5")
    assert done.code == 0, done
    assert party.run(*ask, "--out", "two.json").code == 0
    one, two = (party.folder / name for name in ("one.json", "two.json"))
    assert one.read_bytes() == two.read_bytes()
    assert json.loads(party.run(*ask, "--json").out)["existed"]
    assert account_of(party)["left"]["epsilon"] == "3/2"
    assert "bytes are lost" in party.run(*ask, "--epoch", "2").error


@pytest.mark.parametrize(
    "guarantee",
    [
        PureDP.of(Fraction(1, 3)),
        ApproximateDP.of(Fraction(1, 2), Fraction("1e-7")),
        ZeroConcentratedDP.of(Fraction(1, 200), Fraction("1e-8")),
        RenyiDP.of([Fraction(1, 100), Fraction(1, 50)], orders=(Fraction(2), Fraction(3))),
        BoundedRange.of(Fraction(1, 4)),
    ],
    ids=lambda guarantee: guarantee.kind,
)
def test_what_is_lost_is_stated_as_any_guarantee(party: Party, guarantee: Guarantee) -> None:
    assert type(guarantee) in KINDS
    assert party.release(privacy__total_delta=1e-6).code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    lose_store(party)
    done = restore(party, "--lost", f"2:top-k by kind={json.dumps(guarantee.to_json())}")
    assert done.code == 0, done
    lost = account_of(party)["charges"][-1]
    assert guarantee_from_json(lost["guarantee"]) == guarantee
    assert (lost["composition"], lost["digest"]) == ("additive", "")
    assert party.run("backup", "--to", "c.tar").code == 0  # it has no bytes that could be missing


def test_every_kind_of_guarantee_is_stated_above() -> None:
    assert {kind.kind for kind in KINDS} == set(_KINDS)


def test_what_is_lost_may_have_been_about_any_event(party: Party) -> None:
    """Which events it was about is unknown: another account says why it is separate, or shares."""
    assert party.release(data__epoch="3").code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    lose_store(party)
    assert restore(party, "--lost", "2").code == 0
    withdrawn = party.run("withdraw", "3", "--reason", "a mistake", "--yes", "--json")
    assert json.loads(withdrawn.out)["latest"] is None  # nobody is served what is lost
    party.write_population({"key": [f"other-{i}" for i in range(200)]})
    other = {"data__data_set": "other"}
    refused = party.release(**other).err
    assert "is unknown since it was lost" in refused
    assert 'set [privacy] account = "labels"' in refused
    assert party.release(**other, privacy__account="labels").code == 0
    party.write_population({"key": [f"third-{i}" for i in range(200)]})
    reason = {"privacy__separate": True, "privacy__separate_reason": "a list of other people"}
    assert party.release(data__data_set="third", **reason).code == 0
    assert "an unknown number of events of third are events of labels" in party.run("budget").out
    assert "ε = 0 (replace-label, per record) is left" in party.release(data__epoch="4").err


def test_a_lost_release_of_another_unit_is_refused(party: Party) -> None:
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    lose_store(party)
    user = json.dumps(PureDP.of(1, unit=Unit.USER).to_json())
    assert "do not compose" in restore(party, "--lost", f"2={user}").error
    for damaged in ('{"kind": "pure"}', '{"kind": "none", "unit": 1}', "{"):
        assert "set --lost" in restore(party, "--lost", f"2={damaged}").error


def test_releases_that_are_counted_come_in_the_order_in_which_they_were_sold(party: Party) -> None:
    """Not by name, nor by clock: the latest is what the lost ledger sold last."""
    for epoch in ("c", "a", "b"):
        assert party.release(data__epoch=epoch).code == 0
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    assert party.run("restore", "--nothing-since").code == 0
    with Store(party.store).read_ledger() as ledger:
        assert [charge.epoch for charge in ledger.charges()] == ["c", "a", "b"]
        latest = ledger.committed("labels")
        assert latest is not None
        assert latest.epoch == "b"


def test_nothing_is_restored_without_a_word_on_what_came_after(party: Party) -> None:
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    lose_store(party)
    assert "--nothing-since or --lost" in restore(party).error
    assert "--nothing-since or --lost" in restore(party, "--nothing-since", "--lost", "2").error
    for bad in ("2=0", "2=-1", "../x", "2:top-k", "2=nan", "=1"):
        assert "must be EPOCH" in restore(party, "--lost", bad).error
    assert not Store(party.store).ledger_path.exists()


@pytest.mark.parametrize("restored", [False, True])
def test_what_a_store_holds_is_its_owners_alone(party: Party, restored: bool) -> None:
    """In a folder that others may enter, and made by them, as a disk's is."""
    if restored:
        assert party.release().code == 0
        assert party.run("backup", "--to", "b.tar").code == 0
        lose_store(party)
    party.store.mkdir(mode=0o755)
    assert (restore(party, "--nothing-since") if restored else party.release()).code == 0
    modes = {path.name: path.stat().st_mode & 0o077 for path in party.store.rglob("*.*")}
    assert len(modes) > 4
    assert set(modes.values()) == {0}, modes


def test_refused_backups_leave_no_file(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "does not exist" in party.run("backup", "--to", "b.tar").error
    assert party.release().code == 0
    (party.folder / "b.tar").write_text("mine")
    assert "exists already" in party.run("backup", "--to", "b.tar").error
    assert "cannot be written" in party.run("backup", "--to", "nowhere/b.tar").error

    def failing(database: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("labelveil.label_party.store.seal.remove", failing)
    error = party.run("backup", "--to", "c.tar").error
    assert "cannot be written: disk I/O error; set --to" in error
    assert not [*party.folder.glob(".*"), *party.folder.glob("c.tar")]


def test_killed_at_some_steps_of_a_restore_the_next_one_finishes(
    party: Party, patient: Experiments
) -> None:
    """Until the ledger is there, nothing is said of what was spent."""
    for epoch in ("1", "2"):
        assert party.release(data__epoch=epoch).code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    before = {
        path.relative_to(party.store): path.read_bytes()
        for path in party.store.glob("releases/**/*.*")
    }

    def run(mode: Mode, nth: int = 0) -> Ended:
        return patient.run(
            f"{BODIES}:restored", str(party.folder), "b.tar",
            folder=party.store, mode=mode, nth=nth,
        )  # fmt: skip

    shutil.rmtree(party.store)
    steps = run(Mode.COUNT).steps
    assert steps > 30
    every = range(1, steps + 1)
    for nth in every if EXHAUSTIVE else random.Random(steps).sample(every, 4):
        shutil.rmtree(party.store)
        assert run(Mode.KILL_TORN, nth).killed
        if not (party.store / "ledger.sqlite").exists():
            assert "is gone" in party.run("budget").error
            assert run(Mode.COUNT).error == ""
        assert account_of(party)["left"]["epsilon"] == "1"
        assert {
            path.relative_to(party.store): path.read_bytes()
            for path in party.store.glob("releases/**/*.*")
        } == before


def test_a_restore_mends_what_is_damaged_in_the_store(party: Party) -> None:
    for epoch in ("1", "2", "3"):
        assert party.release(data__epoch=epoch).code == 0
    before = {path: path.read_bytes() for path in party.store.glob("releases/*/*/*")}
    assert party.run("backup", "--to", "b.tar").code == 0
    for name in ("1/codes.bin", "2/codes.bin", "2/charge.json"):
        damage(party.store / "releases/labels" / name)
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    assert "cannot be read: Is a directory" in party.run("restore", ".", "--nothing-since").error
    assert restore(party, "--nothing-since").code == 0
    assert {path: path.read_bytes() for path in party.store.glob("releases/*/*/*")} == before


def test_a_restore_takes_the_place_of_nothing_that_another_ledger_sold(party: Party) -> None:
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    shutil.rmtree(party.store)
    (party.folder / "label_party.toml.receipt").unlink()
    assert party.release().code == 0  # with other noise
    codes = party.store / "releases/labels/1/codes.bin"
    before = codes.read_bytes()
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    assert "is whole, and not what the backup has" in restore(party, "--nothing-since").error
    assert codes.read_bytes() == before
    assert "is gone, but 1 of the" in party.run("budget").error


@pytest.mark.parametrize("empty", [False, True])
def test_a_missing_ledger_beside_releases_is_an_error_of_every_command(
    party: Party, empty: bool
) -> None:
    """A refused restore, or a hand, left it so; an empty file is none."""
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    (party.folder / "label_party.toml.receipt").unlink()
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    if empty:
        (party.store / "ledger.sqlite").touch()
    for command in (
        ["budget"],
        ["budget", "raise", "--to", "9", "--reason", "more"],
        ["status"],
        ["release"],
        ["release", "--epoch", "2", "--dry-run"],
        ["withdraw", "1", "--reason", "wrong", "--yes"],
        ["serve"],
        ["backup", "--to", "c.tar"],
        ["watch", "--once", "--labels", "{epoch}.csv", "--population", "{epoch}.csv"],
    ):
        error = party.run(*command).error
        assert "ledger.sqlite is gone, but 1 of the releases and answers" in error, command
        assert "label-party restore BACKUP" in error
    assert not (party.folder / "c.tar").exists()
    assert restore(party, "--nothing-since").code == 0
    assert account_of(party)["left"]["epsilon"] == "2"


def test_a_store_that_was_there_and_is_gone_is_an_error(party: Party) -> None:
    assert "spent nothing" in party.run("budget").out  # there was none
    Store(party.store).create()
    with Store(party.store).open_ledger():
        pass  # nothing was spent that could be forgotten
    assert party.run("budget").code == 0
    shutil.rmtree(party.store)
    assert "spent nothing" in party.run("budget").out
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    lost = lose_store(party)
    for command in (["budget"], ["status"], ["release"], ["serve"], ["backup", "--to", "c.tar"]):
        assert "is gone, or empty" in party.run(*command).error, command
        assert not party.store.exists()
    party.store.mkdir()  # a disk that is not mounted
    assert "is its disk mounted?" in party.run("budget").error
    # a new ledger would pay for these events again, wherever it is
    for command in (["budget"], ["release"], ["release", "--epoch", "2"]):
        second = party.run(*command, "--store", "new_store").error
        assert "a second ledger would not count that" in second, command
        assert f"in {party.store.name} paid" in second
    assert not (party.folder / "new_store").exists()
    moved = json.loads(party.run("budget", "--json", "--store", lost.name).out)
    assert moved[0]["left"]["epsilon"] == "2"
    party.store.rmdir()
    lost.rename(party.store)
    assert account_of(party)["left"]["epsilon"] == "2"
    lose_store(party)
    assert restore(party, "--nothing-since").code == 0
    assert account_of(party)["left"]["epsilon"] == "2"


def test_a_store_that_goes_while_a_release_is_read_is_not_begun_anew(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert party.release().code == 0
    (party.folder / "label_party.toml.receipt").unlink()

    @contextmanager
    def unmounting(*read: Any, **how: Any) -> Iterator[Events]:
        with open_events(*read, **how) as events:
            lose_store(party)
            yield events

    monkeypatch.setattr("labelveil.label_party.release.run.open_events", unmounting)
    refused = party.release(data__epoch="2").error
    assert "ledger.sqlite was there, and is gone" in refused
    assert not party.store.exists()


def test_a_ledger_is_remembered_from_its_first_charge_on(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a command that goes on, and dies with its machine."""
    receipt, seen = party.folder / "label_party.toml.receipt", list[bool]()
    monkeypatch.setattr(
        "labelveil.label_party.store.purchase._paid",
        lambda *paid: [seen.append(receipt.exists()), _paid(*paid)][1],
    )
    assert party.release().code == 0
    assert seen == [True]


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_receipt_begins_no_ledger(party: Party, damage: bytes) -> None:
    assert party.release().code == 0
    receipt = party.folder / "label_party.toml.receipt"
    receipt.write_bytes(damage)
    refused = party.run("release", "--store", "new_store").error
    assert "label_party.toml.receipt is damaged" in refused
    assert not (party.folder / "new_store").exists()
    assert (
        account_of(party)["left"]["epsilon"] == "2"
    )  # its own ledger is there, and is known again
    assert party.store.name in json.loads(receipt.read_bytes())


def test_a_copied_configuration_begins_no_ledger_unseen(party: Party) -> None:
    assert party.release().code == 0
    shutil.copy(party.folder / "label_party.toml", party.folder / "other.toml")
    other = "--config", "other.toml"
    same = party.run("release", *other)
    assert (same.code, "warning: store" in same.err) == (0, False)
    (party.folder / "other.toml.receipt").unlink()
    new = party.run("release", *other, "--store", "new_store")
    assert new.code == 0
    assert "warning: store new_store has no ledger yet" in new.err
    assert "spent from label_store; if any event is the same, set [store] directory" in new.err
    (party.folder / "other.toml.receipt").unlink()
    shutil.rmtree(party.store)
    gone = party.run("release", *other).error
    assert "store label_store is gone, or empty: label_party.toml.receipt says that" in gone
    assert not party.store.exists()


def test_the_ledger_alone_remembers_restorations(party: Party) -> None:
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    lose_store(party)
    assert restore(party, "--nothing-since").code == 0
    database = sqlite3.connect(Store(party.store).ledger_path)
    (row,) = database.execute("SELECT statement FROM restores").fetchall()
    database.close()
    assert json.loads(row[0]) == {"lost": [], "nothing_since": True}
    assert "nothing since" in party.run("budget").out
