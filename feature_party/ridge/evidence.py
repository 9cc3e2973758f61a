"""Marginal likelihood of what linear functions tell of coefficients, and where it rises.

What is seen is ``t = A b + noise``, of coefficients b that are normal with the deviation 1 and
noise of known deviations. Divided by these it is ``M b`` and noise of deviation 1, so that

    2 ln p(t) = -(‖t‖² - tᵀM S Mᵀt) + ln det S - 2 Σ ln deviations + constant,   S = (1 + MᵀM)⁻¹

Source: Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006, sections 2.3 and
5.4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from labelveil.common.arrays import Floats

_ROWS_AT_ONCE = 1 << 10
"""Of larger arrays the allocator gives the memory back to the system each time."""


@dataclass(frozen=True, eq=False)
class Seen:
    """Rows M and targets t, divided by the deviations of their noise.

    In single precision products of rows take a third of the time. It is enough to see where
    evidence rises, of rows each of which tells little; sums of many events may tell too much.
    """

    matrix: torch.Tensor  # (n, w)
    targets: torch.Tensor  # (n,)
    deviations: torch.Tensor  # (n,) that both were divided by

    @classmethod
    def parts(
        cls,
        features: torch.Tensor,
        sizes: torch.Tensor,
        targets: torch.Tensor,
        variance: torch.Tensor,
        kind: torch.dtype = torch.float64,
    ) -> Iterator[Self]:
        """(n, w) features of coefficients that have (w,) deviations, some rows at a time."""
        deviations, sizes = variance.sqrt(), sizes.to(kind)
        whole = features, (targets / deviations).to(kind), deviations
        for rows, wanted, by in zip(
            *(torch.split(each, _ROWS_AT_ONCE) for each in whole), strict=True
        ):
            yield cls(rows * sizes / by[:, None].to(kind), wanted, by)


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is known of coefficients."""

    evidence: float  # log of the likelihood of all that was seen, but for a constant
    factor: torch.Tensor  # (w, w) lower, of their precision
    mean: torch.Tensor  # (w, 1)

    @classmethod
    @torch.no_grad()
    def of(cls, seen: Iterable[Seen], width: int) -> Self:
        """That of ``width`` coefficients; torch does not follow it."""
        inner = torch.eye(width, dtype=torch.float64)
        pulled = torch.zeros(width, 1, dtype=torch.float64)
        fit, sizes = 0.0, 0.0
        for part in seen:
            rows = part.matrix.detach().numpy()
            inner += torch.as_tensor(rows.T @ rows)  # half the work of torch's: it is symmetric
            pulled += part.matrix.T @ part.targets[:, None]
            fit += float(part.targets.square().sum())
            sizes += float(torch.log(part.deviations).sum())
        factor = torch.linalg.cholesky(inner)
        mean = torch.cholesky_solve(pulled, factor)
        log_det = 2 * (float(torch.log(torch.diagonal(factor)).sum()) + sizes)
        return cls(-0.5 * (fit - float((pulled * mean).sum()) + log_det), factor, mean)

    def misses(self, seen: Iterable[Seen]) -> Floats:
        """(n,) by how much the mean misses what was seen, and what is not known of that, in units
        of the targets."""
        found, single = [], self.factor.float()
        for part in seen:
            unsure = torch.linalg.solve_triangular(single, part.matrix.float().T, upper=False)
            off = part.targets - (part.matrix @ self.mean)[:, 0]
            both = off.square() + unsure.square().sum(dim=0)
            found.append((part.deviations * both.sqrt()).numpy())
        return np.concatenate(found)


def falling(seen: Sequence[Seen]) -> torch.Tensor:
    """What falls as the evidence rises: its slope in what matrices hang on is minus the evidence's.

    With b the mean of coefficients and r what it leaves of targets, the evidence's slope in M is
    ``r bᵀ - M (1 + MᵀM)⁻¹``. Of few rows that product is ``(1 + MMᵀ)⁻¹ M``, and r is ``(1 +
    MMᵀ)⁻¹`` times the targets.
    """
    first, *others = seen
    rows, width = first.matrix.shape
    if not others and rows < width:
        with torch.no_grad():
            outer = torch.eye(rows, dtype=first.matrix.dtype).addmm_(first.matrix, first.matrix.T)
            factor = torch.linalg.cholesky(outer)
            left = torch.cholesky_solve(first.targets[:, None], factor)
            slope = torch.cholesky_solve(first.matrix, factor)
            slope -= left * (left.T @ first.matrix)
        return (first.matrix * slope).sum()
    known = Posterior.of(seen, width)
    covariance, mean = torch.cholesky_inverse(known.factor).float().numpy(), known.mean.float()
    found = torch.zeros(())
    for part in seen:
        with torch.no_grad():  # single precision is enough of a slope, which says where to step
            matrix = part.matrix.float()
            told = torch.as_tensor(matrix.numpy() @ covariance)  # faster than torch's
            slope = told - (part.targets.float()[:, None] - matrix @ mean) * mean.T
        found = found + (part.matrix * slope).sum()
    return found
