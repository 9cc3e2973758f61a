"""What boosting and Fisher scoring need of a law: tabulated derivatives, or those of few values.

Of two labels, or some classes, the derivatives have a closed form. With q the probabilities of m
values and K their channel, P(z) = Σ_y q_y K[y, z], and by a logit a_j ∂P(z)/∂a_j =
q_j (K[j, z] − P(z)). The Hessian is the diagonal of the Fisher information,
Σ_z (∂P(z)/∂a_j)² / P(z).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from labelveil.common.arrays import Floats
from labelveil.common.errors import not_none
from labelveil.feature_party.learning.heads import LinearHead, MeanHead
from labelveil.feature_party.learning.law_table import LawTable
from labelveil.feature_party.learning.objectives import (
    LikelihoodObjective,
    Objective,
    PointObjective,
)
from labelveil.feature_party.learning.support import Support

_LEAST_INFORMATION = 1e-3
"""Share of the information at the prior that every row has: a step is never unbounded."""
_BLOCK = 1 << 15


class ValuesTable:
    """First derivatives and Fisher information of −ln P(z | outputs), as of a :class:`LawTable`.

    ``head`` is ``bernoulli`` or ``softmax``; ``likelihood`` has the (m, d) probability of each code
    given each value.
    """

    of_a_label = 0.25
    """The most that a true label tells of a logit, q (1 − q)."""

    def __init__(self, head: LinearHead, likelihood: Floats) -> None:
        self.outputs, self._head, self._likelihood = head.outputs, head, likelihood
        # Bernoulli's one output is the logit of the second value
        self._moved = slice(1, 2) if head.statistics is not None else slice(None)
        self.scale = None  # no output is slower than the others
        self._least = np.zeros(head.outputs)
        nothing = np.zeros((1, head.outputs))
        self._least = _LEAST_INFORMATION * self.derivatives(nothing, np.zeros(1, np.int64))[2][0]

    def loss(self, outputs: Floats, codes: NDArray[np.integer]) -> Floats:
        """(n,) −ln P of (n,) codes for (n, p) outputs."""
        chances = np.sum(self._values(outputs) * self._likelihood[:, codes].T, axis=1)
        return np.asarray(-np.log(chances))

    def derivatives(
        self, outputs: Floats, codes: NDArray[np.integer]
    ) -> tuple[Floats, Floats, Floats]:
        """(n,) losses, (n, p) first derivatives by the outputs, and (n, p) Fisher information."""
        values = self._values(outputs)
        seen = values @ self._likelihood
        moved, likelihood = values[:, self._moved], self._likelihood[self._moved]
        chances = seen[np.arange(codes.size), codes]
        slopes = moved * (likelihood[:, codes].T / chances[:, None] - 1)
        # Σ_z q² (K − P)² / P = q² (Σ_z K² / P − 1), as Σ_z K = Σ_z P = 1
        information = moved**2 * ((1 / seen) @ (likelihood**2).T - 1)
        return -np.log(chances), -slopes, np.maximum(information, self._least)

    def _values(self, outputs: Floats) -> Floats:
        """(n, m) probabilities of the values."""
        with torch.no_grad():
            raw = torch.as_tensor(np.asarray(outputs, np.float64))
            return self._head.log_probabilities(raw).exp().numpy()


class MeanTable:
    """Half the squared distance of a mean from what a code says of it, as of a :class:`LawTable`.

    What codes say are :class:`.support.Estimates`; the information of their channel is their
    weight.
    """

    outputs, scale, of_a_label = 1, None, 1.0

    def __init__(self, support: Support) -> None:
        self._targets = support.estimates.of_code
        self._information = support.estimates.information[support.channel_of]

    def loss(self, outputs: Floats, codes: NDArray[np.integer]) -> Floats:
        """(n,) losses of (n, 1) outputs."""
        residual = outputs[:, 0] - self._targets[codes]
        return np.asarray(self._information[codes] * residual**2 / 2)

    def derivatives(
        self, outputs: Floats, codes: NDArray[np.integer]
    ) -> tuple[Floats, Floats, Floats]:
        """(n,) losses, (n, 1) first derivatives by the output, and (n, 1) information."""
        information = self._information[codes][:, None]
        slopes = information * (outputs - self._targets[codes][:, None])
        return self.loss(outputs, codes), slopes, information


class TruthTable:
    """Half the squared distance of a mean from a true label, as of a :class:`LawTable`; a code is
    the row of a label."""

    outputs, scale, of_a_label = 1, None, 1.0

    def __init__(self, law: PointObjective) -> None:
        self._targets = law.value_targets(law.decoded).double().numpy()

    def loss(self, outputs: Floats, codes: NDArray[np.integer]) -> Floats:
        """(n,) losses of (n, 1) outputs."""
        return np.asarray((outputs[:, 0] - self._targets[codes]) ** 2 / 2)

    def derivatives(
        self, outputs: Floats, codes: NDArray[np.integer]
    ) -> tuple[Floats, Floats, Floats]:
        """(n,) losses, (n, 1) first derivatives by the output, and (n, 1) information."""
        slopes = outputs - self._targets[codes][:, None]
        return self.loss(outputs, codes), slopes, np.ones_like(slopes)


Derivatives = LawTable | ValuesTable | MeanTable | TruthTable


def row_blocks(rows: int) -> Iterator[slice]:
    """Slices of this many rows, whose derivatives are found at once: those of a million fill no
    cache, and take several times as long."""
    return (slice(start, start + _BLOCK) for start in range(0, rows, _BLOCK))


def derivatives_of(law: Objective) -> Callable[[], Derivatives] | None:
    """What finds the derivatives of a law; None if nothing serves it."""
    if isinstance(law, PointObjective):
        serves = law.name == "true" and law.kind == "squared"
        return partial(TruthTable, law) if serves else None
    if not isinstance(law, LikelihoodObjective):
        return None
    head, support = law.family, law.support
    if isinstance(head, MeanHead):
        return partial(MeanTable, support)
    if support.discrete and isinstance(head, LinearHead):
        return partial(ValuesTable, head, support.likelihood)
    if LawTable.serves(head, support.likelihood.shape[1]):
        return lambda: not_none(law.table())
    return None
