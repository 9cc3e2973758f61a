"""What an audit is made of: probes, each with its question, its cost and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from common.errors import LabelveilError
from labelveil.audit.verdict import Audit, Check, Verdict

Progress = Callable[[str], None]

Target = TypeVar("Target")
"""What is attacked, and with how much effort."""


@dataclass(frozen=True)
class Probe(Generic[Target]):
    """One way of finding a leak, and what its verdict is worth.

    Attributes
    ----------
    name
        Short and stable; the progress bar shows it.
    question
        What its verdict answers, for a reader who knows nothing of how it works.
    cost
        CPU seconds that it will take, roughly, for a target.
    run
        Runs it.
    fits
        Whether it can be run against a target.
    not_looked_at
        What its verdict does not cover.
    """

    name: str
    question: str
    cost: Callable[[Target], float]
    run: Callable[[Target], Check]
    fits: Callable[[Target], bool] = lambda target: True
    not_looked_at: str = ""

    def __call__(self, target: Target) -> Check:
        """Run it; what the subject refuses is undecided, and an audit goes on."""
        try:
            found = self.run(target)
        except LabelveilError as error:
            found = Check(
                name=self.name,
                verdict=Verdict.NOT_CHECKABLE,
                claim="The subject can be built and run for this check.",
                tried="The check was begun.",
                found=f"The subject refused: {error}",
            )
        return replace(
            found,
            question=self.question,
            not_looked_at=found.not_looked_at or self.not_looked_at,
            cost=round(self.cost(target), 2),
        )


def fitting(probes: Iterable[Probe[Target]], target: Target) -> list[Probe[Target]]:
    """Those of some probes that can be run against a target, in their order."""
    return [probe for probe in probes if probe.fits(target)]


def expected_cost(probes: Iterable[Probe[Target]], target: Target) -> float:
    """CPU seconds that the fitting probes will take together, roughly."""
    return sum(probe.cost(target) for probe in fitting(probes, target))


def run_probes(
    audit: Audit, probes: Iterable[Probe[Target]], target: Target, progress: Progress
) -> None:
    """Run the fitting probes one after the other; ``progress`` is told each one's name before."""
    for probe in fitting(probes, target):
        progress(probe.name)
        audit.run(lambda probe=probe: probe(target))  # type: ignore[misc]
