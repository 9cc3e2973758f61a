"""How one ε is divided between a private prior and the labels.

Theorem 7 gives the histogram ε₁ = √(k/n), for k cells and n labels. Small data sets do not have
that much, and ε₁ is at most an eighth of ε; more where the released mean would be wrong without it.
Let m be the records of one privacy unit. The noise on each cell has variance 8m²/ε₁². Over k even
points, labels as even have variance R²/12, and Σ (y − ȳ)² is k R²/12: in deviations of the labels
the histogram's mean has variance

    V(ε₁) = 8k / (n ε₁/m)²,

which is what every prediction is off by. What codes teach grows with their information, as ε₂²
where ε is small: of a variance that features explain, 1/(1 + x) is left, x in proportion to ε₂².
Its derivative for ln ε₂ is at most 1/2, so that ε₁ costs at most ε₁/(2ε) in all. The sum of both
is least where V' = −1/(2ε), at ε₁ = ∛(32 k ε m² / n²). Of ε this is much where n ε is small beside
√k, and then codes teach little; half of ε is the most.

Source: Theorem 7 of Ghazi et al., *Regression with Label Differential Privacy*, ICLR 2023; the
bound for small data sets is our own, docs/appendix/comparison.md has measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.guarantees.limits import at_least, digits, within
from labelveil.common.randomizers.base import check_epsilon
from labelveil.common.randomizers.prior import LEAST_EPSILON, rational_epsilon

PRIOR_SHARE = Fraction(1, 8)
"""The largest share of ε that the default split gives the prior of a large data set."""
_MOST_SHARE = Fraction(1, 2)
"""The same of any data set."""


@dataclass(frozen=True)
class BudgetSplit:
    """How one ε is divided, exactly: ``prior + labels`` is the requested one."""

    prior: Fraction  # ε₁ for the histogram
    labels: Fraction  # ε₂ for all labels of one privacy unit


def split_budget(
    epsilon: float,
    points: int,
    rows: int,
    *,
    records: int = 1,
    largest_share: float | Fraction | None = None,
) -> BudgetSplit:
    """Divide a label's whole ε by Theorem 7: ε₁ = √(k/n) for k ``points`` and n ``rows``.

    At most ``largest_share`` of ε, between 0 and 1; by default an eighth or, where n ε is small
    beside √k, up to a half, as the module says. ``records`` >= 1 are those of one privacy unit.

    Raises
    ------
    PrivacyError
        If ε is too small for both.
    """
    check_epsilon(epsilon)
    at_least(1, points=points, rows=rows, records=records)
    whole = rational(epsilon)
    if largest_share is None:
        each = rational(records) / rational(rows)
        small = _cube_root(32 * rational(points) * whole * each**2)
        most = float(max(whole * PRIOR_SHARE, min(whole * _MOST_SHARE, small)))
    else:
        within("(0, 1)", largest_share=largest_share)
        most = float(whole * rational(largest_share))
    if most < LEAST_EPSILON:
        raise PrivacyError(
            f"epsilon={digits(epsilon)} leaves {most:.3g} for the released histogram, which takes"
            f" {float(LEAST_EPSILON):.2g} at least; useful values lie between 0.1 and 8"
        )
    prior = rational_epsilon(min(math.sqrt(points / rows), most))
    return BudgetSplit(prior, whole - prior)


def _cube_root(value: Fraction) -> Fraction:
    """Round ∛value down to a multiple of 2⁻²⁴: exactly, as it must be the same on every machine."""
    cube = int(value * 2**72)
    root = round(cube ** (1 / 3))
    return Fraction(root - (root**3 > cube), 2**24)
