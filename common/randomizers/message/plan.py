"""Which plan a message is made by: the one place that knows of one label and of several."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from labelveil.common.randomizers.base import check_epsilon
from labelveil.common.randomizers.message.division import plan_several
from labelveil.common.randomizers.message.steps import MessagePlan, plan_alone
from labelveil.common.randomizers.message.terms import Division, LabelTerms, check_terms


def plan_message(
    terms: Sequence[LabelTerms],
    rows: int,
    epsilon: float,
    *,
    division: Division = "auto",
    records: int = 1,
    prior_share: float | Fraction | None = None,
) -> MessagePlan:
    """Decide from public facts what is counted, what is sent, and for which ε.

    Parameters
    ----------
    terms
        One a label, at most 8.
    rows
        Number of events.
    epsilon
        What one privacy unit may spend on the whole message, 0 < epsilon <= 40.
    division
        Of several labels: see :mod:`labelveil.common.randomizers.message.division`.
    records
        Records of one privacy unit.
    prior_share
        The largest share of ε that priors may take; None for what
        :func:`labelveil.common.randomizers.budget.split_budget` takes by itself.

    Raises
    ------
    ConfigError
        Where labels are too many, or need too many cells or codes, for what is asked.
    """
    check_epsilon(epsilon)
    check_terms(terms)
    if len(terms) == 1:
        return plan_alone(terms, rows, [epsilon], records=records, prior_share=prior_share)
    return plan_several(terms, rows, epsilon, division, records=records, prior_share=prior_share)
