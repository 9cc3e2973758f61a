"""How one ε is divided between a private prior and the labels.

Source: Theorem 7 of Ghazi et al., *Regression with Label Differential Privacy*, ICLR 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from labelveil.common.exact.rational import rational
from labelveil.common.guarantees.limits import at_least, within
from labelveil.common.randomizers.base import check_epsilon
from labelveil.common.randomizers.prior import rational_epsilon

PRIOR_SHARE = Fraction(1, 8)
"""The largest share of ε that the default split gives the prior."""


@dataclass(frozen=True)
class BudgetSplit:
    """How one ε is divided, exactly: ``prior + labels`` is the requested one."""

    prior: Fraction  # ε₁ for the histogram
    labels: Fraction  # ε₂ for all labels of one privacy unit


def split_budget(
    epsilon: float, points: int, rows: int, *, largest_share: float | Fraction = PRIOR_SHARE
) -> BudgetSplit:
    """Divide a label's whole ε by Theorem 7: ε₁ = √(k/n) for k ``points`` and n ``rows``.

    At most ``largest_share`` of ε, between 0 and 1: the theorem needs √(k/n) below ε, and small
    data sets do not have it.
    """
    check_epsilon(epsilon)
    at_least(1, points=points, rows=rows)
    within("(0, 1)", largest_share=largest_share)
    most = float(rational(epsilon) * rational(largest_share))
    prior = rational_epsilon(min(math.sqrt(points / rows), most))
    return BudgetSplit(prior, rational(epsilon) - prior)


def round_down(value: Fraction) -> float:
    """Return the largest float that is not above ``value``."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)
