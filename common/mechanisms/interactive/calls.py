"""Calls around any private algorithm: not what was expected, one of several, both of two runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

from common.entropy import WordSource
from common.mechanisms.interactive.session import Outcome
from common.mechanisms.interactive.targets import Target, not_prior, run_twice

ValueT = TypeVar("ValueT")

Algorithm = Callable[[Any, WordSource], ValueT]
"""A private algorithm: data and random words in, an outcome out."""


@dataclass(frozen=True)
class NotPrior(Generic[ValueT]):
    """Publish whatever an ε-DP algorithm says; a hit unless it says what was expected."""

    algorithm: Algorithm[ValueT]
    """(ε, δ)-DP."""
    epsilon: Fraction
    prior: ValueT
    """The outcome that is expected, named before the call."""
    delta: Fraction = Fraction(0)

    @property
    def target(self) -> Target:
        """``q = 1/(e^ε + 1)``."""
        return not_prior(self.epsilon, self.delta)

    def draw(self, data: Any, source: WordSource) -> Outcome[ValueT]:
        """Run the algorithm."""
        value = self.algorithm(data, source)
        return Outcome(value, (value != self.prior,))


@dataclass(frozen=True)
class BestOfPriors(Generic[ValueT]):
    """Like :class:`NotPrior`, for k people with different expectations: one target family each.

    A session of k families stops when even the best guesser was wrong τ times (Lemma 2.7).
    """

    algorithm: Algorithm[ValueT]
    """(ε, δ)-DP."""
    epsilon: Fraction
    priors: Sequence[ValueT]
    """(k,) expected outcomes, one a family."""
    delta: Fraction = Fraction(0)

    @property
    def target(self) -> Target:
        """``q = 1/(e^ε + 1)``, of each family."""
        return not_prior(self.epsilon, self.delta)

    def draw(self, data: Any, source: WordSource) -> Outcome[ValueT]:
        """Run the algorithm."""
        value = self.algorithm(data, source)
        return Outcome(value, tuple(value != prior for prior in self.priors))


@dataclass(frozen=True)
class RunTwice:
    """Run an ε-DP algorithm twice and publish both outcomes; a hit if they differ (Lemma F.1).

    The boundary wrapper for algorithms about which nothing is known but their ε: an outcome that is
    nearly certain is nearly free.
    """

    algorithm: Algorithm[Hashable]
    """ε-DP, with outcomes that can be compared."""
    epsilon: Fraction

    @property
    def target(self) -> Target:
        """2ε-DP, see :func:`common.mechanisms.interactive.targets.run_twice`."""
        return run_twice(self.epsilon)

    def draw(self, data: Any, source: WordSource) -> Outcome[tuple[Hashable, Hashable]]:
        """Run it twice."""
        first, second = self.algorithm(data, source), self.algorithm(data, source)
        return Outcome((first, second), (first != second,))
