"""Working space for a release that does not fit into memory: completed labels, hashed keys.

    <store>/scratch/<random>/       for its owner alone; gone when the work ends, however it ends
    <store>/scratch/<random>.lock   held by the process that works there

What it holds is as sensitive as the labels' own file. A process that is killed leaves it behind;
the next release of the same store removes it.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from label_party.store.disk import StoreBusy, exclusive, told

_LOCK = ".lock"


@contextmanager
def scratch(root: Path) -> Iterator[Path]:
    """Yield a new empty folder, after removing those of dead processes."""
    with told(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    clean(root)
    folder = root / secrets.token_hex(8)
    with exclusive(folder.with_suffix(_LOCK), f"{folder} is in use"):
        try:
            with told(folder):
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
