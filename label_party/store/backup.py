"""``label-party backup``: one file with the ledger and everything that it has paid for.

    ledger.sqlite                            a copy by SQLite's online backup
    backup.json                              when, by what, and the ledger's digest
    releases/…, outcomes/…                   the directories that this copy committed
    populations/…                            the submitted populations of those releases
    covered/…                                fingerprints of the events that charges are about
    digests.json                             digests of the files above, and what was not whole

It may be taken while the store is served and while something is being built: the ledger is copied
first, and what it has committed is on the disk already and never changes again. Reservations are
struck from the copy, since their bytes are not in it. What is not as the ledger knows it is left
out and named, so that damage is found while an earlier backup may still have what was there.

It holds what was released, and no more: no raw label, no key that parties share, and no key of any
noise; of an evaluation the answers alone, of a withdrawn release no row. The ledger holds the
secret of the fingerprints, so anyone who has a backup can find out whether an event whose key they
know was in a population; not whether it has a label. What an old one means for the budget says
:mod:`labelveil.label_party.store.restore`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from labelveil.common.console import progress
from labelveil.common.errors import ConfigError, ReleaseError
from labelveil.common.files import appearing, file_errors, sha256_of, sync
from labelveil.common.formats import BACKUP
from labelveil.common.release.folder import MANIFEST_FILE, SIGNATURE_FILE, WITHDRAWN_FILE
from labelveil.common.version import software
from labelveil.label_party.store import seal
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.entries import EVALUATION, LABELS, Charge
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.purchase import read_outcome
from labelveil.label_party.store.release_store import CHARGE_FILE, LEDGER_FILE, Store, is_release

FORMAT = str(BACKUP)
INDEX_FILE = "backup.json"
DIGESTS_FILE = "digests.json"
_OF_A_WITHDRAWN = (MANIFEST_FILE, SIGNATURE_FILE, WITHDRAWN_FILE)


@dataclass(frozen=True, eq=False)
class Backup:
    """What was written."""

    path: Path
    releases: int  # directories of releases and other outcomes that are in it
    size: int  # of the file, in bytes
    damaged: dict[str, str]  # what is not in it, by its name in the store, and why


@dataclass(frozen=True, eq=False)
class _Copy:
    """The ledger as of one moment, without reservations."""

    paid: list[Charge]  # what it has paid for, and was not lost
    withdrawn: set[int]  # which of these are served no more, by their number
    covered: set[str]  # names of the files of the events that charges are about


def make_backup(store: Store, path: Path, *, quiet: bool = False) -> Backup:
    """Write a backup of a store under a new name, with a progress bar.

    ``LabelveilError`` if there is no ledger, the file exists, or it cannot be written; then no file
    is left.
    """
    if not store.has_ledger() and not store.folders():
        raise StoreError(f"{store.ledger_path} does not exist; make a release first")
    if path.exists():
        raise ConfigError(f"{path} exists already; name a new file with --to")
    with file_errors(ConfigError, f"{path} cannot be written", "; set --to"):
        with appearing(path, durable=True) as file:
            releases, damaged = _write(store, file, path.parent, quiet)
        sync(path.parent)
        return Backup(path, releases, path.stat().st_size, damaged)


def why_damaged(store: Store, charge: Charge, *, withdrawn: bool = False) -> str:
    """Say why what a charge paid for is not in a store as the ledger knows it; empty if it is.

    Of an evaluation nothing is looked at, for it stays where it is, nor of what is withdrawn.
    """
    if withdrawn or charge.purpose == EVALUATION:
        return ""
    try:
        if charge.purpose == LABELS:
            store.open_release(charge)
        else:
            read_outcome(store, charge)
    except ReleaseError as error:
        return str(error)
    return ""


def _write(store: Store, file: BinaryIO, place: Path, quiet: bool) -> tuple[int, dict[str, str]]:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        written = _Archive(store, archive)
        with tempfile.TemporaryDirectory(dir=place, prefix=".backup-") as folder:
            ledger = Path(folder) / LEDGER_FILE
            copy = _copy_ledger(store, ledger)
            digest = written.add_file(LEDGER_FILE, ledger)
        # beside the ledger, so that a backup that was cut off has what is most to be missed
        written.add_json(INDEX_FILE, {"format": FORMAT, **_made(), "ledger": digest})
        with progress(quiet=quiet) as bar:  # from here on: a refusal before is one line
            task = bar.add_task("Copying", total=len(copy.paid), note="releases")
            for charge in copy.paid:
                written.add_paid(charge, withdrawn=charge.id in copy.withdrawn)
                bar.advance(task)
        for name in sorted(copy.covered):
            written.add_named(store.covered / name, name)
        written.add_json(DIGESTS_FILE, {"files": written.digests, "damaged": written.damaged})
    return written.releases, written.damaged


def _made() -> dict[str, str]:
    return {"created": datetime.now(UTC).isoformat(timespec="seconds"), "software": software()}


@dataclass(eq=False)
class _Archive:
    """What is written, and what of it was not whole."""

    store: Store
    archive: tarfile.TarFile
    releases: int = 0
    digests: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    def add_paid(self, charge: Charge, *, withdrawn: bool) -> None:
        """Copy what a charge paid for, if it is as the ledger knows it."""
        store, folder = self.store, self.store.folder(*charge.name)
        if reason := why_damaged(store, charge, withdrawn=withdrawn):
            self.damaged[self._name(folder)] = reason
            return
        for path in _files(folder, charge, withdrawn=withdrawn):
            self.add_file(self._name(path), path)
        try:
            paid = store.read_charge(folder)
            if paid.digest != charge.digest:
                raise ReleaseError(f"{folder / CHARGE_FILE} is of something else")
            self.add(self._name(folder / CHARGE_FILE), paid.to_bytes())
        except ReleaseError as error:
            self.add(self._name(folder / CHARGE_FILE), charge.to_bytes())
            if not withdrawn or folder.exists():
                self.damaged[self._name(folder / CHARGE_FILE)] = str(error)
        if is_release(charge) and not withdrawn:
            for path in sorted(store.population(charge.data_set, charge.epoch).glob("*")):
                if path.suffix in (".keys", ".question"):
                    self.add_named(path, path.stem)
                elif path.suffix == ".json":
                    self.add_file(self._name(path), path)
        self.releases += 1

    def add_named(self, path: Path, digest: str) -> None:
        """Copy a file whose name is its digest."""
        try:
            found = sha256_of(path)
        except FileNotFoundError:
            self.damaged[self._name(path)] = f"{path} is gone"
        except OSError as error:
            self.damaged[self._name(path)] = f"{path} cannot be read: {error.strerror}"
        else:
            if found == digest:
                self.add_file(self._name(path), path)
            else:
                self.damaged[self._name(path)] = f"{path} is damaged"

    def add_file(self, name: str, path: Path) -> str:
        """Copy a file that never changes; return its digest."""
        with path.open("rb") as file:
            self._member(name, file, os.fstat(file.fileno()).st_size)
        self.digests[name] = sha256_of(path)
        return self.digests[name]

    def add(self, name: str, data: bytes) -> None:
        self._member(name, io.BytesIO(data), len(data))
        self.digests[name] = hashlib.sha256(data).hexdigest()

    def add_json(self, name: str, values: dict[str, Any]) -> None:
        """Add what no digest is noted of."""
        data = json.dumps(values, sort_keys=True, indent=1).encode()
        self._member(name, io.BytesIO(data), len(data))

    def _member(self, name: str, file: Any, size: int) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        self.archive.addfile(member, file)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.store.directory).as_posix()


def _files(folder: Path, charge: Charge, *, withdrawn: bool) -> Iterator[Path]:
    """The files of a directory that a backup takes as they are."""
    if charge.purpose == EVALUATION:  # labels, and the key of the noise on answers, stay here
        return
    for path in sorted(folder.glob("*")):
        taken = path.name in _OF_A_WITHDRAWN if withdrawn else path.name != CHARGE_FILE
        if taken and path.is_file() and path.name[0] != ".":
            yield path


def _copy_ledger(store: Store, path: Path) -> _Copy:
    with store.read_ledger() as ledger:  # of a disk that is full, too
        ledger.backup(path)
    with Ledger(path) as copy:
        for entry in copy.reservations():
            copy.abandon(entry.id)
        made = _Copy(
            [entry for entry in copy.charges() if not entry.lost],
            set(copy.withdrawals()),
            {events.sha256 for _, events in copy.coverage()},
        )
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            seal.remove(database)  # its secret is not in the backup
            database.execute("PRAGMA journal_mode = DELETE")  # one file: the log goes into it
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be written: {error}; set --to") from error
    return made
