"""What a twin is: a fault, and the probe that must catch it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelveil.audit.mechanism.run import PROBES
from labelveil.audit.mechanism.subject import CallableSubject
from labelveil.audit.mechanism.trial import Sizes, Trial
from labelveil.audit.verdict import Check
from labelveil.common.arrays import Floats, Words
from labelveil.common.entropy import system_entropy
from labelveil.common.exact.channel import randomized_response_rows
from tests.labelveil.audit.twins.samplers import word_sampler

Outputs = NDArray[np.generic]

SIZES = Sizes(starts=2, forks=2)
"""As the audit's own, with fewer starts."""

SMALL = Sizes(
    runs=20_000,
    records=20_000,
    releases=5_000,
    calls=100,
    seeds=60,
    rows=20_000,
    long_rows=50_000,
    small_calls=1024,
    small_rows=16,
    starts=2,
    forks=2,
)
"""For what is right and must pass quickly."""

TINY = replace(
    SMALL, runs=2000, records=1000, releases=500, calls=20, seeds=4, rows=2000, long_rows=4000,
    small_calls=64, starts=3, forks=1,
)  # fmt: skip
"""For what probes say, whatever they find."""

RESPONSE = word_sampler(randomized_response_rows(2, 1.0))
"""Randomized response of two labels at ε = 1, from words."""


class Twin:
    """A build that claims what it does not keep.

    Attributes
    ----------
    caught_by
        The probe that must fail it.
    slow
        Whether that takes longer than a quick test may.
    """

    caught_by: ClassVar[str]
    slow: ClassVar[bool] = False

    def audit(self) -> Check:
        """Hold the probe against it."""
        raise NotImplementedError


class MechanismTwin(Twin):
    """A mechanism, audited as anybody's callable.

    Attributes
    ----------
    labels, epsilon
        What it may be asked about, and what it claims.
    sizes
        How hard it is tried.
    """

    labels: ClassVar[Floats] = np.array([0.0, 1.0])
    epsilon: ClassVar[float] = 1.0
    sizes: ClassVar[Sizes] = SIZES

    def __call__(self, labels: Floats) -> Outputs:
        """Randomize labels; by default rightly, from :meth:`words`."""
        return np.asarray(RESPONSE(labels.astype(np.int64), self.words(labels.size)))

    def words(self, count: int) -> Words:
        """One word a row."""
        return system_entropy().words("labels", 0, count)

    def trial(self) -> Trial:
        """The twin as the audit sees it."""
        target = f"{type(self).__module__}:{type(self).__name__}"
        return Trial(CallableSubject(target, self.labels, self.epsilon), self.sizes)

    def audit(self) -> Check:
        """Hold the probe against it."""
        trial = self.trial()
        probe = next(p for p in PROBES.fitting(trial) if p.name == self.caught_by)
        return probe(trial)


Made = TypeVar("Made", bound=Twin)

TWINS: list[Twin] = []


def twin(made: type[Made]) -> Made:
    """Decorator: the class's one instance takes its name, and stands in the library."""
    found = made()
    TWINS.append(found)
    return found
