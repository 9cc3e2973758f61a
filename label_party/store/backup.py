"""``label-party backup``: one file with the ledger and everything that it has paid for.

    ledger.sqlite                            a copy by SQLite's online backup
    releases/…, outcomes/…                   the directories that this copy committed
    populations/…                            the submitted populations of those releases
    covered/…                                fingerprints of the events that charges are about
    backup.json                              digests of all of the above, last

It may be taken while the store is served and while something is being built: the ledger is copied
first, and what it has committed is on the disk already and never changes again. Reservations are
struck from the copy, since their bytes are not in it.

It holds what was released, and no more: no raw label, no key that parties share, and no key of any
noise; of an evaluation the answers alone. The ledger holds the secret of the fingerprints, so
anyone who has a backup can find out whether an event whose key they know was in a population; not
whether it has a label. What an old one means for the budget says :mod:`label_party.store.restore`.
"""

from __future__ import annotations

import io
import json
import os
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from common.console import progress
from common.errors import ConfigError, ReleaseError
from common.files import appearing, file_errors, sha256_of, sync
from common.version import software
from label_party.store import seal
from label_party.store.disk import StoreError
from label_party.store.entries import EVALUATION, Charge
from label_party.store.ledger import Ledger
from label_party.store.release_store import CHARGE_FILE, COVERED, LEDGER_FILE, Store, is_release

FORMAT = "labelveil-backup/1"
INDEX_FILE = "backup.json"


@dataclass(frozen=True)
class Backup:
    """What was written."""

    path: Path
    releases: int  # directories of releases and other outcomes
    size: int  # of the file, in bytes


def make_backup(store: Store, path: Path, *, quiet: bool = False) -> Backup:
    """Write a backup of a store under a new name, with a progress bar.

    ``LabelveilError`` if there is no ledger, the file exists, or it cannot be written; then no file
    is left.
    """
    if not store.ledger_path.exists():
        raise StoreError(f"{store.ledger_path} does not exist; make a release first")
    if path.exists():
        raise ConfigError(f"{path} exists already; name a new file with --to")
    with file_errors(ConfigError, f"{path} cannot be written", "; set --to"):
        with appearing(path, durable=True) as file:
            releases = _write(store, file, path.parent, quiet)
        sync(path.parent)
        return Backup(path, releases, path.stat().st_size)


def _write(store: Store, file: BinaryIO, place: Path, quiet: bool) -> int:
    digests: dict[str, str] = {}
    made = datetime.now(UTC).isoformat(timespec="seconds")
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        with tempfile.TemporaryDirectory(dir=place, prefix=".backup-") as folder:
            ledger = Path(folder) / LEDGER_FILE
            paid, covered = _copy_ledger(store, ledger)
            digests[LEDGER_FILE] = _add(archive, LEDGER_FILE, ledger)
        with progress(quiet=quiet) as bar:  # from here on: a refusal before is one line
            task = bar.add_task("Copying", total=len(paid), note="releases")
            for charge in paid:
                for source in _files(store, charge):
                    name = source.relative_to(store.directory).as_posix()
                    digests[name] = _add(archive, name, source)
                bar.advance(task)
        for digest in sorted(covered):
            name = f"{COVERED}/{digest}"
            digests[name] = _add(archive, name, store.covered / digest)
        index = {"format": FORMAT, "created": made, "software": software(), "files": digests}
        data = json.dumps(index, sort_keys=True, indent=1).encode()
        member = tarfile.TarInfo(INDEX_FILE)
        member.size, member.mode = len(data), 0o600
        archive.addfile(member, io.BytesIO(data))
    return len(paid)


def _copy_ledger(store: Store, path: Path) -> tuple[list[Charge], set[str]]:
    """Copy the ledger as of one moment, without reservations.

    Return what it has paid for, and the names of the files of the events that that is about.
    """
    with store.read_ledger() as ledger:  # of a disk that is full, too
        ledger.backup(path)
    with Ledger(path) as copy:
        for entry in copy.reservations():
            copy.abandon(entry.id)
        paid = [entry for entry in copy.charges() if not entry.lost]
        covered = {events.sha256 for _, events in copy.coverage()}
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            seal.remove(database)  # its secret is not in the backup
            database.execute("PRAGMA journal_mode = DELETE")  # one file: the log goes into it
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be written: {error}; set --to") from error
    return paid, covered


def _files(store: Store, charge: Charge) -> list[Path]:
    folder = store.folder(*charge.name)
    if charge.purpose == EVALUATION:  # labels, and the key of the noise on answers, stay here
        files = list(folder.glob(CHARGE_FILE))
    else:
        files = [path for path in folder.glob("*") if path.is_file() and path.name[0] != "."]
    if not files:
        raise ReleaseError(f"{folder} is gone; restore it from an earlier backup first")
    if is_release(charge):
        submitted = store.population(charge.data_set, charge.epoch)
        files += [
            path for path in submitted.glob("*") if path.suffix in (".json", ".keys", ".question")
        ]
    return sorted(files)


def _add(archive: tarfile.TarFile, name: str, path: Path) -> str:
    """Copy a file that never changes; return its digest."""
    with path.open("rb") as file:
        member = tarfile.TarInfo(name)
        member.size, member.mode = os.fstat(file.fileno()).st_size, 0o600
        archive.addfile(member, file)
    return sha256_of(path)
