"""A subject on trial: how hard it is tried, and what several checks look at, drawn once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from common.arrays import Integers
from labelveil.audit.attacks import replay as replays
from labelveil.audit.attacks.implementation import Outputs
from labelveil.audit.attacks.rows_apart import ROWS
from labelveil.audit.attacks.seeds import STARTS
from labelveil.audit.mechanism.subject import NamedSubject, Subject
from labelveil.audit.verdict import cpu_seconds

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
    """A subject, and how hard it is tried."""

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
