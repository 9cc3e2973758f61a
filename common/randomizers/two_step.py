"""The two-step procedure: spend ε₁ on a private prior, then ε₂ on each label.

Source: Algorithm 3 and Theorem 7 of Ghazi et al., *Regression with Label Differential Privacy*,
ICLR 2023. Everything that the labels party sends is a function of the two releases, so the whole
message is (ε₁ + ε₂)-DP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from common.arrays import Integers
from common.entropy import Entropy
from common.errors import PrivacyError
from common.guarantees import PureDP, Unit
from common.randomizers.base import Randomizer, build_randomizer, check_epsilon
from common.randomizers.grid import Grid
from common.randomizers.losses import Loss, LossFunction
from common.randomizers.prior import (
    NoisyPrior,
    decoded_prior,
    private_prior,
    rational_epsilon,
)

PRIOR_SHARE = Fraction(1, 8)
"""The largest share of ε that the default split gives the prior."""

RESPONSE = "randomized-response"
FEW = 16
"""Values that randomized response is the default for, at most: with more it is seldom right."""


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
    prior_paid
        Whether these labels paid for the histogram; otherwise it is about other records.
    """

    split: BudgetSplit
    prior: NoisyPrior
    randomizer: Randomizer
    group: int
    prior_paid: bool = True

    @property
    def labels_guarantee(self) -> PureDP:
        """Of one privacy unit's randomized labels, from the channel's integers."""
        unit = Unit.RECORD if self.group == 1 else Unit.USER
        return PureDP.of_channel(self.randomizer.channel, unit).scale(self.group)

    @property
    def guarantee(self) -> PureDP:
        """Of the whole message."""
        labels = self.labels_guarantee
        return self.prior.guarantee.compose(labels) if self.prior_paid else labels


@dataclass(frozen=True)
class Recipe:
    """How labels are randomized, whatever their number and ε.

    Attributes
    ----------
    randomizer, loss, options
        As in :func:`build_randomizer`.
    group
        Records of one privacy unit whose labels may change together; each label gets ε₂ / group.
    prior_share
        The largest share of ε that a prior may take.
    values
        Whether the grid's points are all the labels there are, and not places on a range.
    spent
        What of ε these labels have spent before; it is left out of ε₂.
    """

    randomizer: str = "auto"
    loss: str | Loss | LossFunction = "squared"
    options: Mapping[str, Any] = field(default_factory=dict)
    group: int = 1
    prior_share: float | Fraction = PRIOR_SHARE
    spent: Fraction = Fraction(0)
    values: bool = False

    def needs_prior(self, grid: Grid) -> bool:
        """Whether the channel depends on a prior.

        Two labels, or a few that are values of their own, are sent by randomized response, whose
        codes also tell their histogram: no ε is spent on one.
        """
        few = len(grid) == 2 or (self.values and len(grid) <= FEW)
        return not few or bool(self.options) or self.randomizer not in ("auto", RESPONSE)

    def split(self, grid: Grid, epsilon: float, rows: int) -> BudgetSplit:
        """Divide ε between a prior, if one is needed, and what these labels have left to spend."""
        split = BudgetSplit(Fraction(0), Fraction(epsilon), capped=False)
        if self.needs_prior(grid):
            split = split_budget(epsilon, len(grid), rows, largest_share=self.prior_share)
        return replace(split, labels=self.rest(split.labels))

    def respond(self, grid: Grid, epsilon: float, rows: int) -> Randomizer:
        """Build randomized response, which needs no prior and spends all of ε on the labels."""
        even = NoisyPrior(np.ones(len(grid), np.int64), Fraction(0), len(grid), decoded=0.0)
        split = self.split(grid, epsilon, rows)
        return replace(self, randomizer=RESPONSE).build(even, grid, split, rows)

    def build(self, prior: NoisyPrior, grid: Grid, split: BudgetSplit, rows: int) -> Randomizer:
        """Build the randomizer that spends what ``split`` leaves the labels."""
        return build_randomizer(
            self.randomizer,
            labels=grid.points,
            prior=prior.probabilities,
            epsilon=round_down(split.labels / self.group),
            loss=self.loss,
            rows=rows,
            **self.options,
        )

    def rest(self, epsilon: Fraction) -> Fraction:
        """Return what is left for the labels."""
        if not 0 <= self.spent < epsilon:
            raise PrivacyError(
                f"{float(self.spent):g} is spent of epsilon={float(epsilon):g}, which leaves"
                " nothing for the labels; raise epsilon"
            )
        return epsilon - self.spent


def two_step(
    counts: ArrayLike,
    grid: Grid,
    epsilon: float,
    entropy: Entropy,
    recipe: Recipe,
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
    """
    histogram = np.asarray(counts)
    rows = int(histogram.sum())
    split = split_budget(epsilon, len(grid), max(rows, 1), largest_share=recipe.prior_share)
    split = replace(split, labels=recipe.rest(split.labels))
    prior = private_prior(histogram, split.prior, entropy, group=recipe.group)
    built = recipe.build(prior, grid, split, rows)
    return TwoStep(split, prior, built, recipe.group)


def second_step(
    prior: NoisyPrior, grid: Grid, epsilon: float, rows: int, recipe: Recipe
) -> TwoStep:
    """Build the randomizer from a histogram of other records, and spend all of ε on the labels.

    Parameters
    ----------
    prior
        Released before, over ``grid``.
    rows
        Number of labels to be randomized.
    """
    check_epsilon(epsilon)
    split = BudgetSplit(Fraction(0), recipe.rest(Fraction(epsilon)), capped=False)
    built = recipe.build(prior, grid, split, rows)
    return TwoStep(split, prior, built, recipe.group, prior_paid=False)


def one_step(randomizer: Randomizer, codes: Integers, epsilon: float, group: int = 1) -> TwoStep:
    """Say what a release by randomized response is made of, once its codes are drawn.

    Parameters
    ----------
    randomizer
        From :meth:`Recipe.respond`.
    codes
        (k,) how many codes there are of each label.
    epsilon
        What was spent, all of it on the labels.
    """
    split = BudgetSplit(Fraction(0), Fraction(epsilon), capped=False)
    prior = decoded_prior(randomizer.channel, codes, group)
    return TwoStep(split, prior, randomizer, group, prior_paid=False)


def round_down(value: Fraction) -> float:
    """Return the largest float that is not above ``value``."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)
