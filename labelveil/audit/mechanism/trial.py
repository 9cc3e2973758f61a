"""A subject on trial: how hard it is tried, and what is drawn anew for all probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Self, cast

import numpy as np

from labelveil.audit.attacks import replay as replays
from labelveil.audit.attacks.one_run import Outputs, draw_secrets, uniform
from labelveil.audit.mechanism.cold_start import STARTS
from labelveil.audit.mechanism.subject import (
    CallableSubject,
    NamedSubject,
    Subject,
    SumsSubject,
)
from labelveil.audit.verdict import cpu_seconds
from labelveil.common.arrays import Floats, Integers

SOME = 16  # labels that each of many calls has at most

_PACE_ROWS, _PACE_CALLS = 500_000, 200


@dataclass(frozen=True)
class Sizes:
    """How much is tried: with an effort of 1, or n times as much."""

    runs: int = 1_000_000  # of the search over labels, which takes about seven times as many
    records: int = 1_000_000  # rows whose labels reach other rows
    releases: int = 500_000  # two-step ones, for each of two worlds
    calls: int = 2_000  # timed single calls for each of two labels
    seeds: int = 100  # replays of a release
    rows: int = 1 << 19  # rows that are compared with each other
    long_rows: int = 1 << 22  # rows of calls whose end is compared with their beginning
    small_calls: int = 4096
    """Calls of ``small_rows`` rows in which every row is compared with every other one."""
    small_rows: int = 512
    starts: int = STARTS  # first starts in one process, whose noise is compared
    forks: int = 32
    """As many more before and after it begins, in processes that show noise that is inherited."""

    def times(self, effort: float) -> Self:
        """``effort`` times as much, but for the rows of small calls; replays are not fewer."""
        sizes = {f.name: round(effort * getattr(self, f.name)) for f in fields(self)}
        seeds = max(self.seeds, sizes["seeds"])
        return type(self)(**sizes | {"seeds": seeds, "small_rows": self.small_rows})


@dataclass(frozen=True)
class Trial:
    """A subject, how hard it is tried, and what is drawn anew in each run for all probes.

    Labels are those of the grid and two between each two of them, half-way and anywhere; each probe
    takes a pair or some of them, and a number of rows above the least.
    """

    subject: Subject
    sizes: Sizes
    grid_only: bool = False  # whether there are no labels but those of the grid

    @property
    def named(self) -> NamedSubject:
        """The subject, where it takes injected entropy."""
        return cast(NamedSubject, self.subject)

    @property
    def sums(self) -> SumsSubject:
        """The subject, where it answers questions about groups."""
        return cast(SumsSubject, self.subject)

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest label."""
        return float(self.subject.labels[0]), float(self.subject.labels[-1])

    @cached_property
    def labels(self) -> Floats:
        """(k,) labels that are probed, ascending: those of the grid, and two between each two.

        One is half-way, the other anywhere. A grid of two, as of labels that are yes or no, and
        what takes numbers of events, or no other labels, is probed with the grid alone.
        """
        grid = self.subject.labels
        events = isinstance(self.subject, CallableSubject) and self.subject.events is not None
        if events or self.grid_only or grid.size == 2:
            return grid
        places = np.append(np.full(grid.size - 1, 0.5), uniform(grid.size - 1))
        between = np.tile(grid[:-1], 2) + places * np.tile(np.diff(grid), 2)
        try:
            self.subject.mechanism(between)
        except Exception:  # anybody's code may refuse in any way
            return grid
        return np.unique(np.concatenate([grid, between]))

    @property
    def between(self) -> str:
        """Whether labels between those of the grid are among them, in words."""
        beyond = self.labels.size > self.subject.labels.size
        return "two between each two included" if beyond else "no others"

    @cached_property
    def some(self) -> Floats:
        """(k,) some of them at random, where each of many calls has several."""
        return np.sort(self.labels[np.argsort(uniform(self.labels.size))[:SOME]])

    def pair(self) -> tuple[float, float]:
        """Two labels of the grid, of its lower and upper half, drawn at each call."""
        grid = self.subject.labels
        low, high = draw_secrets(2, grid.size // 2).tolist()
        return float(grid[low]), float(grid[-1 - high])

    def label(self) -> float:
        """A label, drawn at each call."""
        return float(self.labels[draw_secrets(1, self.labels.size)[0]])

    @staticmethod
    def about(least: int) -> int:
        """A number of rows from the least to a quarter more."""
        return least + int(draw_secrets(1, least // 4 + 1)[0])

    def of_bits(self, bits: Integers, labels: tuple[float, float]) -> Outputs:
        """Outputs of one call for two labels."""
        return self.subject.mechanism(np.array(labels)[bits])

    @cached_property
    def replay(self) -> replays.Replay:
        """Two-step releases of six labels over three points, and of a neighbour."""
        last = min(3, self.subject.labels.size) - 1.0
        labels = np.array([0.0, 0.0, 0.0, 1.0, last, last])
        return replays.replay(self.named.release, labels, 0, 1.0, self.sizes.seeds)

    @cached_property
    def pace(self) -> tuple[float, float]:
        """CPU seconds of one row in a long call, and of one short call."""
        self.subject.mechanism(self.subject.labels[:1])  # pays for what is made once
        labels = np.resize(self.subject.labels, _PACE_ROWS)
        row = cpu_seconds(lambda: self.subject.mechanism(labels)) / _PACE_ROWS
        call = cpu_seconds(lambda: [self.subject.mechanism(labels[:1]) for _ in range(_PACE_CALLS)])
        return row, call / _PACE_CALLS


def subject_is(*kinds: type[object]) -> Callable[[Trial], bool]:
    """Whether a trial's subject is of some kind."""
    return lambda trial: isinstance(trial.subject, kinds)
