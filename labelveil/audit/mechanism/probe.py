"""What an audit of a mechanism is made of: probes, each with its question and its cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from common.errors import LabelveilError
from labelveil.audit.mechanism.trial import Trial
from labelveil.audit.verdict import Check, Verdict


@dataclass(frozen=True)
class Probe:
    """One way of finding a leak, and what its verdict is worth."""

    name: str  # short; the progress bar shows it
    question: str  # what its verdict answers, for a reader who knows nothing of how it works
    run: Callable[[Trial], Check]
    cost: Callable[[Trial], float]  # CPU seconds that it takes, roughly
    subject: type[object]  # what it can be run against
    not_looked_at: str  # what its verdict does not cover

    def __call__(self, trial: Trial) -> Check:
        """Run it; what the subject refuses is undecided, and an audit goes on."""
        try:
            check = self.run(trial)
        except LabelveilError as error:
            check = Check(
                name=self.name,
                verdict=Verdict.NOT_CHECKABLE,
                claim="The subject can be built and run for this check.",
                tried="The check was begun.",
                found=f"The subject refused: {error}",
            )
        return replace(
            check,
            question=self.question,
            not_looked_at=check.not_looked_at or self.not_looked_at,
            cost=round(self.cost(trial), 2),
        )


class Probes(list[Probe]):
    """Probes, in the order in which they run."""

    def add(
        self,
        name: str,
        question: str,
        cost: Callable[[Trial], float],
        *,
        subject: type[object] = object,
        not_looked_at: str = "",
    ) -> Callable[[Callable[[Trial], Check]], Probe]:
        """Decorator: the function becomes a probe, the last one."""

        def made(run: Callable[[Trial], Check]) -> Probe:
            probe = Probe(name, question, run, cost, subject, not_looked_at)
            self.append(probe)
            return probe

        return made

    def fitting(self, trial: Trial) -> list[Probe]:
        """Those that can be run against the subject."""
        return [probe for probe in self if isinstance(trial.subject, probe.subject)]
