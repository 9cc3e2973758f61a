"""MWEM: multiplicative weights learn a table from a few noisy answers, privately chosen.

Assumption: neighbours differ in one replaced record, so the number of rows n is public and an
answer moves by at most the workload's ``scale``. Each of T rounds spends ε/T:

1. select the query whose answer on the model is worst, by the exponential mechanism with ε/(2T);
2. measure it with discrete Laplace noise of scale ``2T scale / ε``;
3. update the model by multiplicative weights, ``A(c) ∝ A(c) exp(q(c) (measured − q(A)) / 2n)``.

Scores are integers: the model's answers, public like all that came out before, are rounded first.
As in the authors' experiments, each round goes through all measurements so far several times; with
``replays`` = 0 it is their theorem's algorithm, which takes each once and ends with the average.

Source: Hardt, Ligett, McSherry, *A Simple and Practical Algorithm for Differentially Private Data
Release*, NeurIPS 2012, Figure 1, Theorem 2.1 (privacy) and Section 4 (replays).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats
from labelveil.common.entropy import Entropy
from labelveil.common.exact.exponential_choice import exponential_choice
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.guarantees import Adjacency, PureDP, Unit
from labelveil.common.guarantees.limits import at_least, positive
from labelveil.common.mechanisms.synthesis.domain import check_histogram
from labelveil.common.mechanisms.synthesis.workload import Workload

_LEAST_WEIGHT = 1e-290


@dataclass(frozen=True)
class Measurement:
    """One noisy answer."""

    query: int  # index in the workload
    value: int  # the answer with noise, in units of 1/scale


@dataclass(frozen=True, eq=False)
class Fitted:
    """What MWEM releases."""

    weights: Floats
    """(cells,) the model: a distribution over the cells."""
    measurements: tuple[Measurement, ...]
    """What it was learnt from, in order."""
    guarantee: PureDP
    """Of model and measurements together."""


@dataclass(frozen=True)
class MWEM:
    """Multiplicative weights with the exponential mechanism."""

    workload: Workload
    """The queries to answer well."""
    epsilon: Fraction
    """ε > 0 of all rounds."""
    rounds: int
    """T >= 1."""
    replays: int = 10
    """Passes through all measurements in each round; 0 for the average of plain updates."""

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        at_least(1, rounds=self.rounds)
        at_least(0, replays=self.replays)

    @property
    def step(self) -> PureDP:
        """The guarantee of one selection or of one measurement: ε/(2T)."""
        return PureDP.of(self.epsilon / (2 * self.rounds), Adjacency.REPLACE_RECORD, Unit.RECORD)

    @property
    def guarantee(self) -> PureDP:
        """The guarantee of all rounds."""
        return self.step.repeat(2 * self.rounds)

    @property
    def rate(self) -> Fraction:
        """Rate of the selection, whose weights are ``exp(rate · score)``."""
        return self.step.exact_epsilon / (2 * self.workload.scale)

    @property
    def noise_scale(self) -> Fraction:
        """Scale of a measurement's noise, in units of 1/scale."""
        return self.workload.scale / self.step.exact_epsilon

    def draw(self, histogram: ArrayLike, entropy: Entropy) -> Fitted:
        """Learn a model of a table of (cells,) counts, whose sum n is public.

        Entropy must be fresh for every release.
        """
        workload = self.workload
        table = check_histogram(histogram, workload.cells)
        records = int(table.sum())
        truth = workload.answers(table).astype(np.int64)
        selections, noise = entropy.source("mwem-select"), entropy.source("mwem-measure")
        weights = np.full(workload.cells, 1.0 / workload.cells)
        average = np.zeros_like(weights)
        measured: list[Measurement] = []
        for _ in range(self.rounds):
            average += weights / self.rounds
            own = np.rint(workload.answers(weights * records)).astype(np.int64)
            query = exponential_choice(np.abs(truth - own), self.rate, selections)
            error = int(discrete_laplace(self.noise_scale, 1, noise)[0])
            measured.append(Measurement(query, int(truth[query]) + error))
            again = measured * self.replays if self.replays else measured[-1:]
            weights = _update(weights, again, workload, records)
        model = weights if self.replays else average
        return Fitted(model, tuple(measured), self.guarantee)


def _update(
    weights: Floats, measurements: list[Measurement], workload: Workload, records: int
) -> Floats:
    """Apply the multiplicative update for one measurement after another."""
    weights, total = weights.copy(), 1.0
    supports = {m.query: workload.support(m.query) for m in measurements}
    for measurement in measurements:
        cells, shares = supports[measurement.query]
        old = weights[cells]
        target = measurement.value / (workload.scale * records)
        surprise = target - float(old @ shares) / total
        # a target below 0 or above 1 is noise; no step needs to be longer than the range
        new = np.maximum(old * np.exp(shares * np.clip(surprise, -1, 1) / 2), _LEAST_WEIGHT)
        total += float(new.sum() - old.sum())
        weights[cells] = new
        if not 1e-6 < total < 1e6:
            weights, total = weights / weights.sum(), 1.0
    return np.asarray(weights / weights.sum())
