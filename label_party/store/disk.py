"""What the labels party's files have in common: locks, syncs, and errors of one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from common import files as locks
from common.errors import LabelveilError


class StoreError(LabelveilError):
    """The store cannot be read or written; nothing was spent."""


class StoreBusy(StoreError):
    """Another process holds a lock."""


@contextmanager
def exclusive(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock that one holder alone may have; the system frees it when a process dies.

    Parameters
    ----------
    path
        The lock's file, created if need be and never removed.
    busy
        What :class:`StoreBusy` says when the lock is taken.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locks.exclusive(path, StoreBusy(busy)))
        except OSError as error:
            raise StoreError(
                f"{path} cannot be locked: {error.strerror}; nothing was spent; check the disk's"
                " space and rights, and use a local disk for [store] directory"
            ) from error
        yield


def flush(file: BinaryIO) -> None:
    """Wait until a file's bytes are on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Wait until a directory's names are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn the file system's errors into one line."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror}; nothing was spent; check the disk's"
            " space and rights, or set [store] directory"
        ) from error
