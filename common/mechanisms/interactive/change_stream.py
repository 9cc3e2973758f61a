"""A stream that pays only for change: every step looks, and only a new answer is charged."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

from common.entropy import WordSource
from common.mechanisms.interactive.calls import Algorithm
from common.mechanisms.interactive.session import AnySession, Outcome
from common.mechanisms.interactive.targets import Target, not_prior

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class _Step(Generic[ValueT]):
    stream: ChangeStream[ValueT]
    algorithm: Algorithm[ValueT]

    @property
    def target(self) -> Target:
        return not_prior(self.stream.epsilon)

    def draw(self, data: Any, source: WordSource) -> Outcome[tuple[ValueT] | None]:
        value = self.algorithm(data, source)
        changed = not self.stream.same(self.stream.last, value)
        return Outcome((value,) if changed else None, (changed,))


class ChangeStream(Generic[ValueT]):
    """Follows an answer over many steps and publishes it when it is no longer the last one.

    A step is a call of ε with a not-prior target: every answer that counts as the same is the one
    outcome "no change" (Cohen and Lyu 2023, Lemma 2.3, with the last answer as the prior). A stream
    that stays as it is runs on for nothing.

    Parameters
    ----------
    session
        Where steps are charged; its data may be all times of the stream.
    epsilon
        ε of a step's algorithm.
    start
        The answer taken for granted before the first step: public.
    same
        Whether a new answer counts as the last one: equality, or for noisy numbers a tolerance.
        A public function of both.
    """

    def __init__(
        self,
        session: AnySession[Any],
        epsilon: Fraction,
        start: ValueT,
        same: Callable[[ValueT, ValueT], bool] = operator.eq,
    ) -> None:
        self.epsilon = epsilon
        self.same = same
        self._session = session
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
        changed = self._session.run(_Step(self, algorithm))
        if changed is None:
            return False
        self._last = changed[0]
        return True
