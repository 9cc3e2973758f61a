"""Project onto noisy marginals: the table of largest entropy that agrees with them best.

Minimises ``Σ_S ‖M_S(n p) − y_S‖² / (2 n σ_S²)`` over distributions p by entropic mirror
descent from a given start, with the step chosen by backtracking. All of it is post-processing.

Source: Beck and Teboulle, *Mirror Descent and Nonlinear Projected Subgradient Methods*, 2003; the
objective is that of McKenna, Sheldon, Miklau, *Graphical-Model Based Estimation and Inference for
Differential Privacy*, ICML 2019, here on an explicit table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.arrays import Floats
from common.mechanisms.synthesis.workload import Marginals

_SHRINK = 0.5
_GROW = 1.5
_MOST_BACKTRACKS = 30


@dataclass(frozen=True, eq=False)
class NoisyMarginal:
    """One measured marginal."""

    which: int  # its position in the workload
    values: Floats  # its noisy counts
    variance: float  # of the noise on each, > 0


def project(
    weights: Floats,
    measured: Sequence[NoisyMarginal],
    workload: Marginals,
    records: int,
    iterations: int,
) -> Floats:
    """(cells,) the distribution found after a number of steps from ``weights``, which has no zeros.

    ``measured`` are one or more noisy marginals of the workload, on a table of n ``records``.
    """
    merged = _merge(measured)
    shape = workload.domain.sizes
    p = weights.reshape(shape)
    loss, gradient = _loss(p, merged, workload, records)
    step = 1.0
    for _ in range(iterations):
        for _ in range(_MOST_BACKTRACKS):
            exponent = -step * gradient
            q = p * np.exp(exponent - exponent.max())
            q = np.maximum(q / q.sum(), 1e-300)
            new, new_gradient = _loss(q, merged, workload, records)
            if new <= loss + 0.5 * float(np.sum(gradient * (q - p))):
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
