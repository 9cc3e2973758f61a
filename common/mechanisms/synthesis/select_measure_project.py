"""Select–measure–project: MWEM's modern form, for marginals.

A round selects the marginal on which the model is worst, beyond what its measurement's own noise
would be, measures all its cells at once (they are disjoint, so that costs no more than one cell),
and projects the model onto everything measured so far. All marginals of one attribute are measured
first. If a round changed its marginal by less than the noise, rounds are too cheap to teach
anything: the next ones spend more, and there are fewer of them.

Source: McKenna, Mullins, Sheldon, Miklau, *AIM: An Adaptive and Iterative Mechanism for
Differentially Private Synthetic Data*, VLDB 2022, on an explicit table instead of a graphical
model; Liu, Vietri, Wu, *Iterative Methods for Private Synthetic Data*, NeurIPS 2021, for the frame.
The projection: Beck and Teboulle, *Mirror Descent and Nonlinear Projected Subgradient Methods*,
2003; its objective: McKenna, Sheldon, Miklau, *Graphical-Model Based Estimation and Inference for
Differential Privacy*, ICML 2019.

A round spends in one of two currencies. The score of a marginal is the L1 distance between its true
and its modelled counts; both it and the marginal itself (in L1) move by at most 2 when a record is
replaced, the marginal's squared L2 norm by at most 2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy, WordSource
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.exponential_choice import exponential_choice
from labelveil.common.exact.noise import discrete_gaussian, discrete_laplace
from labelveil.common.exact.rounding import multiple_above, root_below
from labelveil.common.guarantees import Adjacency, Guarantee, PureDP, Unit, ZeroConcentratedDP
from labelveil.common.mechanisms.synthesis.domain import check_histogram
from labelveil.common.mechanisms.synthesis.workload import Marginals
from labelveil.common.noncopyable import NonCopyable

_GRAIN = 1 << 24
_SELECTION = Fraction(1, 10)
_ROUNDS = 2
_STEPS = 30
_LAST_STEPS = 300
_SHRINK = 0.5
_GROW = 1.5
_MOST_BACKTRACKS = 30


@dataclass(frozen=True)
class Budget(ABC):
    """A total to spend on selections and measurements, chosen as earlier outputs suggest.

    Both currencies add up however amounts are chosen, as long as the total is fixed beforehand
    (Rogers, Roth, Ullman, Vadhan, *Privacy Odometers and Filters*, NeurIPS 2016, for ε;
    Feldman and Zrnic, *Individual Privacy Accounting via a Rényi Filter*, NeurIPS 2021, for ρ).
    """

    total: Fraction
    """ε or ρ, > 0."""

    doubling: ClassVar[int]
    """By how much a round's amount grows when its noise is to be halved."""

    def __post_init__(self) -> None:
        if self.total * _GRAIN < 1 << 10:
            raise PrivacyError(f"a budget of {float(self.total):g} must be at least 2**-14")

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """The guarantee of spending it all."""

    @abstractmethod
    def rate(self, amount: Fraction) -> Fraction:
        """Rate r of a selection with weights ``exp(r · score)`` that costs at most ``amount``."""

    @abstractmethod
    def noise(self, amount: Fraction, size: int, source: WordSource) -> Integers:
        """Noise of a measured marginal that costs at most ``amount``."""

    @abstractmethod
    def expected(self, amount: Fraction) -> float:
        """Mean absolute value of that noise, of the Gaussian kind to within a few percent."""

    @abstractmethod
    def variance(self, amount: Fraction) -> float | Fraction:
        """Variance of that noise."""

    def share(self, part: Fraction) -> Fraction:
        """Round an amount down to a multiple of 2**-24, at least one."""
        return Fraction(max(1, int(part * _GRAIN)), _GRAIN)


@dataclass(frozen=True)
class PureBudget(Budget):
    """ε: exponential mechanism, discrete Laplace noise."""

    doubling = 2

    @property
    def guarantee(self) -> PureDP:
        return PureDP.of(self.total, Adjacency.REPLACE_RECORD, Unit.RECORD)

    def rate(self, amount: Fraction) -> Fraction:
        """``ε/(2Δ)``, Δ = 2."""
        return amount / 4

    def noise(self, amount: Fraction, size: int, source: WordSource) -> Integers:
        return discrete_laplace(2 / amount, size, source)

    def expected(self, amount: Fraction) -> float:
        return 1 / math.sinh(amount / 2)

    def variance(self, amount: Fraction) -> float:
        return 1 / (2 * math.sinh(amount / 4) ** 2)


@dataclass(frozen=True)
class ConcentratedBudget(Budget):
    """ρ: exponential mechanism by its bounded range, discrete Gaussian noise."""

    doubling = 4

    @property
    def guarantee(self) -> ZeroConcentratedDP:
        return ZeroConcentratedDP.of(
            self.total, adjacency=Adjacency.REPLACE_RECORD, unit=Unit.RECORD
        )

    def rate(self, amount: Fraction) -> Fraction:
        """``ε/(2Δ)`` with ε²/8 <= ρ (the mechanism has ε-bounded range), Δ = 2."""
        return root_below(8 * amount, _GRAIN) / 4

    def noise(self, amount: Fraction, size: int, source: WordSource) -> Integers:
        return discrete_gaussian(self.variance(amount), size, source)

    def expected(self, amount: Fraction) -> float:
        return math.sqrt(2 * float(self.variance(amount)) / math.pi)

    def variance(self, amount: Fraction) -> Fraction:
        """``Δ²/(2ρ)`` with Δ² = 2, rounded up to what the sampler takes."""
        return multiple_above(1 / amount)


@dataclass(frozen=True, eq=False)
class NoisyMarginal:
    """One measured marginal."""

    which: int  # its position in the workload
    values: Floats  # its noisy counts
    variance: float  # of the noise on each, > 0


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


class _Run(NonCopyable):
    """One fit: what was measured, the model, and what is left to spend."""

    def __init__(
        self, budget: Budget, workload: Marginals, table: Integers, entropy: Entropy
    ) -> None:
        super().__init__()
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


def project(
    weights: Floats,
    measured: Sequence[NoisyMarginal],
    workload: Marginals,
    records: int,
    iterations: int,
) -> Floats:
    """(cells,) the table of largest entropy that agrees best with noisy marginals.

    Minimises ``Σ_S ‖M_S(n p) − y_S‖² / (2 n σ_S²)`` over distributions p, for a table of n
    ``records`` and one or more marginals ``measured``, by ``steps`` steps of entropic mirror
    descent from ``weights``, which has no zeros; backtracking chooses each step. All of it is
    post-processing.
    """
    merged = _merge(measured)
    shape = workload.domain.sizes
    p = weights.reshape(shape)
    loss, gradient = _loss(p, merged, workload, records)
    step = 1.0
    for _ in range(iterations):
        for _ in range(_MOST_BACKTRACKS):
            # mirror descent: multiplicative steps, under which no cell leaves the simplex
            exponent = -step * gradient
            q = p * np.exp(exponent - exponent.max())
            q = np.maximum(q / q.sum(), 1e-300)
            new, new_gradient = _loss(q, merged, workload, records)
            if new <= loss + 0.5 * float(np.sum(gradient * (q - p))):  # Armijo: it falls enough
                break
            step *= _SHRINK
        else:
            break  # no step makes it smaller: converged to rounding
        p, loss, gradient = q, new, new_gradient
        step *= _GROW
    return np.asarray(p.ravel() / p.sum())


def _merge(measured: Sequence[NoisyMarginal]) -> list[NoisyMarginal]:
    """Average repeated measurements by their precision."""
    merged: dict[int, NoisyMarginal] = {}
    for new in measured:
        old = merged.get(new.which)
        if old is not None:
            precision = 1 / old.variance + 1 / new.variance
            values = (old.values / old.variance + new.values / new.variance) / precision
            new = NoisyMarginal(new.which, values, 1 / precision)
        merged[new.which] = new
    return list(merged.values())


def _loss(
    p: Floats, measured: Sequence[NoisyMarginal], workload: Marginals, records: int
) -> tuple[float, Floats]:
    """The objective and its gradient, in the table's shape."""
    loss = 0.0
    gradient = np.zeros(p.shape)
    for item in measured:
        gap: Floats = np.asarray(workload.marginal(p * records, item.which) - item.values)
        loss += float(gap @ gap) / (2 * records * item.variance)
        gradient += workload.spread(gap / item.variance, item.which)
    return loss, gradient
