"""A session over one data set: any private calls with targets, until enough targets were hit.

    terms = Terms(not_prior(Fraction(1, 10)), hits=20)
    session = Session(data, terms, system_entropy())
    session.approximate(1e-6)              # fixed now, whatever is asked later
    session.run(NotPrior(algorithm, Fraction(1, 10), prior="no change"))
    session.run_batch(ThresholdTests(counts, bars, Fraction(1, 10)))   # a million tests at once

Calls may be chosen after seeing all earlier outcomes. The session halts with the outcome that hits
for the last time; what is asked afterwards is refused with ``BudgetError``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from labelveil.common.arrays import Booleans, Integers
from labelveil.common.entropy import Entropy, WordSource
from labelveil.common.errors import BudgetError, PrivacyError
from labelveil.common.exact.rational import parse_rational, rational
from labelveil.common.guarantees import ApproximateDP, RenyiDP
from labelveil.common.mechanisms.interactive.targets import Target
from labelveil.common.mechanisms.interactive.terms import Terms, whole_numbers
from labelveil.common.noncopyable import NonCopyable

DataT = TypeVar("DataT")
DataIn = TypeVar("DataIn", contravariant=True)
ValueT = TypeVar("ValueT")
ValueOut = TypeVar("ValueOut", covariant=True)

Journal = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Outcome(Generic[ValueOut]):
    """What a call publishes, and which of the target families it hit."""

    value: ValueOut
    hits: tuple[bool, ...]
    """One flag a family."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers to the first n questions; the rest were not asked, for hits were used up."""

    above: Booleans
    """(n,) whether the noisy count reached its threshold: the hits."""
    values: Integers | None
    """(n,) noisy counts where ``above``, 0 elsewhere; None: not published."""

    def first(self, count: int) -> Answers:
        """The first ``count`` of them."""
        return Answers(self.above[:count], None if self.values is None else self.values[:count])


class Call(Protocol[DataIn, ValueOut]):
    """A private algorithm with a target."""

    @property
    def target(self) -> Target:
        """What it guarantees."""

    def draw(self, data: DataIn, source: WordSource) -> Outcome[ValueOut]:
        """Run it once."""


class Batch(Protocol[DataIn]):
    """Many calls of one kind, asked together; each is answered as if it were asked alone."""

    @property
    def target(self) -> Target:
        """What each of them guarantees."""

    def draw(self, data: DataIn, source: WordSource) -> Answers:
        """Run them all."""


class AnySession(NonCopyable, ABC, Generic[DataT]):
    """What every session does: admit a call, draw, charge its hits, journal, and only then publish.

    The data are whatever the calls take, and must not change while the session lives. The journal
    is called with :meth:`to_json` *before* an outcome that costs anything is returned. If it
    raises, the outcome is lost and the charge stands in memory.

    *An exception is an outcome, too.* It may come from an outcome that nobody was to see, by way of
    a predicate, a comparison or an algorithm that fails on it. So one that is raised while a call
    is drawn is a hit of every family, pays the call's δ, and reaches the caller after the journal.

    Outcomes leave by :meth:`_publish` alone. One call at a time; from within a call there is none,
    since what is asked there could depend on an outcome that is not paid for.
    """

    families = 1

    def __init__(self, data: DataT, entropy: Entropy, journal: Journal | None = None) -> None:
        super().__init__()
        self._data = data
        self._entropy = entropy
        self._journal = journal
        self._calls = 0
        self._start(0)

    def _start(self, runs: int) -> None:
        # a stream of its own for every restart: the same entropy never repeats its noise
        self._runs = runs
        self._source = self._entropy.source(f"interactive session, run {runs}")

    @property
    def calls(self) -> int:
        """Calls answered so far."""
        return self._calls

    def run(self, call: Call[DataT, ValueT]) -> ValueT:
        """Run one call and return what it publishes.

        What the call raises is charged as a hit.

        Raises
        ------
        BudgetError
            If the session has halted, or the calls' δ are used up; nothing is drawn then.
        PrivacyError
            If the call guarantees less than the terms ask for, or names another number of target
            families.
        """
        with self._lock:
            target = call.target
            self._admit(target)

            def draw() -> Outcome[ValueT]:
                outcome = call.draw(self._data, self._source)
                hits = tuple(bool(hit) for hit in outcome.hits)
                if len(hits) != self.families:
                    raise PrivacyError(
                        f"the call names {len(hits)} target families and the session has"
                        f" {self.families}; give both as many"
                    )
                return Outcome(outcome.value, hits)

            outcome = self._drawn(target, 1, draw)
            return self._publish(outcome.value, target, outcome.hits)

    def run_batch(self, batch: Batch[DataT]) -> Answers:
        """Run many calls of one kind, in order, up to the one at which the session halts.

        An exception may depend on any of the answers, and so uses up all hits that are left.

        Raises
        ------
        BudgetError, PrivacyError
            As of :meth:`run`, and if the session has several target families or calls have a δ.
        """
        with self._lock:
            target = batch.target
            room = self._admit(target)
            if self.families > 1 or target.delta:
                raise PrivacyError(
                    "a batch needs a session of one target family, and calls of delta 0"
                )

            def draw() -> tuple[Answers, int]:
                answers = batch.draw(self._data, self._source)
                hits = np.flatnonzero(answers.above)
                if hits.size >= room:
                    answers = answers.first(int(hits[room - 1]) + 1)
                return answers, min(room, int(hits.size))

            answers, hits = self._drawn(target, room, draw)
            return self._publish(answers, target, (hits,), answers.above.size)

    def reveal(
        self,
        target: Target,
        draw: Callable[[DataT, WordSource, int], Sequence[ValueT]],
        stop: Callable[[tuple[ValueT, ...]], bool] | None = None,
    ) -> list[ValueT]:
        """Publish several outcomes that hit a target each, at most as many as there are hits left.

        For one-shot selection: ``draw`` gets the number of hits left and returns what may be
        published, in its order. ``stop`` is asked between two of them, with those that are
        published, whether the rest stays unpublished, and unpaid. The target's δ is that of
        everything which is drawn.

        Raises
        ------
        PrivacyError
            If the session has several target families, or more outcomes are returned than there are
            hits left.
        """
        with self._lock:
            room = self._admit(target)
            if self.families > 1:
                raise PrivacyError("one-shot selection needs a session of one target family")

            def drawn() -> list[ValueT]:
                found = list(draw(self._data, self._source, room))
                if len(found) > room:
                    raise PrivacyError(f"{len(found)} outcomes are more than the {room} hits left")
                return found

            found = self._drawn(target, 1, drawn)
            shown: list[ValueT] = []
            self._publish(None, target, (0,))  # all that is drawn pays δ, whatever is shown of it
            for value in found:
                shown.append(self._publish(value, replace(target, delta=Fraction(0)), (1,), 0))
                if stop is not None and stop(tuple(shown)):
                    break
            return shown

    def to_json(self) -> dict[str, Any]:
        """The state as JSON: what is spent of what, and calls. No data, outcomes or secrets."""
        return {"version": 1, **self._account(), "calls": self._calls, "runs": self._runs}

    @classmethod
    def resume(
        cls, state: dict[str, Any], data: DataT, entropy: Entropy, journal: Journal | None = None
    ) -> Self:
        """Go on from :meth:`to_json`, on the same data set; the journal gets the state at once.

        Entropy should be fresh. If a key is used again, the journalled count of runs keeps its
        noise from repeating. Calls that cost nothing since then may be missing from the count of
        calls. Outcomes that were held back
        (:class:`labelveil.common.mechanisms.interactive.calls.HeldOutcome`) are forgotten.

        Raises
        ------
        PrivacyError
            If the state is not one.
        """
        try:
            if state["version"] != 1:
                raise ValueError("version")
            session = cls._restored(state, data, entropy, journal)
            session._calls, runs = whole_numbers([state["calls"], state["runs"]])
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(
                f"{state!r:.200} is not a session's state: {error!r:.200}"
            ) from error
        session._start(runs + 1)
        if journal is not None:
            journal(session.to_json())
        return session

    @abstractmethod
    def _account(self) -> dict[str, Any]:
        """The limits and what is spent of them, as JSON."""

    @classmethod
    @abstractmethod
    def _restored(
        cls, state: dict[str, Any], data: DataT, entropy: Entropy, journal: Journal | None
    ) -> Self:
        """Read :meth:`_account` back; raises where it is not one."""

    @abstractmethod
    def _admit(self, target: Target) -> int:
        """Return how many hits of such calls are left, at least one, or raise."""

    @abstractmethod
    def _count(self, target: Target, hits: Sequence[int]) -> None:
        """Take hits of a call, one number for each target family, as paid for."""

    def _drawn(self, target: Target, price: int, draw: Callable[[], ValueT]) -> ValueT:
        """Draw; what is raised meanwhile is an outcome that hits so often, and leaves as one."""
        try:
            return draw()
        except BaseException as error:
            raised = error
        # outside of the handler, so that what a journal raises does not carry this one along
        raise self._publish(raised, target, (price,) * self.families)

    def _publish(
        self, value: ValueT, target: Target, hits: Sequence[int], calls: int = 1
    ) -> ValueT:
        """Charge, journal, and hand an outcome over: the one place that any leaves by."""
        self._count(target, hits)
        self._calls += calls
        if self._journal is not None and (target.delta or any(hits)):
            self._journal(self.to_json())
        return value


class Session(AnySession[DataT]):
    """Runs calls on a data set and halts at the τ-th hit.

    Privacy: for the neighbours and unit of the terms, everything published is as private as the
    terms say (``terms.guarantee`` in RDP, ``terms.approximate(δ)`` for every δ; see
    :mod:`labelveil.common.mechanisms.interactive.terms`), provided that every call keeps its
    target's guarantee.

    The terms are fixed before the first call; the rest is as in :class:`AnySession`.
    """

    def __init__(
        self, data: DataT, terms: Terms, entropy: Entropy, journal: Journal | None = None
    ) -> None:
        super().__init__(data, entropy, journal)
        self.terms = terms
        self.families = terms.families
        self._hits = [0] * terms.families
        self._call_delta = Fraction(0)

    @property
    def hits(self) -> int:
        """Hits so far, of the family with the fewest."""
        return min(self._hits)

    @property
    def family_hits(self) -> tuple[int, ...]:
        """Hits so far of every family."""
        return tuple(self._hits)

    @property
    def halted(self) -> bool:
        """Whether τ targets have been hit, so that no call is admitted."""
        return self.hits >= self.terms.hits

    @property
    def guarantee(self) -> RenyiDP:
        """RDP of the whole session until it halts; known before the first call."""
        return self.terms.guarantee

    def approximate(self, delta: float | Fraction) -> ApproximateDP:
        """The least (ε, δ) known of the whole session until it halts."""
        return self.terms.approximate(delta)

    def so_far(self, delta: float | Fraction) -> ApproximateDP:
        """(ε, δ) of what has been published so far; may be read, and acted upon, at any time.

        The session up to its next hit is one with τ = hits + 1. Rounded up to a power of two, rung
        f of a ladder, and with ``δ_f = δ'/((f + 1)(f + 2))``, which sum to δ', all readings hold
        together (the odometer of Rogers, Roth, Ullman and Vadhan, NeurIPS 2016). The calls' δ comes
        on top of δ' and is counted in full.
        """
        terms, exact = self.terms, rational(delta)
        rung = (min(self.hits + 1, terms.hits) - 1).bit_length()
        share = terms.delta_beside_calls(exact) / ((rung + 1) * (rung + 2))
        reached = replace(terms, hits=min(1 << rung, terms.hits))
        return replace(reached.approximate(share + terms.call_delta), exact_delta=exact)

    def _admit(self, target: Target) -> int:
        if self.halted:
            raise BudgetError(
                f"the session halted after {self.terms.hits} hits; open another one on a new budget"
            )
        if not target.within(self.terms.target):
            least = self.terms.target
            raise PrivacyError(
                f"a call of epsilon={float(target.epsilon):.6g} and"
                f" q={float(target.probability):.6g} is outside the session's terms"
                f" (epsilon <= {float(least.epsilon):.6g}, q >= {float(least.probability):.6g});"
                " widen the terms before the first call"
            )
        if self._call_delta + target.delta > self.terms.call_delta:
            raise BudgetError(
                f"a call of delta={float(target.delta):g} would bring the calls' delta above"
                f" {float(self.terms.call_delta):g}; raise call_delta in the terms"
            )
        return self.terms.hits - self.hits

    def _count(self, target: Target, hits: Sequence[int]) -> None:
        for family, hit in enumerate(hits):
            self._hits[family] += int(hit)
        self._call_delta += target.delta

    def _account(self) -> dict[str, Any]:
        return {
            "terms": self.terms.to_json(),
            "hits": list(self._hits),
            "call_delta": str(self._call_delta),
        }

    @classmethod
    def _restored(
        cls, state: dict[str, Any], data: DataT, entropy: Entropy, journal: Journal | None
    ) -> Self:
        session = cls(data, Terms.from_json(state["terms"]), entropy, journal)
        session._hits = whole_numbers(list(state["hits"]))
        session._call_delta = parse_rational(state["call_delta"])
        if len(session._hits) != session.families:
            raise ValueError("hits of another number of families")
        if session._call_delta > session.terms.call_delta:
            raise ValueError("more delta spent than there is")
        return session
