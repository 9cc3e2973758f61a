"""A subject on trial: how hard it is tried, and by what probes, each with its question and cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np

from common.arrays import Integers
from common.errors import LabelveilError
from labelveil.audit.attacks import replay as replays
from labelveil.audit.attacks.implementation import Outputs
from labelveil.audit.attacks.rows_apart import ROWS
from labelveil.audit.attacks.seeds import STARTS
from labelveil.audit.mechanism.subject import NamedSubject, Subject
from labelveil.audit.verdict import Check, Verdict, cpu_seconds

_PACE_ROWS, _PACE_CALLS = 50_000, 20


@dataclass(frozen=True)
class Sizes:
    """How much is tried."""

    runs: int = 1_000_000
    """Effort of the search over labels; about seven times as many runs are made."""
    records: int = 1_000_000
    """Of the one-run audit, and of the search for labels that reach other rows."""
    releases: int = 500_000  # two-step ones, for each of two worlds
    calls: int = 2_000  # timed single calls for each of two labels
    seeds: int = 100  # replays of a release
    rows: int = ROWS  # rows that are compared with each other
    small_calls: int = 4096
    """Calls of ``small_rows`` rows in which every row is compared with every other one."""
    small_rows: int = 512
    starts: int = STARTS  # first starts in one process, whose noise is compared
    forks: int = 32
    """As many more before and after it begins, in processes that show noise that is inherited."""


@dataclass(frozen=True)
class Trial:
    """A subject, how hard it is tried, and what several checks look at, drawn once."""

    subject: Subject
    sizes: Sizes

    @property
    def named(self) -> NamedSubject:
        """The subject, where it takes injected entropy."""
        return cast(NamedSubject, self.subject)

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest label."""
        return float(self.subject.labels[0]), float(self.subject.labels[-1])

    @cached_property
    def constant(self) -> Outputs:
        """Outputs of one long call in which every label is the lowest."""
        return self.repeat(self.ends[0], self.sizes.rows)

    def repeat(self, label: float, runs: int) -> Outputs:
        """Outputs of one call for equal labels."""
        return self.subject.mechanism(np.full(runs, label))

    def of_bits(self, bits: Integers, labels: tuple[float, float] | None = None) -> Outputs:
        """Outputs of one call for two labels, by default the lowest and the highest one."""
        return self.subject.mechanism(np.array(labels or self.ends)[bits])

    @cached_property
    def replay(self) -> replays.Replay:
        """Two-step releases of six labels over three points, and of a neighbour."""
        last = min(3, self.subject.labels.size) - 1.0
        labels = np.array([0.0, 0.0, 0.0, 1.0, last, last])
        return replays.replay(self.named.release, labels, 0, 1.0, self.sizes.seeds)

    @cached_property
    def _pace(self) -> tuple[float, float]:
        """CPU seconds of one row in a long call, and of one short call."""
        self.subject.mechanism(self.subject.labels[:1])  # pays for what is made once
        labels = np.resize(self.subject.labels, _PACE_ROWS)
        row = cpu_seconds(lambda: self.subject.mechanism(labels)) / _PACE_ROWS
        call = cpu_seconds(lambda: [self.subject.mechanism(labels[:1]) for _ in range(_PACE_CALLS)])
        return row, call / _PACE_CALLS

    def seconds(self, rows: float, calls: float = 1) -> float:
        """CPU seconds that the subject takes for so many rows in so many calls, roughly."""
        row, call = self._pace
        return rows * row + calls * call


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
