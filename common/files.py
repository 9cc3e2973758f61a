"""Files: locks that die with their holder, atomic writes, syncs, secrets, Parquet directories."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from labelveil.common.errors import ConfigError, DataError, LabelveilError


@contextmanager
def exclusive(path: Path, busy: LabelveilError) -> Iterator[None]:
    """Hold a lock that one holder alone may have; raise ``busy`` where it is taken.

    Its file is created if need be and never removed. ``OSError`` if that cannot be opened, or its
    file system knows no locks.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise busy from error
        yield


PRIVATE, PUBLIC = 0o600, 0o666
"""Modes of new files; the umask takes from both."""


_SYSTEM = re.compile(r"\(os error (\d+)\)")
_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def no_room(error: BaseException) -> OSError | None:
    """Return the system's word that there is no room, also where Polars hides it in a text."""
    if isinstance(error, OSError) and error.errno:
        return error if error.errno in _ROOM else None
    hidden = isinstance(error, OSError) or type(error).__module__ == "polars.exceptions"
    said = _SYSTEM.search(str(error)) if hidden else None
    number = int(said[1]) if said else 0
    return OSError(number, os.strerror(number)) if number in _ROOM else None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Let an error say which file cannot be written: a write to an open file does not."""
    try:
        yield
    except Exception as error:
        found = no_room(error) or error
        if isinstance(found, OSError) and found.errno and not found.filename:
            found.filename = str(path)
        if found is error:
            raise
        raise found from error


@contextmanager
def appearing(path: Path, *, durable: bool = False, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """Write a file under another name and give it its own at the end, or remove it.

    A link stays one: what it leads to is replaced. A device or a pipe takes the bytes as they come.
    Where ``durable``, the bytes are on the disk before the file gets its name; the name itself is
    there once the directory is synced, too.
    """
    path = Path(os.path.realpath(path))
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with writing(path):
            if path.exists() and not path.is_file():
                with path.open("wb") as file:
                    yield file
                return
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                yield file
                if durable:
                    sync(file)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def file_errors(kind: type[LabelveilError], failed: str, remedy: str = "") -> Iterator[None]:
    """Turn the file system's errors into one line: what failed, the reason, and what to do."""
    try:
        yield
    except Exception as error:
        found = no_room(error) or error
        if not isinstance(found, OSError):
            raise
        raise kind(f"{failed}: {found.strerror or found}{remedy}") from error


def write_text(path: Path, text: str) -> None:
    """Write a file for everybody at once, and its folder where that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with appearing(path, mode=PUBLIC) as file:
        file.write(text.encode())


def read_private(path: Path, what: str) -> bytes:
    """Read a key file, which its owner alone may be able to read.

    Of a file that is root's, a group may read: mounted secrets are given to a process so.
    ``ConfigError``, which calls it ``what``, such as ``key secret``, if others can read or write
    it, or it is no file; ``OSError`` if it cannot be read.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        borrowed = status.st_uid == 0 and os.geteuid() != 0
        most = 0o640 if borrowed else 0o600
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{what} {path} is not a file; name one")
        if stat.S_IMODE(status.st_mode) & ~most & 0o077:
            raise ConfigError(
                f"{what} {path} has mode {stat.S_IMODE(status.st_mode):04o}, which lets others use"
                f" it; run chmod {most:o} {path}"
            )
        return file.read()


def leftovers(path: Path) -> list[Path]:
    """Files that writers of ``path`` left when they died; only for who knows that none is alive."""
    return list(path.parent.glob(f".{glob.escape(path.name)}.*"))


def write_durably(path: Path, data: bytes) -> None:
    """Write a private file at once, and wait until its bytes and its name are on the disk."""
    with appearing(path, durable=True) as file:
        file.write(data)
    sync(path.parent)


def append_durably(path: Path, data: bytes) -> None:
    """Append to a private file in one write, and wait until its bytes and name are on the disk."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with os.fdopen(os.open(path, flags, PRIVATE), "ab", buffering=0) as file:
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)
    sync(path.parent)


def sync(what: Path | BinaryIO) -> None:
    """Bring to the disk: the bytes of a file, by its path or open, or a directory's names."""
    if not isinstance(what, Path):
        what.flush()
    descriptor = os.open(what, os.O_RDONLY) if isinstance(what, Path) else os.dup(what.fileno())
    try:
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS, whose fsync leaves them in the drive's memory
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def widen_pipe(descriptor: int, size: int) -> None:
    """Let a pipe hold that number of bytes, where the system can (Linux) and allows it."""
    with suppress(OSError, AttributeError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, size)


PARQUET_SUFFIXES = (".parquet", ".pq")


_LOGS = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}


def directory_files(path: Path) -> list[Path]:
    """Parquet files of a directory, and of those below it that are called ``name=value``.

    They come by their names, as their rows do. ``DataError`` without any, or if it is a table of a
    lake whose log alone says which of the files count.
    """
    for log, lake in _LOGS.items():
        if (path / log).is_dir():
            raise DataError(
                f"{path} is a table of {lake}, whose folder keeps rows that were deleted; write its"
                " rows to a folder of Parquet first, and name that"
            )
    files = sorted(_below(path))
    if not files:
        raise DataError(f"{path} has no Parquet files; name a file, or a directory of *.parquet")
    return files


def _below(path: Path) -> Iterator[Path]:
    for file in path.iterdir():
        if file.name.startswith((".", "_")):
            continue
        if file.suffix.lower() in PARQUET_SUFFIXES:
            yield file
        elif "=" in file.name and file.is_dir():
            yield from _below(file)


def refuse_pipe(path: Path) -> None:
    """Raise a ``DataError`` if a path is what gives its bytes once: data are read several times."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(
            f"{path} is a pipe or a device, and is read more than once; write it to a file, and"
            " name that"
        )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
