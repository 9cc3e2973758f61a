"""What a power cut would take: bytes that were never synced, names in folders that were not.

A process that is killed leaves them to the system, which writes them later; a machine that is
switched off does not. So what was synced is recorded, and compared with what lies there whenever
SQLite is about to commit, a file is to be renamed, and at the end. SQLite syncs its own files.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

Exempt = Callable[[Path], bool]
"""Whether a path, relative to the folder that is looked at, promises nothing."""


class Disk:
    """What of a folder would be there after a power cut; all that it holds by now will be."""

    def __init__(self, folder: Path, exempt: Exempt) -> None:
        self.folder, self.exempt = folder, exempt
        self.moments: list[str] = []
        """What was looked at."""
        self.there: list[set[Path]] = []
        """What had a name then."""
        self.steps: list[tuple[str, Path]] = []
        """What was synced, and what names were given, in order."""
        self.lost: list[str] = []
        """What would have been lost at one of these moments."""
        self._bytes: dict[int, tuple[int, int]] = {}
        self._names: dict[int, dict[str, int]] = {}
        for path in (folder.parent, folder, *folder.rglob("*")):
            descriptor = os.open(path, os.O_RDONLY)
            self.synced(descriptor)
            os.close(descriptor)

    def synced(self, descriptor: int) -> None:
        self.steps.append(("sync", Path(f"/proc/self/fd/{descriptor}").resolve()))
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(descriptor) as entries:
                self._names[found.st_ino] = {entry.name: entry.inode() for entry in entries}
        else:
            self._bytes[found.st_ino] = (found.st_size, found.st_mtime_ns)

    def look(self, moment: str) -> None:
        """Note what a power cut at this moment would take."""
        self.moments.append(moment)
        self.there.append(set())
        for path in sorted((self.folder, *self.folder.rglob("*"))):
            relative = path.relative_to(self.folder)
            if not self.exempt(relative):
                self.there[-1].add(relative)
                if not self.named(path):
                    self.lost.append(f"the name of {relative} at {moment}")
                self._look_at_bytes(path, moment)

    def named(self, path: Path) -> bool:
        """Whether a power cut now would leave a name where it stands."""
        names = self._names.get(path.parent.stat().st_ino, {})
        return names.get(path.name) == path.stat().st_ino

    def synced_between(self, folder: Path, first: str, then: str = "") -> bool:
        """Whether a folder was synced after a name was given there, and before the next was.

        By the last time that ``first`` was given, and the first time after it that ``then`` was.
        """
        steps = [(kind, path) for kind, path in self.steps if folder in (path, path.parent)]
        start = max(n for n, (kind, path) in enumerate(steps) if path.match(first))
        names = [n for n, (_, path) in enumerate(steps) if then and path.match(then)]
        end = min([n for n in names if n > start], default=len(steps))
        return ("sync", folder) in steps[start:end]

    def renames(self, source: Path) -> None:
        """A name must not come to stand for bytes that are not there."""
        for path in (source, *source.rglob("*")):
            self._look_at_bytes(path, f"the renaming of {source.name}")

    def _look_at_bytes(self, path: Path, moment: str) -> None:
        found = path.stat()
        known = self._bytes.get(found.st_ino)
        if path.is_file() and known != (found.st_size, found.st_mtime_ns):
            self.lost.append(f"the bytes of {path.relative_to(self.folder)} at {moment}")


_watching: list[Disk] = []


def _audited(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "os.rename":  # a replacement, too
        return
    for disk in _watching:
        source, target = (Path(os.path.abspath(os.fsdecode(path))) for path in arguments[:2])
        inside = target.is_relative_to(disk.folder) and source.is_relative_to(disk.folder)
        if inside:
            parts = target.relative_to(disk.folder).parts
            # names in what is hidden, which is shown later, promise bytes as others do
            if not disk.exempt(Path(*(part.lstrip(".") for part in parts))):
                disk.renames(source)
            disk.steps.append(("rename", target))


@cache
def _hooked() -> None:
    """Have renames heard of from now on; a hook, which is called for much else, is for ever."""
    sys.addaudithook(_audited)


@contextmanager
def watching(folder: Path, exempt: Exempt) -> Iterator[Disk]:
    """Watch what happens to a folder; look at it once more at the end.

    ``exempt`` says of a path, relative to the folder, whether it promises nothing.
    """
    _hooked()
    disk, fsync, connect = Disk(folder, exempt), os.fsync, sqlite3.connect

    def recorded(file: Any) -> None:
        fsync(file)
        disk.synced(file if isinstance(file, int) else file.fileno())

    def traced(*given: Any, **named: Any) -> sqlite3.Connection:
        made = connect(*given, **named)
        made.set_trace_callback(
            lambda text: disk.look("a commit") if text.startswith("COMMIT") else None
        )
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", recorded)
        patch.setattr(sqlite3, "connect", traced)
        patch.delattr(fcntl, "F_FULLFSYNC", raising=False)  # macOS: the same by another call
        _watching.append(disk)
        try:
            yield disk
        finally:
            _watching.remove(disk)
        disk.look("the end")
