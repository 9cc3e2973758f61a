"""What an audit tries and finds: one verdict for each claim, with its evidence.

A check is a function that is declared once, with its question, by the decorator
:meth:`Probes.add`: what it is called, which question its verdict answers, what it claims and does
not look at, and which subjects it fits. The function returns what was tried and found, and with
which power. Every kind of audit is a list of such checks: progress, report, page and exit code come
from it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from labelveil.common.errors import LabelveilError

FORMAT = "labelveil-audit/1"

GATE = 1e-6
"""False-alarm rate at which a statistical check fails a mechanism.

Randomized response is exactly tight, so a gate at 5% would fail one right build in twenty.
"""

SHOWN = 0.05  # False-alarm rate of the bounds that are shown to people

UNSEEN = {
    "a secret that somebody can guess, or has written down": (
        "to whoever does not have it, noise of such a key is as random as any"
    ),
    "a trigger of the build's own choosing: a key, a date, a label, a row, an asker": (
        "what is not asked is not run, and there are more triggers than questions"
    ),
    "keys that misbehave together by a function that the party alone knows": (
        "whoever cannot say which they are can only look at all events at once"
    ),
    "noise that is kept for a release which was not made, or for one of other events": (
        "two messages can be compared only where both are at hand, about the same events"
    ),
    "what happens more seldom than the power says": (
        "a raw label in a billion rows does not occur in the rows that were looked at"
    ),
    "another copy, a log or a phone call": "it does not pass by the auditor",
    "settings that were chosen after looking at labels": (
        "the same settings may be chosen by somebody who has not"
    ),
}
"""What nobody sees from outside, without the party's memory or source, and why."""

SubjectP = ParamSpec("SubjectP")  # what a check looks at: one thing, or several
PartT = TypeVar("PartT")

Progress = Callable[[str], None]  # called with the name of each step before it runs


def silent(step: str) -> None:
    """Progress that nobody watches."""


class Verdict(StrEnum):
    """How one check ended."""

    PASS = "pass"
    FAIL = "fail"
    NOT_CHECKABLE = "not checkable"


@dataclass(frozen=True)
class Power:
    """The least fault of one kind that a check finds with a probability of 95%."""

    fault: str  # with its unit, as in ``probability of an output that one label alone can give``
    least: float  # infinite where none is found, however large


@dataclass(frozen=True, eq=False)
class Bounds:
    """Lower bounds of the true ε, at confidence 1 - ``GATE`` and (``shown``) at 95%."""

    bound: float
    shown: float

    def check(self, *, claimed: float, tried: str, **more: Any) -> Check:
        """Judge them against the claim: one that lies above it refutes it."""
        holds = self.bound <= claimed
        relation = "does not exceed" if holds else "exceeds"
        return Check(
            verdict_of(holds),
            tried,
            f"The true ε is at least {self.bound:.3f} with confidence 1 - {GATE:g}, which"
            f" {relation} the claimed {claimed:.4g}; at 95% it is at least {self.shown:.3f}.",
            claimed=claimed,
            bound=self.bound,
            shown=self.shown,
            confidence=1 - GATE,
            **more,
        )


@dataclass(frozen=True)
class Check:
    """What was tried against one claim, and what was found: a sentence each.

    Name, question and, where no number is in it, the claim are declared with the function that
    finds it (:class:`Probe`), which puts them in.
    """

    verdict: Verdict
    tried: str
    found: str
    claim: str = ""
    claimed: float | None = None  # the claimed ε, where the check is about a number
    bound: float | None = None
    """Lower bound of the true ε; infinite where outputs occur that exclude a label."""
    shown: float | None = None  # the same at 95%, for people
    confidence: float = 1.0  # of the verdict; 1 where no chance is in it
    seconds: float = 0.0
    # further facts, as JSON values
    details: Mapping[str, Any] = field(hash=False, default_factory=dict)
    name: str = ""  # short and stable: the key in ``audit.json``
    question: str = ""  # what a reader wants to know, as a question that the verdict answers
    power: tuple[Power, ...] = ()
    not_looked_at: str = ""
    """What the verdict does not cover; empty if it covers the whole question."""
    cpu_seconds: float = 0.0  # of all processors, child processes included

    @property
    def power_sentence(self) -> str:
        """What would have been found, in one sentence; empty if nothing is known of it."""
        if not self.power:
            exact = self.confidence == 1 and self.verdict is not Verdict.NOT_CHECKABLE
            return "Exact: no chance is in it." if exact else ""
        faults = [
            f"{power.fault} from {power.least:.2g} on"
            if math.isfinite(power.least)
            else f"no {power.fault}"
            for power in self.power
        ]
        return f"Would have found with 95 %: {'; '.join(faults)}."

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; an infinite bound becomes the text ``infinity``."""
        undecided = self.verdict is Verdict.NOT_CHECKABLE
        return {
            "name": self.name,
            "question": self.question,
            "verdict": str(self.verdict),
            "claim": self.claim,
            "tried": self.tried,
            "found": self.found,
            "claimed_epsilon": _number(self.claimed),
            "measured_bound": _number(self.bound),
            "measured_bound_95": _number(self.shown),
            "confidence": None if undecided and self.bound is None else self.confidence,
            "power_95": [asdict(p) | {"least": _number(p.least)} for p in self.power],
            "not_looked_at": self.not_looked_at,
            "seconds": round(self.seconds, 4),
            "cpu_seconds": round(self.cpu_seconds, 4),
            "details": dict(self.details),
        }


@dataclass(frozen=True)
class Field:
    """One thing that a manifest says (a long value is cut), and the checks that decide it.

    The verdict is the worst of theirs.
    """

    name: str
    value: str
    verdict: Verdict
    decided_by: tuple[str, ...]


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """A failure before what is undecided, and that before a pass; of none: not checkable."""
    order = [Verdict.FAIL, Verdict.NOT_CHECKABLE, Verdict.PASS]
    return min(verdicts, key=order.index, default=Verdict.NOT_CHECKABLE)


def verdict_of(holds: bool) -> Verdict:
    return Verdict.PASS if holds else Verdict.FAIL


@dataclass
class Audit:
    """A whole audit: its subject and its checks, in the order in which they ran."""

    kind: str  # ``certificate``, ``mechanism``, ``party``, ``canaries`` or ``inference``
    subject: str
    claimed: float | None = None  # the claimed ε, if there is one number
    facts: dict[str, str] = field(default_factory=dict)
    """Table for the report: what the subject says about itself."""
    fields: list[Field] = field(default_factory=list)
    """Everything that a manifest says, with its verdict."""
    plots: dict[str, Any] = field(default_factory=dict)
    """Data of the report's pictures, as JSON values."""
    checks: list[Check] = field(default_factory=list)
    created: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    progress: Progress = silent

    def run(self, check: Callable[[], Check]) -> Check:
        """Run one check, time it, and keep it."""
        start, before = time.perf_counter(), cpu_time()
        made = check()
        made = replace(made, seconds=time.perf_counter() - start, cpu_seconds=cpu_time() - before)
        self.checks.append(made)
        return made

    def count(self, verdict: Verdict) -> int:
        return sum(check.verdict is verdict for check in self.checks)

    @property
    def passed(self) -> bool:
        return self.count(Verdict.FAIL) == 0

    @property
    def seconds(self) -> float:
        return sum(check.seconds for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": self.kind,
            "subject": self.subject,
            "created": self.created,
            "verdict": str(verdict_of(self.passed)),
            "claimed_epsilon": _number(self.claimed),
            "gate": GATE,
            "facts": self.facts,
            "fields": [asdict(each) for each in self.fields],
            "checks": [check.to_json() for check in self.checks],
            "cannot_be_seen": UNSEEN,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(sum(check.cpu_seconds for check in self.checks), 3),
            "plots": self.plots,
        }


@dataclass(frozen=True)
class Probe(Generic[SubjectP]):
    """One way of finding a fault, and what its verdict is worth."""

    name: str  # short and stable: the check's, which the progress bar shows
    question: str  # what its verdict answers, for a reader who knows nothing of how it works
    run: Callable[SubjectP, Check]
    fits: Callable[SubjectP, bool]  # what it can be run against
    refused: Verdict  # where the subject refuses
    claim: str  # where no number is in it; else the check says it
    not_looked_at: str  # what its verdict does not cover
    decides: tuple[str, ...]  # fields of a manifest, each with all below it, whose verdict it is

    def __call__(self, *subject: SubjectP.args, **named: SubjectP.kwargs) -> Check:
        """Run it; what the subject refuses has a verdict, too, and an audit goes on."""
        try:
            check = self.run(*subject, **named)
        except LabelveilError as error:
            check = Check(
                self.refused,
                "The check was begun.",
                f"The subject refused: {error}",
                claim=self.claim or "The subject can be read and run for this check.",
            )
        return replace(
            check,
            name=self.name,
            question=self.question,
            claim=check.claim or self.claim,
            not_looked_at=check.not_looked_at or self.not_looked_at,
        )


def _always(*_: object, **__: object) -> bool:
    return True


class Probes(list[Probe[SubjectP]], Generic[SubjectP]):
    """Probes of one kind of subject, in the order in which they run.

    ``Probes[Manifest]`` are functions of a manifest, ``Probes[Endpoint, Fetched]`` of two
    arguments. ``refused`` is the verdict where a subject refuses one of them.
    """

    def __init__(
        self, probes: Iterable[Probe[SubjectP]] = (), refused: Verdict = Verdict.NOT_CHECKABLE
    ) -> None:
        super().__init__(probes)
        self._refused = refused

    def add(
        self,
        name: str,
        question: str,
        claim: str = "",
        *,
        fits: Callable[SubjectP, bool] = _always,
        not_looked_at: str = "",
        decides: tuple[str, ...] = (),
    ) -> Callable[[Callable[SubjectP, Check]], Probe[SubjectP]]:
        """Decorator: the function becomes a probe, the last one."""

        def made(run: Callable[SubjectP, Check]) -> Probe[SubjectP]:
            said = name, question, run, fits, self._refused, claim, not_looked_at, decides
            self.append(Probe(*said))
            return self[-1]

        return made

    def not_checkable(
        self,
        name: str,
        question: str,
        claim: str,
        remedy: str,
        *,
        tried: str,
        fits: Callable[SubjectP, bool] = _always,
        decides: tuple[str, ...] = (),
    ) -> Probe[SubjectP]:
        """Declare what this audit cannot see, and what would: it ends as not checkable."""
        undecided = Check(Verdict.NOT_CHECKABLE, tried, remedy)

        def say_so(*_: SubjectP.args, **__: SubjectP.kwargs) -> Check:
            return undecided

        return self.add(name, question, claim, fits=fits, decides=decides)(say_so)

    def of_part(
        self,
        probes: Iterable[Probe[[PartT]]],
        part: Callable[SubjectP, PartT],
        *,
        fits: Callable[SubjectP, bool] = _always,
    ) -> None:
        """Declare what is looked at in a part of this subject, too."""
        for probe in probes:
            self.add(
                probe.name,
                probe.question,
                probe.claim,
                fits=fits,
                not_looked_at=probe.not_looked_at,
            )(_in_part(probe.run, part))

    def fitting(self, *subject: SubjectP.args, **named: SubjectP.kwargs) -> list[Probe[SubjectP]]:
        """Those that can be run against it."""
        return [probe for probe in self if probe.fits(*subject, **named)]

    def checks(self, *subject: SubjectP.args, **named: SubjectP.kwargs) -> list[Check]:
        """Run all that fit."""
        return [probe(*subject, **named) for probe in self.fitting(*subject, **named)]

    def audit(self, audit: Audit, *subject: SubjectP.args, **named: SubjectP.kwargs) -> None:
        """Run all that fit, and keep what they find."""
        for probe in self.fitting(*subject, **named):
            audit.progress(probe.name)
            audit.run(partial(probe, *subject, **named))


def _in_part(
    run: Callable[[PartT], Check], part: Callable[SubjectP, PartT]
) -> Callable[SubjectP, Check]:
    def look(*subject: SubjectP.args, **named: SubjectP.kwargs) -> Check:
        return run(part(*subject, **named))

    return look


def number(value: float, digits: int = 4) -> str:
    """For people."""
    return "∞" if math.isinf(value) else f"{value:.{digits}g}"


def cpu_time() -> float:
    """Seconds that this process and its finished children have computed."""
    return sum(os.times()[:4])


def cpu_seconds(run: Callable[[], object]) -> float:
    """How many of them something takes, at least one tick of the clock."""
    before = cpu_time()
    run()
    return max(cpu_time() - before, 1.0 / os.sysconf("SC_CLK_TCK"))


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "infinity" if value > 0 else "undefined"
