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
from labelveil.audit.certificate.fields import fields, fields_check, out_of_reach
from labelveil.audit.certificate.rebuild import rebuilt_check
from labelveil.audit.probes import Probes
from labelveil.audit.verdict import Audit, Check, Progress, Verdict, silent, verdict_of
from labelveil.common.errors import PrivacyError, ReleaseError
from labelveil.common.exact.channel import Codes
from labelveil.common.release.blocks import (
    block_ranges,
    encode_codes,
)
from labelveil.common.release.folder import (
    CODES_FILE,
    MANIFEST_FILE,
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
from labelveil.common.release.rows import Keys, keys_bytes
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
    def codes(self) -> Codes:
        """(n,) codes."""
        return self.labels["code"].to_numpy()

    @property
    def noisy(self) -> list[PriorSection]:
        """Histograms that labels paid for."""
        return [prior for prior in (*self.manifest.priors, *self.manifest.tables) if prior.noisy]

    @property
    def decoded(self) -> list[PriorSection]:
        """Histograms that are counted from the codes."""
        return [prior for prior in self.manifest.priors if prior.decoded]


CHECKS = Probes[Evidence](refused=Verdict.FAIL)  # what cannot even be read does not hold


@CHECKS.add("manifest is consistent", "Does any claim of the manifest contradict another?")
def form_check(evidence: Evidence) -> Check:
    return _form_check(evidence.data)


@CHECKS.add(
    "weights", "Is the channel a table of whole numbers that add up, a row for every label?"
)
def weights_check(evidence: Evidence) -> Check:
    manifest = evidence.manifest
    return claims.each(manifest, manifest.randomizers, claims.sums_check)


@CHECKS.add("exact ε of the labels", "What does one output say about its label, at most, exactly?")
def channel_check(evidence: Evidence) -> Check:
    return claims.channel_check(evidence.manifest)


@CHECKS.add("arithmetic of the ε split", "Do the parts of ε add up to what was asked for?")
def arithmetic_check(evidence: Evidence) -> Check:
    return claims.arithmetic_check(evidence.manifest)


@CHECKS.add(
    claims.DECODED,
    "Does the histogram say anything that the codes do not?",
    fits=lambda evidence: bool(evidence.decoded),
)
def decoded_check(evidence: Evidence) -> Check:
    check = partial(claims.decoded_check, codes=evidence.codes)
    return claims.each(evidence.manifest, evidence.decoded, check)


@CHECKS.add(
    "prior noise scale",
    "Is the noise on the histogram wide enough for its part of ε?",
    fits=lambda evidence: bool(evidence.noisy),
)
def prior_scale_check(evidence: Evidence) -> Check:
    return claims.each(evidence.manifest, evidence.noisy, claims.prior_scale_check)


@CHECKS.add(
    "split of ε",
    "Could the size of the parts say anything about labels?",
    fits=lambda evidence: evidence.manifest.prior_paid,
)
def split_check(evidence: Evidence) -> Check:
    return claims.split_check(evidence.manifest)


@CHECKS.add(
    "prior noise on empty cells",
    "Did cells without a label get noise, too?",
    fits=lambda evidence: bool(evidence.noisy),
)
def prior_support_check(evidence: Evidence) -> Check:
    return claims.each(evidence.manifest, evidence.noisy, claims.prior_support_check)


@CHECKS.add("options", "What was the randomizer told, and is there room to hide labels in it?")
def options_check(evidence: Evidence) -> Check:
    return claims.options_check(evidence.manifest)


@CHECKS.add(
    "channel is a function of the noisy histogram",
    "Did anything but the noisy histogram shape the channel?",
)
def channel_rebuilt_check(evidence: Evidence) -> Check:
    return rebuilt_check(evidence.manifest)


def read_evidence(directory: Path) -> Evidence:
    """Read a release directory, fetched or a store's, checking its form alone.

    ``ReleaseError`` if a file is missing or cannot be understood at all.
    """
    data = _manifest_bytes(directory)
    manifest = Manifest.parse(data)
    return Evidence(directory, data, manifest, read_labels(directory, manifest))


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
        audit = Audit("certificate", f"release {directory.name}", checks=[_form_check(data)])
        with suppress(ReleaseError):
            document = parse_json(data)
            if isinstance(document, dict):
                audit.fields = fields(document, audit.checks)
                audit.checks.append(fields_check(audit.fields))
        return audit
    evidence = Evidence(directory, data, manifest, read_labels(directory, manifest))
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
    CHECKS.audit(audit, evidence)
    audit.checks += out_of_reach(manifest)
    audit.fields = fields(parse_json(evidence.data), audit.checks)
    audit.run(lambda: fields_check(audit.fields))
    audit.plots = claims.plots(manifest)
    return audit


def _form_check(data: bytes) -> Check:
    reading, holds = "It accepts them.", True
    try:
        Manifest.from_bytes(data)
    except (ReleaseError, PrivacyError) as error:
        reading, holds = f"It refuses: {error}.", False
    return Check(
        name="manifest is consistent",
        verdict=verdict_of(holds),
        claim="The manifest is complete, and none of its claims contradicts another.",
        tried="The strict reader of the features party was run over its bytes.",
        found=reading,
        details={"sha256": hashlib.sha256(data).hexdigest()},
    )


@CHECKS.add("outputs", "Is every value that was sent a declared one?")
def outputs_check(evidence: Evidence) -> Check:
    strata, codes = evidence.manifest.by_stratum, evidence.codes
    outputs = sum(
        math.prod(len(stated.channel.get("outputs", [])) for stated in stratum)
        for stratum in strata
    )
    wrong = int(np.count_nonzero(codes >= outputs))
    return Check(
        name="outputs",
        verdict=verdict_of(wrong == 0),
        claim=f"Every value sent is one of the {outputs} declared outputs.",
        tried=f"All {codes.size:,} codes were compared with their number.",
        found=f"{wrong:,} do not fit; {np.unique(codes).size} outputs occur.",
    )


@CHECKS.add(
    "rows of each stratum",
    "Was every event sent by the channel of its stratum?",
    fits=lambda evidence: bool(evidence.manifest.strata),
)
def strata_check(evidence: Evidence) -> Check:
    return claims.strata_check(evidence.manifest, evidence.codes)


@CHECKS.add("content digest", "Are these the rows that the manifest is about?")
def content_check(evidence: Evidence) -> Check:
    content, rows = evidence.manifest.content, evidence.labels.height
    stated = evidence.manifest.population.rows
    keys, codes = evidence.keys, evidence.codes.astype(np.uint16)
    ranges = list(block_ranges(rows, content.block_rows)) if rows == stated else []
    wrong = abs(len(ranges) - len(content.blocks))
    for (start, stop), digest in zip(ranges, content.blocks, strict=False):
        data = encode_codes(codes[start:stop], content.code_bytes)
        wrong += block_digest(keys[start:stop].data, data) != digest
    whole = content_digest(content.blocks) == content.digest
    return Check(
        name="content digest",
        verdict=verdict_of(rows == stated and wrong == 0 and whole),
        claim="The rows are exactly the bytes that the manifest describes.",
        tried=f"SHA-256 of {len(content.blocks)} blocks was recomputed from the rows.",
        found=f"{wrong} of {len(ranges)} blocks differ from their stated digests, which"
        f" {'fit' if whole else 'do not fit'} the digest of all."
        if rows == stated
        else f"{rows:,} rows instead of {stated:,}.",
        details={"digest": content.digest},
    )


@CHECKS.add("population digest", "Are these the events that were agreed on?")
def population_check(evidence: Evidence) -> Check:
    stated = evidence.manifest.population.digest
    claim = "The release covers exactly the events of the stated population, in its order."
    name = "population digest"
    if evidence.manifest.content.key_bytes == 0:
        tried = "The features party submitted the population, so the rows carry no keys."
        remedy = f"Compare SHA-256 of the submitted keys with {stated}."
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, remedy)
    fits = hashlib.sha256(evidence.keys.data).hexdigest() == stated
    repeated = evidence.labels.height - evidence.labels["key"].n_unique()
    return Check(
        name=name,
        verdict=verdict_of(fits and not repeated),
        claim=claim,
        tried=f"SHA-256 of {evidence.labels.height:,} keys was recomputed, and repeated keys"
        " counted.",
        found=f"The digest {'fits' if fits else 'does not fit'}; {repeated:,} keys are repeated.",
    )


@CHECKS.add("row order", "Could the order of rows say anything about labels?")
def order_check(evidence: Evidence) -> Check:
    claim = "The order of rows depends on the events' keys alone."
    name, key_bytes = "row order", evidence.manifest.content.key_bytes
    if key_bytes == 0:
        tried = "The rows carry no keys: their order is that of the submitted population."
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, "Compare with the submission.")
    keys = evidence.keys.view(f"S{key_bytes}").ravel()
    behind = int(np.count_nonzero(keys[1:] <= keys[:-1]))
    return Check(
        name=name,
        verdict=verdict_of(behind == 0),
        claim=claim,
        tried="Every key was compared with the one before: ascending order is a function of the"
        " set of keys.",
        found=f"{behind:,} rows are not in ascending order.",
    )


@CHECKS.add("signature", "Who stands behind this manifest?")
def signature_check(evidence: Evidence) -> Check:
    directory, public_key = evidence.directory, evidence.public_key
    name, claim = "signature", "The labels party signed the manifest's bytes with its Ed25519 key."
    path, looked = directory / SIGNATURE_FILE, "Looked for a signature."
    if not path.is_file() and public_key is None:
        unsigned = f"There is no {SIGNATURE_FILE}: this release is not signed."
        return Check(name, Verdict.NOT_CHECKABLE, claim, looked, unsigned)
    if not path.is_file():
        missing = f"A key was given, but there is no {SIGNATURE_FILE}."
        return Check(name, Verdict.FAIL, claim, looked, missing)
    if public_key is None:
        remedy = "Pass --public-key with the key that the labels party published."
        return Check(name, Verdict.NOT_CHECKABLE, claim, f"Found {SIGNATURE_FILE}.", remedy)
    holds = verify(read_public_key(public_key, "--public-key"), path.read_bytes(), evidence.data)
    return Check(
        name=name,
        verdict=verdict_of(holds),
        claim=claim,
        tried=f"{SIGNATURE_FILE} was verified with {public_key}.",
        found="It is valid." if holds else "It is not a signature of these bytes by this key.",
    )
