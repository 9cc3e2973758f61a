"""BLR: the exponential mechanism over every small database, exact, for tiny domains.

Assumption: neighbours differ in one replaced record of x ∈ X^n; queries are linear with weights in
0 … 1. Mechanism: choose y ∈ X^m with probability ∝ ``exp(−(εn/2) max_q |q(x) − q(y)|)``, q being
the mean weight and 1/n the score's sensitivity. It is ε-DP (McSherry and Talwar 2007, Theorem 6).

Accuracy: with ``m = ln|Q|/α²`` some y has error at most α (Hoeffding and a union bound), so the
error passes ``α + (2/(εn)) (m ln|X| + ln(1/β))`` with probability at most β.

Cost: databases that are permutations of each other have one score and are drawn as one multiset
with its multinomial multiplicity: C(m + |X| − 1, m) candidates instead of |X|^m. Scores and
multiplicities are integers, and the draw is exact.

Source: Blum, Ligett, Roth, *A Learning Theory Approach to Noninteractive Database Privacy*, STOC
2008 (JACM 2013), Section 3; Dwork and Roth (2014), Section 4.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import ConfigError
from labelveil.common.exact.exponential_choice import exponential_choice
from labelveil.common.guarantees import Adjacency, PureDP, Unit
from labelveil.common.guarantees.limits import positive, within
from labelveil.common.mechanisms.synthesis.domain import check_histogram
from labelveil.common.mechanisms.synthesis.workload import LinearQueries

MAX_DATABASES = 1 << 18


@dataclass(frozen=True)
class BLR:
    """The exponential mechanism over all databases of m rows."""

    workload: LinearQueries
    """The queries Q over a tiny domain X."""
    epsilon: Fraction
    """ε > 0."""
    alpha: float
    """Discretisation error, which fixes ``m``."""

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        within("(0, 1)", alpha=self.alpha)
        if self.candidates > MAX_DATABASES:
            raise ConfigError(
                f"{self.candidates:,} databases of {self.rows} rows over {self.workload.cells}"
                f" cells are above {MAX_DATABASES:,}; raise alpha={self.alpha:g}, or use MWEM"
            )

    @property
    def rows(self) -> int:
        """m of the database that comes out: ``ln|Q|/α²``, rounded up, with |Q| at least 3.

        ``2|Q| exp(−2mα²) <= 2/|Q| < 1``: not every sample of m records has a query that is off by
        more than α.
        """
        return math.ceil(math.log(max(self.workload.size, 3)) / self.alpha**2)

    @property
    def candidates(self) -> int:
        """Number of multisets of m rows."""
        return math.comb(self.rows + self.workload.cells - 1, self.rows)

    @property
    def guarantee(self) -> PureDP:
        """The guarantee: ε."""
        return PureDP.of(self.epsilon, Adjacency.REPLACE_RECORD, Unit.RECORD)

    @cached_property
    def databases(self) -> Integers:
        """(candidates, cells) counts, each row adding up to m."""
        k, m = self.workload.cells, self.rows
        bars = np.array(list(combinations(range(m + k - 1), k - 1)), dtype=np.int64)
        bars = bars.reshape(-1, k - 1)
        edge = np.ones((len(bars), 1), dtype=np.int64)
        padded = np.hstack([-edge, bars, edge * (m + k - 1)])
        return padded[:, 1:] - padded[:, :-1] - 1

    @cached_property
    def multiplicities(self) -> list[int]:
        """How many databases in X^m each multiset stands for: ``m! / Π y_i!``."""
        factorials = [math.factorial(i) for i in range(self.rows + 1)]
        total = factorials[-1]
        return [total // math.prod(factorials[i] for i in y) for y in self.databases.tolist()]

    def law(self, histogram: ArrayLike) -> tuple[Integers, Fraction]:
        """Integer scores s and the rate r of the law ``P(y) ∝ multiplicity · exp(r s_y)``.

        ``−max_q |q(x) − q(y)|`` in units of 1/(n m scale); r is ε n / 2 in the same unit.

        Raises
        ------
        ConfigError
            If scores of that many records and rows would overflow.
        """
        x = check_histogram(histogram, self.workload.cells)
        n, m = int(x.sum()), self.rows
        if n * m * self.workload.scale >= 1 << 62:  # all public
            raise ConfigError(
                f"{n} records of {m} rows in units of 1/{self.workload.scale} overflow"
            )
        true = self.workload.answers(x).astype(np.int64) * m
        own = self.databases @ self.workload.weights.T * n
        scores = -np.abs(own - true).max(axis=1)
        return scores.astype(np.int64), self.epsilon / (2 * m * self.workload.scale)

    def probabilities(self, histogram: ArrayLike) -> Floats:
        """(candidates,) the output law in double precision, for tests and plots."""
        scores, rate = self.law(histogram)
        logs = np.array([math.log(w) for w in self.multiplicities])
        logs += (scores - scores.max()) * float(rate)
        masses = np.exp(logs - logs.max())
        return np.asarray(masses / masses.sum())

    def errors(self, histogram: ArrayLike) -> Floats:
        """(candidates,) ``max_q |q(x) − q(y)|`` of every database."""
        scores, _ = self.law(histogram)
        n = int(np.asarray(histogram).sum())
        return -scores / (n * self.rows * self.workload.scale)

    def bound(self, records: int, beta: float) -> float:
        """The error that is passed with probability at most β, for n records."""
        within("(0, 1)", beta=beta)
        choices = self.rows * math.log(self.workload.cells) + math.log(1 / beta)
        return self.alpha + 2 * choices / (float(self.epsilon) * records)

    def draw(self, histogram: ArrayLike, entropy: Entropy) -> Integers:
        """Draw a database of m rows; returns its (cells,) counts."""
        scores, rate = self.law(histogram)
        total = self.workload.cells**self.rows
        weights = [Fraction(count, total) for count in self.multiplicities]
        chosen = exponential_choice(scores, rate, entropy.source("blr"), weights)
        return np.array(self.databases[chosen])
