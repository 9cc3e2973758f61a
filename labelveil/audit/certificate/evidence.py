"""A release as evidence: read without believing it, and what its manifest says about itself."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from labelveil.audit.attacks.exact_channel import WORDS
from labelveil.audit.verdict import Check, worst
from labelveil.common.arrays import Integers
from labelveil.common.errors import PrivacyError, ReleaseError, not_none
from labelveil.common.exact.channel import BETWEEN
from labelveil.common.exact.rational import parse_rational
from labelveil.common.guarantees import PureDP
from labelveil.common.release.blocks import KEY_BYTES, SUM_BYTES, decode_sums
from labelveil.common.release.claims import PureClaim
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
from labelveil.common.release.sections import (
    DriftSection,
    PriorSection,
    StatedRandomizer,
    SumsSection,
)
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
        return noisy_histograms(self.manifest)

    @property
    def decoded(self) -> list[PriorSection]:
        """Histograms that are counted from the codes."""
        return [prior for prior in self.manifest.priors if prior.decoded]


def noisy_histograms(manifest: Manifest) -> list[PriorSection]:
    """Those that labels paid for, of strata included."""
    return [prior for prior in (*manifest.priors, *manifest.tables) if prior.noisy]


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


CONTENT = (
    *("population.rows", "content.code_bytes", "content.key_bytes"),
    *("content.rows", "content.block_rows", "content.blocks", "content.digest"),
)
"""Fields that describe the rows."""


def claimed_epsilon(manifest: Manifest) -> float | None:
    """ε of the whole release as claimed, if that is a number."""
    try:
        total = manifest.total_guarantee
    except PrivacyError:
        return None
    return total.epsilon if isinstance(total, PureDP) else None


def label_epsilon(manifest: Manifest) -> float:
    """ε of one event's labels as claimed."""
    return manifest.labels_guarantee.epsilon / manifest.privacy.records_per_unit


def facts(manifest: Manifest, digest: str) -> dict[str, str]:
    """What the manifest says about itself, for the report's table."""
    return {
        "data set": manifest.data_set,
        "epoch": manifest.epoch,
        "identity (SHA-256 of the manifest)": digest,
        "software": manifest.software,
        "events": f"{manifest.population.rows:,}",
        "label": "; ".join(
            f"{label.name}, {len(label.grid)} grid points from {label.grid[0]:g} to"
            f" {label.grid[-1]:g}"
            for label in manifest.labels
        ),
        **_sent_facts(manifest),
        "a missing label counts as": "; ".join(f"{label.missing!r}" for label in manifest.labels),
        "ε requested": f"{manifest.privacy.requested_epsilon:g}",
        "protects": f"one {manifest.privacy.total['unit']}, at most"
        f" {manifest.privacy.records_per_unit} labels",
    }


def _sent_facts(manifest: Manifest) -> dict[str, str]:
    if manifest.sums is not None:
        return _sums_facts(manifest, manifest.sums)
    return {
        "randomizer": "; ".join(
            f"{stated.name}, {len(stated.channel.get('outputs', []))} outputs"
            + of_labels(manifest, stated.labels)
            for stated in manifest.randomizers
        ),
        "options": options_in_words(manifest),
        **_prior_facts(manifest),
        "ε for the labels": shown([stated.guarantee for stated in worst_stratum(manifest)]),
    }


def _prior_facts(manifest: Manifest) -> dict[str, str]:
    named: dict[str, str] = {}
    if manifest.strata:
        named["strata"] = f"{len(manifest.strata)}, each with channels of its own: " + ", ".join(
            stratum.name for stratum in manifest.strata
        )
    match manifest.prior_source:
        case "public":
            cost = "0: a public prior takes its place"
        case "question":
            cost = "0: what was asked says what is expected of each stratum"
        case "codes":
            cost = "0: decoded from the codes"
        case "earlier":
            origin = not_none(manifest.drift).in_force
            cost = f"0: that of epoch {origin.epoch}, {origin.manifest}"
        case _:
            counted = (*manifest.priors, *manifest.tables)
            cost = shown([prior.guarantee for prior in counted])
    return {**named, "ε for the histogram": cost, **_drift_facts(manifest.drift)}


def _drift_facts(drift: DriftSection | None) -> dict[str, str]:
    if drift is None:
        return {}
    if drift.test is None:
        return {"test for drift": "none: the session's hits are spent"}
    charged = "" if drift.test.session is None else ", charged to a session over all epochs"
    return {
        "ε of the test for drift": shown([drift.test.guarantee]) + charged,
        "tested against": f"{drift.in_force.epoch}, {drift.in_force.manifest}",
    }


def _sums_facts(manifest: Manifest, sums: SumsSection) -> dict[str, str]:
    squares = sum(stated.groups for stated in sums.widths if stated.squares)
    return {
        "sums": f"{sums.groups:,} groups"
        + (f", {squares:,} of them of squares" if squares else "")
        + f"; {len(sums.offsets)} offsets, weights of at most {max(sums.largest_weight, 1):,}",
        "the question tells of an event": f"at most {manifest.question_bits:.3g} bits",
        "ε for the sums": f"{float(parse_rational(sums.guarantee['epsilon'])):.6g}",
    }


def plots(manifest: Manifest) -> dict[str, Any]:
    """Data for the report: the range of every output's probability over all labels."""
    if len(manifest.randomizers) != 1:
        return {}
    (randomizer,) = manifest.randomizers
    try:
        rows = weights_of(randomizer)
    except ReleaseError:
        return {}
    columns = list(zip(*rows, strict=True))
    return {
        "output_ranges": {
            "outputs": randomizer.channel["outputs"],
            "least": [min(column) / WORDS for column in columns],
            "most": [max(column) / WORDS for column in columns],
            "epsilon": float(epsilon_of(randomizer.guarantee)) / manifest.privacy.records_per_unit,
        }
    }


def weights_of(randomizer: StatedRandomizer) -> list[list[int]]:
    """The distinct rows of integer weights that some label uses, as the manifest writes them:
    base64 of little-endian words, of which a single one stands for 2**64.

    Those of labels between two such are not looked at: their weights lie between these two's.
    """
    rows = []
    try:
        channel = randomizer.channel
        for used in sorted(set(channel["row_of"]) - {BETWEEN}):
            data = b64decode(channel["rows"][used], validate=True)
            words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
            rows.append(words if len(words) > 1 else [word or WORDS for word in words])
    except (IndexError, ValueError) as error:
        raise ReleaseError(f"the manifest's channel cannot be read: {error!r}") from error
    if {len(row) for row in rows} != {len(channel["outputs"])}:
        raise ReleaseError("the manifest's channel has rows of another length than its outputs")
    return rows


def options_in_words(manifest: Manifest) -> str:
    """What the randomizers were asked for, once where several were asked for the same."""
    return "; ".join(dict.fromkeys(stated.shown_options for stated in manifest.randomizers))


def worst_stratum(manifest: Manifest) -> list[StatedRandomizer]:
    """The randomizers of the stratum that they claim to spend most in."""
    return max(
        manifest.by_stratum, key=lambda stratum: sum(epsilon_of(each.guarantee) for each in stratum)
    )


def epsilon_of(guarantee: PureClaim) -> Fraction:
    return parse_rational(guarantee["epsilon"])


def shown(guarantees: Sequence[PureClaim]) -> str:
    return " + ".join(f"{float(epsilon_of(guarantee)):.6g}" for guarantee in guarantees)


def of_labels(manifest: Manifest, names: Sequence[str]) -> str:
    """Say whose something is, where there are several labels."""
    return f" of {', '.join(names)}" if len(manifest.labels) > 1 else ""
