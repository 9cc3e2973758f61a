"""A session of calls that differ in ε and q: a hit costs what its own call's hit costs.

    tests, choice = ThresholdTests(counts, bars, Fraction(1, 20)), Boundary(mechanism)
    budget = mixed_budget(4, 1e-6, {tests.target: 20, choice.target: 1})
    session = MixedSession(data, budget, system_entropy())
    session.run_batch(tests)
    session.run(choice)

Misses are free at any ε. A call is admitted if its hit would still fit, so that the hits never cost
more than the budget: by the proof of :func:`common.mechanisms.interactive.terms.hit_cost`, which
asks neither for equal calls nor for calls that are fixed beforehand, the budget's curve is the
guarantee. The dearest call sets the limit of the orders: the cost of a hit at ε = 0.1 is known up
to order 7.4, at ε = 0.4 up to 2.2, and low orders convert badly at a small δ. Where all calls are
alike, :class:`common.mechanisms.interactive.session.Session` has better routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Any, Self

from common.entropy import Entropy
from common.errors import BudgetError, PrivacyError
from common.guarantees import (
    Adjacency,
    ApproximateDP,
    RenyiDP,
    Unit,
    guarantee_from_json,
    to_approximate,
    to_renyi,
)
from common.mechanisms.interactive.session import AnySession, DataT, Journal
from common.mechanisms.interactive.targets import Target
from common.mechanisms.interactive.terms import hit_cost

_ROUNDING = 1 - Fraction(1, 10**9)


def mixed_budget(
    epsilon: float,
    delta: float | Fraction,
    plan: Mapping[Target, int],
    call_delta: Fraction = Fraction(0),
    adjacency: Adjacency = Adjacency.REPLACE_LABEL,
    unit: Unit = Unit.RECORD,
) -> RenyiDP:
    """An RDP budget at one order that converts to at most (ε, δ): the best order for a plan.

    Parameters
    ----------
    epsilon, delta
        Of the whole session.
    plan
        Expected hits of each kind of call. The order is the one at which the budget has room for
        the plan most often; other calls, and other proportions, are welcome afterwards.
    call_delta
        What the δ of all calls together may reach.
    adjacency, unit
        Which data sets are neighbours.

    Raises
    ------
    PrivacyError
        If nothing fits at any order.
    """
    best, most = None, Fraction(0)
    costs = (hit_cost(target, adjacency, unit).repeat(hits) for target, hits in plan.items())
    cost = reduce(lambda left, right: left.compose(right), costs)
    for order, value in zip(cost.orders, cost.values, strict=True):
        # a budget of nearly nothing converts to what the conversion itself takes
        one = RenyiDP(adjacency, unit, (order,), (Fraction(1, 1 << 20),), call_delta)
        room = Fraction(epsilon) * _ROUNDING - to_approximate(one, delta).exact_epsilon
        if room > most * value:
            best, most = replace(one, values=(room,)), room / value
    if best is None:
        raise PrivacyError(
            f"the conversion alone takes epsilon={epsilon:g} at delta={float(delta):g}; raise one"
            " of them, or plan calls of smaller epsilon"
        )
    return best


class MixedSession(AnySession[DataT]):
    """Runs calls of any ε and q while a hit of theirs fits the budget.

    Parameters
    ----------
    budget
        The guarantee of everything published, fixed before the first call: from
        :func:`mixed_budget`, or a plan such as ``hit_cost(a).repeat(20).compose(hit_cost(b))``.
        Its failure probability is what the calls' δ may reach together.
    data, entropy, journal
        As in :class:`common.mechanisms.interactive.session.AnySession`.
    """

    def __init__(
        self, data: DataT, budget: RenyiDP, entropy: Entropy, journal: Journal | None = None
    ) -> None:
        super().__init__(data, entropy, journal)
        self.budget = budget
        self._spent = budget.repeat(0)
        self._costs: dict[Target, RenyiDP] = {}

    @property
    def spent(self) -> RenyiDP:
        """What the hits so far have cost, at the budget's orders."""
        return self._spent

    def guarantee(self, delta: float | Fraction) -> ApproximateDP:
        """(ε, δ) of the whole session; known before the first call."""
        return to_approximate(self.budget, delta)

    def hits_left(self, target: Target) -> int:
        """How many hits of such calls still fit; 0: none is admitted."""
        if self._spent.exact_delta + target.delta > self.budget.exact_delta:
            return 0
        rows = zip(self.budget.values, self._spent.values, self._cost(target).values, strict=True)
        return min(int((limit - spent) // cost) for limit, spent, cost in rows)

    def to_json(self) -> dict[str, Any]:
        """The state as JSON: budget, what is spent of it, calls."""
        return {
            "version": 1,
            "budget": self.budget.to_json(),
            "spent": self._spent.to_json(),
            "calls": self._calls,
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
        """Go on from :meth:`to_json`, on the same data set, as ``Session.resume`` does.

        Raises
        ------
        PrivacyError
            If the state is not one.
        """
        try:
            budget, spent = (guarantee_from_json(state[name]) for name in ("budget", "spent"))
            calls, runs = state["calls"], state["runs"]
            if (
                state["version"] != 1
                or not isinstance(budget, RenyiDP)
                or not isinstance(spent, RenyiDP)
                or not spent.within(budget)
                or any(type(count) is not int or count < 0 for count in (calls, runs))
            ):
                raise ValueError("counts, version or more spent than the budget")
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(
                f"{state!r:.200} is not a session's state: {error!r:.200}"
            ) from error
        session = cls(data, budget, entropy, journal)
        session._spent, session._calls = spent, calls
        session._start(runs + 1)
        if journal is not None:
            journal(session.to_json())
        return session

    def _admit(self, target: Target) -> int:
        left = self.hits_left(target)
        if not left:
            raise BudgetError(
                f"a hit of a call of epsilon={float(target.epsilon):.6g} and"
                f" q={float(target.probability):.6g} no longer fits; ask for less, or open another"
                " session on a new budget"
            )
        return left

    def _count(self, target: Target, hits: Sequence[int]) -> None:
        # every call pays its δ, and hits their curve
        paid = replace(self._cost(target).repeat(hits[0]), exact_delta=target.delta)
        self._spent = self._spent.compose(paid)

    def _cost(self, target: Target) -> RenyiDP:
        found = self._costs.get(target)
        if found is None:
            cost = hit_cost(target, self.budget.adjacency, self.budget.unit)
            if cost.orders[-1] < self.budget.orders[-1]:
                raise PrivacyError(
                    f"a hit at epsilon={float(target.epsilon):.6g} has a known cost up to order"
                    f" {float(cost.orders[-1]):g}, and the budget is one of order"
                    f" {float(self.budget.orders[-1]):g}; plan it for such calls"
                )
            found = self._costs[target] = to_renyi(cost, self.budget.orders)
        return found
