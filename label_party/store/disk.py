"""What the labels party's files share: locks, scratch folders, errors of one line."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from labelveil.common import files
from labelveil.common.errors import LabelveilError

_CHECK = "; nothing was spent; check the disk's space and rights"


class StoreError(LabelveilError):
    """The store cannot be read or written; nothing was spent."""


class StoreBusy(StoreError):
    """Another process holds a lock."""


@contextmanager
def exclusive(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock that one holder alone may have; the system frees it when a process dies.

    Its file is created if need be and never removed. A :class:`StoreBusy` says ``busy`` when the
    lock is taken.
    """
    with ExitStack() as held:
        remedy = f"{_CHECK}, and use a local disk for [store] directory"
        with files.file_errors(StoreError, f"{path} cannot be locked", remedy):
            held.enter_context(files.exclusive(path, StoreBusy(busy)))
        yield


def translating_errors(path: Path) -> AbstractContextManager[None]:
    """Turn the file system's errors, while something is written, into one line."""
    remedy = f"{_CHECK}, or set [store] directory"
    return files.file_errors(StoreError, f"{path} cannot be written", remedy)


_LOCK = ".lock"


@contextmanager
def scratch(root: Path) -> Iterator[Path]:
    """Yield a new empty folder, which is gone afterwards; of a dead process after ``clean``."""
    with translating_errors(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = root / secrets.token_hex(8)
    with exclusive(folder.with_suffix(_LOCK), f"{folder} is in use"):
        try:
            with translating_errors(folder):
                folder.mkdir(mode=0o700)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_suffix(_LOCK).unlink(missing_ok=True)


def clean(root: Path) -> None:
    """Remove what dead processes left; harmless beside living ones."""
    for lock in sorted(root.glob(f"*{_LOCK}")):
        with suppress(StoreBusy), exclusive(lock, "alive"):
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink(missing_ok=True)
