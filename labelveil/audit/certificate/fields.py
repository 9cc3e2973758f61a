"""Every field of a manifest, and the checks that decide it: nothing is said that nobody looks at.

A field has the worst verdict of its checks. Those of :data:`BEYOND` decide nothing and say
what would. So every field is proved, refuted, or named as *not checkable*.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from labelveil.audit.verdict import Audit, Check, Field, Probe, Probes, Verdict, verdict_of, worst
from labelveil.common.guarantees import Unit
from labelveil.common.release.manifest import Manifest

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
    verdicts = {check.name: check.verdict for check in checks}
    return [_judged(name, _shown(value), verdicts, decided) for name, value in _leaves(document)]


def _judged(name: str, value: str, verdicts: Mapping[str, Verdict], decided: Deciders) -> Field:
    """Give a field its verdict, of the checks that were made; one that no check knows fails."""
    rule = re.sub(r"^strata\.\d+", "strata", re.sub(r"^tables\.", "priors.", name))
    rule = re.sub(r"^(label|prior|randomizer)s\.\d+", r"\1", rule)
    while rule not in decided and "." in rule:
        rule = rule.rpartition(".")[0]
    decided_by = tuple(decided.get(rule, ()))
    verdict = worst(verdicts[check] for check in decided_by if check in verdicts)
    return Field(name, value, verdict if decided_by else Verdict.FAIL, decided_by)


def fields_of_all(
    audits: Iterable[Audit], checks: Iterable[Check], decided: Deciders
) -> list[Field]:
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
            decided,
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
    fits=lambda manifest: any(prior.noisy for prior in (*manifest.priors, *manifest.tables)),
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
