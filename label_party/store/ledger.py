"""The ledger: what every account may spend, what it has spent, and which releases exist.

An *account* is a body of events with one budget: a data set's own, or one that several share.
Its *cap* is recorded with its first charge. A lower limit may be asked for at any time; a higher
one takes :meth:`Ledger.raise_cap`, which records who raised it, when and why, forever.

One SQLite file in write-ahead mode with full synchronisation, under a seal
(:mod:`labelveil.label_party.store.seal`). A charge is first *reserved*, then *committed* together
with the release's digest in one transaction; a reservation whose owner died is taken back at the
next start. Guarantees are stored as they state themselves, never as floats, and
budget arithmetic is theirs: exact, and refusing to add what does not add.
"""

from __future__ import annotations

import getpass
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from labelveil.common.errors import BudgetError, LabelveilError
from labelveil.common.files import PRIVATE
from labelveil.common.guarantees import Guarantee
from labelveil.common.noncopyable import NonCopyable
from labelveil.common.version import software
from labelveil.label_party.store import budget as spending
from labelveil.label_party.store import seal
from labelveil.label_party.store.entries import (
    LABELS,
    Answer,
    Cap,
    Charge,
    CommittedRelease,
    Composition,
    Covered,
    Purchase,
    Restore,
    Separation,
    State,
    Withdrawal,
    read_guarantee,
)
from labelveil.label_party.store.reading import copy
from labelveil.label_party.store.schema import prepare, transaction
from labelveil.label_party.store.seal import Seal

_OF_THE_DISK = {
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("PERM", "BUSY", "READONLY", "IOERR", "FULL", "CANTOPEN")
}
"""Errors that say nothing against what is in a ledger."""


class LedgerError(LabelveilError):
    """The ledger cannot be read or written; nothing was spent."""


class Ledger(NonCopyable):
    """An open ledger, made if it does not exist. Use it as a context manager, from one thread.

    One ``in_memory`` is a copy, of which nothing stays and which has no seal; the file's bytes are
    read, and nothing is written, so that it takes neither space on the disk nor the right to write.
    """

    def __init__(self, path: Path, *, in_memory: bool = False) -> None:
        super().__init__()
        self.path = path
        self._seal = None if in_memory else Seal(path)
        with ledger_errors(path):
            place = ":memory:" if in_memory else path
            if self._seal is not None and not path.exists():
                path.touch(PRIVATE)  # SQLite would let everybody read it
            self._database = sqlite3.connect(place, isolation_level=None, timeout=10.0)
            self._database.row_factory = sqlite3.Row
            if self._seal is None:
                copy(path, self._database)
            self._database.execute("PRAGMA foreign_keys = ON")
            self._database.execute("PRAGMA synchronous = FULL")
            if self._seal is not None:
                prepare(self._database, path, self._seal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; every later use is an error."""
        self._database.close()

    def reserve(self, purchase: Purchase, limit: Guarantee) -> Charge:
        """Set a charge aside, so that nothing else can spend it.

        ``limit`` is what the account may spend in all: its cap from the first charge on, at most
        its cap afterwards. ``BudgetError`` if the charge does not fit, the limit is above the cap,
        or the epoch has a charge for this purpose already; nothing is spent.
        """
        account = purchase.account
        with self._transaction():
            caps = self.caps(account)
            cap = caps[-1].guarantee if caps else None
            if cap is not None and not spending.at_most(limit, cap):
                raise BudgetError(
                    f"a limit of {limit} is above what account {account!r} is capped at, {cap}"
                    f" since {caps[-1].set_at[:10]}; lower [privacy] total_epsilon and total_delta,"
                    f" or run: label-party budget raise {spending.raising(cap, limit)} --reason"
                    " TEXT"
                )
            existing = self.find(*purchase.name)
            if existing is not None:
                withdrawn = self.withdrawals().get(existing.id)
                state = ", whose bytes are lost" if existing.lost else ""
                if withdrawn is not None:
                    state = f", which was withdrawn ({withdrawn.reason})"
                raise BudgetError(
                    f"data set {existing.data_set!r} has a release for epoch {existing.epoch!r}"
                    f" already{state}; name another epoch with --epoch"
                )
            spending.check_fits(self.charges(account=account), purchase, limit, cap)
            if cap is None:
                self._set_cap(account, limit, "")
            return self._insert(purchase, "reserved")

    def commit(self, charge: int, digest: str, rows: int) -> None:
        """Make a reservation final and name the bytes that it paid for, in one transaction."""
        with self._transaction() as database:
            changed = database.execute(
                "UPDATE charges SET state = 'committed', committed_at = ?, digest = ?, rows = ?"
                " WHERE id = ? AND state = 'reserved'",
                (_now(), digest, rows, charge),
            ).rowcount
            if changed != 1:
                raise LedgerError(f"reservation {charge} is not open; run the release again")

    def count(self, purchase: Purchase) -> None:
        """Record as spent what was sold under another ledger, whether or not it fits.

        For what a restored, older ledger does not know; its bytes are lost if it has no digest.
        The same epoch is never built again, and of a session nothing more is answered.
        """
        with self._transaction():
            if self.find(*purchase.name) is None:
                charge = self._insert(purchase, "committed", counted=True)
                self._close(charge, "was begun under another ledger")

    def answers(self, charge: Charge) -> list[Answer]:
        """Return what a session has answered, in this order."""
        rows = self._rows(
            "SELECT number, question, value, noise_scale FROM answers WHERE charge = ?"
            " ORDER BY number",
            (charge.id,),
        )
        return [Answer(**row) for row in rows]

    def closed(self, charge: Charge) -> str | None:
        """Return why a session answers nothing more, although it has answers left."""
        rows = self._rows("SELECT reason FROM closed WHERE charge = ?", (charge.id,))
        return str(rows[0]["reason"]) if rows else None

    def answer(self, charge: Charge, question: str, value: float, noise_scale: float) -> Answer:
        """Use up one answer of a session: it may be shown once this returns, and not before.

        What is returned counts: another process's answer, if that was faster.

        ``BudgetError`` if the session is closed, or all of its answers are used up.
        """
        with self._transaction() as database:
            given = self.answers(charge)
            for answer in given:
                if answer.question == question:
                    return answer
            reason = self.closed(charge)
            if reason is not None or len(given) >= charge.answers:
                raise BudgetError(
                    f"the session of epoch {charge.epoch!r}"
                    f" {reason or f'has given all of its {charge.answers} answers'}; name another"
                    " epoch"
                )
            answer = Answer(len(given) + 1, question, value, noise_scale)
            database.execute(
                "INSERT INTO answers (charge, number, question, value, noise_scale)"
                " VALUES (?, ?, ?, ?, ?)",
                (charge.id, answer.number, question, value, noise_scale),
            )
            return answer

    def record_restore(self, backup_made_at: str, statement: dict[str, Any]) -> None:
        """Remember that this ledger was restored from a backup, and what was stated then.

        Sessions are closed: what they have answered since is not known.
        """
        with self._transaction() as database:
            for charge in self.charges():
                self._close(charge, "was restored from a backup")
            database.execute(
                "INSERT INTO restores (backup_made_at, statement, restored_at, restored_by,"
                " software) VALUES (?, ?, ?, ?, ?)",
                (backup_made_at, _dump(statement), _now(), _who(), software()),
            )

    def restores(self) -> list[Restore]:
        """Return every restoration from a backup, oldest first."""
        rows = self._rows(
            "SELECT backup_made_at, statement, restored_at, restored_by FROM restores ORDER BY id"
        )
        return [Restore(**{**row, "statement": json.loads(row["statement"])}) for row in rows]

    def settle(self) -> list[Charge]:
        """Return the open reservations, having made sure that they are open on the disk, too.

        A commit whose sync failed was taken back here, but its pages may lie in the log and count
        when that is next recovered. So other pages take their place, before anybody deletes what
        the reservation was to pay for.
        """
        if not self.reservations():
            return []
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

    def charges(self, data_set: str | None = None, **wanted: str) -> list[Charge]:
        """Return all entries, or those of a data set, or with these columns, oldest first."""
        if data_set is not None:
            wanted["data_set"] = data_set
        where = " AND ".join(f"{column} = :{column}" for column in wanted) or "TRUE"
        rows = self._rows(f"SELECT * FROM charges WHERE {where} ORDER BY id", wanted)
        return [Charge.from_row(row) for row in rows]

    def find(self, data_set: str, epoch: str, purpose: str) -> Charge | None:
        """Return the charge of this name, whatever became of it."""
        return next(iter(self.charges(data_set, epoch=epoch, purpose=purpose)), None)

    def reservations(self) -> list[Charge]:
        """Return the charges that are set aside and not committed."""
        return self.charges(state="reserved")

    def committed(
        self, data_set: str, epoch: str | None = None, purpose: str = LABELS
    ) -> Charge | None:
        """Return what was committed for an epoch and is at hand, or the latest of the data set.

        The latest is the last in the ledger, whatever the clock said: one charge alone is open at
        a time, so that numbers ascend as commits do.
        """
        of_epoch = "" if epoch is None else "AND epoch = :epoch"
        rows = self._rows(
            "SELECT * FROM charges WHERE data_set = :data_set AND purpose = :purpose"
            f" {of_epoch} AND state = 'committed' AND digest != '' ORDER BY id DESC LIMIT 1",
            {"data_set": data_set, "purpose": purpose, "epoch": epoch},
        )
        return Charge.from_row(rows[0]) if rows else None

    def releases(self) -> list[CommittedRelease]:
        """Return every release that was committed, oldest first."""
        rows = self._rows(
            "SELECT id, data_set, epoch, coalesce(digest, '') AS digest, reason AS withdrawn"
            " FROM charges LEFT JOIN withdrawals ON charge = id"
            " WHERE purpose = ? AND state = 'committed' ORDER BY id",
            (LABELS,),
        )
        return [CommittedRelease(**row) for row in rows]

    def withdraw(self, charge: Charge, reason: str) -> tuple[Withdrawal, bool]:
        """Serve a release no more, for a reason that stays; what it spent stays spent.

        What is returned counts: an earlier one's reason, if it was withdrawn already, and whether
        it was.
        """
        with self._transaction() as database:
            new = database.execute(
                "INSERT OR IGNORE INTO withdrawals (charge, reason, withdrawn_at, withdrawn_by,"
                " software) VALUES (?, ?, ?, ?, ?)",
                (charge.id, reason, _now(), _who(), software()),
            ).rowcount
            return self.withdrawals()[charge.id], not new

    def withdrawals(self) -> dict[int, Withdrawal]:
        """Return what was withdrawn, by the charge's number."""
        rows = self._rows("SELECT charge, reason, withdrawn_at, withdrawn_by FROM withdrawals")
        return {row["charge"]: Withdrawal(*tuple(row)[1:]) for row in rows}

    def last_change(self) -> datetime | None:
        """Return what the clock said, at the latest, when something was charged."""
        (row,) = self._rows("SELECT max(coalesce(committed_at, reserved_at)) AS at FROM charges")
        return None if row["at"] is None else datetime.fromisoformat(row["at"])

    def identity(self) -> str:
        """Return the name that this ledger was given when it was made: 16 hexadecimal digits."""
        (row,) = self._rows("SELECT name FROM identity")
        return str(row["name"])

    def accounts(self) -> list[str]:
        """Return the names of all accounts that ever spent, in alphabetical order."""
        rows = self._rows("SELECT DISTINCT account FROM charges ORDER BY account")
        return [str(row["account"]) for row in rows]

    def caps(self, account: str) -> list[Cap]:
        """Return every cap that an account ever had, oldest first; the last one holds."""
        rows = self._rows(
            "SELECT guarantee, reason, set_at, set_by FROM caps WHERE account = ? ORDER BY id",
            (account,),
        )
        return [Cap(**{**row, "guarantee": read_guarantee(row["guarantee"])}) for row in rows]

    def cap(self, account: str) -> Guarantee | None:
        """Return what an account may spend in all; None if it never spent anything."""
        caps = self.caps(account)
        return caps[-1].guarantee if caps else None

    def raise_cap(self, account: str, to: Guarantee, reason: str) -> None:
        """Raise an account's cap, for a reason that stays in the ledger.

        ``BudgetError`` if the account never spent, the reason is empty, or ``to`` is not above the
        cap; ``PrivacyError`` if it is per another unit.
        """
        with self._transaction():
            cap = self.cap(account)
            if cap is None:
                raise BudgetError(
                    f"account {account!r} has no cap yet: its first charge records [privacy]"
                    " total_epsilon and total_delta; set those instead"
                )
            spending.check_unit(account, cap, to)
            if not reason.strip():
                raise BudgetError("reason='' must say why the cap is raised; set --reason TEXT")
            if not spending.at_most(cap, to) or spending.at_most(to, cap):
                raise BudgetError(
                    f"account {account!r} is capped at {cap}, and {to} is not above it; set --to to"
                    " more (a lower limit needs no command: set [privacy] total_epsilon)"
                )
            self._set_cap(account, to, reason.strip())

    def coverage(self) -> list[tuple[Charge, Covered]]:
        """Return the charges of which it is known which events they are about, oldest first."""
        return [(charge, charge.covered) for charge in self.charges() if charge.covered is not None]

    def fingerprint_secret(self) -> bytes:
        """Return the 32 secret bytes under which events are fingerprinted, made at first use."""
        query = "SELECT value FROM secrets WHERE name = 'fingerprints'"
        rows = self._rows(query)
        if not rows:
            with self._transaction() as database:
                database.execute(
                    "INSERT OR IGNORE INTO secrets (name, value) VALUES ('fingerprints', ?)",
                    (os.urandom(32),),
                )
            rows = self._rows(query)
        return bytes(rows[0]["value"])

    def separate(self, account: str, other: str, events: int, reason: str) -> None:
        """Remember why an account's charges do not count against another that shares events.

        The reason stays as it was first given; ``events`` is how many the two share by now, 0
        where nobody knows.
        """
        pair = account, other
        with self._transaction() as database:
            said = "SELECT 1 FROM separations WHERE (account, other, reason) = (?, ?, ?)"
            if database.execute(said, (*pair, reason)).fetchone() is None:
                database.execute(
                    "INSERT INTO separations (account, other, events, reason, said_at, said_by)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (*pair, events, reason, _now(), _who()),
                )
            if events:
                database.execute(
                    "UPDATE separations SET events = ?"
                    " WHERE (account, other) IN (VALUES (?, ?), (?, ?))",
                    (events, *pair, *reversed(pair)),
                )

    def separations(self) -> list[Separation]:
        """Return what was said so, oldest first."""
        rows = self._rows("SELECT * FROM separations ORDER BY id")
        return [Separation(*tuple(row)[1:]) for row in rows]

    def spent(self, account: str, limit: Guarantee) -> Guarantee | None:
        """Return what one record may have lost so far, reservations included, as a limit counts."""
        return spending.spent(self.charges(account=account), limit)

    def left(
        self, account: str, limit: Guarantee, composition: Composition = "additive"
    ) -> Guarantee | None:
        """Return what a charge of a new epoch may spend; None where that is not one number."""
        met = spending.seen_by(self.charges(account=account), composition)
        return spending.remaining(limit, spending.spent(met, limit))

    def backup(self, path: Path) -> None:
        """Write a consistent copy, with a secret of its own, while others may be writing."""
        self._lock.check_process()
        with ledger_errors(path):
            with closing(sqlite3.connect(path)) as copy:
                self._database.backup(copy)
            seal.adopt(path)

    def _set_cap(self, account: str, cap: Guarantee, reason: str) -> None:
        self._database.execute(
            "INSERT INTO caps (account, guarantee, reason, set_at, set_by, software)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (account, _dump(cap.to_json()), reason, _now(), _who(), software()),
        )

    def _close(self, charge: Charge, reason: str) -> None:
        if charge.answers:
            self._database.execute(
                "INSERT OR IGNORE INTO closed (charge, reason) VALUES (?, ?)", (charge.id, reason)
            )

    def _insert(self, purchase: Purchase, state: State, *, counted: bool = False) -> Charge:
        now, covered = _now(), purchase.covered
        values = {
            **{field.name: getattr(purchase, field.name) for field in fields(Purchase)},
            "guarantee": _dump(purchase.guarantee.to_json()),
            "request": _dump(purchase.request),
            "covered": None if covered is None else _dump(asdict(covered)),
            "state": state,
            "counted": counted,
            "who": _who(),
            "software": software(),
            "reserved_at": now,
            "committed_at": now if state == "committed" else None,
        }
        row = self._database.execute(
            f"INSERT INTO charges ({', '.join(values)})"
            f" VALUES ({', '.join(f':{name}' for name in values)}) RETURNING *",
            values,
        ).fetchone()
        return Charge.from_row(row)

    def _rows(
        self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[sqlite3.Row]:
        self._lock.check_process()  # a connection that a fork took along damages the file
        with ledger_errors(self.path):
            return self._database.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, ledger_errors(self.path):
            with transaction(self._database, "IMMEDIATE"):
                if self._seal is not None:
                    self._seal.check(self._database)
                yield self._database
                if self._seal is not None:
                    self._seal.renew(self._database)
            with suppress(sqlite3.Error):  # it is committed all the same
                # a byte that flips in the log would take a transaction away without a trace
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def ledger_errors(path: Path) -> Iterator[None]:
    """Turn the database's errors into a :class:`LedgerError` of one line."""
    try:
        yield
    except (sqlite3.Error, UnicodeError, OSError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        remedy = "restore it from a backup"
        if isinstance(error, OSError) or code in _OF_THE_DISK:
            remedy = "check the disk's space and rights"
        reason = " ".join(str(error).split())  # SQLite shows what it cannot read, lines and all
        raise LedgerError(f"ledger {path}: {reason:.200}; nothing was spent; {remedy}") from error


def _dump(data: dict[str, Any]) -> str:
    return json.dumps(data, sort_keys=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return f"uid {os.getuid()}"
