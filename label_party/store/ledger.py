"""The ledger: what every data set may spend, what it has spent, and which releases exist.

One SQLite file in write-ahead mode with full synchronisation. A charge is first *reserved*, then
*committed* together with the release's digest in one transaction; a reservation whose owner died is
taken back at the next start. Guarantees are stored as they state themselves, never as floats, and
budget arithmetic is theirs: exact, and refusing to add what does not add.
"""

from __future__ import annotations

import getpass
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from common.errors import BudgetError, LabelveilError
from common.guarantees import Guarantee, guarantee_from_json
from common.version import software
from label_party.store import budget as spending
from label_party.store.budget import Composition
from label_party.store.schema import migrate

State = Literal["reserved", "committed"]

LABELS = "labels"
"""Purpose of the charge of a label release."""


class LedgerError(LabelveilError):
    """The ledger cannot be read or written; nothing was spent."""


@dataclass(frozen=True)
class Charge:
    """One entry: what was spent, by whom, when, for what.

    Attributes
    ----------
    composition
        ``additive``, or ``disjoint`` if no record occurs in another epoch's charge.
    request
        What the release was asked to be, as JSON values.
    manifest_sha256
        Hexadecimal digest that names the release; None while reserved.
    """

    id: int
    data_set: str
    epoch: str
    purpose: str
    composition: Composition
    state: State
    guarantee: Guarantee
    request: dict[str, Any]
    who: str
    software: str
    reserved_at: str
    committed_at: str | None
    manifest_sha256: str | None
    rows: int | None

    @property
    def lost(self) -> bool:
        """Whether this was released once, and its bytes are gone: spent, never built again."""
        return self.state == "committed" and self.manifest_sha256 is None


@dataclass(frozen=True)
class Restore:
    """One restoration from a backup, with what its operator stated."""

    backup_made_at: str
    statement: dict[str, Any]
    restored_at: str
    restored_by: str


class Ledger:
    """An open ledger. Use it as a context manager, from one thread.

    Parameters
    ----------
    path
        The SQLite file; created if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _translating_errors(path):
            self._database = sqlite3.connect(path, isolation_level=None, timeout=10.0)
            self._database.row_factory = sqlite3.Row
            self._database.execute("PRAGMA foreign_keys = ON")
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            migrate(self._database, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; every later use is an error."""
        self._database.close()

    def reserve(
        self,
        data_set: str,
        epoch: str,
        charge: Guarantee,
        limit: Guarantee,
        *,
        composition: Composition = "additive",
        request: dict[str, Any] | None = None,
        purpose: str = LABELS,
    ) -> int:
        """Set a charge aside, so that nothing else can spend it, and return its number.

        Parameters
        ----------
        charge
            What the release will spend at most.
        limit
            What the data set may spend in all; remembered, with who set it and when.

        Raises
        ------
        BudgetError
            If the charge does not fit, or the epoch has one already; nothing is spent.
        """
        with self._transaction() as database:
            proposal = spending.Proposal(epoch, composition, charge)
            spending.check_fits(data_set, self.charges(data_set), proposal, limit)
            existing = self._find(data_set, epoch, purpose)
            if existing is not None:
                raise BudgetError(
                    f"data set {data_set!r} has a release for epoch {epoch!r} already"
                    f"{', whose bytes are lost' if existing.lost else ''}; name another epoch with"
                    " --epoch"
                )
            now = _now()
            database.execute(
                "INSERT OR IGNORE INTO data_sets (name, created) VALUES (?, ?)", (data_set, now)
            )
            if self.limit(data_set) != limit:
                database.execute(
                    "INSERT INTO limits (data_set, guarantee, set_at, set_by, software)"
                    " VALUES (?, ?, ?, ?, ?)",
                    (data_set, _dump(limit.to_json()), now, _who(), software()),
                )
            cursor = database.execute(
                "INSERT INTO charges (data_set, epoch, purpose, composition, state, guarantee,"
                " request, who, software, reserved_at)"
                " VALUES (?, ?, ?, ?, 'reserved', ?, ?, ?, ?, ?)",
                (
                    data_set,
                    epoch,
                    purpose,
                    composition,
                    _dump(charge.to_json()),
                    _dump(request or {}),
                    _who(),
                    software(),
                    now,
                ),
            )
            return int(cursor.lastrowid or 0)

    def commit(self, charge: int, manifest_sha256: str, rows: int) -> None:
        """Make a reservation final and name the release that it paid for, in one transaction."""
        with self._transaction() as database:
            changed = database.execute(
                "UPDATE charges SET state = 'committed', committed_at = ?"
                " WHERE id = ? AND state = 'reserved'",
                (_now(), charge),
            ).rowcount
            if changed != 1:
                raise LedgerError(f"reservation {charge} is not open; run the release again")
            database.execute(
                "INSERT INTO releases (charge, manifest_sha256, rows) VALUES (?, ?, ?)",
                (charge, manifest_sha256, rows),
            )

    def count(
        self,
        data_set: str,
        proposal: spending.Proposal,
        purpose: str,
        outcome: tuple[str, int] | None,
        request: dict[str, Any],
    ) -> None:
        """Record as spent what was released under another ledger, whether or not it fits.

        For what a restored, older ledger does not know. The same epoch is never built again.

        Parameters
        ----------
        outcome
            Digest and rows of the bytes, or None if they are lost.
        """
        with self._transaction() as database:
            if self._find(data_set, proposal.epoch, purpose) is not None:
                return
            now = _now()
            database.execute(
                "INSERT OR IGNORE INTO data_sets (name, created) VALUES (?, ?)", (data_set, now)
            )
            cursor = database.execute(
                "INSERT INTO charges (data_set, epoch, purpose, composition, state, guarantee,"
                " request, who, software, reserved_at, committed_at)"
                " VALUES (?, ?, ?, ?, 'committed', ?, ?, ?, ?, ?, ?)",
                (
                    data_set,
                    proposal.epoch,
                    purpose,
                    proposal.composition,
                    _dump(proposal.guarantee.to_json()),
                    _dump(request),
                    _who(),
                    software(),
                    now,
                    now,
                ),
            )
            if outcome is not None:
                database.execute(
                    "INSERT INTO releases (charge, manifest_sha256, rows) VALUES (?, ?, ?)",
                    (cursor.lastrowid, *outcome),
                )

    def record_restore(self, backup_made_at: str, statement: dict[str, Any]) -> None:
        """Remember that this ledger was restored from a backup, and what was stated then."""
        with self._transaction() as database:
            database.execute(
                "INSERT INTO restores (backup_made_at, statement, restored_at, restored_by,"
                " software) VALUES (?, ?, ?, ?, ?)",
                (backup_made_at, _dump(statement), _now(), _who(), software()),
            )

    def restores(self) -> list[Restore]:
        """Return every restoration from a backup, oldest first."""
        with _translating_errors(self.path):
            rows = self._database.execute("SELECT * FROM restores ORDER BY id").fetchall()
        return [
            Restore(
                row["backup_made_at"],
                json.loads(row["statement"]),
                row["restored_at"],
                row["restored_by"],
            )
            for row in rows
        ]

    def settle(self) -> list[Charge]:
        """Return the open reservations, having made sure that they are open on the disk, too.

        A commit whose sync failed was taken back here, but its pages may lie in the log and count
        when that is next recovered. So other pages take their place, before anybody deletes what
        the reservation was to pay for.
        """
        with self._transaction() as database:
            # another value each time: for the old one SQLite would write no page
            database.execute(
                "UPDATE charges SET reserved_at = ? WHERE state = 'reserved'", (_now(),)
            )
        return self.reservations()

    def abandon(self, charge: int) -> None:
        """Give a reservation back. A committed charge stays."""
        with self._transaction() as database:
            database.execute("DELETE FROM charges WHERE id = ? AND state = 'reserved'", (charge,))

    def charges(self, data_set: str | None = None) -> list[Charge]:
        """Return all entries, oldest first."""
        where = "" if data_set is None else " WHERE data_set = ?"
        return self._select(where, () if data_set is None else (data_set,))

    def reservations(self) -> list[Charge]:
        """Return the charges that are set aside and not committed."""
        return self._select(" WHERE state = 'reserved'", ())

    def committed(
        self, data_set: str, epoch: str | None = None, purpose: str = LABELS
    ) -> Charge | None:
        """Return what was committed for an epoch and is at hand, or the latest of the data set."""
        which = "" if epoch is None else " AND epoch = ?"
        found = self._select(
            " WHERE data_set = ? AND state = 'committed' AND manifest_sha256 IS NOT NULL"
            f" AND purpose = ?{which}",
            (data_set, purpose) if epoch is None else (data_set, purpose, epoch),
        )
        return max(found, key=lambda entry: (entry.committed_at, entry.id), default=None)

    def data_sets(self) -> list[str]:
        """Return the names of all data sets that ever spent, in alphabetical order."""
        with _translating_errors(self.path):
            rows = self._database.execute("SELECT name FROM data_sets ORDER BY name").fetchall()
        return [str(row["name"]) for row in rows]

    def limit(self, data_set: str) -> Guarantee | None:
        """Return what a data set may spend, as last set; None if it never spent anything."""
        with _translating_errors(self.path):
            row = self._database.execute(
                "SELECT guarantee FROM limits WHERE data_set = ? ORDER BY id DESC LIMIT 1",
                (data_set,),
            ).fetchone()
        return None if row is None else guarantee_from_json(json.loads(row["guarantee"]))

    def spent(self, data_set: str, limit: Guarantee) -> Guarantee | None:
        """Return what one record may have lost so far, reservations included, as a limit counts."""
        return spending.spent(self.charges(data_set), limit)

    def left(
        self, data_set: str, limit: Guarantee, composition: Composition = "additive"
    ) -> Guarantee | None:
        """Return what a charge of a new epoch may spend; None where that is not one number."""
        met = spending.seen_by_next(self.charges(data_set), composition)
        return spending.remaining(limit, spending.spent(met, limit))

    def backup(self, path: Path) -> None:
        """Write a consistent copy while others may be writing."""
        with _translating_errors(path):
            copy = sqlite3.connect(path)
            try:
                self._database.backup(copy)
            finally:
                copy.close()

    def _find(self, data_set: str, epoch: str, purpose: str) -> Charge | None:
        found = self._select(
            " WHERE data_set = ? AND epoch = ? AND purpose = ?", (data_set, epoch, purpose)
        )
        return found[0] if found else None

    def _select(self, where: str, values: Iterable[Any]) -> list[Charge]:
        with _translating_errors(self.path):
            rows = self._database.execute(
                "SELECT charges.*, releases.manifest_sha256, releases.rows FROM charges"
                f" LEFT JOIN releases ON releases.charge = charges.id{where} ORDER BY charges.id",
                tuple(values),
            ).fetchall()
        return [_charge(row) for row in rows]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _translating_errors(self.path):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise


def _charge(row: sqlite3.Row) -> Charge:
    return Charge(
        id=row["id"],
        data_set=row["data_set"],
        epoch=row["epoch"],
        purpose=row["purpose"],
        composition=row["composition"],
        state=row["state"],
        guarantee=guarantee_from_json(json.loads(row["guarantee"])),
        request=json.loads(row["request"]),
        who=row["who"],
        software=row["software"],
        reserved_at=row["reserved_at"],
        committed_at=row["committed_at"],
        manifest_sha256=row["manifest_sha256"],
        rows=row["rows"],
    )


@contextmanager
def _translating_errors(path: Path) -> Iterator[None]:
    """Turn the database's errors into one line."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(
            f"ledger {path}: {error}; nothing was spent; check the disk's space and rights"
        ) from error


def _dump(data: dict[str, Any]) -> str:
    return json.dumps(data, sort_keys=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return f"uid {os.getuid()}"
