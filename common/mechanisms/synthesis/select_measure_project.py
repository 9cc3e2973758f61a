"""Select–measure–project: MWEM's modern form, for marginals.

A round selects the marginal on which the model is worst, beyond what its measurement's own noise
would be, measures all its cells at once (they are disjoint, so that costs no more than one cell),
and projects the model onto everything measured so far. All marginals of one attribute are measured
first. If a round changed its marginal by less than the noise, rounds are too cheap to teach
anything: the next ones spend more, and there are fewer of them.

Source: McKenna, Mullins, Sheldon, Miklau, *AIM: An Adaptive and Iterative Mechanism for
Differentially Private Synthetic Data*, VLDB 2022, on an explicit table instead of a graphical
model; Liu, Vietri, Wu, *Iterative Methods for Private Synthetic Data*, NeurIPS 2021, for the frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from common.arrays import Floats, Integers
from common.entropy import Entropy
from common.errors import ConfigError
from common.exact.exponential_choice import exponential_choice
from common.guarantees import Guarantee
from common.mechanisms.synthesis.budget import Budget
from common.mechanisms.synthesis.domain import check_histogram
from common.mechanisms.synthesis.projection import NoisyMarginal, project
from common.mechanisms.synthesis.workload import Marginals

_SELECTION = Fraction(1, 10)
_ROUNDS = 2
_STEPS = 30
_LAST_STEPS = 300


@dataclass(frozen=True, eq=False)
class Model:
    """What is released."""

    weights: Floats
    """(cells,) a distribution over the cells."""
    measured: tuple[NoisyMarginal, ...]
    """The noisy marginals that it was fitted to, in order."""
    guarantee: Guarantee
    """Of model and measurements together."""


@dataclass(frozen=True)
class SelectMeasureProject:
    """Adaptive measurement of marginals under one budget."""

    workload: Marginals
    """To be answered well; those of one attribute must be among them."""
    budget: Budget
    """:class:`PureBudget` or :class:`ConcentratedBudget`."""

    def __post_init__(self) -> None:
        if len(self._singles) < len(self.workload.domain.sizes):
            raise ConfigError("the workload must have the marginal of every attribute by itself")

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of everything that comes out."""
        return self.budget.guarantee

    @property
    def single(self) -> Fraction:
        """The amount that measures the marginal of one attribute, before all else."""
        return self.budget.share(self._round * (1 - _SELECTION))

    @property
    def _round(self) -> Fraction:
        return self.budget.share(self.budget.total / ((1 + _ROUNDS) * len(self._singles)))

    @property
    def _singles(self) -> list[int]:
        return [i for i, chosen in enumerate(self.workload.sets) if len(chosen) == 1]

    def draw(
        self,
        histogram: ArrayLike,
        entropy: Entropy,
        progress: Callable[[float], None] = lambda share: None,
    ) -> Model:
        """Learn a model of a table of (cells,) counts, whose sum n is public.

        ``progress`` is called with the share of the budget spent. Entropy must be fresh.
        """
        table = check_histogram(histogram, self.workload.cells)
        run = _Run(self.budget, self.workload, table, entropy)
        for which in self._singles:
            run.measure(which, self.single)
        run.project(_STEPS)
        each = self._round
        while run.unspent > 0:
            last = run.unspent < 2 * each
            learnt = run.round(run.unspent if last else each)
            progress(float(1 - run.unspent / self.budget.total))
            each *= 1 if learnt else self.budget.doubling
        run.project(_LAST_STEPS)
        return Model(run.weights, tuple(run.measured), self.guarantee)


class _Run:
    """One fit: what was measured, the model, and what is left to spend."""

    def __init__(
        self, budget: Budget, workload: Marginals, table: Integers, entropy: Entropy
    ) -> None:
        self.budget, self.workload = budget, workload
        self.records = int(table.sum())
        self.unspent = budget.total
        self.weights: Floats = np.full(workload.cells, 1 / workload.cells)
        self.measured: list[NoisyMarginal] = []
        self._truth = [
            workload.marginal(table, which).astype(np.int64) for which in range(len(workload.sets))
        ]
        self._select = entropy.source("synthesis-select")
        self._measure = entropy.source("synthesis-measure")

    def measure(self, which: int, amount: Fraction) -> None:
        """Release one marginal with noise."""
        self.unspent -= amount
        noise = self.budget.noise(amount, self._truth[which].size, self._measure)
        values = (self._truth[which] + noise).astype(np.float64)
        self.measured.append(NoisyMarginal(which, values, float(self.budget.variance(amount))))

    def round(self, amount: Fraction) -> bool:
        """Select, measure, project; returns whether the marginal moved by more than its noise."""
        selection = self.budget.share(amount * _SELECTION)
        rest = amount - selection
        expected = self.budget.expected(rest)
        own = [self._own(which) for which in range(len(self._truth))]
        scores = [
            int(np.abs(true - np.rint(mine).astype(np.int64)).sum()) - round(expected * true.size)
            for true, mine in zip(self._truth, own, strict=True)
        ]
        self.unspent -= selection
        rate = self.budget.rate(selection)
        which = exponential_choice(np.array(scores, dtype=np.int64), rate, self._select)
        self.measure(which, rest)
        self.project(_STEPS)
        moved = float(np.abs(self._own(which) - own[which]).sum())
        return moved > expected * own[which].size

    def project(self, steps: int) -> None:
        """Fit the model to everything measured."""
        self.weights = project(self.weights, self.measured, self.workload, self.records, steps)

    def _own(self, which: int) -> Floats:
        return np.asarray(self.workload.marginal(self.weights * self.records, which))
