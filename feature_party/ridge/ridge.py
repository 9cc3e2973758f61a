"""Ridge regression on random features, with a scale of each column: what predicts.

The prediction is a function (:mod:`labelveil.feature_party.ridge.links`) of
``z(x) = m + a·(s x) + Σ_j b_j cos(ω_j·(s x) + φ_j)`` with normal coefficients: a Gaussian process
with a linear and a squared-exponential kernel on columns scaled by s, in random features.

Source: Rahimi and Recht, *Random Features for Large-Scale Kernel Machines*, NeurIPS 2007.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
import torch

from labelveil.common.arrays import Floats, Singles
from labelveil.feature_party.ridge.links import Link

IN_CACHE = 1 << 10
"""Rows whose waves a processor's cache holds."""
_SAMPLE = 1_000
_LEAST_COLUMNS, _FEW = 32, 1 / 8
"""Of so many columns, and of a share of numbers that are not 0, or fewer, products with these alone
are faster."""

Sparse = scipy.sparse.csr_array
Rows = Floats | Singles | torch.Tensor | Sparse


def compressed(inputs: Singles) -> Singles | Sparse:
    """(n, F) rows; of those that are mostly 0, as of values of categories, the others alone."""
    some = inputs[:: -(-max(len(inputs), 1) // _SAMPLE)]
    few = np.count_nonzero(some) <= _FEW * some.size
    if inputs.shape[1] < _LEAST_COLUMNS or not few:
        return inputs
    ends = np.zeros(1 + len(inputs), dtype=np.int32)
    values, columns = [], []
    for start in range(0, len(inputs), IN_CACHE):
        part = inputs[start : start + IN_CACHE]
        rows, there = (part != 0).nonzero()
        ends[1 + start : 1 + start + len(part)] = np.bincount(rows, minlength=len(part))
        values.append(part[rows, there])
        columns.append(there.astype(np.int32))
    np.cumsum(ends, out=ends)
    return Sparse((np.concatenate(values), np.concatenate(columns), ends), inputs.shape)


def dense(rows: Rows) -> torch.Tensor:
    """(n, F) float32."""
    whole = rows.toarray() if isinstance(rows, Sparse) else rows
    return torch.as_tensor(whole, dtype=torch.float32)


def along(rows: Sparse, frequencies: torch.Tensor) -> torch.Tensor:
    """(n, D) product of (n, F) float32 rows with (F, D) frequencies."""
    return torch.as_tensor(rows @ frequencies.numpy())


@dataclass(frozen=True, eq=False)
class Ridge:
    """What was learned: predictions in units of the label, and how likely the sums are."""

    link: Link
    scales: torch.Tensor  # (F,)
    frequencies: torch.Tensor  # (F, D)
    phases: torch.Tensor  # (D,)
    linear: float  # amplitude of linear features, relative to the others'
    coefficients: torch.Tensor  # (1 + F + D,) float64, of z: labels may be of any size
    deviation: float  # of labels around what could be predicted of them, in the mean of squares
    doubt: float  # deviation of predictions from that, a posteriori
    gain: float  # log of how much likelier the sums are than under one constant prediction
    unknown: torch.Tensor  # (1 + F + D, K) float64: features of what is not known of z

    @property
    def miss(self) -> float:
        """Deviation of labels from predictions."""
        return math.hypot(self.deviation, self.doubt)

    def predict(self, inputs: Rows) -> Floats:
        """(n,) expected labels of (n, F) rows; not clipped to any bounds."""
        return self.link.mean(self.linear_part(inputs))

    def linear_part(self, inputs: Rows) -> Floats:
        """(n,) z of (n, F) rows, that expected labels are functions of."""
        return self._of_features(inputs, self.coefficients)

    def predict_with_doubts(self, inputs: Rows) -> tuple[Floats, Floats]:
        """The same, and (n, K) what is not known of them, in units of the label.

        The product of two rows is the posterior covariance of their predictions, nearly.
        """
        factors = torch.cat([self.coefficients[:, None], self.unknown], dim=1)
        found = self._of_features(inputs, factors)
        z = found[:, 0]
        return self.link.mean(z), self.link.slope(z)[:, None] * found[:, 1:]

    def _of_features(self, inputs: Rows, factors: torch.Tensor) -> Floats:
        ridge = self.scales, self.frequencies, self.phases, self.linear
        found = np.empty((inputs.shape[0], *factors.shape[1:]))  # once: small ones would pin memory
        with torch.no_grad():
            for start in range(0, inputs.shape[0], IN_CACHE):
                part = slice(start, start + IN_CACHE)
                features = features_of_rows(inputs[part], *ridge)
                found[part] = (features.double() @ factors).numpy()
        return found


def features_of(
    x: torch.Tensor,
    scales: torch.Tensor,
    frequencies: torch.Tensor,
    phases: torch.Tensor,
    linear: torch.Tensor | float,
) -> torch.Tensor:
    """(n, 1 + F + D) features of (n, F) float32 rows; arguments are those of :class:`Ridge`."""
    scaled = x * scales
    return _joined(scaled, scaled @ frequencies + phases, linear)


def features_of_rows(
    rows: Rows,
    scales: torch.Tensor,
    frequencies: torch.Tensor,
    phases: torch.Tensor,
    linear: torch.Tensor | float,
) -> torch.Tensor:
    """The same of rows in either form."""
    if not isinstance(rows, Sparse):
        return features_of(dense(rows), scales, frequencies, phases, linear)
    angles = along(rows, scales[:, None] * frequencies).add_(phases)
    return _joined(dense(rows) * scales, angles, linear)


def _joined(
    scaled: torch.Tensor, angles: torch.Tensor, linear: torch.Tensor | float
) -> torch.Tensor:
    waves = math.sqrt(2 / angles.shape[1]) * torch.cos(angles)
    return torch.cat([torch.ones(scaled.shape[0], 1), linear * scaled, waves], dim=1)
