"""A damaged ledger is one line, and never one in which less was spent."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from fractions import Fraction
from pathlib import Path

import pytest

from labelveil.common.errors import LabelveilError
from labelveil.common.guarantees import PureDP
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.seal import SealError, key_path
from tests.label_party.conftest import Party
from tests.label_party.store.ledgers import reserve

DIGEST = "ab" * 32
LIMIT = PureDP.of(10)


def spend(ledger: Ledger, epoch: str, epsilon: str) -> None:
    charge = PureDP.of(Fraction(epsilon))
    number = reserve(ledger, "sales", epoch, charge, LIMIT, request={"label": "amount"})
    ledger.commit(number, DIGEST, 1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with three charges, closed."""
    found = tmp_path / "ledger.sqlite"
    with Ledger(found) as ledger:
        for epoch, epsilon in (("1", "1/2"), ("2", "1/3"), ("3", "2")):
            spend(ledger, epoch, epsilon)
    return found


def damaged(path: Path, flips: int, seed: int) -> dict[str, int]:
    """Flip one byte at a time; how often that was refused, and how often it did not matter."""
    whole, chance = path.read_bytes(), random.Random(seed)
    with Ledger(path) as ledger:
        spent, charges = ledger.spent("sales", LIMIT), ledger.charges()
    folder = path.parent / "damaged"
    counts = {"refused": 0, "harmless": 0}
    for _ in range(flips):
        folder.mkdir()
        shutil.copy(key_path(path), folder)
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (folder / path.name).write_bytes(data)
        try:
            with Ledger(folder / path.name) as ledger:
                assert ledger.spent("sales", LIMIT) == spent
                assert ledger.charges() == charges
                counts["harmless"] += 1  # a byte that holds nothing
        except LabelveilError as error:
            if "\n" in str(error):
                raise ValueError(f"not one line: {error}") from error
            counts["refused"] += 1
        shutil.rmtree(folder)
    return counts


def test_a_flipped_byte_never_lowers_what_was_spent(path: Path) -> None:
    assert min(damaged(path, 60, seed=1).values()) > 0


@pytest.mark.slow
def test_a_thousand_flipped_bytes_never_lower_what_was_spent(path: Path) -> None:
    assert min(damaged(path, 1000, seed=2).values()) > 0


def edit(path: Path, *statements: str) -> None:
    """Change a ledger as its triggers forbid; they are there again afterwards, and tell nothing."""
    database = sqlite3.connect(path)
    triggers = database.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall()
    dropped = [f"DROP TRIGGER {name}" for name, _ in triggers]
    for statement in (*dropped, *statements, *(sql for _, sql in triggers)):
        database.execute(statement)
    database.commit()
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE charges SET digest = '' WHERE id = 3",
        "INSERT INTO answers VALUES (3, 1, 'x', 0, 1)",
        "DELETE FROM charges WHERE id = 3",
        "UPDATE charges SET guarantee = replace(guarantee, '\"2\"', '\"1\"') WHERE id = 3",
        "UPDATE charges SET account = 'other' WHERE id = 3",
        "UPDATE charges SET composition = 'disjoint'",
        "UPDATE caps SET guarantee = replace(guarantee, '10', '99')",
        "DELETE FROM seals",
        "UPDATE seals SET mac = 'é'",
        "UPDATE charges SET request = CAST(x'ff' AS TEXT)",
        *(f"PRAGMA user_version = {number}" for number in (-1, 1, 3, 2**31 - 1)),
        "DROP TABLE seals",
    ],
)
def test_what_is_edited_from_outside_is_refused(path: Path, statement: str) -> None:
    edit(path, statement)
    with pytest.raises(LabelveilError) as error:
        Ledger(path)
    assert "nothing was spent" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM charges WHERE id = 3",
        "PRAGMA user_version = 7",
        "CREATE TABLE more (id INTEGER)",
        "CREATE VIEW charges_now AS SELECT * FROM charges",
        "ALTER TABLE withdrawals ADD COLUMN more",  # which has no row
        "UPDATE charges SET rowid = rowid + 10",
    ],
)
def test_an_edit_between_two_transactions_is_refused(path: Path, statement: str) -> None:
    with Ledger(path) as ledger:
        edit(path)
        spend(ledger, "4", "1")  # nothing was changed
        edit(path, statement)
        with pytest.raises(SealError, match="changed from outside"):
            spend(ledger, "5", "1")


def test_a_secret_that_is_gone_or_open_to_others_is_told(path: Path) -> None:
    secret = key_path(path)
    assert secret.stat().st_mode & 0o777 == 0o600
    secret.chmod(0o644)
    with pytest.raises(LabelveilError, match="chmod 600"):
        Ledger(path)
    secret.chmod(0o600)
    secret.rename(path.parent / "away")
    with pytest.raises(SealError, match="-key is gone"):
        Ledger(path)
    secret.symlink_to("/dev/null")
    with pytest.raises(LabelveilError, match="is not a file; name one"):
        Ledger(path)
    secret.unlink()
    secret.mkdir()
    with pytest.raises(SealError, match="cannot be read: Is a directory"):
        Ledger(path)


@pytest.mark.parametrize("with_secret", [False, True])
def test_a_process_that_died_before_the_first_seal_leaves_a_ledger(
    tmp_path: Path, with_secret: bool
) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    edit(path, "DELETE FROM seals")
    if not with_secret:
        key_path(path).unlink()
    with Ledger(path) as ledger:
        spend(ledger, "1", "1")
    with Ledger(path) as ledger:
        assert len(ledger.charges()) == 1


def test_a_ledger_that_is_cut_off_or_gone_has_not_spent_nothing(path: Path) -> None:
    for left in (b"", None):
        if left is None:
            path.unlink()
        else:
            path.write_bytes(left)
        for in_memory in (True, False):
            with pytest.raises(SealError, match="empty or gone"):
                Ledger(path, in_memory=in_memory)
        # what is just being put back at this path, and is not there yet, is not written over
        assert not path.exists() or path.read_bytes() == b""
        assert not list(path.parent.glob("ledger.sqlite-[ws]*"))
    path.unlink()
    key_path(path).unlink()
    with Ledger(path) as ledger:
        assert ledger.charges() == []


def test_the_log_keeps_nothing_that_could_be_lost(path: Path) -> None:
    with Ledger(path) as ledger:
        spend(ledger, "4", "1")
        assert path.with_name("ledger.sqlite-wal").stat().st_size == 0


def test_a_backup_has_no_secret_and_is_sealed_where_it_is_restored(party: Party) -> None:
    assert party.release().code == 0
    secret = key_path(party.store / "ledger.sqlite").read_bytes()
    assert party.run("backup", "--to", "b.tar").code == 0
    assert secret.strip() not in (party.folder / "b.tar").read_bytes()
    (account,) = json.loads(party.run("budget", "--json").out)
    spent = account["spent"]
    for where in ("the same store", "another"):
        if where == "another":
            shutil.rmtree(party.store)
        else:
            (party.store / "ledger.sqlite").unlink()
        assert party.run("restore", "b.tar", "--nothing-since").code == 0
        (account,) = json.loads(party.run("budget", "--json").out)
        assert account["spent"] == spent
        assert key_path(party.store / "ledger.sqlite").read_bytes() != secret
        assert party.release().code == 0  # the same, found again
