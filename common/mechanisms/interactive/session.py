"""A session over one data set: any private calls with targets, until enough targets were hit.

    terms = Terms(not_prior(Fraction(1, 10)), hits=20)
    session = Session(data, terms, system_entropy())
    session.guarantee(1e-6)                # fixed now, whatever is asked later
    session.run(NotPrior(algorithm, Fraction(1, 10), prior="no change"))
    session.run_batch(ThresholdTests(counts, bars, Fraction(1, 10)))   # a million tests at once

Calls may be chosen after seeing all earlier outcomes. The session halts with the outcome that hits
for the last time; what is asked afterwards is refused with ``BudgetError``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from common.arrays import Booleans
from common.entropy import Entropy, WordSource
from common.errors import BudgetError, PrivacyError
from common.exact.rational import parse_rational
from common.guarantees import ApproximateDP, RenyiDP
from common.mechanisms.interactive.targets import Target
from common.mechanisms.interactive.terms import Terms, hit_cost

DataT = TypeVar("DataT")
DataIn = TypeVar("DataIn", contravariant=True)
ValueT = TypeVar("ValueT")
ValueOut = TypeVar("ValueOut", covariant=True)
BatchOut = TypeVar("BatchOut", covariant=True)

Journal = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Outcome(Generic[ValueOut]):
    """What a call publishes, and which of the target families it hit."""

    value: ValueOut  # the published value
    hits: tuple[bool, ...]  # one flag a family; a session with a single family gets a single flag


class Call(Protocol[DataIn, ValueOut]):
    """A private algorithm with a target."""

    @property
    def target(self) -> Target:
        """What it guarantees."""
        ...

    def draw(self, data: DataIn, source: WordSource) -> Outcome[ValueOut]:
        """Run it once."""
        ...


class Batch(Protocol[DataIn, BatchOut]):
    """Many calls of one kind, asked together; each is answered as if it were asked alone."""

    @property
    def target(self) -> Target:
        """What each of them guarantees."""
        ...

    def draw(self, data: DataIn, source: WordSource) -> tuple[Booleans, BatchOut]:
        """Return (n,) hits, and the answers."""
        ...

    def keep(self, answers: Any, count: int) -> BatchOut:
        """Return the first ``count`` answers."""
        ...


class AnySession(ABC, Generic[DataT]):
    """What every session does: admit a call, draw, charge its hits, journal, and only then publish.

    Parameters
    ----------
    data
        Whatever the calls take. It must not change while the session lives.
    entropy
        Where noise comes from.
    journal
        Called with :meth:`to_json` *before* an outcome that costs anything is returned. If it
        raises, the outcome is lost and the charge stands in memory.
    """

    families = 1

    def __init__(self, data: DataT, entropy: Entropy, journal: Journal | None = None) -> None:
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

        Raises
        ------
        BudgetError
            If the session has halted, or the calls' δ are used up. Nothing is drawn then.
        PrivacyError
            If the call guarantees less than the terms ask for.
        """
        self._admit(call.target)
        outcome = call.draw(self._data, self._source)
        if len(outcome.hits) != self.families:
            raise PrivacyError(
                f"the call names {len(outcome.hits)} target families and the session has"
                f" {self.families}; give both as many"
            )
        self._charge(call.target, outcome.hits, 1)
        return outcome.value

    def run_batch(self, batch: Batch[DataT, ValueT]) -> ValueT:
        """Run many calls of one kind, in order, up to the one at which the session halts.

        Raises
        ------
        BudgetError, PrivacyError
            As :meth:`run` does.
        """
        room = self._admit(batch.target)
        if self.families > 1 or batch.target.delta:
            raise PrivacyError("a batch needs a session of one target family, and calls of delta 0")
        flags, answers = batch.draw(self._data, self._source)
        places = np.flatnonzero(flags)
        answered = int(places[room - 1]) + 1 if places.size >= room else flags.size
        self._charge(batch.target, (min(room, places.size),), answered)
        return batch.keep(answers, answered)

    def reveal(
        self, target: Target, draw: Callable[[DataT, WordSource, int], Sequence[ValueT]]
    ) -> Sequence[ValueT]:
        """Publish several outcomes that hit a target each, at most as many as there are hits left.

        For one-shot selection: ``draw`` gets the number of hits left and returns what is published.
        The target's δ is that of everything which is drawn.
        """
        room = self._admit(target)
        if self.families > 1:
            raise PrivacyError("one-shot selection needs a session of one target family")
        shown = draw(self._data, self._source, room)
        if len(shown) > room:
            raise PrivacyError(f"{len(shown)} outcomes are more than the {room} hits left")
        self._charge(target, (len(shown),), 1)
        return shown

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The state as JSON: neither data nor outcomes nor secrets."""

    @abstractmethod
    def _admit(self, target: Target) -> int:
        """Return how many hits of such calls are left, at least one, or raise."""

    @abstractmethod
    def _count(self, target: Target, hits: Sequence[int]) -> None:
        """Take hits of a call, one number for each target family, as paid for."""

    def _charge(self, target: Target, hits: Sequence[int], calls: int) -> None:
        self._count(target, hits)
        self._calls += calls
        if self._journal is not None and (target.delta or any(hits)):
            self._journal(self.to_json())


class Session(AnySession[DataT]):
    """Runs calls on a data set and halts at the τ-th hit.

    Privacy: for the neighbours and unit of the terms, everything published is
    ``terms.guarantee(δ)``-DP for every δ, and ``terms.renyi_guarantee`` in RDP (see
    :mod:`common.mechanisms.interactive.terms`), provided that every call keeps its target's
    guarantee.

    Parameters
    ----------
    terms
        Fixed before the first call.
    data, entropy, journal
        As in :class:`AnySession`.
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

    def guarantee(self, delta: float | Fraction) -> ApproximateDP:
        """(ε, δ) of the whole session until it halts; known before the first call."""
        return self.terms.guarantee(delta)

    def so_far(self, delta: float | Fraction) -> ApproximateDP:
        """(ε, δ) of what has been published so far; may be read, and acted upon, at any time.

        The session up to its next hit is one with τ = hits + 1. Rounded up to a power of two, rung
        f of a ladder, and with ``δ_f = δ'/((f + 1)(f + 2))``, which sum to δ', all readings hold
        together (the odometer of Rogers, Roth, Ullman and Vadhan, NeurIPS 2016). The calls' δ comes
        on top of δ' and is counted in full.

        Raises
        ------
        PrivacyError
            If the calls' δ leave nothing of δ.
        """
        terms, exact = self.terms, Fraction(delta)
        left = exact - terms.call_delta
        if left <= 0:
            return terms.guarantee(delta)  # raises, and says why
        rung = max(0, (min(self.hits + 1, terms.hits) - 1).bit_length())
        share = left / ((rung + 1) * (rung + 2))
        reached = terms.with_hits(min(1 << rung, terms.hits))
        found = reached.guarantee(share + terms.call_delta)
        return ApproximateDP(terms.adjacency, terms.unit, found.exact_epsilon, exact)

    def hit_cost(self) -> RenyiDP:
        """What one hit costs, for a budget shared with other releases."""
        return hit_cost(self.terms.target, self.terms.adjacency, self.terms.unit)

    def _admit(self, target: Target) -> int:
        if self.halted:
            raise BudgetError(
                f"the session halted after {self.terms.hits} hits; open another one on a new budget"
            )
        if not target.within(self.terms.target):
            asked = self.terms.target
            raise PrivacyError(
                f"a call of epsilon={float(target.epsilon):.6g} and"
                f" q={float(target.probability):.6g} is outside the session's terms"
                f" (epsilon <= {float(asked.epsilon):.6g}, q >= {float(asked.probability):.6g});"
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
            self._hits[family] += hit
        self._call_delta += target.delta

    def to_json(self) -> dict[str, Any]:
        """The state as JSON: terms, hits, calls. Neither data nor outcomes nor secrets."""
        return {
            "version": 1,
            "terms": self.terms.to_json(),
            "hits": list(self._hits),
            "calls": self._calls,
            "call_delta": str(self._call_delta),
            "runs": self._runs,
        }

    @classmethod
    def resume(
        cls,
        state: dict[str, Any],
        data: DataT,
        entropy: Entropy,
        journal: Journal | None = None,
    ) -> Self:
        """Go on from :meth:`to_json`, on the same data set; the journal gets the state at once.

        Entropy should be fresh. If a key is used again, the journalled count of runs keeps its
        noise from repeating. Calls that cost nothing since then may be missing from the count of
        calls. Outcomes that were held back
        (:mod:`common.mechanisms.interactive.conditional_release`) are forgotten.

        Raises
        ------
        PrivacyError
            If the state is not one.
        """
        try:
            session = cls(data, Terms.from_json(state["terms"]), entropy, journal)
            hits, calls, runs = state["hits"], state["calls"], state["runs"]
            spent = parse_rational(state["call_delta"])
            counts = [*hits, calls, runs]
            if (
                state["version"] != 1
                or len(hits) != session.terms.families
                or any(type(count) is not int or count < 0 for count in counts)
                or spent > session.terms.call_delta
            ):
                raise ValueError("counts or version")
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(
                f"{state!r:.200} is not a session's state: {error!r:.200}"
            ) from error
        session._hits, session._calls, session._call_delta = list(hits), calls, spent
        session._start(runs + 1)
        if journal is not None:
            journal(session.to_json())
        return session
