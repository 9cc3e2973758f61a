"""Calls around any private algorithm: not what was expected, one of several, both of two runs.

*Conditional release* shows the outcome of a computation only if it is of a kind asked for.
A computation that is not shown is free. Its outcome may be held and asked about again, for other
kinds, until it is shown once: it is charged at most once, however often it is asked about. Or the
kind is "another answer than the last one", asked at every step of a stream.

The best of many candidates cost as much as those that are shown: every candidate runs once, and a
bar is lowered from above all scores. Whatever it meets is shown, and each step is a question about
held outcomes, so a candidate that is shown costs one hit of a 2ε-DP call and the others nothing
(Cohen and Lyu 2023, Lemma 2.6). Where the bar stops may depend on everything that it has met, and
on how long it met nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Generic

from labelveil.common.entropy import WordSource
from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees.limits import at_least
from labelveil.common.mechanisms.interactive.session import AnySession, DataT, Outcome, ValueT
from labelveil.common.mechanisms.interactive.targets import Target, not_prior, run_twice
from labelveil.common.noncopyable import NonCopyable

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
        """2ε-DP, see :func:`labelveil.common.mechanisms.interactive.targets.run_twice`."""
        return run_twice(self.epsilon)

    def draw(self, data: Any, source: WordSource) -> Outcome[tuple[Hashable, Hashable]]:
        """Run it twice."""
        first, second = self.algorithm(data, source), self.algorithm(data, source)
        return Outcome((first, second), (first != second,))


@dataclass(frozen=True)
class _ShownIf(Generic[ValueT]):
    """A call that publishes an outcome, in a tuple, if it is accepted, and otherwise None."""

    algorithm: Algorithm[ValueT]
    target: Target
    accept: Callable[[ValueT], bool]

    def draw(self, data: Any, source: WordSource) -> Outcome[tuple[ValueT] | None]:
        value = self.algorithm(data, source)
        shown = bool(self.accept(value))
        return Outcome((value,) if shown else None, (shown,))


class HeldOutcome(NonCopyable, Generic[DataT, ValueT]):
    """One run of an ε-DP algorithm, published as soon as it is of a kind that was asked for.

    The first question is a call of ε with a not-prior target (Cohen and Lyu 2023, Lemma 2.4): all
    outcomes that are not shown are the one outcome "no". Later questions are calls of 2ε (Lemma
    2.5): given "no" so far, an outcome's probability is a quotient of two, each within e^ε. The
    session's terms must admit 2ε for them.

    The algorithm is run at the first question. An (ε, δ)-DP run is an ε-DP one but for an event of
    probability δ (Kairouz, Oh, Viswanath 2015): the first question pays for it, later ones are
    about the same run.
    """

    def __init__(
        self,
        session: AnySession[DataT],
        algorithm: Algorithm[ValueT],
        epsilon: Fraction,
        delta: Fraction = Fraction(0),
    ) -> None:
        super().__init__()
        self._session = session
        self._algorithm = algorithm
        self._epsilon, self._delta = epsilon, delta
        self._outcome: tuple[ValueT] | None = None
        self._shown = False

    def ask(self, accept: Callable[[ValueT], bool]) -> ValueT | None:
        """Return the outcome if ``accept``, a function of it alone, takes it now, otherwise None.

        What ``accept`` raises says something of the outcome: it is charged as if that were
        published.

        Raises
        ------
        PrivacyError
            If the outcome has been published already, or the session's terms do not admit 2ε.
        BudgetError
            If the session has halted, or the calls' δ are used up.
        """
        with self._lock:
            if self._shown:
                raise PrivacyError("this outcome has been published; asking again says nothing new")
            first, epsilon = self._outcome is None, self._epsilon
            target = not_prior(epsilon, self._delta) if first else not_prior(2 * epsilon)
            call = _ShownIf(self._drawn_once, target, partial(self._takes, accept))
            shown = self._session.run(call)
            return None if shown is None else shown[0]

    def _takes(self, accept: Callable[[ValueT], bool], value: ValueT) -> bool:
        self._shown = True  # and stays so if this raises
        self._shown = bool(accept(value))
        return self._shown

    def _drawn_once(self, data: DataT, source: WordSource) -> ValueT:
        if self._outcome is None:
            self._outcome = (self._algorithm(data, source),)
        return self._outcome[0]


class ChangeStream(NonCopyable, Generic[ValueT]):
    """Follows an answer over many steps and publishes it when it is no longer the last one.

    A step is a call of ε with a not-prior target: every answer that counts as the same is the one
    outcome "no change" (Cohen and Lyu 2023, Lemma 2.3, with the last answer as the prior). A stream
    that stays as it is runs on for nothing.

    The session's data may be all times of the stream. ``epsilon`` is that of a step's algorithm,
    ``start`` the public answer taken for granted before the first step. ``same``, a public function
    of both, says whether a new answer counts as the last one: equality, or for noisy numbers a
    tolerance.
    """

    def __init__(
        self,
        session: AnySession[Any],
        epsilon: Fraction,
        start: ValueT,
        same: Callable[[ValueT, ValueT], bool] = operator.eq,
    ) -> None:
        super().__init__()
        self._session, self._epsilon, self._same = session, epsilon, same
        self._last = start

    @property
    def last(self) -> ValueT:
        """The answer in force."""
        return self._last

    def step(self, algorithm: Algorithm[ValueT]) -> bool:
        """Look once, with an ε-DP algorithm; return whether :attr:`last` is new.

        Raises
        ------
        BudgetError
            If the session has halted; :attr:`last` stays in force.
        """
        differs = lambda value: not self._same(self._last, value)  # noqa: E731
        with self._lock:
            changed = self._session.run(_ShownIf(algorithm, not_prior(self._epsilon), differs))
            if changed is None:
                return False
            self._last = changed[0]
            return True


@dataclass(frozen=True)
class Candidate(Generic[ValueT]):
    """A candidate that was shown: its place in the list of candidates, score and outcome."""

    index: int
    score: int
    value: ValueT


def one_shot_top_k(
    session: AnySession[Any],
    candidates: Sequence[Algorithm[tuple[int, ValueT]]],
    epsilon: Fraction,
    k: int,
    gap: int | None = None,
    stop: Callable[[Sequence[Candidate[ValueT]]], bool] | None = None,
    delta: Fraction = Fraction(0),
) -> list[Candidate[ValueT]]:
    """Run every candidate once and publish the best k at most, best first, ties by index.

    Candidates are (ε, δ)-DP algorithms that return an integer score and an outcome. Every one runs,
    so all of them pay δ, shown or not. The session's terms must admit calls of 2ε with
    ``q = 1/(e^{2ε} + 1)``; if it halts, fewer are published. So they are where the next score is
    more than ``gap`` below the last one shown (that the bar met nothing over such a distance is
    free), and where ``stop`` says True. It is called with what was shown so far, which is paid for.
    """
    at_least(1, k=k, candidates=len(candidates))
    at_least(0, gap=gap)

    def draw(data: Any, source: WordSource, room: int) -> list[Candidate[ValueT]]:
        runs = [Candidate(i, *run(data, source)) for i, run in enumerate(candidates)]
        runs.sort(key=lambda run: (-run.score, run.index))
        best = runs[: min(k, room)]
        if gap is None:
            return best
        ends = (i for i in range(1, len(best)) if best[i - 1].score - best[i].score > gap)
        return best[: next(ends, None)]

    return session.reveal(not_prior(2 * epsilon, len(candidates) * delta), draw, stop)
