"""The manifest of a release: everything about it that is public, and the check of its claims.

The manifest's own bytes are written once and never re-serialised: SHA-256 over them identifies the
release. Anyone who receives them recomputes every guarantee from the integers that they hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from labelveil.common.errors import ConfigError, PrivacyError, ReleaseError
from labelveil.common.formats import RELEASE, known_software
from labelveil.common.release.blocks import SUM_BYTES
from labelveil.common.release.folder import MANIFEST_FILE, read_manifest
from labelveil.common.release.limits import block_rows_for
from labelveil.common.release.stated_message import StatedMessage
from labelveil.common.release.strict_json import parse_json

FORMAT: Final = "labelveil-release/3"


class OlderForm(ReleaseError):
    """A manifest of format 1 in a form that is read no more."""


class Manifest(StatedMessage):
    """Everything that is public about one release.

    Format 2 is as 3, but has no sums. Format 1 is as 2, but says neither
    ``population.secret_check`` nor anything ``optional``.
    """

    format: Literal["labelveil-release/1", "labelveil-release/2", "labelveil-release/3"]
    software: str = Field(pattern=r"^labelveil/[0-9A-Za-z.+-]{1,40}$")
    optional: dict[str, Any] = Field(default_factory=dict)
    """What a later version says besides, and a reader may skip: all of it is unknown here."""

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        number = RELEASE.number_of(self.format) or 0
        if number < 3 and self.sums:
            raise ValueError("formats 1 and 2 have no sums")
        first = number == 1
        if first and (self.population.secret_check or self.optional):
            raise ValueError("format 1 says neither secret_check nor anything optional")
        if not first and self.population.secret_check is None:
            raise ValueError("population.secret_check is missing")
        return self

    def to_bytes(self) -> bytes:
        """Canonical JSON: sorted keys, no white space, UTF-8; no member for what is not said."""
        document = self.model_dump(mode="json")
        for name in ("optional", "sums"):
            if not document[name]:
                del document[name]
        if self.content.rows is None:
            del document["content"]["rows"]
        if self.population.secret_check is None:
            del document["population"]["secret_check"]
        text = json.dumps(
            document,
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )
        return text.encode()

    @classmethod
    def parse(cls, data: bytes, reader: str = "") -> Manifest:
        """Read a manifest without believing it: its form is checked, none of its claims.

        ``reader`` is who reads, for a line that says who must update.

        ``ReleaseError`` if it says anything that a manifest has no place for, or in a format that
        is not read here.
        """
        document = parse_json(data)
        stated = document.get("format") if type(document) is dict else None
        made_by = document.get("software") if type(document) is dict else None
        update = f"{reader} must update labelveil" if reader else "update labelveil here"
        number = RELEASE.check(stated, "the manifest", ReleaseError, update=update, made_by=made_by)
        try:
            return cls.model_validate(document, strict=True)
        except (ValidationError, PrivacyError, ConfigError) as error:
            if isinstance(error, ValidationError):  # whose text shows all that it is about
                first = error.errors(include_input=False, include_context=False)[0]
                where = ".".join(str(part) for part in first["loc"])
                reason = f"{where or 'document':.100}: {first['msg']:.300}"
            else:
                reason = str(error)
            text = f"the manifest is not a {stated} manifest: {reason}"
            if number == 1:
                raise OlderForm(
                    f"{text}; format 1 had several forms, of which the last is read here; the"
                    f" version that made it reads it: {known_software(made_by) or 'an older one'}"
                ) from error
            raise ReleaseError(text) from error

    @classmethod
    def from_bytes(cls, data: bytes, reader: str = "") -> Manifest:
        """Read a manifest and check every claim that it makes about itself.

        ``reader`` as of :meth:`parse`.

        ``ReleaseError`` if it is malformed, or a guarantee is not what its own integers give.
        """
        manifest = cls.parse(data, reader)
        manifest.check()
        if manifest.to_bytes() != data:  # or the way in which it is written could tell something
            raise ReleaseError("the manifest is not in canonical form: sorted keys, no white space")
        return manifest

    def check(self) -> None:
        """Recompute every guarantee and digest from the manifest's own numbers, exactly."""
        try:
            self.check_spent()
            self._check_layout()
        except (PrivacyError, ConfigError) as error:
            raise ReleaseError(f"the manifest contradicts itself: {error}") from error

    def _check_layout(self) -> None:
        if self.population.submitted != (self.content.key_bytes == 0):
            raise ReleaseError(
                f"keys of {self.content.key_bytes} bytes for {self.population.keys!r} keys;"
                " only a submitted population goes without"
            )
        most = block_rows_for(self.rows)
        if self.content.block_rows > most:  # a reader holds a whole block
            raise ReleaseError(f"blocks of {self.content.block_rows:,} rows, more than {most:,}")
        blocks = -(-self.rows // self.content.block_rows)
        if len(self.content.blocks) != blocks:
            raise ReleaseError(f"{len(self.content.blocks)} block digests for {blocks} blocks")
        if content_digest(self.content.blocks) != self.content.digest:
            raise ReleaseError("the block digests do not give the content digest")
        sums, width = self.sums, self.content.code_bytes
        if (groups := None if sums is None else sums.groups) != self.content.rows:
            raise ReleaseError(f"{self.content.rows} rows for {groups} sums")
        if sums is not None and width != SUM_BYTES:
            raise ReleaseError(f"sums of {width} bytes must have {SUM_BYTES}")
        if sums is None and width != self.codebooks.code_bytes:
            raise ReleaseError(f"codes of {width} bytes for {self.codebooks.outputs} outputs")


def manifest_digest(data: bytes) -> str:
    """SHA-256 of a manifest's bytes, hexadecimal: the identity of a release."""
    return hashlib.sha256(data).hexdigest()


def content_digest(blocks: Iterable[str]) -> str:
    """SHA-256 over the block digests, hexadecimal."""
    return hashlib.sha256(b"".join(bytes.fromhex(block) for block in blocks)).hexdigest()


def block_digest(keys: bytes | memoryview, codes: bytes | memoryview) -> str:
    """SHA-256 over one block's keys followed by its codes, hexadecimal."""
    digest = hashlib.sha256(keys)
    digest.update(codes)
    return digest.hexdigest()


@lru_cache(maxsize=16)
def checked_manifest(data: bytes) -> Manifest:
    """Read a manifest as :meth:`Manifest.from_bytes`, but the same bytes once: what was estimated
    from its histograms is kept with it. Nobody changes it."""
    return Manifest.from_bytes(data)


def manifest_in(folder: Path) -> Manifest:
    """Read the manifest of a folder with a complete release; its file is named in what is wrong."""
    with naming_manifest(folder):
        return checked_manifest(read_manifest(folder))


@contextmanager
def naming_manifest(folder: Path) -> Iterator[None]:
    """Name the file of a manifest that is read in what is wrong with it, and say what to do."""
    path = folder / MANIFEST_FILE
    try:
        yield
    except ReleaseError as error:
        # what reading said of files stays, and so does an older form, which is not damaged
        if type(error) is not ReleaseError or str(folder) in str(error):
            raise
        raise ReleaseError(f"{path}: {error}; fetch the release again if it is damaged") from error
