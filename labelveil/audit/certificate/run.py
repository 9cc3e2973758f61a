"""`certificate`: what a manifest and its labels file prove by themselves.

Everything here is arithmetic on what both parties hold: no run of the labels party, no statistics
but one, no trust in the code that made the release. That code checks much of it, too; here it is
worked out a second time on purpose, from the bytes. What cannot be decided from there is said.

A field of the manifest has the worst verdict of the checks that decide it. Those of :data:`BEYOND`
decide nothing and say what would. So every field is proved, refuted, or named as *not checkable*.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labelveil.audit.certificate import manifest_checks, rebuild, sums
from labelveil.audit.certificate.evidence import (
    CONTENT,
    Evidence,
    claimed_epsilon,
    facts,
    manifest_bytes,
    noisy_histograms,
    of_codes,
    plots,
    read_rows,
)
from labelveil.audit.verdict import (
    Audit,
    Check,
    Field,
    Probe,
    Probes,
    Progress,
    Verdict,
    silent,
    verdict_of,
    worst,
)
from labelveil.common.errors import PrivacyError, ReleaseError
from labelveil.common.guarantees import Unit
from labelveil.common.release.blocks import KEY_BYTES, block_ranges, encode_codes, encode_sums
from labelveil.common.release.folder import POPULATION_FILE, SIGNATURE_FILE, withdrawn_reason
from labelveil.common.release.manifest import (
    Manifest,
    block_digest,
    content_digest,
    manifest_digest,
)
from labelveil.common.release.signature import read_public_key, verify
from labelveil.common.release.strict_json import parse_json

FORM = Probes[bytes]()
ROWS = Probes[Evidence](refused=Verdict.FAIL)


def certify(
    directory: Path, progress: Progress = silent, *, public_key: Path | None = None
) -> Audit:
    """Audit what lies in a directory; a manifest that nobody can accept is a verdict, too.

    ``ReleaseError`` if there is no release, or its rows cannot be understood at all.
    """
    data = manifest_bytes(directory)
    try:
        manifest = Manifest.parse(data)
    except ReleaseError:
        # it says what it has no place for, or not what it must
        audit = Audit("certificate", f"release {directory.name}", progress=progress)
        FORM.audit(audit, data)
        with suppress(ReleaseError):
            document = parse_json(data)
            if isinstance(document, dict):
                audit.fields = fields(document, audit.checks, DECIDED)
                FIELDS.audit(audit, audit.fields)
        return audit
    evidence = Evidence(directory, data, manifest, read_rows(directory, manifest))
    return certificate(evidence, public_key=public_key, progress=progress)


def certificate(
    evidence: Evidence, *, public_key: Path | None = None, progress: Progress = silent
) -> Audit:
    """Audit one release, and its signature by the labels party's Ed25519 ``public_key`` (PEM)."""
    evidence, manifest = replace(evidence, public_key=public_key), evidence.manifest
    subject = f"release {manifest.data_set} · {manifest.epoch}"
    audit = Audit("certificate", subject, claimed_epsilon(manifest), progress=progress)
    audit.facts = facts(manifest, manifest_digest(evidence.data))
    if (reason := withdrawn_reason(evidence.directory)) is not None:
        audit.facts["withdrawn"] = reason
    FORM.audit(audit, evidence.data)
    CHECKS.audit(audit, evidence)
    BEYOND.audit(audit, manifest)
    audit.fields = fields(parse_json(evidence.data), audit.checks, DECIDED)
    FIELDS.audit(audit, audit.fields)
    audit.plots = plots(manifest)
    return audit


@FORM.add(
    "manifest is consistent",
    "Does any claim of the manifest contradict another?",
    "The manifest is complete, and none of its claims contradicts another.",
    decides=(
        *("format", "drift", "prior.labels", "prior.start", "prior.scale", "priors", "tables"),
        *("randomizer.labels", "randomizers", "sums.noise", "strata", "strata.rows", "strata.law"),
        *("drift.test", "drift.drifted"),
    ),
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


@ROWS.add(
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


@ROWS.add(
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


@ROWS.add(
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


@ROWS.add(
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


@ROWS.add(
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


@ROWS.add(
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


_LISTS = ("labels", "strata", "priors", "tables", "randomizers")
_SHOWN = 64

Deciders = Mapping[str, Sequence[str]]
"""The names of the checks that decide a field and all below it: the longest field counts."""


def deciders(probes: Iterable[Probe[Any]]) -> Deciders:
    """By field, as the checks declare it."""
    found: dict[str, list[str]] = {}
    for probe in probes:
        for field in probe.decides:
            found.setdefault(field, []).append(probe.name)
    return found


def fields(document: Mapping[str, Any], checks: Iterable[Check], decided: Deciders) -> list[Field]:
    """Return every field of a manifest's JSON, with the worst verdict of the checks behind it."""
    said = ((name, [_shown(value)]) for name, value in _leaves(document))
    return _judged(said, checks, decided)


def fields_of_all(
    audits: Iterable[Audit], checks: Iterable[Check], decided: Deciders
) -> list[Field]:
    """The fields of several manifests, each once, with the verdicts of checks of all of them."""
    values: dict[str, list[str]] = {}
    for field in (field for audit in audits for field in audit.fields):
        values.setdefault(field.name, []).append(field.value)
    return _judged(values.items(), checks, decided)


def _judged(
    said: Iterable[tuple[str, Sequence[str]]], checks: Iterable[Check], decided: Deciders
) -> list[Field]:
    """Give every field its verdict, of the checks that were made; one that no check knows fails."""
    verdicts, judged = {check.name: check.verdict for check in checks}, []
    for name, (value, *others) in said:
        rule = re.sub(r"^strata\.\d+", "strata", re.sub(r"^tables\.", "priors.", name))
        rule = re.sub(r"^(label|prior|randomizer)s\.\d+", r"\1", rule)
        while rule not in decided and "." in rule:
            rule = rule.rpartition(".")[0]
        decided_by = tuple(decided.get(rule, ()))
        verdict = worst(verdicts[check] for check in decided_by if check in verdicts)
        different = len({value, *others}) - 1
        shown = value + f" and {different} others" * (different > 0)
        judged.append(Field(name, shown, verdict if decided_by else Verdict.FAIL, decided_by))
    return judged


FIELDS = Probes[Sequence[Field]]()


@FIELDS.add(
    "every field is accounted for",
    "Does the manifest say anything that nobody looks at?",
    "The manifest says nothing that is neither proved nor named as not checkable.",
)
def fields_check(judged: Sequence[Field]) -> Check:
    unknown = [field.name for field in judged if not field.decided_by]
    count = {verdict: sum(field.verdict is verdict for field in judged) for verdict in Verdict}
    return Check(
        verdict=verdict_of(not unknown),
        tried=f"Its {len(judged)} fields were matched with the checks that decide them.",
        found=f"{count[Verdict.PASS]} hold, {count[Verdict.FAIL]} do not and"
        f" {count[Verdict.NOT_CHECKABLE]} cannot be checked from here; "
        + (f"no check knows {', '.join(unknown):.300}." if unknown else "none is unknown."),
    )


BEYOND = Probes[Manifest]()
"""What neither the manifest nor its rows can show, and what can."""

beyond = partial(BEYOND.beyond, tried="Not from a manifest and its rows.")

CODES_DRAWN = beyond(
    "the codes were drawn by this channel",
    "Were the labels randomized by this channel, with fresh randomness?",
    "The randomized labels were sampled with the stated weights, from fresh entropy.",
    "Plant labels of your own and score what comes back: `labelveil audit canaries`. Run"
    " `labelveil audit mechanism` on the randomizer and `labelveil audit party` on the software.",
    fits=lambda manifest: manifest.sums is None,
)
SUMS_DRAWN = beyond(
    "the sums' noise was drawn as stated",
    "Was the noise on the sums drawn, by group and afresh?",
    "The noise on each sum has the stated scale, and is independent of everything.",
    "Plant labels of your own, and ask about them: `labelveil audit canaries ask`. Run `labelveil"
    " audit mechanism group-sums` on the software.",
    fits=lambda manifest: manifest.sums is not None,
    decides=("sums.widths", "sums.noise"),
)
HISTOGRAM_DRAWN = beyond(
    "the histogram's noise was drawn as stated",
    "Was the noise on the histogram drawn, and drawn afresh?",
    "The noise on the counts has the stated scale, and is independent of everything.",
    "Run `labelveil audit mechanism`, which knows the true counts.",
    fits=lambda manifest: bool(noisy_histograms(manifest)),
    decides=("prior.noisy_counts", "prior.noise"),
)
beyond(
    "nothing else was released",
    "Do the same labels leave by another door?",
    "The same labels appear in no other release, and the budget covers all of them.",
    "Read the labels party's ledger (`label-party budget`), and ask who keeps it.",
)
beyond(
    "grid, bounds, ε and options were chosen without looking",
    "Were the public settings chosen without looking at labels?",
    "Bounds, grid, missing value, ε and options come from public knowledge.",
    "Ask the labels party; no number can show it.",
    decides=(
        *("label.grid", "label.missing", "label.loss", "label.weight", "label.asked"),
        *("privacy.division", "privacy.requested_epsilon", "randomizer.details.options"),
    ),
)
beyond(
    "names and times are what they say",
    "Could a name carry something else?",
    "The release's names and version carry nothing else.",
    "Whoever wrote the manifest chose them. Compare them with what you asked for; a join compares"
    " `secret_check` with your secrets.",
    decides=(
        *("software", "data_set", "epoch", "label.name", "population.secret_check"),
        *("strata.name",),
    ),
)
BEHAVIOUR = beyond(
    "errors and latency say nothing",
    "Do errors or times say anything about labels?",
    "What the server does depends on requests and the public population alone.",
    "Run `labelveil audit party`.",
)
beyond(
    "the prior was public beforehand",
    "Was the prior known before any label was looked at?",
    "The prior's weights come from public knowledge: they are not private, and no label was counted"
    " for them.",
    "Compare the weights with their public source, and ask when they were written down; weights"
    " made from these labels would tell them without noise.",
    fits=lambda manifest: any(prior.public or prior.start for prior in manifest.priors),
    decides=("prior.noisy_counts", "prior.noise", "prior.start"),
)
beyond(
    "nobody has more labels than is said",
    "Does anybody have more labels than ε was computed for?",
    "No user has more labels in the release than the manifest's records of a unit.",
    "A release names no users: compare the population with the labels party's users.",
    fits=lambda manifest: manifest.labels_guarantee.unit == Unit.USER,
    decides=("privacy.records_per_unit",),
)
beyond(
    "priors in force",
    "Did an earlier release pay for the prior that this one uses?",
    "An epoch without a prior of its own uses one that an earlier epoch paid for.",
    "Audit the folder of all epochs, not one of them.",
    fits=lambda manifest: manifest.drift is not None,
    decides=("prior.scale", "prior.guarantee", "drift.in_force"),
)
beyond(
    "the test for drift was made as stated",
    "Was the test for drift as private as is said?",
    "Statistic and noise of the test are those stated, and its outcome was obeyed.",
    "Its outcome shows one bit: run `labelveil audit party` on the software.",
    fits=lambda manifest: manifest.drift is not None,
    decides=("drift.test", "drift.drifted"),
)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    below = list(enumerate(value)) if name in _LISTS and isinstance(value, list) else []
    if isinstance(value, dict):
        below = list(value.items())
    for key, inner in below:
        yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    if not below:
        yield name, value


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= _SHOWN or not isinstance(value, list):
        return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    if isinstance(value[0], list):
        return f"{len(value)} rows of {len(value[0])}"
    return f"{len(value)}: {value[0]!s:.12} … {value[-1]!s:.12}"


CHECKS = Probes[Evidence]([*sums.CHECKS, *manifest_checks.CHECKS, *rebuild.CHECKS, *ROWS])
"""Everything that a manifest and its rows prove by themselves, in the order in which it is done."""

DECIDED = deciders([*FORM, *CHECKS, *BEYOND])

STEPS = len(FORM) + len(CHECKS) + len(BEYOND) + len(FIELDS)  # how many are named on the way at most
