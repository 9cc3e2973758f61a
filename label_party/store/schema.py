"""The ledger's tables."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labelveil.common.errors import LabelveilError
from labelveil.common.formats import STORE, known_software
from labelveil.label_party.store.seal import Seal, SealError, key_path

VERSION = STORE.number
"""Of the schema, as the file itself states it."""

_FORMS = {1: "c92d4154e67647c981b8df1d8c96d5994e631f7f9a953048d297af84d95a6750"}
"""Of a number that stood for several forms, which one is read: a digest of its tables."""

SCHEMA = (
    # which store this is: a server says it, so that nobody takes another's counts for its own
    "CREATE TABLE identity (name TEXT NOT NULL)",
    # what was sold, to the last term; ids are never used again and ascend in the order of commits
    """CREATE TABLE charges (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        account TEXT NOT NULL,
        data_set TEXT NOT NULL,
        epoch TEXT NOT NULL,
        purpose TEXT NOT NULL,
        composition TEXT NOT NULL CHECK (composition IN ('additive', 'disjoint')),
        guarantee TEXT NOT NULL,
        records_per_unit INTEGER NOT NULL CHECK (records_per_unit >= 1),
        answers INTEGER NOT NULL CHECK (answers >= 0),
        request TEXT NOT NULL,
        covered TEXT,
        digest TEXT,
        rows INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('reserved', 'committed')),
        counted INTEGER NOT NULL CHECK (counted IN (0, 1)),
        who TEXT NOT NULL,
        software TEXT NOT NULL,
        reserved_at TEXT NOT NULL,
        committed_at TEXT,
        UNIQUE (data_set, epoch, purpose)
    )""",
    # what is spent stays spent, whatever a program tries
    """CREATE TRIGGER committed_charges_stay BEFORE UPDATE ON charges
        WHEN OLD.state = 'committed'
        BEGIN SELECT RAISE(ABORT, 'a committed charge never changes'); END""",
    """CREATE TRIGGER committed_charges_last BEFORE DELETE ON charges
        WHEN OLD.state = 'committed'
        BEGIN SELECT RAISE(ABORT, 'a committed charge is never deleted'); END""",
    # every answer of a session that somebody may have seen
    """CREATE TABLE answers (
        charge INTEGER NOT NULL REFERENCES charges (id),
        number INTEGER NOT NULL CHECK (number >= 1),
        question TEXT NOT NULL,
        value REAL NOT NULL,
        noise_scale REAL NOT NULL,
        PRIMARY KEY (charge, number),
        UNIQUE (charge, question)
    )""",
    """CREATE TRIGGER answers_stay BEFORE UPDATE ON answers
        BEGIN SELECT RAISE(ABORT, 'an answer never changes'); END""",
    """CREATE TRIGGER answers_last BEFORE DELETE ON answers
        BEGIN SELECT RAISE(ABORT, 'an answer is never deleted'); END""",
    # sessions whose answers this ledger may not have all of
    """CREATE TABLE closed (
        charge INTEGER PRIMARY KEY REFERENCES charges (id),
        reason TEXT NOT NULL
    )""",
    """CREATE TRIGGER closed_stay BEFORE DELETE ON closed
        BEGIN SELECT RAISE(ABORT, 'a closed session is never opened'); END""",
    # releases that are served no more, and why; they stay spent
    """CREATE TABLE withdrawals (
        charge INTEGER PRIMARY KEY REFERENCES charges (id),
        reason TEXT NOT NULL,
        withdrawn_at TEXT NOT NULL,
        withdrawn_by TEXT NOT NULL,
        software TEXT NOT NULL
    )""",
    """CREATE TRIGGER withdrawals_stay BEFORE UPDATE ON withdrawals
        BEGIN SELECT RAISE(ABORT, 'a withdrawal never changes'); END""",
    """CREATE TRIGGER withdrawals_last BEFORE DELETE ON withdrawals
        BEGIN SELECT RAISE(ABORT, 'a withdrawal is never taken back'); END""",
    # what the operator stated about the time between a backup and its restoration
    """CREATE TABLE restores (
        id INTEGER PRIMARY KEY,
        backup_made_at TEXT NOT NULL,
        statement TEXT NOT NULL,
        restored_at TEXT NOT NULL,
        restored_by TEXT NOT NULL,
        software TEXT NOT NULL
    )""",
    # every cap that was ever in force, who set it, and why it was raised
    """CREATE TABLE caps (
        id INTEGER PRIMARY KEY,
        account TEXT NOT NULL,
        guarantee TEXT NOT NULL,
        reason TEXT NOT NULL,
        set_at TEXT NOT NULL,
        set_by TEXT NOT NULL,
        software TEXT NOT NULL
    )""",
    """CREATE TRIGGER caps_stay BEFORE UPDATE ON caps
        BEGIN SELECT RAISE(ABORT, 'a cap never changes; a later one takes its place'); END""",
    """CREATE TRIGGER caps_last BEFORE DELETE ON caps
        BEGIN SELECT RAISE(ABORT, 'a cap is never deleted'); END""",
    # under which events are fingerprinted
    """CREATE TABLE secrets (
        name TEXT PRIMARY KEY,
        value BLOB NOT NULL
    )""",
    # why an account says that its events are none of another's although they share some
    """CREATE TABLE separations (
        id INTEGER PRIMARY KEY,
        account TEXT NOT NULL,
        other TEXT NOT NULL,
        events INTEGER NOT NULL,
        reason TEXT NOT NULL,
        said_at TEXT NOT NULL,
        said_by TEXT NOT NULL
    )""",
    # a keyed checksum of everything else (labelveil.label_party.store.seal)
    "CREATE TABLE seals (id INTEGER PRIMARY KEY, mac TEXT NOT NULL)",
)
_FILLED = "seals", "charges", "caps", "restores", "secrets", "separations"


@contextmanager
def transaction(database: sqlite3.Connection, kind: str = "DEFERRED") -> Iterator[None]:
    """Run a block as one transaction: all of it or nothing."""
    database.execute(f"BEGIN {kind}")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def prepare(database: sqlite3.Connection, path: Path, seal: Seal) -> None:
    """Check a ledger, and make its tables if it is new.

    ``LabelveilError`` if it is of another version, or damaged.
    """
    with transaction(database):
        sealed = check(database, path, seal)
    # only now: on a file that is just being put back, and is still empty, this would write
    database.execute("PRAGMA journal_mode = WAL")
    if sealed:
        if _version(database) < VERSION:
            with transaction(database, "IMMEDIATE"):
                check(database, path, seal)
                migrate(database)
                seal.renew(database)
        return
    with transaction(database, "IMMEDIATE"):
        make_tables(database)
    with transaction(database, "IMMEDIATE"):
        # after the tables: a secret beside no tables says that a ledger is gone
        if not check(database, path, seal):
            seal.make_key()
            seal.renew(database)


def make_tables(database: sqlite3.Connection) -> None:
    """Make the tables, or of older ones the present ones, unless another process was faster."""
    if _version(database):
        migrate(database)
        return
    for statement in SCHEMA:
        database.execute(statement)
    database.execute("INSERT INTO identity (name) VALUES (?)", (secrets.token_hex(8),))
    database.execute(f"PRAGMA user_version = {VERSION}")


def migrate(database: sqlite3.Connection) -> None:
    """Bring tables of an older number that is read to the present one, in the caller's transaction.

    So far each number has added tables and triggers to those of the one before, or nothing.
    """
    if _version(database) == VERSION:
        return
    there = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    for statement in SCHEMA:
        if statement.split()[2] not in there:
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {VERSION}")


def form(database: sqlite3.Connection) -> str:
    """A digest of the tables, as they were made."""
    made = database.execute(
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%'"
        " ORDER BY type, name"
    )
    text = "\n".join(" ".join(str(sql).split()) for (sql,) in made.fetchall())
    return hashlib.sha256(text.encode()).hexdigest()


def check(database: sqlite3.Connection, path: Path, seal: Seal) -> bool:
    """Whether a ledger is as it was last written; False if nothing was ever written."""
    had_key = key_path(path).exists()  # looked at first: another process may be making both
    version = _version(database)
    if had_key and not version:
        raise SealError(
            f"ledger {path} is empty or gone, but its secret is there; nothing was spent; restore"
            f" it from a backup, or, if there is none, move {key_path(path)} away to begin anew"
        )
    if version:
        _check_number(database, path, version)
    (sound,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if sound != "ok":  # an index, say, that hides what its table has
        raise sqlite3.DatabaseError("database disk image is malformed")
    used = (f"SELECT EXISTS (SELECT 1 FROM {name})" for name in _FILLED)
    if not version or not any(database.execute(query).fetchone()[0] for query in used):
        return False  # a process may have died before it sealed the new tables
    seal.check(database)
    return True


def _check_number(database: sqlite3.Connection, path: Path, version: int) -> None:
    """``LabelveilError`` if the tables are not those that are read here."""
    what, made_by = f"ledger {path}", ""
    with suppress(sqlite3.Error, IndexError):  # whatever tables these are
        rows = database.execute("SELECT software FROM caps ORDER BY id DESC LIMIT 1").fetchall()
        made_by = known_software(rows[0][0])
    stated = f"{STORE.name}/{version}"
    if STORE.number_of(stated) is None:
        raise LabelveilError(
            f"{what} has the number {version}, which no version writes; nothing was spent; restore"
            " it from a backup"
        )
    STORE.check(
        stated,
        what,
        LabelveilError,
        update="nothing was spent; the labels party must update labelveil",
        made_by=made_by,
        older="nothing was spent; use the version that made it",
    )
    if version in _FORMS and form(database) != _FORMS[version]:
        raise LabelveilError(
            f"{what} has format {STORE.name}/{version} in a form that is read no more; nothing was"
            " spent; its releases are served, and its budget is known, by the version that made it"
            + (f", {made_by}" if made_by else "")
        )


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])
