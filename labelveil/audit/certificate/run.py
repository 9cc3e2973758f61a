"""`certificate`: what a manifest and its labels file prove by themselves.

Everything here is arithmetic on what both parties hold: no run of the labels party, no statistics
but one, no trust in the code that made the release. That code checks much of it, too; here it is
worked out a second time on purpose, from the bytes. What cannot be decided from there is said.

A field of the manifest has the worst verdict of the checks that decide it. Those of
:data:`NOT_CHECKABLE` decide nothing and say what would. So every field is proved, refuted, or named
as *not checkable*.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from labelveil.audit.certificate import manifest_checks, rebuild, row_checks, sums
from labelveil.audit.certificate.evidence import (
    Evidence,
    claimed_epsilon,
    facts,
    manifest_bytes,
    noisy_histograms,
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
from labelveil.common.release.folder import withdrawn_reason
from labelveil.common.release.manifest import Manifest, manifest_digest
from labelveil.common.release.strict_json import parse_json

FORM = Probes[bytes]()


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
    NOT_CHECKABLE.audit(audit, manifest)
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


NOT_CHECKABLE = Probes[Manifest]()
"""What neither the manifest nor its rows can show, and what can."""

not_checkable = partial(NOT_CHECKABLE.not_checkable, tried="Not from a manifest and its rows.")

CODES_DRAWN = not_checkable(
    "the codes were drawn by this channel",
    "Were the labels randomized by this channel, with fresh randomness?",
    "The randomized labels were sampled with the stated weights, from fresh entropy.",
    "Plant labels of your own and score what comes back: `labelveil audit canaries`. Run"
    " `labelveil audit mechanism` on the randomizer and `labelveil audit party` on the software.",
    fits=lambda manifest: manifest.sums is None,
)
SUMS_DRAWN = not_checkable(
    "the sums' noise was drawn as stated",
    "Was the noise on the sums drawn, by group and afresh?",
    "The noise on each sum has the stated scale, and is independent of everything.",
    "Plant labels of your own, and ask about them: `labelveil audit canaries ask`. Run `labelveil"
    " audit mechanism group-sums` on the software.",
    fits=lambda manifest: manifest.sums is not None,
    decides=("sums.widths", "sums.noise"),
)
HISTOGRAM_DRAWN = not_checkable(
    "the histogram's noise was drawn as stated",
    "Was the noise on the histogram drawn, and drawn afresh?",
    "The noise on the counts has the stated scale, and is independent of everything.",
    "Run `labelveil audit mechanism`, which knows the true counts.",
    fits=lambda manifest: bool(noisy_histograms(manifest)),
    decides=("prior.noisy_counts", "prior.noise"),
)
not_checkable(
    "nothing else was released",
    "Do the same labels leave by another door?",
    "The same labels appear in no other release, and the budget covers all of them.",
    "Read the labels party's ledger (`label-party budget`), and ask who keeps it.",
)
not_checkable(
    "grid, bounds, ε and options were chosen without looking",
    "Were the public settings chosen without looking at labels?",
    "Bounds, grid, missing value, ε and options come from public knowledge.",
    "Ask the labels party; no number can show it.",
    decides=(
        *("label.grid", "label.missing", "label.loss", "label.weight", "label.asked"),
        *("privacy.division", "privacy.requested_epsilon", "randomizer.details.options"),
    ),
)
not_checkable(
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
BEHAVIOUR = not_checkable(
    "errors and latency say nothing",
    "Do errors or times say anything about labels?",
    "What the server does depends on requests and the public population alone.",
    "Run `labelveil audit party`.",
)
not_checkable(
    "the prior was public beforehand",
    "Was the prior known before any label was looked at?",
    "The prior's weights come from public knowledge: they are not private, and no label was counted"
    " for them.",
    "Compare the weights with their public source, and ask when they were written down; weights"
    " made from these labels would tell them without noise.",
    fits=lambda manifest: any(prior.public or prior.start for prior in manifest.priors),
    decides=("prior.noisy_counts", "prior.noise", "prior.start"),
)
not_checkable(
    "nobody has more labels than is said",
    "Does anybody have more labels than ε was computed for?",
    "No user has more labels in the release than the manifest's records of a unit.",
    "A release names no users: compare the population with the labels party's users.",
    fits=lambda manifest: manifest.labels_guarantee.unit == Unit.USER,
    decides=("privacy.records_per_unit",),
)
not_checkable(
    "priors in force",
    "Did an earlier release pay for the prior that this one uses?",
    "An epoch without a prior of its own uses one that an earlier epoch paid for.",
    "Audit the folder of all epochs, not one of them.",
    fits=lambda manifest: manifest.drift is not None,
    decides=("prior.scale", "prior.guarantee", "drift.in_force"),
)
not_checkable(
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


CHECKS = Probes[Evidence](
    [*sums.CHECKS, *manifest_checks.CHECKS, *rebuild.CHECKS, *row_checks.CHECKS]
)
"""Everything that a manifest and its rows prove by themselves, in the order in which it is done."""

DECIDED = deciders([*FORM, *CHECKS, *NOT_CHECKABLE])

STEPS = len(FORM) + len(CHECKS) + len(NOT_CHECKABLE) + len(FIELDS)
"""How many are named on the way at most."""
