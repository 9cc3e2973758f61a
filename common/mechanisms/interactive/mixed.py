"""A session of calls that differ in ε and q: a hit costs what its own call's hit costs.

    tests, choice = ThresholdTests(counts, bars, Fraction(1, 20)), Boundary(mechanism)
    budget = mixed_budget(4, 1e-6, {tests.target: 20, choice.target: 1})
    session = MixedSession(data, budget, system_entropy())
    session.run_batch(tests)
    session.run(choice)

Misses are free at any ε. A call is admitted if its hit would still fit, so that the hits never cost
more than the budget: by the proof of
:func:`labelveil.common.mechanisms.interactive.terms.hit_cost`, which asks neither for equal calls
nor for calls that are fixed beforehand, the budget's curve is the guarantee. The dearest call sets
the limit of the orders: the cost of a hit at ε = 0.1 is known up to order 7.4, at ε = 0.4 up to
2.2, and low orders convert badly at a small δ. Where all calls are alike,
:class:`labelveil.common.mechanisms.interactive.session.Session` has better routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Any, Self

from labelveil.common.entropy import Entropy
from labelveil.common.errors import BudgetError, PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.guarantees import (
    Adjacency,
    RenyiDP,
    Unit,
    guarantee_from_json,
    to_approximate,
    to_renyi,
)
from labelveil.common.mechanisms.interactive.session import AnySession, DataT, Journal
from labelveil.common.mechanisms.interactive.targets import Target
from labelveil.common.mechanisms.interactive.terms import hit_cost

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

    The plan has the expected hits of each kind of call. The order is the one at which the budget
    has room for it most often; other calls, and other proportions, are welcome afterwards.
    ``call_delta`` is what the δ of all calls together may reach.

    Raises
    ------
    PrivacyError
        If nothing fits at any order.
    """
    best, most = None, Fraction(0)
    costs = [hit_cost(target, adjacency, unit).repeat(hits) for target, hits in plan.items()]
    cost = reduce(RenyiDP.compose, costs)
    for order, value in zip(cost.orders, cost.values, strict=True):
        # a budget of nearly nothing converts to what the conversion itself takes
        empty = RenyiDP(adjacency, unit, (order,), (Fraction(1, 1 << 20),), call_delta)
        room = rational(epsilon) * _ROUNDING - to_approximate(empty, delta).exact_epsilon
        if room > most * value:
            best, most = replace(empty, values=(room,)), room / value
    if best is None:
        raise PrivacyError(
            f"the conversion alone takes epsilon={epsilon:g} at delta={float(delta):g}; raise one"
            " of them, or plan calls of smaller epsilon"
        )
    return best


class MixedSession(AnySession[DataT]):
    """Runs calls of any ε and q while a hit of theirs fits the budget.

    The budget is the guarantee of everything published, fixed before the first call: from
    :func:`mixed_budget`, or a plan such as ``hit_cost(a).repeat(20).compose(hit_cost(b))``. Its
    failure probability is what the calls' δ may reach together.
    """

    def __init__(
        self, data: DataT, budget: RenyiDP, entropy: Entropy, journal: Journal | None = None
    ) -> None:
        super().__init__(data, entropy, journal)
        self.budget = budget
        self._spent = budget.repeat(0)
        self._costs: dict[Target, RenyiDP] = {}

    @property
    def guarantee(self) -> RenyiDP:
        """The budget: the guarantee of the whole session, known before the first call."""
        return self.budget

    @property
    def spent(self) -> RenyiDP:
        """What the hits so far have cost, at the budget's orders."""
        return self._spent

    def hits_left(self, target: Target) -> int:
        """How many hits of such calls still fit; 0: none is admitted."""
        if self._spent.exact_delta + target.delta > self.budget.exact_delta:
            return 0
        rows = zip(self.budget.values, self._spent.values, self._cost(target).values, strict=True)
        return min(int((limit - spent) // cost) for limit, spent, cost in rows)

    def _account(self) -> dict[str, Any]:
        return {"budget": self.budget.to_json(), "spent": self._spent.to_json()}

    @classmethod
    def _restored(
        cls, state: dict[str, Any], data: DataT, entropy: Entropy, journal: Journal | None
    ) -> Self:
        budget, spent = (guarantee_from_json(state[name]) for name in ("budget", "spent"))
        if not (isinstance(budget, RenyiDP) and isinstance(spent, RenyiDP)):
            raise ValueError("another kind of budget")
        if not spent.within(budget):
            raise ValueError("more spent than the budget")
        session = cls(data, budget, entropy, journal)
        session._spent = spent
        return session

    def _admit(self, target: Target) -> int:
        room = self.hits_left(target)
        if not room:
            raise BudgetError(
                f"a hit of a call of epsilon={float(target.epsilon):.6g} and"
                f" q={float(target.probability):.6g} no longer fits; ask for less, or open another"
                " session on a new budget"
            )
        return room

    def _count(self, target: Target, hits: Sequence[int]) -> None:
        # every call pays its δ, and hits their curve
        paid = replace(self._cost(target).repeat(hits[0]), exact_delta=target.delta)
        self._spent = self._spent.compose(paid)

    def _cost(self, target: Target) -> RenyiDP:
        if target not in self._costs:
            budget = self.budget
            cost = hit_cost(target, budget.adjacency, budget.unit)
            if cost.orders[-1] < budget.orders[-1]:
                raise PrivacyError(
                    f"a hit at epsilon={float(target.epsilon):.6g} has a known cost up to order"
                    f" {float(cost.orders[-1]):g}, and the budget is one of order"
                    f" {float(budget.orders[-1]):g}; plan it for such calls"
                )
            self._costs[target] = to_renyi(cost, budget.orders)
        return self._costs[target]
