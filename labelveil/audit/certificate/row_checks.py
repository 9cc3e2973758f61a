"""Checks of a release's rows against what the manifest says of them, and of who signed it."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from labelveil.audit.certificate.evidence import CONTENT, Evidence, of_codes
from labelveil.audit.verdict import Check, Probes, Verdict, verdict_of
from labelveil.common.release.blocks import KEY_BYTES, block_ranges, encode_codes, encode_sums
from labelveil.common.release.folder import POPULATION_FILE, SIGNATURE_FILE
from labelveil.common.release.manifest import block_digest, content_digest
from labelveil.common.release.signature import read_public_key, verify

CHECKS = Probes[Evidence](refused=Verdict.FAIL)


@CHECKS.add(
    "outputs",
    "Is every value that was sent a declared one?",
    fits=of_codes,
    decides=("randomizer.channel.outputs",),
)
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


@CHECKS.add(
    "rows of each stratum",
    "Was every event sent by the channel of its stratum?",
    "Every event was sent by the channel of its stratum.",
    fits=lambda evidence: bool(evidence.manifest.strata),
    decides=("strata.rows",),
)
def strata_check(evidence: Evidence) -> Check:
    manifest = evidence.manifest
    counts = manifest.codebooks.rows_by_stratum(evidence.codes)
    stated = [stratum.rows for stratum in manifest.strata]
    wrong = sum(count != rows for count, rows in zip(counts, stated, strict=True))
    return Check(
        verdict=verdict_of(not wrong),
        tried=f"The codes of the channels of all {len(stated)} strata were counted. Whether these"
        " are the strata that were meant, who knows the events can see: compare them with the"
        " question, or the column.",
        found=f"{wrong} of {len(stated)} counts are not what the manifest states.",
    )


@CHECKS.add(
    "content digest",
    "Are these the rows that the manifest is about?",
    "The rows are exactly the bytes that the manifest describes.",
    decides=CONTENT,
)
def content_check(evidence: Evidence) -> Check:
    content, rows = evidence.manifest.content, evidence.labels.height
    stated, size = evidence.manifest.rows, content.code_bytes
    if of_codes(evidence):
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


@CHECKS.add(
    "population digest",
    "Are these the events that were agreed on?",
    "The release covers exactly the events of the stated population, in its order.",
    decides=("population.digest", "population.keys"),
)
def population_check(evidence: Evidence) -> Check:
    stated, events = evidence.manifest.population.digest, evidence.events
    if events is None:
        tried = "The features party submitted the population, so the rows carry no keys."
        remedy = (
            f"Compare SHA-256 of the submitted keys with {stated}, or put them beside the manifest"
            f" as {POPULATION_FILE}."
        )
        return Check(Verdict.NOT_CHECKABLE, tried, remedy)
    fits = hashlib.sha256(events.data).hexdigest() == stated
    repeated = len(events) - np.unique(events.view(f"S{KEY_BYTES}")).size
    return Check(
        verdict=verdict_of(fits and not repeated),
        tried=f"SHA-256 of {len(events):,} keys was recomputed, and repeated keys counted.",
        found=f"The digest {'fits' if fits else 'does not fit'}; {repeated:,} keys are repeated.",
    )


@CHECKS.add(
    "row order",
    "Could the order of rows say anything about labels?",
    "The order of rows depends on the events' keys alone.",
    fits=of_codes,
)
def order_check(evidence: Evidence) -> Check:
    key_bytes = evidence.manifest.content.key_bytes
    if key_bytes == 0:
        tried = "The rows carry no keys: their order is that of the submitted population."
        return Check(Verdict.NOT_CHECKABLE, tried, "Compare with the submission.")
    keys = evidence.keys.view(f"S{key_bytes}").ravel()
    behind = int(np.count_nonzero(keys[1:] <= keys[:-1]))
    return Check(
        verdict=verdict_of(behind == 0),
        tried="Every key was compared with the one before: ascending order is a function of the"
        " set of keys.",
        found=f"{behind:,} rows are not in ascending order.",
    )


@CHECKS.add(
    "signature",
    "Who stands behind this manifest?",
    "The labels party signed the manifest's bytes with its Ed25519 key.",
)
def signature_check(evidence: Evidence) -> Check:
    directory, public_key = evidence.directory, evidence.public_key
    path, looked = directory / SIGNATURE_FILE, "Looked for a signature."
    if not path.is_file() and public_key is None:
        unsigned = f"There is no {SIGNATURE_FILE}: this release is not signed."
        return Check(Verdict.NOT_CHECKABLE, looked, unsigned)
    if not path.is_file():
        missing = f"A key was given, but there is no {SIGNATURE_FILE}."
        return Check(Verdict.FAIL, looked, missing)
    if public_key is None:
        remedy = "Pass --public-key with the key that the labels party published."
        return Check(Verdict.NOT_CHECKABLE, f"Found {SIGNATURE_FILE}.", remedy)
    holds = verify(read_public_key(public_key, "--public-key"), path.read_bytes(), evidence.data)
    return Check(
        verdict=verdict_of(holds),
        tried=f"{SIGNATURE_FILE} was verified with {public_key}.",
        found="It is valid." if holds else "It is not a signature of these bytes by this key.",
    )
