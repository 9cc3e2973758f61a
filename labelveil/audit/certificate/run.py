"""`certificate`: what a manifest and its labels file prove by themselves.

Everything here is arithmetic on what both parties hold: no run of the labels party, no statistics
but one, no trust in the code that made the release. What cannot be decided from there is said, too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from common.errors import LabelveilError, PrivacyError, ReleaseError
from common.release.blocks import block_ranges, encode_codes
from common.release.folder import CODES_FILE, MANIFEST_FILE, is_complete, read_manifest
from common.release.manifest import Manifest, block_digest, content_digest, manifest_digest
from common.release.rows import keys_bytes
from common.release.strict_json import parse_json
from common.release.table import read_labels
from labelveil.audit.certificate import manifest_checks as claims
from labelveil.audit.certificate.fields import fields, fields_check, out_of_reach
from labelveil.audit.certificate.rebuild import rebuilt_check
from labelveil.audit.certificate.signature_check import signature_check
from labelveil.audit.verdict import Audit, Check, Verdict, verdict_of

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Evidence:
    """A release as it lies in a directory, read without believing it.

    Attributes
    ----------
    directory
        Where it lies.
    data
        The manifest's bytes.
    manifest
        Parsed for its form alone: none of its claims has been checked.
    labels
        Its rows.
    """

    directory: Path
    data: bytes
    manifest: Manifest
    labels: pl.DataFrame


def read_evidence(directory: Path) -> Evidence:
    """Read a release directory, fetched or a store's, checking its form alone.

    Raises
    ------
    ReleaseError
        If a file is missing or cannot be understood at all.
    """
    data = _manifest_bytes(directory)
    return _evidence(directory, data, Manifest.parse(data))


def certify(
    directory: Path,
    *,
    public_key: Path | None = None,
    progress: Progress = lambda name: None,
) -> Audit:
    """Audit what lies in a directory; a manifest that nobody can accept is a verdict, too.

    Raises
    ------
    ReleaseError
        If there is no release, or its rows cannot be understood at all.
    """
    data = _manifest_bytes(directory)
    try:
        manifest = Manifest.parse(data)
    except ReleaseError:
        return _refused(directory, data)
    evidence = _evidence(directory, data, manifest)
    return certificate(evidence, public_key=public_key, progress=progress)


def _manifest_bytes(directory: Path) -> bytes:
    if not is_complete(directory):
        raise ReleaseError(
            f"{directory} holds no release; name a folder with {MANIFEST_FILE} and {CODES_FILE},"
            " or of many such"
        )
    return read_manifest(directory)


def _evidence(directory: Path, data: bytes, manifest: Manifest) -> Evidence:
    return Evidence(directory, data, manifest, read_labels(directory, manifest))


def _refused(directory: Path, data: bytes) -> Audit:
    """The audit of a manifest that says what it has no place for, or not what it must."""
    audit = Audit("certificate", f"release {directory.name}")
    audit.add(_form_check(data))
    try:
        document = parse_json(data)
    except ReleaseError:
        return audit
    if isinstance(document, dict):
        audit.fields = fields(document, audit.checks)
        audit.add(fields_check(audit.fields))
    return audit


def certificate(
    evidence: Evidence,
    *,
    public_key: Path | None = None,
    progress: Progress = lambda name: None,
) -> Audit:
    """Audit one release.

    Parameters
    ----------
    evidence
        From :func:`read_evidence`.
    public_key
        The labels party's Ed25519 public key (PEM), if its signature is to be checked.
    progress
        Told each check's name before it runs.
    """
    manifest = evidence.manifest
    audit = Audit("certificate", f"release {manifest.data_set} · {manifest.epoch}")
    audit.claimed = claims.claimed_epsilon(manifest)
    audit.facts = claims.facts(manifest, manifest_digest(evidence.data))
    steps: list[tuple[str, str, Callable[[], Check]]] = [
        (
            "manifest is consistent",
            "Does any claim of the manifest contradict another?",
            lambda: _form_check(evidence.data),
        ),
        (
            "weights",
            "Is the channel a table of whole numbers that add up, a row for every label?",
            lambda: claims.each(manifest, manifest.randomizers, claims.sums_check),
        ),
        (
            "exact ε of the labels",
            "What does one output say about its label, at most and exactly?",
            lambda: claims.channel_check(manifest),
        ),
        (
            "arithmetic of the ε split",
            "Do the parts of ε add up to what was asked for?",
            lambda: claims.arithmetic_check(manifest),
        ),
        *_histogram_steps(evidence),
        (
            "options",
            "What was the randomizer told, and is there room to hide labels in it?",
            lambda: claims.options_check(manifest),
        ),
        (
            "channel is a function of the noisy histogram",
            "Did anything but the noisy histogram shape the channel?",
            lambda: rebuilt_check(manifest),
        ),
        (
            "outputs",
            "Is every value that was sent a declared one?",
            lambda: outputs_check(manifest, evidence.labels),
        ),
        (
            "content digest",
            "Are these the rows that the manifest is about?",
            lambda: content_check(manifest, evidence.labels),
        ),
        (
            "population digest",
            "Are these the events that were agreed on?",
            lambda: population_check(manifest, evidence.labels),
        ),
        (
            "row order",
            "Could the order of rows say anything about labels?",
            lambda: order_check(manifest, evidence.labels),
        ),
        (
            "signature",
            "Who stands behind this manifest?",
            lambda: signature_check(evidence.directory, evidence.data, public_key),
        ),
    ]
    for name, question, step in steps:
        progress(name)
        audit.run(lambda name=name, asked=question, step=step: _readable(name, asked, step))  # type: ignore[misc]
    audit.add(*out_of_reach(manifest))
    audit.fields = fields(parse_json(evidence.data), audit.checks)
    audit.run(lambda: fields_check(audit.fields))
    audit.plots = claims.plots(manifest)
    return audit


def _readable(name: str, question: str, step: Callable[[], Check]) -> Check:
    """Run a check; what cannot even be read does not hold."""
    try:
        found = step()
    except LabelveilError as error:
        tried, refusal = "The check was begun.", f"It cannot: {error}."
        found = Check(name, Verdict.FAIL, "What the release says can be read.", tried, refusal)
    return replace(found, question=question, confidence=found.confidence or 1.0)


def _form_check(data: bytes) -> Check:
    """The strict reader that every features party uses accepts the manifest."""
    found, holds = "It accepts them.", True
    try:
        Manifest.from_bytes(data)
    except (ReleaseError, PrivacyError) as error:
        found, holds = f"It refuses: {error}.", False
    return Check(
        name="manifest is consistent",
        verdict=verdict_of(holds),
        claim="The manifest is complete, and none of its claims contradicts another.",
        tried="The strict reader of the features party was run over its bytes.",
        found=found,
        details={"sha256": hashlib.sha256(data).hexdigest()},
    )


def _histogram_steps(evidence: Evidence) -> list[tuple[str, str, Callable[[], Check]]]:
    manifest, codes = evidence.manifest, evidence.labels["code"].to_numpy()
    noisy = [prior for prior in manifest.priors if not prior.decoded]
    decoded = [prior for prior in manifest.priors if prior.decoded]
    steps: list[tuple[str, str, Callable[[], Check]]] = []
    if decoded:
        steps.append(
            (
                claims.DECODED,
                "Does the histogram say anything that the codes do not?",
                lambda: claims.each(
                    manifest, decoded, lambda m, prior: claims.decoded_check(m, prior, codes)
                ),
            )
        )
    if noisy:
        steps.append(
            (
                "prior noise scale",
                "Is the noise on the histogram wide enough for its part of ε?",
                lambda: claims.each(manifest, noisy, claims.prior_scale_check),
            )
        )
    if manifest.prior_paid:
        steps.append(
            (
                "split of ε",
                "Could the size of the parts say anything about labels?",
                lambda: claims.split_check(manifest),
            )
        )
    if noisy:
        steps.append(
            (
                "prior noise on empty cells",
                "Did cells without a label get noise, too?",
                lambda: claims.each(manifest, noisy, claims.prior_support_check),
            )
        )
    return steps


def outputs_check(manifest: Manifest, labels: pl.DataFrame) -> Check:
    """Every code is an index of a declared output."""
    sizes = [len(one.channel.get("outputs", [])) for one in manifest.randomizers]
    codes, outputs = labels["code"].to_numpy(), math.prod(sizes)
    wrong = int(np.count_nonzero(codes >= outputs))
    used = int(np.unique(codes).size)
    return Check(
        name="outputs",
        verdict=verdict_of(wrong == 0),
        claim=f"Every value sent is one of the {outputs} declared outputs.",
        tried=f"All {codes.size:,} codes were compared with their number.",
        found=f"{wrong:,} do not fit; {used} outputs occur.",
    )


def content_check(manifest: Manifest, labels: pl.DataFrame) -> Check:
    """The rows give the digests of all blocks, and those the digest of the content."""
    content = manifest.content
    claim = "The rows are exactly the bytes that the manifest describes."
    tried = f"SHA-256 of {len(content.blocks)} blocks was recomputed from the rows."
    name = "content digest"
    if labels.height != manifest.population.rows:
        found = f"{labels.height:,} rows instead of {manifest.population.rows:,}."
        return Check(name, Verdict.FAIL, claim, tried, found)
    codes = labels["code"].to_numpy().astype(np.uint16)
    keys = _keys(manifest, labels)
    ranges = list(block_ranges(codes.size, content.block_rows))
    wrong = abs(len(ranges) - len(content.blocks))
    for (start, stop), digest in zip(ranges, content.blocks, strict=False):
        data = encode_codes(codes[start:stop], content.code_bytes)
        wrong += block_digest(keys[start:stop].data, data) != digest
    whole = content_digest(content.blocks) == content.digest
    return Check(
        name=name,
        verdict=verdict_of(wrong == 0 and whole),
        claim=claim,
        tried=tried,
        found=f"{wrong} of {len(ranges)} blocks differ from their stated digests, which"
        f" {'fit' if whole else 'do not fit'} the digest of all.",
        details={"digest": content.digest},
    )


def population_check(manifest: Manifest, labels: pl.DataFrame) -> Check:
    """The keys, in row order, give the population digest."""
    claim = "The release covers exactly the events of the stated population, in its order."
    name = "population digest"
    if manifest.content.key_bytes == 0:
        return Check(
            name,
            Verdict.NOT_CHECKABLE,
            claim,
            "The features party submitted the population, so the rows carry no keys.",
            f"Compare SHA-256 of the submitted keys with {manifest.population.digest}.",
        )
    keys = _keys(manifest, labels)
    digest = hashlib.sha256(keys.data).hexdigest()
    names = keys.view(f"S{manifest.content.key_bytes}").ravel()
    if np.any(names[1:] <= names[:-1]):
        names = np.sort(names)
    repeated = int(np.count_nonzero(names[1:] == names[:-1]))
    return Check(
        name=name,
        verdict=verdict_of(digest == manifest.population.digest and not repeated),
        claim=claim,
        tried=f"SHA-256 of {labels.height:,} keys was recomputed, and repeated keys counted.",
        found=f"The digest {'fits' if digest == manifest.population.digest else 'does not fit'};"
        f" {repeated:,} keys are repeated.",
    )


def order_check(manifest: Manifest, labels: pl.DataFrame) -> Check:
    """Rows are in the order of their hashed keys, which no label decides."""
    claim = "The order of rows depends on the events' keys alone."
    name = "row order"
    if manifest.content.key_bytes == 0:
        return Check(
            name,
            Verdict.NOT_CHECKABLE,
            claim,
            "The rows carry no keys: their order is that of the submitted population.",
            "Compare with the submission.",
        )
    keys = _keys(manifest, labels).view(f"S{manifest.content.key_bytes}").ravel()
    behind = int(np.count_nonzero(keys[1:] <= keys[:-1]))
    return Check(
        name=name,
        verdict=verdict_of(behind == 0),
        claim=claim,
        tried="Every key was compared with the one before: ascending order is a function of the"
        " set of keys.",
        found=f"{behind:,} rows are not in ascending order.",
    )


def _keys(manifest: Manifest, labels: pl.DataFrame) -> Any:
    if manifest.content.key_bytes == 0:
        return np.empty((labels.height, 0), dtype=np.uint8)
    return keys_bytes(labels["key"])
