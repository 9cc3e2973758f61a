"""What an audit tries: each probe is a function that is declared once, with its question.

A probe knows what it fits; what a verdict of it is worth is said beside it. Progress, report, page
and exit code come from the declaration and from what the function returns.
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

    name: str  # short; the progress bar shows it
    question: str  # what its verdict answers, for a reader who knows nothing of how it works
    run: Callable[[SubjectT], Check]
    fits: Callable[[SubjectT], bool]  # what it can be run against
    refused: Verdict  # where the subject refuses
    not_looked_at: str  # what its verdict does not cover

    def __call__(self, subject: SubjectT) -> Check:
        """Run it; what the subject refuses has a verdict, too, and an audit goes on."""
        try:
            check = self.run(subject)
        except LabelveilError as error:
            check = Check(
                name=self.name,
                verdict=self.refused,
                claim="The subject can be read and run for this check.",
                tried="The check was begun.",
                found=f"The subject refused: {error}",
            )
        return replace(
            check, question=self.question, not_looked_at=check.not_looked_at or self.not_looked_at
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
        *,
        fits: Callable[[SubjectT], bool] = lambda _: True,
        not_looked_at: str = "",
    ) -> Callable[[Callable[[SubjectT], Check]], Probe[SubjectT]]:
        """Decorator: the function becomes a probe, the last one."""

        def made(run: Callable[[SubjectT], Check]) -> Probe[SubjectT]:
            self.append(Probe(name, question, run, fits, self._refused, not_looked_at))
            return self[-1]

        return made

    def fitting(self, subject: SubjectT) -> list[Probe[SubjectT]]:
        """Those that can be run against it."""
        return [probe for probe in self if probe.fits(subject)]

    def audit(self, audit: Audit, subject: SubjectT) -> None:
        """Run all that fit, and keep what they find."""
        for probe in self.fitting(subject):
            audit.run(partial(probe, subject), probe.name)
