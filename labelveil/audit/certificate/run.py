"""`certificate`: what a manifest and its labels file prove by themselves.

Everything here is arithmetic on what both parties hold: no run of the labels party, no statistics
but one, no trust in the code that made the release. That code checks much of it, too; here it is
worked out a second time on purpose, from the bytes. What cannot be decided from there is said.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import polars as pl

from labelveil.audit.certificate import manifest_checks as claims
from labelveil.audit.certificate import sums
from labelveil.audit.certificate.fields import BEYOND, FIELDS, fields
from labelveil.audit.certificate.rebuild import rebuilt_check
from labelveil.audit.verdict import (
    Audit,
    Check,
    Probes,
    Progress,
    Verdict,
    silent,
    verdict_of,
)
from labelveil.common.arrays import Integers
from labelveil.common.errors import PrivacyError, ReleaseError, present
from labelveil.common.release.blocks import (
    KEY_BYTES,
    SUM_BYTES,
    block_ranges,
    decode_sums,
    encode_codes,
    encode_sums,
)
from labelveil.common.release.folder import (
    CODES_FILE,
    MANIFEST_FILE,
    POPULATION_FILE,
    QUESTION_FILE,
    SIGNATURE_FILE,
    is_complete,
    read_manifest,
    withdrawn_reason,
)
from labelveil.common.release.manifest import (
    Manifest,
    block_digest,
    content_digest,
    manifest_digest,
)
from labelveil.common.release.question import most_bytes
from labelveil.common.release.rows import Keys, keys_bytes, open_rows
from labelveil.common.release.sections import PriorSection
from labelveil.common.release.signature import read_public_key, verify
from labelveil.common.release.strict_json import parse_json
from labelveil.common.release.table import read_labels


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
    def asked(self) -> bytes | None:
        """The question that sums answer, if it lies beside the release or in its store."""
        if (sums := self.manifest.sums) is None:
            return None
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
        """What was submitted, as the features party keeps it, or a labels party's store; of so many
        bytes at most, and one more if there are more."""
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


FORM = Probes[bytes]()
CHECKS = Probes[Evidence](refused=Verdict.FAIL)  # what cannot even be read does not hold


def _codes(evidence: Evidence) -> bool:
    return evidence.manifest.sums is None


def _sums(evidence: Evidence) -> bool:
    return not _codes(evidence)


check = CHECKS.add

check(
    "weights",
    "Is the channel a table of whole numbers that add up, a row for every label?",
    fits=_codes,
)(lambda it: claims.each(it.manifest, it.manifest.randomizers, claims.sums_check))
check(
    "exact ε of the labels",
    "What does one output say about its label, at most, exactly?",
    fits=_codes,
)(lambda it: claims.channel_check(it.manifest))
check(sums.SCALES, "What do all sums say about one label, at most and exactly?", fits=_sums)(
    lambda it: sums.scales_check(it.manifest, present(it.manifest.sums))
)
check(sums.LATTICE, "Could a fraction of a sum say anything about labels?", fits=_sums)(
    lambda it: sums.lattice_check(it.manifest, present(it.manifest.sums))
)
check(sums.QUESTION, "Are these the sums that were asked for?", fits=_sums)(
    lambda it: sums.question_check(it.manifest, present(it.manifest.sums), it.asked)
)
check(sums.POSSIBLE, "Could these be sums of labels, with such noise?", fits=_sums)(
    lambda it: sums.possible_check(it.manifest, present(it.manifest.sums), it.answer, it.asked)
)
check("arithmetic of the ε split", "Do the parts of ε add up to what was asked for?")(
    lambda it: claims.arithmetic_check(it.manifest)
)
check(
    claims.DECODED,
    "Does the histogram say anything that the codes do not?",
    fits=lambda it: bool(it.decoded),
)(lambda it: claims.each(it.manifest, it.decoded, partial(claims.decoded_check, codes=it.codes)))
check(
    "prior noise scale",
    "Is the noise on the histogram wide enough for its part of ε?",
    fits=lambda it: bool(it.noisy),
)(lambda it: claims.each(it.manifest, it.noisy, claims.prior_scale_check))
check(
    "split of ε",
    "Could the size of the parts say anything about labels?",
    fits=lambda it: it.manifest.prior_paid,
)(lambda it: claims.split_check(it.manifest))
check(
    "prior noise on empty cells",
    "Did cells without a label get noise, too?",
    fits=lambda it: bool(it.noisy),
)(lambda it: claims.each(it.manifest, it.noisy, claims.prior_support_check))
check("options", "What was the randomizer told, and is there room to hide labels in it?")(
    lambda it: claims.options_check(it.manifest)
)
check(
    "channel is a function of the noisy histogram",
    "Did anything but the noisy histogram shape the channel?",
    fits=_codes,
)(lambda it: rebuilt_check(it.manifest))


def read_evidence(directory: Path) -> Evidence:
    """Read a release directory, fetched or a store's, checking its form alone.

    ``ReleaseError`` if a file is missing or cannot be understood at all.
    """
    data = _manifest_bytes(directory)
    manifest = Manifest.parse(data)
    return Evidence(directory, data, manifest, _read_rows(directory, manifest))


def _read_rows(directory: Path, manifest: Manifest) -> pl.DataFrame:
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


def certify(
    directory: Path, progress: Progress = silent, *, public_key: Path | None = None
) -> Audit:
    """Audit what lies in a directory; a manifest that nobody can accept is a verdict, too.

    ``ReleaseError`` if there is no release, or its rows cannot be understood at all.
    """
    data = _manifest_bytes(directory)
    try:
        manifest = Manifest.parse(data)
    except ReleaseError:
        # it says what it has no place for, or not what it must
        audit = Audit("certificate", f"release {directory.name}", progress=progress)
        FORM.audit(audit, data)
        with suppress(ReleaseError):
            document = parse_json(data)
            if isinstance(document, dict):
                audit.fields = fields(document, audit.checks)
                FIELDS.audit(audit, audit.fields)
        return audit
    evidence = Evidence(directory, data, manifest, _read_rows(directory, manifest))
    return certificate(evidence, public_key=public_key, progress=progress)


def _manifest_bytes(directory: Path) -> bytes:
    if not is_complete(directory):
        raise ReleaseError(
            f"{directory} holds no release; name a folder with {MANIFEST_FILE} and {CODES_FILE},"
            " or of many such"
        )
    return read_manifest(directory)


def certificate(
    evidence: Evidence, *, public_key: Path | None = None, progress: Progress = silent
) -> Audit:
    """Audit one release, and its signature by the labels party's Ed25519 ``public_key`` (PEM)."""
    evidence, manifest = replace(evidence, public_key=public_key), evidence.manifest
    subject = f"release {manifest.data_set} · {manifest.epoch}"
    audit = Audit("certificate", subject, claims.claimed_epsilon(manifest), progress=progress)
    audit.facts = claims.facts(manifest, manifest_digest(evidence.data))
    if (reason := withdrawn_reason(evidence.directory)) is not None:
        audit.facts["withdrawn"] = reason
    FORM.audit(audit, evidence.data)
    CHECKS.audit(audit, evidence)
    BEYOND.audit(audit, manifest)
    audit.fields = fields(parse_json(evidence.data), audit.checks)
    FIELDS.audit(audit, audit.fields)
    audit.plots = claims.plots(manifest)
    return audit


@FORM.add(
    "manifest is consistent",
    "Does any claim of the manifest contradict another?",
    "The manifest is complete, and none of its claims contradicts another.",
)
def form_check(data: bytes) -> Check:
    reading, holds = "It accepts them.", True
    try:
        Manifest.from_bytes(data)
    except (ReleaseError, PrivacyError) as error:
        reading, holds = f"It refuses: {error}.", False
    return Check(
        verdict=verdict_of(holds),
        tried="The strict reader of the features party was run over its bytes.",
        found=reading,
        details={"sha256": hashlib.sha256(data).hexdigest()},
    )


@check("outputs", "Is every value that was sent a declared one?", fits=_codes)
def outputs_check(evidence: Evidence) -> Check:
    strata, codes = evidence.manifest.by_stratum, evidence.codes
    outputs = sum(
        math.prod(len(stated.channel.get("outputs", [])) for stated in stratum)
        for stratum in strata
    )
    wrong = int(np.count_nonzero(codes >= outputs))
    return Check(
        verdict=verdict_of(wrong == 0),
        claim=f"Every value sent is one of the {outputs} declared outputs.",
        tried=f"All {codes.size:,} codes were compared with their number.",
        found=f"{wrong:,} do not fit; {np.unique(codes).size} outputs occur.",
    )


check(
    "rows of each stratum",
    "Was every event sent by the channel of its stratum?",
    fits=lambda it: bool(it.manifest.strata),
)(lambda it: claims.strata_check(it.manifest, it.codes))


@check(
    "content digest",
    "Are these the rows that the manifest is about?",
    "The rows are exactly the bytes that the manifest describes.",
)
def content_check(evidence: Evidence) -> Check:
    content, rows = evidence.manifest.content, evidence.labels.height
    stated, size = evidence.manifest.rows, content.code_bytes
    if _codes(evidence):
        sent = encode_codes(evidence.codes.astype(np.uint16), size)
    else:
        sent = encode_sums(evidence.answer)
    ranges = list(block_ranges(rows, content.block_rows)) if rows == stated else []
    wrong = abs(len(ranges) - len(content.blocks))
    for (start, stop), digest in zip(ranges, content.blocks, strict=False):
        keys = evidence.keys[start:stop].data
        wrong += block_digest(keys, sent[size * start : size * stop]) != digest
    whole = content_digest(content.blocks) == content.digest
    return Check(
        verdict=verdict_of(rows == stated and wrong == 0 and whole),
        tried=f"SHA-256 of {len(content.blocks)} blocks was recomputed from the rows.",
        found=f"{wrong} of {len(ranges)} blocks differ from their stated digests, which"
        f" {'fit' if whole else 'do not fit'} the digest of all."
        if rows == stated
        else f"{rows:,} rows instead of {stated:,}.",
        details={"digest": content.digest},
    )


@check(
    "population digest",
    "Are these the events that were agreed on?",
    "The release covers exactly the events of the stated population, in its order.",
)
def population_check(evidence: Evidence) -> Check:
    stated, events = evidence.manifest.population.digest, evidence.events
    if events is None:
        tried = "The features party submitted the population, so the rows carry no keys."
        remedy = (
            f"Compare SHA-256 of the submitted keys with {stated}, or put them beside the manifest"
            f" as {POPULATION_FILE}."
        )
        return Check(
            Verdict.NOT_CHECKABLE,
            tried,
            remedy,
        )
    fits = hashlib.sha256(events.data).hexdigest() == stated
    repeated = len(events) - np.unique(events.view(f"S{KEY_BYTES}")).size
    return Check(
        verdict=verdict_of(fits and not repeated),
        tried=f"SHA-256 of {len(events):,} keys was recomputed, and repeated keys counted.",
        found=f"The digest {'fits' if fits else 'does not fit'}; {repeated:,} keys are repeated.",
    )


@check(
    "row order",
    "Could the order of rows say anything about labels?",
    "The order of rows depends on the events' keys alone.",
    fits=_codes,
)
def order_check(evidence: Evidence) -> Check:
    key_bytes = evidence.manifest.content.key_bytes
    if key_bytes == 0:
        tried = "The rows carry no keys: their order is that of the submitted population."
        return Check(
            Verdict.NOT_CHECKABLE,
            tried,
            "Compare with the submission.",
        )
    keys = evidence.keys.view(f"S{key_bytes}").ravel()
    behind = int(np.count_nonzero(keys[1:] <= keys[:-1]))
    return Check(
        verdict=verdict_of(behind == 0),
        tried="Every key was compared with the one before: ascending order is a function of the"
        " set of keys.",
        found=f"{behind:,} rows are not in ascending order.",
    )


@check(
    "signature",
    "Who stands behind this manifest?",
    "The labels party signed the manifest's bytes with its Ed25519 key.",
)
def signature_check(evidence: Evidence) -> Check:
    directory, public_key = evidence.directory, evidence.public_key
    path, looked = directory / SIGNATURE_FILE, "Looked for a signature."
    if not path.is_file() and public_key is None:
        unsigned = f"There is no {SIGNATURE_FILE}: this release is not signed."
        return Check(
            Verdict.NOT_CHECKABLE,
            looked,
            unsigned,
        )
    if not path.is_file():
        missing = f"A key was given, but there is no {SIGNATURE_FILE}."
        return Check(
            Verdict.FAIL,
            looked,
            missing,
        )
    if public_key is None:
        remedy = "Pass --public-key with the key that the labels party published."
        return Check(
            Verdict.NOT_CHECKABLE,
            f"Found {SIGNATURE_FILE}.",
            remedy,
        )
    holds = verify(read_public_key(public_key, "--public-key"), path.read_bytes(), evidence.data)
    return Check(
        verdict=verdict_of(holds),
        tried=f"{SIGNATURE_FILE} was verified with {public_key}.",
        found="It is valid." if holds else "It is not a signature of these bytes by this key.",
    )


STEPS = len(FORM) + len(CHECKS) + len(BEYOND) + len(FIELDS)  # how many are named on the way at most
