"""A release as evidence: read without believing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from labelveil.audit.verdict import Check, worst
from labelveil.common.arrays import Integers
from labelveil.common.errors import ReleaseError, not_none
from labelveil.common.release.blocks import KEY_BYTES, SUM_BYTES, decode_sums
from labelveil.common.release.folder import (
    CODES_FILE,
    MANIFEST_FILE,
    POPULATION_FILE,
    QUESTION_FILE,
    is_complete,
    read_manifest,
)
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.question import most_bytes
from labelveil.common.release.rows import Keys, keys_bytes, open_rows
from labelveil.common.release.sections import PriorSection, StatedRandomizer
from labelveil.common.release.table import read_labels

SectionT = TypeVar("SectionT", PriorSection, StatedRandomizer)


@dataclass(frozen=True, eq=False)
class Evidence:
    """A release as it lies in a directory, read without believing it."""

    directory: Path
    data: bytes  # the manifest's bytes
    manifest: Manifest  # parsed for its form alone: none of its claims has been checked
    labels: pl.DataFrame  # its rows
    public_key: Path | None = None  # of whoever should have signed it, Ed25519, PEM

    @cached_property
    def keys(self) -> Keys:
        """(n, 16) key bytes, or (n, 0) where the rows carry none."""
        if self.manifest.content.key_bytes == 0:
            return np.empty((self.labels.height, 0), dtype=np.uint8)
        return keys_bytes(self.labels["key"])

    @property
    def codes(self) -> Integers:
        """(n,) codes."""
        return self.labels["code"].to_numpy().astype(np.int64)

    @property
    def answer(self) -> Integers:
        """(G,) sums, where these were released."""
        return self.labels["sum"].to_numpy()

    @cached_property
    def question(self) -> bytes | None:
        """The question that these sums answer, if it lies beside the release or in its store."""
        sums = not_none(self.manifest.sums)
        most = most_bytes(self.manifest.population.rows)
        return self._beside(QUESTION_FILE, f"{sums.question}.question", most)

    @cached_property
    def events(self) -> Keys | None:
        """(n, 16) keys of the events: of the rows, or those submitted, if they are at hand."""
        if self.manifest.content.key_bytes:
            return self.keys
        stated = self.manifest.population
        most = KEY_BYTES * stated.rows
        data = self._beside(POPULATION_FILE, f"{stated.digest}.keys", most)
        if data is None or len(data) != most:
            return None
        return np.frombuffer(data, dtype=np.uint8).reshape(-1, KEY_BYTES)

    def _beside(self, name: str, stored: str, most: int) -> bytes | None:
        """What was submitted, as the features party keeps it, or a labels party's store: ``most``
        bytes, and one more if there are more."""
        folder = self.directory.absolute()
        paths = [folder / name]
        if len(folder.parents) > 2:  # store/releases/DATA SET/EPOCH
            store, (data_set, epoch) = folder.parents[2], folder.parts[-2:]
            paths.append(store / "populations" / data_set / epoch / stored)
        for path in paths:
            with suppress(OSError), path.open("rb") as file:
                return file.read(most + 1)
        return None

    @property
    def noisy(self) -> list[PriorSection]:
        """Histograms that labels paid for."""
        return [prior for prior in (*self.manifest.priors, *self.manifest.tables) if prior.noisy]

    @property
    def decoded(self) -> list[PriorSection]:
        """Histograms that are counted from the codes."""
        return [prior for prior in self.manifest.priors if prior.decoded]


def of_codes(evidence: Evidence) -> bool:
    """Whether codes of events were sent."""
    return evidence.manifest.sums is None


def of_sums(evidence: Evidence) -> bool:
    """Whether sums over groups were sent."""
    return evidence.manifest.sums is not None


def each(
    sections: Callable[[Evidence], Sequence[SectionT]],
) -> Callable[[Callable[[Evidence, SectionT], Check]], Callable[[Evidence], Check]]:
    """Decorator: the check of one section becomes one of all, the worst with what all found."""

    def made(check: Callable[[Evidence, SectionT], Check]) -> Callable[[Evidence], Check]:
        def run(evidence: Evidence) -> Check:
            chosen = sections(evidence)
            checks = [check(evidence, section) for section in chosen]
            if len(checks) == 1:
                return checks[0]
            verdict = worst(result.verdict for result in checks)
            found = (
                f"{', '.join(section.labels)}: {result.found}"
                for section, result in zip(chosen, checks, strict=True)
            )
            return replace(
                next(result for result in checks if result.verdict is verdict),
                found=" ".join(dict.fromkeys(found)),
            )

        return run

    return made


def read_evidence(directory: Path) -> Evidence:
    """Read a release directory, fetched or a store's, checking its form alone.

    ``ReleaseError`` if a file is missing or cannot be understood at all.
    """
    data = manifest_bytes(directory)
    manifest = Manifest.parse(data)
    return Evidence(directory, data, manifest, read_rows(directory, manifest))


def read_rows(directory: Path, manifest: Manifest) -> pl.DataFrame:
    """Rows as they lie there: keys and codes, or sums."""
    if (manifest.sums is not None) != (manifest.content.code_bytes == SUM_BYTES):
        raise ReleaseError(
            f"{directory} has rows of {manifest.content.code_bytes} bytes, where codes have 1 or 2"
            f" and sums {SUM_BYTES}"
        )
    if manifest.sums is None:
        return read_labels(directory, manifest)
    rows = open_rows(directory, manifest)
    return pl.DataFrame({"sum": decode_sums(rows.read_bytes(0, rows.rows)[1])})


def manifest_bytes(directory: Path) -> bytes:
    if not is_complete(directory):
        raise ReleaseError(
            f"{directory} holds no release; name a folder with {MANIFEST_FILE} and {CODES_FILE},"
            " or of many such"
        )
    return read_manifest(directory)
