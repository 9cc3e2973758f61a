"""Every field of a manifest, and the checks that decide it: nothing is said that nobody looks at.

A field has the worst verdict of its checks. Those of :data:`BEYOND` decide nothing and say
what would. So every field is proved, refuted, or named as *not checkable*.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from labelveil.audit.certificate import sums
from labelveil.audit.certificate.manifest_checks import DECODED
from labelveil.audit.verdict import (
    Audit,
    Check,
    Field,
    Probes,
    Verdict,
    verdict_of,
    worst,
)
from labelveil.common.guarantees import Unit
from labelveil.common.release.manifest import Manifest

_REBUILT = "channel is a function of the noisy histogram"
_CHOSEN = "grid, bounds, ε and options were chosen without looking"
_DRAWN = "the histogram's noise was drawn as stated"
_SUMS_DRAWN = "the sums' noise was drawn as stated"
_CODES_DRAWN = "the codes were drawn by this channel"
_NAMES = "names and times are what they say"
BEHAVIOUR = "errors and latency say nothing"
_PUBLIC = "the prior was public beforehand"
_FORM = "manifest is consistent"
_SPENT = (DECODED, "prior noise scale", "split of ε", "priors in force")

_CHECKS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("format", "drift", "prior.labels", "randomizer.labels"): ("manifest is consistent",),
    ("software", "data_set", "epoch", "label.name", "population.secret_check"): (_NAMES,),
    ("label.grid",): ("weights", sums.LATTICE, _CHOSEN),
    ("label.missing",): (_CHOSEN,),
    ("label.loss", "label.weight", "label.asked", "privacy.division"): (_REBUILT, _CHOSEN),
    ("prior.noisy_counts",): (_REBUILT, DECODED, _DRAWN, _PUBLIC),
    ("priors", "tables"): ("manifest is consistent", _REBUILT),
    ("randomizers",): (_FORM,),
    ("sums.question",): (sums.QUESTION,),
    ("sums.groups", "sums.offsets", "sums.largest_weight"): (sums.QUESTION, sums.SCALES),
    ("sums.widths",): (sums.QUESTION, sums.SCALES, _SUMS_DRAWN),
    ("sums.noise",): (_FORM, _SUMS_DRAWN),
    ("sums.guarantee",): (sums.SCALES, "arithmetic of the ε split"),
    ("prior.noise",): (DECODED, _DRAWN, _PUBLIC),
    ("prior.start",): (_FORM, _REBUILT, _PUBLIC),
    ("prior.scale",): (*_SPENT, _FORM),
    ("prior.guarantee",): (*_SPENT, "arithmetic of the ε split"),
    ("randomizer.name", "randomizer.details"): (_REBUILT,),
    ("randomizer.details.options",): ("options", _CHOSEN),
    ("randomizer.channel.outputs",): ("outputs", _REBUILT),
    ("randomizer.channel.row_of",): ("weights", _REBUILT),
    ("randomizer.channel.rows",): ("weights", "exact ε of the labels", _REBUILT),
    ("randomizer.guarantee",): ("exact ε of the labels", "arithmetic of the ε split"),
    ("privacy.requested_epsilon",): ("arithmetic of the ε split", "options", _CHOSEN),
    ("privacy.records_per_unit",): (
        *("exact ε of the labels", sums.SCALES),
        "nobody has more labels than is said",
    ),
    ("privacy.total",): ("arithmetic of the ε split",),
    ("population.digest", "population.keys"): ("population digest",),
    (
        *("population.rows", "content.code_bytes", "content.key_bytes"),
        *("content.rows", "content.block_rows", "content.blocks", "content.digest"),
    ): ("content digest", sums.QUESTION),
    ("strata",): ("manifest is consistent", _REBUILT),
    ("strata.name",): (_NAMES,),
    ("strata.rows",): ("manifest is consistent", "rows of each stratum"),
    ("strata.law",): ("manifest is consistent", _REBUILT),
    ("drift.test", "drift.drifted"): (
        "manifest is consistent",
        "the test for drift was made as stated",
    ),
    ("drift.in_force",): ("priors in force",),
}
_DECIDED_BY = {name: checks for names, checks in _CHECKS.items() for name in names}
"""By a field, or by all below it: the longest name counts, and only checks that were made."""

_LISTS = ("labels", "strata", "priors", "tables", "randomizers")
_SHOWN = 64


def fields(document: Mapping[str, Any], checks: Iterable[Check]) -> list[Field]:
    """Return every field of a manifest's JSON, with the worst verdict of the checks behind it."""
    verdicts = {check.name: check.verdict for check in checks}
    return [_judged(name, _shown(value), verdicts) for name, value in _leaves(document)]


def _judged(name: str, value: str, verdicts: Mapping[str, Verdict]) -> Field:
    """Give a field its verdict; one that no check knows fails."""
    rule = re.sub(r"^strata\.\d+", "strata", re.sub(r"^tables\.", "priors.", name))
    rule = re.sub(r"^(label|prior|randomizer)s\.\d+", r"\1", rule)
    while rule not in _DECIDED_BY and "." in rule:
        rule = rule.rpartition(".")[0]
    decided_by = _DECIDED_BY.get(rule, ())
    verdict = worst(verdicts[check] for check in decided_by if check in verdicts)
    return Field(name, value, verdict if decided_by else Verdict.FAIL, decided_by)


def fields_of_all(audits: Iterable[Audit], checks: Iterable[Check]) -> list[Field]:
    """The fields of several manifests, each once, with the verdicts of checks of all of them."""
    verdicts = {check.name: check.verdict for check in checks}
    values: dict[str, dict[str, None]] = {}
    for audit in audits:
        for field in audit.fields:
            values.setdefault(field.name, {})[field.value] = None
    return [
        _judged(
            name,
            next(iter(different)) + f" and {len(different) - 1} others" * (len(different) > 1),
            verdicts,
        )
        for name, different in values.items()
    ]


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

beyond(
    _CODES_DRAWN,
    "Were the labels randomized by this channel, with fresh randomness?",
    "The randomized labels were sampled with the stated weights, from fresh entropy.",
    "Plant labels of your own and score what comes back: `labelveil audit canaries`. Run"
    " `labelveil audit mechanism` on the randomizer and `labelveil audit party` on the software.",
    fits=lambda manifest: manifest.sums is None,
)
beyond(
    _SUMS_DRAWN,
    "Was the noise on the sums drawn, by group and afresh?",
    "The noise on each sum has the stated scale, and is independent of everything.",
    "Plant labels of your own, and ask about them: `labelveil audit canaries ask`. Run `labelveil"
    " audit mechanism group-sums` on the software.",
    fits=lambda manifest: manifest.sums is not None,
)
beyond(
    _DRAWN,
    "Was the noise on the histogram drawn, and drawn afresh?",
    "The noise on the counts has the stated scale, and is independent of everything.",
    "Run `labelveil audit mechanism`, which knows the true counts.",
    fits=lambda manifest: any(prior.noisy for prior in (*manifest.priors, *manifest.tables)),
)
beyond(
    "nothing else was released",
    "Do the same labels leave by another door?",
    "The same labels appear in no other release, and the budget covers all of them.",
    "Read the labels party's ledger (`label-party budget`), and ask who keeps it.",
)
beyond(
    _CHOSEN,
    "Were the public settings chosen without looking at labels?",
    "Bounds, grid, missing value, ε and options come from public knowledge.",
    "Ask the labels party; no number can show it.",
)
beyond(
    _NAMES,
    "Could a name carry something else?",
    "The release's names and version carry nothing else.",
    "Whoever wrote the manifest chose them. Compare them with what you asked for; a join compares"
    " `secret_check` with your secrets.",
)
beyond(
    BEHAVIOUR,
    "Do errors or times say anything about labels?",
    "What the server does depends on requests and the public population alone.",
    "Run `labelveil audit party`.",
)
beyond(
    _PUBLIC,
    "Was the prior known before any label was looked at?",
    "The prior's weights come from public knowledge: they are not private, and no label was counted"
    " for them.",
    "Compare the weights with their public source, and ask when they were written down; weights"
    " made from these labels would tell them without noise.",
    fits=lambda manifest: any(prior.public or prior.start for prior in manifest.priors),
)
beyond(
    "nobody has more labels than is said",
    "Does anybody have more labels than ε was computed for?",
    "No user has more labels in the release than the manifest's records of a unit.",
    "A release names no users: compare the population with the labels party's users.",
    fits=lambda manifest: manifest.labels_guarantee.unit == Unit.USER,
)
beyond(
    "priors in force",
    "Did an earlier release pay for the prior that this one uses?",
    "An epoch without a prior of its own uses one that an earlier epoch paid for.",
    "Audit the folder of all epochs, not one of them.",
    fits=lambda manifest: manifest.drift is not None,
)
beyond(
    "the test for drift was made as stated",
    "Was the test for drift as private as is said?",
    "Statistic and noise of the test are those stated, and its outcome was obeyed.",
    "Its outcome shows one bit: run `labelveil audit party` on the software.",
    fits=lambda manifest: manifest.drift is not None,
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
