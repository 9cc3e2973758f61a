"""Conditional release: run a computation, show the outcome only if it is of a kind asked for.

The outcome may be asked about again, for other kinds, until it is shown once: a computation is
charged at most once, however often it is asked about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

from common.entropy import WordSource
from common.errors import PrivacyError
from common.mechanisms.interactive.calls import Algorithm
from common.mechanisms.interactive.session import AnySession, Outcome
from common.mechanisms.interactive.targets import Target, not_prior

DataT = TypeVar("DataT")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class _Question(Generic[ValueT]):
    held: HeldOutcome[Any, ValueT]
    target: Target
    accept: Callable[[ValueT], bool]

    def draw(self, data: Any, source: WordSource) -> Outcome[tuple[ValueT] | None]:
        value = self.held.drawn(data, source)
        shown = bool(self.accept(value))
        return Outcome((value,) if shown else None, (shown,))


class HeldOutcome(Generic[DataT, ValueT]):
    """One run of an ε-DP algorithm, published as soon as it is of a kind that was asked for.

    The first question is a call of ε with a not-prior target (Lemma 2.4): all outcomes that are not
    shown are the one outcome "no". Later questions are calls of 2ε (Lemma 2.5): given "no" so far,
    an outcome's probability is a quotient of two, each within e^ε. The session's terms must admit
    2ε for them.

    Parameters
    ----------
    session
        Where questions are charged.
    algorithm
        (ε, δ)-DP, run at the first question.
    epsilon, delta
        Its ε and δ. An (ε, δ)-DP run is an ε-DP one but for an event of probability δ (Kairouz, Oh,
        Viswanath 2015): the first question pays for it, later ones are about the same run.
    """

    def __init__(
        self,
        session: AnySession[DataT],
        algorithm: Algorithm[ValueT],
        epsilon: Fraction,
        delta: Fraction = Fraction(0),
    ) -> None:
        self._session = session
        self._algorithm = algorithm
        self._epsilon, self._delta = epsilon, delta
        self._outcome: tuple[ValueT] | None = None
        self._shown = False

    def drawn(self, data: DataT, source: WordSource) -> ValueT:
        """The secret outcome; drawn once. For the session's use."""
        if self._outcome is None:
            self._outcome = (self._algorithm(data, source),)
        return self._outcome[0]

    def ask(self, accept: Callable[[ValueT], bool]) -> ValueT | None:
        """Return the outcome if it is accepted now, and None otherwise.

        Parameters
        ----------
        accept
            The kind asked for: a function of the outcome alone.

        Raises
        ------
        PrivacyError
            If the outcome has been published already, or the session's terms do not admit 2ε.
        BudgetError
            If the session has halted, or the calls' δ are used up.
        """
        if self._shown:
            raise PrivacyError("this outcome has been published; asking again says nothing new")
        first = self._outcome is None
        target = not_prior(self._epsilon, self._delta) if first else not_prior(2 * self._epsilon)
        shown = self._session.run(_Question(self, target, accept))
        if shown is None:
            return None
        self._shown = True
        return shown[0]
