"""The store: immutable release directories beside the ledger that pays for them.

    <store>/ledger.sqlite
    <store>/lock                              held by the one process that builds
    <store>/releases/<data set>/<epoch>/      manifest.json, keys.bin, codes.bin; of more rows than
                                              PART_ROWS also keys-000001.bin, codes-000001.bin, …
                                              charge.json, what the ledger has of it;
                                              withdrawn.json, if it is served no more
    <store>/scratch/                          completed labels on their way
    (labelveil.label_party.store.disk) <store>/outcomes/<data set>/<epoch>/<purpose>/
    outcome.bin, charge.json; of a session also
                                              answered.log, the questions whose answers were shown
    <store>/covered/                          fingerprints of the events that charges are about
    <store>/populations/                      what the features party submitted

A directory appears by one rename, after all its bytes are on the disk, and is shown to nobody until
the ledger has committed its digest. What a dead process left half done, and what the ledger does
not know, is settled by the next process that holds the lock
(:mod:`labelveil.label_party.store.recovery`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path

from labelveil.common.errors import ReleaseError
from labelveil.common.files import file_errors, sync, write_durably
from labelveil.common.release.blocks import block_ranges
from labelveil.common.release.folder import MANIFEST_FILE, SIGNATURE_FILE, part_paths
from labelveil.common.release.heading import read_heading
from labelveil.common.release.manifest import Manifest, block_digest, manifest_digest
from labelveil.label_party.store.disk import StoreError, exclusive, translating_errors
from labelveil.label_party.store.entries import LABELS, Charge, CommittedRelease
from labelveil.label_party.store.ledger import Ledger

PART_ROWS = 1 << 22
"""Rows of a part of a release, a multiple of a block's."""

LEDGER_FILE = "ledger.sqlite"
LOCK_FILE = "lock"
RELEASES = "releases"
POPULATIONS = "populations"
COVERED = "covered"
SCRATCH = "scratch"
RESTORING = ".restoring"
OUTCOMES = "outcomes"
OUTCOME_FILE = "outcome.bin"
CHARGE_FILE = "charge.json"
ANSWERED_FILE = "answered.log"
_PARTIAL = ".partial-"


class Store:
    """Release directories and the ledger's place.

    A ledger that one of these has met stays the only one that it begins, or goes on with: where it
    is gone, as with a disk that is not mounted any more, nothing is bought.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._met_ledger = False
        self.ledger_path = directory / LEDGER_FILE
        self.scratch = directory / SCRATCH  # what is being worked on
        self.covered = directory / COVERED  # fingerprints of events that have paid
        self.populations = directory / POPULATIONS  # what the features party submitted
        self.restoring = directory / RESTORING  # there until a backup is restored

    def create(self) -> None:
        """Make the directories, for their owner alone; harmless if they exist."""
        with translating_errors(self.directory):
            # what lies above and was there is made, and so kept, by others
            above = [self.directory.parent]
            above += [path.parent for path in self.directory.parents if not path.exists()]
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.directory / RELEASES).mkdir(mode=0o700, exist_ok=True)
            sync(self.directory)
            for path in above:
                with suppress(PermissionError):  # a folder that we may use, and not list
                    sync(path)

    def remove_if_empty(self) -> None:
        """Remove the directories again as far as nothing lies in them."""
        for folder in (self.scratch, self.directory / RELEASES, self.directory):
            with suppress(OSError):
                folder.rmdir()

    def open_ledger(self) -> Ledger:
        """Open the ledger, which is created with the store's first release.

        ``StoreError`` if it is gone.
        """
        if not self.directory.is_dir():
            raise StoreError(
                f"{self.directory} does not exist; make a release first, or set [store] directory"
            )
        self.check_ledger()
        return Ledger(self.ledger_path)

    def read_ledger(self) -> Ledger:
        """Open a copy of the ledger in memory, empty if nothing was ever sold; nothing is written.

        ``StoreError`` if it is gone.
        """
        self.check_ledger()
        return Ledger(self.ledger_path, in_memory=True)

    def has_ledger(self) -> bool:
        """Whether a ledger's file is there, and not empty."""
        try:
            return self.ledger_path.stat().st_size > 0
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # opening it will say why
            return True

    def check_ledger(self) -> None:
        """Raise a ``StoreError`` if the ledger is gone: beside what it sold, none is new."""
        if self.has_ledger():
            self._met_ledger = True
        elif self._met_ledger:
            raise StoreError(
                f"ledger {self.ledger_path} was there, and is gone: nobody can say what was spent;"
                " bring it back (is its disk mounted?) or restore a backup with label-party restore"
            )
        # looked at twice: the first one of all may be made meanwhile, and before any directory
        elif (folders := self.folders()) and not self.has_ledger():
            raise StoreError(
                f"ledger {self.ledger_path} is gone, but {len(folders)} of the releases and answers"
                " that it paid for are there: nobody can say what was spent; restore it with"
                " label-party restore BACKUP, or, if there is no backup, from what is there, with"
                " label-party restore"
            )
        elif self.restoring.exists() and not self.has_ledger():
            raise StoreError(
                f"a restore of {self.directory} was begun and has not ended: a ledger that began"
                " now would count nothing of what its backup knows; run label-party restore again,"
                f" or, if nothing is to be restored, remove {self.restoring}"
            )

    def building(self) -> AbstractContextManager[None]:
        """Hold the lock that only one process may hold; the system frees it when a process dies.

        ``StoreBusy`` if another process is building.
        """
        busy = (
            f"another process is building a release in {self.directory};"
            " try again when it has finished"
        )
        return exclusive(self.directory / LOCK_FILE, busy)

    def folders(self) -> list[Path]:
        """Return every directory of a release or another outcome, whole or half written."""
        releases = (self.directory / RELEASES).glob("*/*")
        outcomes = (self.directory / OUTCOMES).glob("*/*/*")
        return sorted([*releases, *outcomes])

    @staticmethod
    def is_partial(path: Path) -> bool:
        """Whether a directory was never given its name."""
        return path.name.startswith(_PARTIAL)

    def path(self, data_set: str, epoch: str) -> Path:
        """Return a release's directory. Names come from a checked configuration or the ledger."""
        return _place(self.directory / RELEASES, data_set, epoch)

    def population(self, data_set: str, epoch: str) -> Path:
        """Return the directory of an epoch's submitted population."""
        return _place(self.populations, data_set, epoch)

    def folder(self, data_set: str, epoch: str, purpose: str) -> Path:
        """Return where the bytes lie that a charge paid for."""
        if purpose == LABELS:
            return self.path(data_set, epoch)
        return _place(self.directory / OUTCOMES, data_set, epoch) / outcome_name(purpose)

    def write_outcome(self, data_set: str, epoch: str, purpose: str, data: bytes) -> None:
        """Write an outcome, wait for the disk, give it its name."""
        path = self.folder(data_set, epoch, purpose)
        partial = _partial(path)
        with translating_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.mkdir(mode=0o700)
            write_durably(partial / OUTCOME_FILE, data)  # private: an evaluation's holds labels
            partial.rename(path)
            for above in list(path.parents)[:4]:
                sync(above)

    def remove(self, data_set: str, epoch: str, purpose: str) -> None:
        """Delete what was written and is not paid for; an error if some of it stays."""
        path = self.folder(data_set, epoch, purpose)
        with translating_errors(path):
            for part in (path, _partial(path)):
                with suppress(FileNotFoundError):
                    shutil.rmtree(part)

    def writer(self, data_set: str, epoch: str) -> ReleaseWriter:
        """Begin a release directory under a temporary name."""
        return ReleaseWriter(self.path(data_set, epoch))

    def open_release(self, charge: Charge | CommittedRelease) -> StoredRelease:
        """Open and verify a committed release.

        ``ReleaseError`` if its bytes are not those that were committed.
        """
        return StoredRelease(self.folder(*charge.name), charge.digest)

    def read_charge(self, path: Path) -> Charge:
        """Read what paid for a directory; a ``ReleaseError`` if it is not said, or of another."""
        try:
            charge = Charge.from_bytes((path / CHARGE_FILE).read_bytes())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ReleaseError(f"{path / CHARGE_FILE} is gone or damaged") from error
        if self.folder(*charge.name) != path:
            raise ReleaseError(f"{path} holds something of another name")
        return charge

    def read_manifest(self, charge: Charge) -> Manifest:
        """Read the manifest of a committed release, without its rows.

        ``ReleaseError`` if it is not the one that was committed.
        """
        return Manifest.from_bytes(_read_manifest(self.folder(*charge.name), charge.digest))


class ReleaseWriter:
    """Writes one release: rows, then the manifest, then all to the disk, then visible at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = _partial(path)
        self._parts = 0
        with translating_errors(path):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            sync(path.parent.parent)
            self._partial.mkdir(mode=0o700)

    @property
    def folder(self) -> Path:
        """A folder of the release's disk, for files that it is to :meth:`adopt`."""
        return self._partial

    def adopt(self, keys: Path, codes: Path) -> None:
        """Take in the next part: two files of the same disk whose bytes are on it already."""
        with translating_errors(self._path):
            for old, new in zip((keys, codes), part_paths(self._partial, self._parts), strict=True):
                old.rename(new)
        self._parts += 1

    def finish(self, manifest: bytes, signature: bytes = b"") -> None:
        """Write the manifest, with its signature if it has one, and wait for the disk."""
        with translating_errors(self._path):
            for name, data in ((MANIFEST_FILE, manifest), (SIGNATURE_FILE, signature)):
                if data:
                    write_durably(self._partial / name, data)

    def publish(self) -> None:
        """Give the directory its name. Nobody is served from it before the ledger commits."""
        with translating_errors(self._path):
            self._partial.rename(self._path)
            sync(self._path.parent)


class StoredRelease:
    """A release on the disk, verified when opened, read at any row by any number of threads.

    Of the manifest, its SHA-256 (``digest``) and what it says of the rows are kept in memory, and
    nothing else. ``ReleaseError`` if the bytes are not those of that digest.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self._path = path
        self.digest, self.heading = digest, read_heading(_read_manifest(path, digest))
        with _reading(path):
            self._find_parts()
            self._verify()

    @property
    def manifest_bytes(self) -> bytes:
        """The manifest, read again and verified again."""
        return _read_manifest(self._path, self.digest)

    @cached_property
    def manifest(self) -> Manifest:
        """The whole manifest, for who does more than serve."""
        return Manifest.from_bytes(self.manifest_bytes)

    @property
    def rows(self) -> int:
        return self.heading.rows

    @property
    def signature(self) -> bytes:
        """The manifest's signature, read again, for it may come later; empty if there is none."""
        try:
            return (self._path / SIGNATURE_FILE).read_bytes()
        except FileNotFoundError:
            return b""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: its key and its code."""
        return self.heading.content.key_bytes + self.heading.content.code_bytes

    def read(self, start: int, stop: int) -> tuple[bytes, bytes]:
        """Return keys and codes of rows ``start`` to ``stop``."""
        content = self.heading.content
        keys: list[bytes] = []
        codes: list[bytes] = []
        while start < stop:
            part, first = divmod(start, self._part_rows)
            count = min(stop - start, self._part_rows - first)
            for found, path, state, width in zip(
                (keys, codes),
                part_paths(self._path, part),
                self._states[part],
                (content.key_bytes, content.code_bytes),
                strict=True,
            ):
                found.append(_read(path, state, first * width, count * width))
            start += count
        return b"".join(keys), b"".join(codes)

    def _find_parts(self) -> None:
        """Look at every part: all but the last have as many rows as the first."""
        content, rows = self.heading.content, 0
        self._states: list[list[_State]] = []
        while rows < self.rows:
            paths = part_paths(self._path, len(self._states))
            self._states.append([_state(path.stat()) for path in paths])
            keys, codes = (state[0] for state in self._states[-1])
            count = codes // content.code_bytes
            if rows == 0:
                self._part_rows = count
            whole = (keys, codes) == (count * content.key_bytes, count * content.code_bytes)
            if not whole or not count or count != min(self._part_rows, self.rows - rows):
                raise self._damaged()
            rows += count

    def _verify(self) -> None:
        content = self.heading.content
        for index, (start, stop) in enumerate(block_ranges(self.rows, content.block_rows)):
            if block_digest(*self.read(start, stop)) != content.blocks[index]:
                raise self._damaged()

    def _damaged(self) -> ReleaseError:
        return ReleaseError(
            f"{self._path} is damaged: its rows do not match its manifest; restore it from a backup"
        )


def _read_manifest(folder: Path, digest: str) -> bytes:
    data = read_paid(folder / MANIFEST_FILE)
    if manifest_digest(data) != digest:
        raise ReleaseError(
            f"{folder} is not the release that the ledger committed; restore it from a backup"
        )
    return data


def read_paid(path: Path) -> bytes:
    """Read a file that a charge paid for, whole; a ``ReleaseError`` if it cannot be read."""
    with _reading(path):
        return path.read_bytes()


def _reading(path: Path) -> AbstractContextManager[None]:
    return file_errors(ReleaseError, f"{path} cannot be read", "; restore it from a backup")


def outcome_name(purpose: str) -> str:
    return hashlib.sha256(purpose.encode()).hexdigest()[:16]


def is_release(entry: Charge) -> bool:
    """Whether an entry paid for a directory of ``releases``; other purposes lie elsewhere."""
    return entry.state == "committed" and entry.purpose == LABELS


def _place(root: Path, data_set: str, epoch: str) -> Path:
    for name in (data_set, epoch):
        if not name or name.startswith(".") or "/" in name:
            raise StoreError(f"{name!r} cannot be the name of a release")
    return root / data_set / epoch


def _partial(path: Path) -> Path:
    return path.parent / (_PARTIAL + path.name)


_State = tuple[int, int, int, int]
"""What tells a file from another, and from itself written again; its size first."""


def _state(stat: os.stat_result) -> _State:
    return stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_dev


def _read(path: Path, state: _State, offset: int, size: int) -> bytes:
    """Read a part of a file, which must be the one that was verified."""
    with path.open("rb") as file:
        if _state(os.fstat(file.fileno())) != state:
            raise ReleaseError(f"{path} has changed since it was verified; start serving anew")
        file.seek(offset)
        return file.read(size)
