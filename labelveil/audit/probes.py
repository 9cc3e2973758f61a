"""What an audit tries: a check is a function that is declared once, with its question.

The declaration says what the check is called, which question its verdict answers, what it claims
and does not look at, and which subjects it fits; the function returns what was tried and found, and
with which power. Every kind of audit is a list of such checks: progress, report, page and exit code
come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from labelveil.audit.verdict import Audit, Check, Verdict
from labelveil.common.errors import LabelveilError

SubjectT = TypeVar("SubjectT")


@dataclass(frozen=True)
class Probe(Generic[SubjectT]):
    """One way of finding a fault, and what its verdict is worth."""

    name: str  # short and stable: the check's, which the progress bar shows
    question: str  # what its verdict answers, for a reader who knows nothing of how it works
    run: Callable[[SubjectT], Check]
    fits: Callable[[SubjectT], bool]  # what it can be run against
    refused: Verdict  # where the subject refuses
    claim: str  # where no number is in it; else the check says it
    not_looked_at: str  # what its verdict does not cover

    def __call__(self, subject: SubjectT) -> Check:
        """Run it; what the subject refuses has a verdict, too, and an audit goes on."""
        try:
            check = self.run(subject)
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


class Probes(list[Probe[SubjectT]]):
    """Probes of one kind of subject, in the order in which they run.

    ``refused`` is the verdict where a subject refuses one of them.
    """

    def __init__(
        self, probes: Iterable[Probe[SubjectT]] = (), refused: Verdict = Verdict.NOT_CHECKABLE
    ) -> None:
        super().__init__(probes)
        self._refused = refused

    def add(
        self,
        name: str,
        question: str,
        claim: str = "",
        *,
        fits: Callable[[SubjectT], bool] = lambda _: True,
        not_looked_at: str = "",
    ) -> Callable[[Callable[[SubjectT], Check]], Probe[SubjectT]]:
        """Decorator: the function becomes a probe, the last one."""

        def made(run: Callable[[SubjectT], Check]) -> Probe[SubjectT]:
            self.append(Probe(name, question, run, fits, self._refused, claim, not_looked_at))
            return self[-1]

        return made

    def beyond(
        self,
        name: str,
        question: str,
        claim: str,
        remedy: str,
        *,
        tried: str,
        fits: Callable[[SubjectT], bool] = lambda _: True,
    ) -> None:
        """Declare what this audit cannot see, and what would: it ends as not checkable."""
        undecided = Check(Verdict.NOT_CHECKABLE, tried, remedy)
        self.add(name, question, claim, fits=fits)(lambda _: undecided)

    def fitting(self, subject: SubjectT) -> list[Probe[SubjectT]]:
        """Those that can be run against it."""
        return [probe for probe in self if probe.fits(subject)]

    def checks(self, subject: SubjectT) -> list[Check]:
        """Run all that fit."""
        return [probe(subject) for probe in self.fitting(subject)]

    def audit(self, audit: Audit, subject: SubjectT) -> None:
        """Run all that fit, and keep what they find."""
        for probe in self.fitting(subject):
            audit.progress(probe.name)
            audit.run(partial(probe, subject))
