"""Files: locks that die with their holder, atomic appearance, syncs, directories of Parquet."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from common.errors import DataError, LabelveilError


@contextmanager
def exclusive(path: Path, busy: LabelveilError) -> Iterator[None]:
    """Hold a lock that one holder alone may have.

    Parameters
    ----------
    path
        The lock's file, created if need be and never removed.
    busy
        What is raised when the lock is taken.

    Raises
    ------
    OSError
        If the file cannot be opened, or its file system knows no locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise busy from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def appearing(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Write a file under another name and give it its own at the end, or remove it.

    Parameters
    ----------
    durable
        Whether to wait until the bytes are on the disk first.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Bring a file's bytes, or a directory's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


PARQUET_SUFFIXES = (".parquet", ".pq")


def directory_files(path: Path) -> list[Path]:
    """Return the Parquet files of a directory in the order of their names, which is their rows'.

    Raises
    ------
    DataError
        If there are none.
    """
    files = sorted(
        file
        for file in path.iterdir()
        if file.suffix.lower() in PARQUET_SUFFIXES and not file.name.startswith((".", "_"))
    )
    if not files:
        raise DataError(f"{path} has no Parquet files; name a file, or a directory of *.parquet")
    return files
