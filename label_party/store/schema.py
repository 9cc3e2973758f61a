"""The ledger's tables, and how older files become newer ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from common.errors import LabelveilError
from label_party.store.seal import SINCE, Seal, SealError, key_path

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE data_sets (
            name TEXT PRIMARY KEY,
            created TEXT NOT NULL
        )""",
        # every total that was ever in force, and who set it
        """CREATE TABLE limits (
            id INTEGER PRIMARY KEY,
            data_set TEXT NOT NULL REFERENCES data_sets (name),
            guarantee TEXT NOT NULL,
            set_at TEXT NOT NULL,
            set_by TEXT NOT NULL,
            software TEXT NOT NULL
        )""",
        """CREATE TABLE charges (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            data_set TEXT NOT NULL REFERENCES data_sets (name),
            epoch TEXT NOT NULL,
            purpose TEXT NOT NULL,
            composition TEXT NOT NULL CHECK (composition IN ('additive', 'disjoint')),
            state TEXT NOT NULL CHECK (state IN ('reserved', 'committed')),
            guarantee TEXT NOT NULL,
            request TEXT NOT NULL,
            who TEXT NOT NULL,
            software TEXT NOT NULL,
            reserved_at TEXT NOT NULL,
            committed_at TEXT,
            UNIQUE (data_set, epoch, purpose)
        )""",
        """CREATE TABLE releases (
            charge INTEGER PRIMARY KEY REFERENCES charges (id),
            manifest_sha256 TEXT NOT NULL,
            rows INTEGER NOT NULL
        )""",
        # what is spent stays spent, whatever a program tries
        """CREATE TRIGGER committed_charges_stay BEFORE UPDATE ON charges
            WHEN OLD.state = 'committed'
            BEGIN SELECT RAISE(ABORT, 'a committed charge never changes'); END""",
        """CREATE TRIGGER committed_charges_last BEFORE DELETE ON charges
            WHEN OLD.state = 'committed'
            BEGIN SELECT RAISE(ABORT, 'a committed charge is never deleted'); END""",
        """CREATE TRIGGER releases_stay BEFORE UPDATE ON releases
            BEGIN SELECT RAISE(ABORT, 'a release never changes'); END""",
        """CREATE TRIGGER releases_last BEFORE DELETE ON releases
            BEGIN SELECT RAISE(ABORT, 'a release is never deleted'); END""",
    ),
    (
        # what the operator stated about the time between a backup and its restoration
        """CREATE TABLE restores (
            id INTEGER PRIMARY KEY,
            backup_made_at TEXT NOT NULL,
            statement TEXT NOT NULL,
            restored_at TEXT NOT NULL,
            restored_by TEXT NOT NULL,
            software TEXT NOT NULL
        )""",
    ),
    (
        # an account is what a budget belongs to; until now it was the data set
        "DROP TRIGGER committed_charges_stay",
        "ALTER TABLE charges ADD COLUMN account TEXT NOT NULL DEFAULT ''",
        "UPDATE charges SET account = data_set",
        """CREATE TRIGGER committed_charges_stay BEFORE UPDATE ON charges
            WHEN OLD.state = 'committed'
            BEGIN SELECT RAISE(ABORT, 'a committed charge never changes'); END""",
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
        """INSERT INTO caps (account, guarantee, reason, set_at, set_by, software)
            SELECT data_set, guarantee, '', set_at, set_by, software FROM limits ORDER BY id""",
        "DROP TABLE limits",
        """CREATE TRIGGER caps_stay BEFORE UPDATE ON caps
            BEGIN SELECT RAISE(ABORT, 'a cap never changes; a later one takes its place'); END""",
        """CREATE TRIGGER caps_last BEFORE DELETE ON caps
            BEGIN SELECT RAISE(ABORT, 'a cap is never deleted'); END""",
        # which events a charge is about: a file of fingerprints, and why an account says that its
        # events are none of another's although they share some
        """CREATE TABLE coverage (
            charge INTEGER PRIMARY KEY REFERENCES charges (id) ON DELETE CASCADE,
            sha256 TEXT NOT NULL,
            events INTEGER NOT NULL
        )""",
        # under which events are fingerprinted
        """CREATE TABLE secrets (
            name TEXT PRIMARY KEY,
            value BLOB NOT NULL
        )""",
        """CREATE TABLE separations (
            id INTEGER PRIMARY KEY,
            account TEXT NOT NULL,
            other TEXT NOT NULL,
            events INTEGER NOT NULL,
            reason TEXT NOT NULL,
            said_at TEXT NOT NULL,
            said_by TEXT NOT NULL
        )""",
    ),
    (
        # a keyed checksum of everything else (label_party.store.seal)
        "CREATE TABLE seals (id INTEGER PRIMARY KEY, mac TEXT NOT NULL)",
    ),
)
"""One tuple of statements for each schema version; only ever append."""


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


def migrate(database: sqlite3.Connection, path: Path, seal: Seal) -> None:
    """Check a ledger and bring it to the newest schema, one version in each transaction.

    Raises
    ------
    LabelveilError
        If a later version wrote it, or it is damaged.
    """
    with transaction(database):
        version = check(database, path, seal)
    # only now: on a file that is just being put back, and is still empty, this would write
    database.execute("PRAGMA journal_mode = WAL")
    while version < len(MIGRATIONS):
        with transaction(database, "IMMEDIATE"):
            version = check(database, path, seal)  # another process may have been faster
            if version < len(MIGRATIONS):
                for statement in MIGRATIONS[version]:
                    database.execute(statement)
                version += 1
                database.execute(f"PRAGMA user_version = {version}")
                if version >= SINCE:
                    seal.make_key()
                    seal.renew(database)


def read(database: sqlite3.Connection, path: Path, seal: Seal) -> None:
    """Copy a ledger into an empty database, whose seal is another; nothing is written."""
    # a read-only connection would leave the log's files behind
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.backup(database)
    with transaction(database):
        if check(database, path, Seal(path)) >= SINCE:
            seal.renew(database)


def check(database: sqlite3.Connection, path: Path, seal: Seal) -> int:
    """Return the version of a ledger that is as it was last written."""
    had_key = key_path(path).exists()  # looked at first: another process may be making both
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    if had_key and not version:
        raise SealError(
            f"ledger {path} is empty or gone, but its secret is there; nothing was spent; restore"
            f" it from a backup, or, if there is none, move {key_path(path)} away to begin anew"
        )
    if version > len(MIGRATIONS):
        raise LabelveilError(
            f"ledger {path} has schema {version}, but this software knows {len(MIGRATIONS)} at"
            " most; install the version that wrote it"
        )
    (sound,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if sound != "ok":  # an index, say, that hides what its table has
        raise sqlite3.DatabaseError("database disk image is malformed")
    if version >= SINCE:
        seal.check(database)
    return version
