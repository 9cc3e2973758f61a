"""The two-step procedure: spend ε₁ on a private prior, then ε₂ on each label.

Source: Algorithm 3 and Theorem 7 of Ghazi et al., *Regression with Label Differential Privacy*,
ICLR 2023. Everything that the labels party sends is a function of the two releases, so the whole
message is (ε₁ + ε₂)-DP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from common.entropy import Entropy
from common.errors import PrivacyError
from common.grid import Grid
from common.guarantees import PureDP, Unit
from common.losses import Loss, LossFunction
from common.randomizers.base import Randomizer, build_randomizer, check_epsilon
from common.randomizers.prior import NoisyPrior, private_prior, rational_epsilon

PRIOR_SHARE = Fraction(1, 8)
"""The largest share of ε that the default split gives the prior."""


@dataclass(frozen=True)
class BudgetSplit:
    """How one ε is divided.

    Attributes
    ----------
    prior
        ε₁ for the histogram, exact.
    labels
        ε₂ for all labels of one privacy unit, exact; ``prior + labels`` is the requested ε.
    capped
        Whether Theorem 7's √(k/n) was above the largest share allowed.
    """

    prior: Fraction
    labels: Fraction
    capped: bool


def split_budget(
    epsilon: float, points: int, rows: int, *, largest_share: float | Fraction = PRIOR_SHARE
) -> BudgetSplit:
    """Divide ε by Theorem 7: ε₁ = √(k/n), at most ``largest_share`` of ε.

    Parameters
    ----------
    epsilon
        The whole budget of a label, > 0.
    points
        Number of grid points k.
    rows
        Number of labels n.
    largest_share
        Between 0 and 1. The theorem needs √(k/n) below ε; small data sets do not have it.
    """
    check_epsilon(epsilon)
    if points < 1 or rows < 1:
        raise PrivacyError(f"points={points} and rows={rows} must both be at least 1")
    if not 0 < largest_share < 1:
        raise PrivacyError(f"largest_share={float(largest_share):g} must lie between 0 and 1")
    wanted = math.sqrt(points / rows)
    most = float(Fraction(epsilon) * Fraction(largest_share))
    prior = rational_epsilon(min(wanted, most))
    return BudgetSplit(prior, Fraction(epsilon) - prior, wanted > most)


@dataclass(frozen=True)
class TwoStep:
    """Both steps, ready to randomize: what a release is made of.

    Attributes
    ----------
    split
        How ε was divided.
    prior
        The released noisy histogram.
    randomizer
        Built from that histogram alone.
    group
        Records of one privacy unit.
    """

    split: BudgetSplit
    prior: NoisyPrior
    randomizer: Randomizer
    group: int

    @property
    def labels_guarantee(self) -> PureDP:
        """Of one privacy unit's randomized labels, from the channel's integers."""
        unit = Unit.RECORD if self.group == 1 else Unit.USER
        return PureDP.of_channel(self.randomizer.channel, unit).scale(self.group)

    @property
    def guarantee(self) -> PureDP:
        """Of the whole message."""
        return self.prior.guarantee.compose(self.labels_guarantee)


def two_step(
    counts: ArrayLike,
    grid: Grid,
    epsilon: float,
    entropy: Entropy,
    *,
    randomizer: str = "auto",
    loss: str | Loss | LossFunction = "squared",
    options: Mapping[str, Any] | None = None,
    group: int = 1,
    prior_share: float | Fraction = PRIOR_SHARE,
) -> TwoStep:
    """Spend ε₁ on the prior and build the randomizer that spends the rest.

    Parameters
    ----------
    counts
        (k,) integers: how many labels lie on each grid point.
    grid
        The k public grid points.
    epsilon
        Budget of one privacy unit for the whole message, > 0.
    entropy
        Source of the prior's noise.
    randomizer, loss, options
        As in :func:`build_randomizer`.
    group
        Records of one privacy unit whose labels may change together; each label gets ε₂ / group.
    prior_share
        The largest share of ε that the prior may take.
    """
    histogram = np.asarray(counts)
    rows = int(histogram.sum())
    split = split_budget(epsilon, len(grid), max(rows, 1), largest_share=prior_share)
    prior = private_prior(histogram, split.prior, entropy, group=group)
    built = build_randomizer(
        randomizer,
        labels=grid.points,
        prior=prior.probabilities,
        epsilon=_round_down(split.labels / group),
        loss=loss,
        rows=rows,
        **(options or {}),
    )
    return TwoStep(split, prior, built, group)


def _round_down(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)
