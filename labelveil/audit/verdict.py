"""What an audit finds: one verdict for each claim, with its evidence."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from common.files import write_text

FORMAT = "labelveil-audit/1"

GATE = 1e-6
"""False-alarm rate at which a statistical check fails a mechanism.

Randomized response is exactly tight, so a gate at 5% would fail one right build in twenty.
"""

SHOWN = 0.05
"""False-alarm rate of the bounds that are shown to people."""


class Verdict(StrEnum):
    """How one check ended."""

    PASS = "pass"
    FAIL = "fail"
    NOT_CHECKABLE = "not checkable"


@dataclass(frozen=True)
class Power:
    """The least fault of one kind that a check finds with a probability of 95%.

    Attributes
    ----------
    fault
        What is found, with its unit: ``excess of ε at any one label``, ``probability of an output
        that one label alone can give``.
    least
        The smallest that is found; infinite where none is, however large.
    """

    fault: str
    least: float

    def to_json(self) -> dict[str, Any]:
        return {"fault": self.fault, "least": _number(self.least)}


@dataclass(frozen=True)
class Check:
    """One claim, what was tried against it, and what was found.

    Attributes
    ----------
    name
        Short and stable: the key in ``audit.json``.
    verdict
        Whether the claim survived.
    claim
        What is claimed, in one sentence.
    tried
        What was done, in one sentence.
    found
        What came out, in one sentence.
    claimed
        The claimed ε, where the check is about a number.
    bound
        Lower bound of the true ε that holds with confidence 1 - ``GATE`` (or exactly, if
        ``confidence`` is 1); infinite where outputs occur that exclude a label.
    shown
        The same at 95%, for people.
    confidence
        Of ``bound``.
    seconds, cpu_seconds
        How long it took, and the time of all processors, child processes included.
    details
        Further facts, as JSON values.
    question
        What a reader wants to know, as a question that the verdict answers.
    power
        The smallest faults that would have been found.
    not_looked_at
        What the verdict does not cover, in one sentence; empty if it covers the whole question.
    cost
        CPU seconds that were expected.
    """

    name: str
    verdict: Verdict
    claim: str
    tried: str
    found: str
    claimed: float | None = None
    bound: float | None = None
    shown: float | None = None
    confidence: float | None = None
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)
    question: str = ""
    power: tuple[Power, ...] = ()
    not_looked_at: str = ""
    cost: float | None = None
    cpu_seconds: float = 0.0

    @property
    def power_sentence(self) -> str:
        """What would have been found, in one sentence; empty if nothing is known of it."""
        if not self.power:
            exact = self.confidence == 1 and self.verdict is not Verdict.NOT_CHECKABLE
            return "Exact: no chance is in it." if exact else ""
        parts = [
            f"{one.fault} from {one.least:.2g} on"
            if math.isfinite(one.least)
            else f"no {one.fault}"
            for one in self.power
        ]
        return f"Would have found with 95 %: {'; '.join(parts)}."

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; an infinite bound becomes the text ``infinity``."""
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
            "confidence": self.confidence,
            "power_95": [power.to_json() for power in self.power],
            "not_looked_at": self.not_looked_at,
            "seconds": round(self.seconds, 4),
            "cpu_seconds": round(self.cpu_seconds, 4),
            "expected_cpu_seconds": self.cost,
            "details": dict(self.details),
        }


@dataclass(frozen=True)
class Field:
    """One thing that a subject says about itself, and what became of it.

    Attributes
    ----------
    name, value
        As a manifest has them; a long value is cut.
    verdict
        The worst of the checks that decide it.
    decided_by
        Their names.
    """

    name: str
    value: str
    verdict: Verdict
    decided_by: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "verdict": str(self.verdict),
            "decided_by": list(self.decided_by),
        }


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """A failure before what is undecided, and that before a pass; of none: not checkable."""
    order = [Verdict.FAIL, Verdict.NOT_CHECKABLE, Verdict.PASS]
    return min(verdicts, key=order.index, default=Verdict.NOT_CHECKABLE)


def verdict_of(holds: bool) -> Verdict:
    """Pass or fail."""
    return Verdict.PASS if holds else Verdict.FAIL


def statistical(
    name: str,
    *,
    question: str = "",
    claim: str,
    tried: str,
    claimed: float,
    bound: float,
    shown: float,
    details: Mapping[str, Any] | None = None,
    power: tuple[Power, ...] = (),
) -> Check:
    """Judge a measured lower bound of ε against the claim: above it, the claim is refuted."""
    holds = bound <= claimed
    relation = "does not exceed" if holds else "exceeds"
    return Check(
        name=name,
        verdict=verdict_of(holds),
        claim=claim,
        tried=tried,
        found=f"The true ε is at least {bound:.3f} with confidence 1 - {GATE:g}, which {relation}"
        f" the claimed {claimed:.4g}; at 95% it is at least {shown:.3f}.",
        claimed=claimed,
        bound=bound,
        shown=shown,
        confidence=1 - GATE,
        details=details or {},
        power=power,
        question=question,
    )


@dataclass
class Audit:
    """A whole audit: its subject and its checks, in the order in which they ran.

    Attributes
    ----------
    kind
        ``certificate``, ``mechanism``, ``party`` or ``inference``.
    subject
        What was audited.
    claimed
        The claimed ε, if there is one number.
    facts
        Table for the report: what the subject says about itself.
    fields
        Everything that a manifest says, with its verdict.
    plots
        Data of the report's pictures, as JSON values.
    """

    kind: str
    subject: str
    claimed: float | None = None
    facts: dict[str, str] = field(default_factory=dict)
    fields: list[Field] = field(default_factory=list)
    plots: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    created: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))

    def run(self, check: Callable[[], Check]) -> Check:
        """Run one check, time it, and keep what it found."""
        start, before = time.perf_counter(), cpu_time()
        found = check()
        found = replace(found, seconds=time.perf_counter() - start, cpu_seconds=cpu_time() - before)
        self.checks.append(found)
        return found

    def add(self, *checks: Check) -> None:
        """Keep checks that have run elsewhere."""
        self.checks.extend(checks)

    def count(self, verdict: Verdict) -> int:
        return sum(check.verdict is verdict for check in self.checks)

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return self.count(Verdict.FAIL) == 0

    @property
    def seconds(self) -> float:
        return sum(check.seconds for check in self.checks)

    @property
    def cpu_seconds(self) -> float:
        return sum(check.cpu_seconds for check in self.checks)

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
            "fields": [one.to_json() for one in self.fields],
            "checks": [check.to_json() for check in self.checks],
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "plots": self.plots,
        }

    def write_json(self, path: Path) -> None:
        """Write ``audit.json``."""
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
        write_text(path, text + "\n")


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
