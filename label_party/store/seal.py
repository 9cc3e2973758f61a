"""The ledger's seal: a keyed checksum of everything in it, so that damage is seen and not believed.

A disk that flips a byte, or a hand that edits one, could make a charge smaller, or take it away.
So every transaction ends with HMAC-SHA256 of all rows, the schema and its version, under a secret
that lies beside the ledger (``ledger.sqlite-key``, mode 0600), and every opening and every
transaction begins by computing it again. One checksum of the whole sees rows that are gone, too,
which one of each row would not.

It does not see an older ledger with its own seal in place of a newer one (whose releases
:mod:`labelveil.label_party.store.recovery` counts), and is no defence against anyone who can read
the secret.
"""

from __future__ import annotations

import hmac
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

from labelveil.common.errors import LabelveilError
from labelveil.common.files import read_private, write_durably
from labelveil.label_party.store.disk import translating_errors

_KEY_BYTES = 32
_TABLE = "seals"


class SealError(LabelveilError):
    """The ledger is not as it was last written; nothing was spent."""


def key_path(ledger: Path) -> Path:
    """Where the secret of a ledger lies."""
    return ledger.with_name(f"{ledger.name}-key")


class Seal:
    """Checks and renews the seal of one ledger, always inside a transaction."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._key: bytes | None = None

    def make_key(self) -> None:
        """Write a secret if there is none, while nobody else can."""
        path = key_path(self._ledger)
        if not path.exists():
            with translating_errors(path):
                write_durably(path, secrets.token_hex(_KEY_BYTES).encode() + b"\n")

    def check(self, database: sqlite3.Connection) -> None:
        """Check the seal.

        ``SealError`` if the ledger is not as it was sealed, or the secret is gone.
        """
        stored = database.execute(f"SELECT mac FROM {_TABLE}").fetchall()
        if [row[0] for row in stored] != [self._mac(database)]:
            raise SealError(
                f"ledger {self._ledger} was damaged or changed from outside; nothing was spent;"
                " move it away and restore it from a backup"
            )

    def renew(self, database: sqlite3.Connection) -> None:
        """Seal what a transaction leaves."""
        mac = self._mac(database)
        database.execute(f"INSERT OR REPLACE INTO {_TABLE} (id, mac) VALUES (1, ?)", (mac,))

    def _mac(self, database: sqlite3.Connection) -> str:
        if self._key is None:
            self._key = _read_key(self._ledger)
        mac = hmac.new(self._key, b"labelveil ledger\n", "sha256")
        mac.update(b"%d\n" % database.execute("PRAGMA user_version").fetchone()[0])
        schema = database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name")
        for kind, name, sql in schema.fetchall():
            mac.update(repr((kind, name, sql)).encode() + b"\n")
            if kind == "table" and name != _TABLE:
                quoted = name.replace('"', '""')
                for row in database.execute(f'SELECT * FROM "{quoted}" ORDER BY rowid'):
                    mac.update(repr(tuple(row)).encode() + b"\n")
        return mac.hexdigest()


def remove(database: sqlite3.Connection) -> None:
    """Take the seal off a copy that goes where its secret does not."""
    database.execute(f"DELETE FROM {_TABLE}")


def adopt(ledger: Path) -> None:
    """Seal a ledger out of a backup, whose bytes something else has vouched for."""
    with closing(sqlite3.connect(ledger, isolation_level=None)) as database:
        seal = Seal(ledger)
        database.execute("BEGIN IMMEDIATE")
        seal.make_key()
        seal.renew(database)
        database.execute("COMMIT")


def _read_key(ledger: Path) -> bytes:
    path = key_path(ledger)
    try:
        key = bytes.fromhex(read_private(path, "ledger secret").decode("ascii"))
    except FileNotFoundError as error:
        raise SealError(
            f"ledger secret {path} is gone; nothing was spent; put it back, or move the ledger away"
            " and restore it from a backup"
        ) from error
    except OSError as error:
        raise SealError(f"ledger secret {path} cannot be read: {error.strerror}") from error
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise SealError(
            f"ledger secret {path} must hold {2 * _KEY_BYTES} hexadecimal digits; nothing was"
            " spent; put it back, or move it and the ledger away and restore a backup"
        )
    return key
