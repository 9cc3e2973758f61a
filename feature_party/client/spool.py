"""Rows on their way to disk: what has arrived and been verified survives an interruption."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO, Self

from labelveil.common.errors import ReleaseError
from labelveil.common.files import sync, writing
from labelveil.common.release.blocks import decode_codes
from labelveil.common.release.folder import (
    CODES_FILE,
    KEYS_FILE,
    LABELS_FILE,
    MANIFEST_FILE,
    WITHDRAWN_FILE,
)
from labelveil.common.release.manifest import Manifest, block_digest

PARTIAL = "partial"
_FILES = (KEYS_FILE, CODES_FILE, MANIFEST_FILE)


class Spool:
    """Keys and codes of a release being fetched, verified block by block.

    They are kept in ``partial`` below the release's directory until they are complete.
    """

    def __init__(self, directory: Path, manifest: Manifest, manifest_bytes: bytes) -> None:
        self.directory = directory
        self.folder = directory / PARTIAL
        self.manifest = manifest
        self.manifest_bytes = manifest_bytes
        self.code_bytes = manifest.content.code_bytes
        self.key_bytes = manifest.content.key_bytes
        self.block_rows = manifest.content.block_rows
        self.rows = 0
        # codes that there are; every sum is one
        self._outputs = None if manifest.sums else manifest.codebooks.outputs
        self._population = hashlib.sha256()
        self._keys = bytearray()
        self._codes = bytearray()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        stored = self.folder / MANIFEST_FILE
        if not stored.is_file() or stored.read_bytes() != self.manifest_bytes:
            for name in (KEYS_FILE, CODES_FILE):
                (self.folder / name).unlink(missing_ok=True)
            with writing(stored):
                stored.write_bytes(self.manifest_bytes)
        self._key_file = self._open(KEYS_FILE)
        self._code_file = self._open(CODES_FILE)
        self.rows = self._verified()
        for file, width in ((self._key_file, self.key_bytes), (self._code_file, self.code_bytes)):
            file.truncate(self.rows * width)
            file.seek(self.rows * width)
        return self

    def __exit__(self, *error: object) -> None:
        with writing(self.folder), self._key_file, self._code_file:
            pass  # what could not be written is tried once more

    @property
    def complete(self) -> bool:
        """Whether every row has arrived and every block's digest was right."""
        return self.rows == self.manifest.rows

    def check_room(self) -> None:
        """Refuse a release whose rows the disk has no room for, whatever its manifest claims."""
        rows = self.manifest.rows
        missing = (rows - self.rows) * (self.key_bytes + self.code_bytes)
        free = shutil.disk_usage(self.folder).free
        if missing > free:
            raise ReleaseError(
                f"the manifest states {rows:,} rows, of which {missing:,} bytes are still to come,"
                f" but {self.directory} has room for {free:,}; make room, or ask the labels party"
                " whether there are that many"
            )

    def append(self, start_row: int, keys: bytes, codes: bytes) -> int:
        """Take in a run of rows; returns how many.

        ``ReleaseError`` if the rows do not follow the last one, keys and codes disagree, or a block
        that they complete does not have the manifest's digest. Only verified blocks are then kept.
        """
        pending = self.rows + len(self._codes) // self.code_bytes
        count, rest = divmod(len(codes), self.code_bytes)
        if start_row != pending:
            raise ReleaseError(f"rows from {start_row:,} arrived where row {pending:,} was due")
        if rest or count == 0 or len(keys) != count * self.key_bytes:
            raise ReleaseError(f"{len(keys)} bytes of keys arrived with {len(codes)} of codes")
        if pending + count > self.manifest.rows:
            raise ReleaseError(
                f"{pending + count:,} rows arrived, but the manifest states {self.manifest.rows:,}"
            )
        self._keys += keys
        self._codes += codes
        while self._take_block():
            pass
        return count

    def drop_pending(self) -> None:
        """Forget rows of a block that is not complete, for a stream that starts again."""
        self._keys.clear()
        self._codes.clear()

    def finish(self) -> None:
        if not self.complete:
            raise ReleaseError(
                f"{self.rows:,} of {self.manifest.rows:,} rows have arrived;"
                " run fetch again to go on"
            )
        if self.key_bytes and self._population.hexdigest() != self.manifest.population.digest:
            raise ReleaseError("the keys do not give the manifest's population digest")
        # The manifest goes last: without it a directory is no release. Bytes go to the disk before
        # names: after a power cut a name must not stand for less than it says.
        for name in _FILES:
            sync(self.folder / name)
        # of another release that was here before
        for name in (MANIFEST_FILE, LABELS_FILE, WITHDRAWN_FILE):
            (self.directory / name).unlink(missing_ok=True)
        for name in _FILES:
            os.replace(self.folder / name, self.directory / name)
        sync(self.directory)
        shutil.rmtree(self.folder)

    def _take_block(self) -> bool:
        index = self.rows // self.block_rows
        size = min(self.block_rows, self.manifest.rows - self.rows)
        if size == 0 or len(self._codes) < size * self.code_bytes:
            return False
        with memoryview(self._keys) as all_keys, memoryview(self._codes) as all_codes:
            keys = bytes(all_keys[: size * self.key_bytes])
            codes = bytes(all_codes[: size * self.code_bytes])
        if block_digest(keys, codes) != self.manifest.content.blocks[index]:
            self.drop_pending()
            raise ReleaseError(
                f"rows {self.rows:,} to {self.rows + size:,} do not match the manifest's digest;"
                " nothing of them was kept"
            )
        del self._keys[: size * self.key_bytes], self._codes[: size * self.code_bytes]
        if self._outputs is not None:
            top = int(decode_codes(codes, self.code_bytes).max())
            if top >= self._outputs:
                raise ReleaseError(f"code {top} is outside the {self._outputs} outputs")
        self._population.update(keys)
        with writing(self.folder):
            self._key_file.write(keys)
            self._code_file.write(codes)
            self._key_file.flush()
            self._code_file.flush()
        self.rows += size
        return True

    def _open(self, name: str) -> BinaryIO:
        path = self.folder / name
        path.touch()
        return path.open("r+b")

    def _verified(self) -> int:
        """Rows in whole blocks on disk whose digests are right, from the first on."""
        rows = 0
        for digest in self.manifest.content.blocks:
            size = min(self.block_rows, self.manifest.rows - rows)
            keys = self._key_file.read(size * self.key_bytes)
            codes = self._code_file.read(size * self.code_bytes)
            if block_digest(keys, codes) != digest:
                break
            self._population.update(keys)
            rows += size
        return rows


def discard_partial(directory: Path) -> None:
    """Remove what a fetch left that died between finishing a release and clearing up."""
    shutil.rmtree(directory / PARTIAL, ignore_errors=True)
