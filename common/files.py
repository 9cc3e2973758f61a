"""Locks between processes of one machine, which the system frees when their holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import LabelveilError


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
