"""The message: a manifest of everything public, and one code (with its key) for every event.

A release is immutable. Its content is a sequence of rows, a 16-byte key (absent where the features
party submitted the population) and a code of one or two little-endian bytes. It is cut into blocks
of ``block_rows`` rows; a block's digest is SHA-256 over its keys followed by its codes, and the
content's digest is SHA-256 over all block digests, so that blocks can be verified one by one as
they arrive and computed in parallel. The manifest (:mod:`labelveil.common.release.manifest`) holds
those digests.

A labels party's store and a fetch keep the rows as they are sent, a store in parts; no key has a
byte if the features party submitted the population:

    keys.bin, codes.bin                   the first part
    keys-000001.bin, codes-000001.bin     the next one, and so on
"""

from __future__ import annotations

import json
from pathlib import Path

from labelveil.common.errors import ReleaseError, printable
from labelveil.common.files import file_errors, sha256_of, write_durably
from labelveil.common.release.limits import MANIFEST_BYTES

MANIFEST_FILE = "manifest.json"
LABELS_FILE = "labels.parquet"
"""The rows once more, for other programs; nothing here reads it."""
SIGNATURE_FILE = "manifest.sig"
POPULATION_FILE = "population.keys"
"""At the features party: 16 bytes for each event that it submitted, in the order of the rows."""
QUESTION_FILE = "question.bin"
"""There, too: what it asked of them."""
WITHDRAWN_FILE = "withdrawn.json"
"""Says that a labels party has withdrawn this release, and why."""
CHECK_FILE = "population.check"
"""There, too: the check of the secret that they were hashed with."""
KEYS_FILE = "keys.bin"
CODES_FILE = "codes.bin"


def part_paths(folder: Path, part: int) -> tuple[Path, Path]:
    """Files of a part's keys and codes."""
    if part == 0:
        return folder / KEYS_FILE, folder / CODES_FILE
    return folder / f"keys-{part:06}.bin", folder / f"codes-{part:06}.bin"


def is_complete(directory: Path) -> bool:
    """Whether there are a manifest and rows."""
    return all((directory / name).is_file() for name in (CODES_FILE, MANIFEST_FILE))


def mark_withdrawn(directory: Path, reason: str) -> None:
    """Note durably that a release is withdrawn; ``OSError`` if that cannot be written."""
    write_durably(directory / WITHDRAWN_FILE, json.dumps({"reason": reason}).encode())


def withdrawn_reason(directory: Path) -> str | None:
    """Why a release is withdrawn, in one line; None if it is not.

    A note that is damaged is one all the same: its reason is lost, not the fact. ``ReleaseError``
    if the disk does not say whether there is one.
    """
    path = directory / WITHDRAWN_FILE
    with file_errors(ReleaseError, f"{path} cannot be read", "; check the disk and its rights"):
        try:
            return printable(str(json.loads(path.read_bytes())["reason"]))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError, RecursionError):
            return "its note cannot be read"


def read_manifest(directory: Path) -> bytes:
    """Read the manifest of a directory that holds a complete release, and look at no row."""
    for path in (directory / MANIFEST_FILE, directory / CODES_FILE):
        if not path.is_file():
            raise ReleaseError(
                f"{path} is missing; {directory} is not a complete release: fetch it, or name"
                " another"
            )
    with (directory / MANIFEST_FILE).open("rb") as file:
        return file.read(MANIFEST_BYTES + 1)  # a longer one is refused as such when it is parsed


def check_question(folder: Path, digest: str) -> None:
    """Make sure that a folder has the question of this SHA-256, which sums are the answer to.

    ``ReleaseError`` if it is missing, or another.
    """
    path = folder / QUESTION_FILE
    if not path.is_file():
        raise ReleaseError(
            f"{path} is missing, without which nobody knows of which events the sums are; name the"
            " folder that they were submitted with, or put the question there"
        )
    with file_errors(ReleaseError, f"{path} cannot be read"):
        found = sha256_of(path)
    if found != digest:
        raise ReleaseError(
            f"{path} has SHA-256 {found}, but the labels party answered {digest}: put the question"
            " there that was submitted last before the release"
        )


def release_folders(folder: Path) -> list[Path]:
    """The releases in a folder or a whole store, by their names; none if it is one itself."""
    if (folder / MANIFEST_FILE).is_file():
        return []
    for within in ("", "*/", "releases/*/"):  # a data set; those of a store; a store
        # what a store has not published has a dot
        if manifests := sorted(folder.glob(f"{within}[!.]*/{MANIFEST_FILE}")):
            return [path.parent for path in manifests]
    return []
