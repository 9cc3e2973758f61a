"""Populations that the features party submitted: stored whole or not at all, replaced or frozen.

    <store>/populations/<data set>/<epoch>/
        current.json      names the list that counts, and says who sent it, and when
        <sha256>.keys     the list: 16 bytes a key, in the order in which they were sent
        <sha256>.question what is asked of these events, if anything
                          (labelveil.common.release.question)
        lock              held while lists are exchanged, and while a release is built over one
    <store>/populations/.uploads/
        <random>/         a list on its way (labelveil.label_party.store.disk)

A list counts once ``current.json`` names it, which one rename brings about after all its bytes are
on the disk. What a dead process left half done is never named, and the next one clears it up.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from labelveil.common.engine.shuffle import Keys, count_repeated
from labelveil.common.errors import DataError
from labelveil.common.files import file_errors, leftovers, sha256_of, sync, write_durably
from labelveil.common.release.blocks import KEY_BYTES
from labelveil.common.release.question import strata_at
from labelveil.label_party.store.disk import (
    StoreBusy,
    StoreError,
    clean,
    exclusive,
    scratch,
    translating_errors,
)
from labelveil.label_party.store.release_store import Store

CURRENT_FILE = "current.json"
LOCK_FILE = "lock"
UPLOADS = ".uploads"
_KEYS, _QUESTION = ".keys", ".question"


@dataclass(frozen=True)
class Submitted:
    """A stored population, as ``current.json`` describes it."""

    rows: int  # number of keys
    # hexadecimal digest of all keys in order; the release's manifest states the same one
    sha256: str
    # hexadecimal :func:`labelveil.common.release.event_keys.secret_check` of the secret that the
    # keys were hashed under
    secret_check: str
    client: str  # name of the certificate that submitted it
    submitted_at: str  # UTC, ISO 8601
    question: str = ""  # hexadecimal digest of what is asked of the events; empty for nothing


class Upload:
    """Bytes on their way to the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._digest = hashlib.sha256()
        with translating_errors(path):
            self._file = path.open("xb")

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def append(self, data: bytes) -> None:
        self._digest.update(data)
        self.size += len(data)
        with translating_errors(self.path):
            self._file.write(data)

    def seal(self) -> None:
        """Wait until every byte is on the disk."""
        with translating_errors(self.path):
            sync(self._file)

    def repeated(self) -> int:
        """Return how many rows repeat a key that occurred before."""
        keys: Keys = np.memmap(self.path, dtype=f"S{KEY_BYTES}", mode="r")
        return count_repeated(keys)

    def close(self) -> None:
        with suppress(OSError):  # the disk is full: the bytes are to be deleted anyway
            self._file.close()


class Populations:
    """The submitted populations of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def current(self, data_set: str, epoch: str) -> Submitted | None:
        """Return what is stored for an epoch, or None.

        ``StoreError`` if it is there but cannot be read.
        """
        folder = self._store.population(data_set, epoch)
        try:
            text = (folder / CURRENT_FILE).read_text(encoding="utf-8")
            submitted = Submitted(**json.loads(text))
            size = _path(folder, submitted.sha256, _KEYS).stat().st_size
            if submitted.question:
                _path(folder, submitted.question, _QUESTION).stat()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(
                f"{folder} cannot be read; restore it from a backup, or remove it and have the"
                " population submitted again"
            ) from error
        return submitted if size == submitted.rows * KEY_BYTES else None

    def epochs(self, data_set: str) -> list[str]:
        """Return the epochs of a data set that have a population."""
        pointers = self._store.populations.glob(f"{data_set}/*/{CURRENT_FILE}")
        return sorted(path.parent.name for path in pointers)

    @contextmanager
    def upload(self) -> Iterator[tuple[Upload, Upload]]:
        """Receive a list, and a question; nothing is left of them at the end unless stored."""
        with (
            scratch(self._store.populations / UPLOADS) as folder,
            closing(Upload(folder / "keys")) as keys,
            closing(Upload(folder / "question")) as question,
        ):
            yield keys, question

    @contextmanager
    def exchanging(self, data_set: str, epoch: str) -> Iterator[None]:
        """Hold an epoch's population still.

        ``StoreBusy`` if somebody else does: a release is being built over it, or another list
        stored.
        """
        folder = self._store.population(data_set, epoch)
        with translating_errors(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for parent in (folder.parent, *folder.parents[1:3]):
                sync(parent)
        busy = (
            f"the population of data set {data_set!r}, epoch {epoch!r}, is in use by another"
            " process; try again when it has finished"
        )
        with exclusive(folder / LOCK_FILE, busy):
            yield

    def store(
        self, data_set: str, epoch: str, keys: Upload, question: Upload, facts: Submitted
    ) -> None:
        """Make sealed uploads the population of an epoch; the caller is exchanging."""
        folder = self._store.population(data_set, epoch)
        with translating_errors(folder):
            keys.path.replace(_path(folder, facts.sha256, _KEYS))
            if facts.question:
                question.path.replace(_path(folder, facts.question, _QUESTION))
            sync(folder)
        self._point(folder, facts)
        self._tidy(folder, facts)

    @contextmanager
    def in_use(self, data_set: str, epoch: str) -> Iterator[Submitted]:
        """Yield an epoch's population, which nobody can replace meanwhile.

        ``DataError`` if none was submitted.
        """
        absent = DataError(
            f"no population has been submitted for data set {data_set!r}, epoch {epoch!r}; ask the"
            ' features party to run "feature-party submit" while "label-party serve" runs, or name'
            " a file in [data] population"
        )
        if self.current(data_set, epoch) is None:
            raise absent
        with self.exchanging(data_set, epoch):
            submitted = self.current(data_set, epoch)
            if submitted is None:
                raise absent
            yield submitted

    def rows_of(
        self, data_set: str, epoch: str, submitted: Submitted
    ) -> tuple[Path, int, Path | None, int | None]:
        """Return the file of a population's keys, how many these are, and its question's, verified.

        Last comes at which byte of the question the events' strata begin, if it gathers any.

        ``StoreError`` if they are not what was submitted.
        """
        folder = self._store.population(data_set, epoch)
        keys = _path(folder, submitted.sha256, _KEYS)
        _verify(keys, submitted.sha256)
        if submitted.question:
            question = _path(folder, submitted.question, _QUESTION)
            _verify(question, submitted.question)
            return keys, submitted.rows, question, strata_at(question)
        return keys, submitted.rows, None, None

    def clean(self) -> None:
        """Remove what dead processes left; harmless beside living ones."""
        root = self._store.populations
        clean(root / UPLOADS)
        with translating_errors(root):
            for lock in sorted(root.glob(f"*/*/{LOCK_FILE}")):
                with suppress(StoreBusy), exclusive(lock, "alive"):
                    kept = self.current(lock.parent.parent.name, lock.parent.name)
                    self._tidy(lock.parent, kept)

    def _point(self, folder: Path, facts: Submitted) -> None:
        with translating_errors(folder):
            write_durably(folder / CURRENT_FILE, json.dumps(asdict(facts), sort_keys=True).encode())

    def _tidy(self, folder: Path, keep: Submitted | None) -> None:
        wanted = set()
        if keep is not None:
            wanted = {_path(folder, keep.sha256, _KEYS), _path(folder, keep.question, _QUESTION)}
        there = (folder.glob(f"*{suffix}") for suffix in (_KEYS, _QUESTION))
        with translating_errors(folder):
            for path in (*chain.from_iterable(there), *leftovers(folder / CURRENT_FILE)):
                if path not in wanted:
                    path.unlink()


def _verify(path: Path, sha256: str) -> None:
    with file_errors(StoreError, f"{path} cannot be read"):
        sound = sha256_of(path) == sha256
    if not sound:
        raise StoreError(
            f"{path} is damaged: it is not what was submitted; restore it from a backup, or"
            f" remove {path.parent} and have the population submitted again"
        )


def _path(folder: Path, sha256: str, suffix: str) -> Path:
    return folder / f"{os.path.basename(sha256)}{suffix}"
