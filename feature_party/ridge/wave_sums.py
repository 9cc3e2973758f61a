"""Random features of rows, summed over groups, with their slope in the scales of columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch

from labelveil.feature_party.ridge.ridge import IN_CACHE, Sparse, along, dense


class WaveSums(torch.autograd.Function):
    """(G, D) sums over groups of each row's waves, times its weight, and their slope in the scales.

    Part by part, so that a part's waves stay in the cache: as one product over all rows, followed
    back by torch, they take three times as long. Where the slope will be asked for there is room
    for (n, D) ``angles``, the same in every step: memory that is new costs more than what is
    computed in it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scales: torch.Tensor,
        x: torch.Tensor | Sparse,
        weights: torch.Tensor,
        groups: torch.Tensor,
        count: int,
        frequencies: torch.Tensor,
        phases: torch.Tensor,
        angles: torch.Tensor | None,
    ) -> torch.Tensor:
        size = math.sqrt(2 / phases.numel())
        rows, scaled = x.shape[0], scales[:, None] * frequencies
        waves, some = torch.empty(2, min(rows, IN_CACHE), phases.numel())
        total = torch.zeros(count, phases.numel())
        weighed = size * weights[:, None]
        for start in range(0, rows, IN_CACHE):
            part = slice(start, min(start + IN_CACHE, rows))
            angle = some[: part.stop - start] if angles is None else angles[part]
            wave = waves[: part.stop - start]
            if isinstance(x, Sparse):
                torch.add(along(x[part], scaled), phases, out=angle)
            else:
                torch.addmm(phases, x[part], scaled, out=angle)
            torch.cos(angle, out=wave)
            total.index_add_(0, groups[part], wave.mul_(weighed[part]))
        if angles is not None:
            ctx.rows = x
            ctx.save_for_backward(weighed, groups, frequencies, angles)
        return total

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weighed, groups, frequencies, angles = ctx.saved_tensors
        moved = torch.zeros_like(frequencies)
        for start in range(0, len(groups), IN_CACHE):
            part = slice(start, start + IN_CACHE)
            slope = slopes[0].index_select(0, groups[part]).mul_(torch.sin(angles[part]))
            x = ctx.rows[part]
            if isinstance(x, Sparse):
                moved -= torch.as_tensor(x.T @ slope.mul_(weighed[part]).numpy())
            else:
                moved.addmm_((x * weighed[part]).T, slope, alpha=-1)
        return ((moved * frequencies).sum(dim=1), *[None] * 7)


@dataclass(frozen=True, eq=False)
class SummedRows:
    """Rows whose features are summed, and what of their sums no scale changes."""

    rows: torch.Tensor | Sparse  # (n, F) float32
    groups: torch.Tensor  # (n,) 0 … count - 1
    weights: torch.Tensor  # (n,)
    count: int
    constants: torch.Tensor  # (count, 1) sums of weights
    columns: torch.Tensor  # (count, F) sums of rows, times their weights
    angles: torch.Tensor  # (n, D) room for what is asked for again when the slope is

    @classmethod
    def from_rows(
        cls,
        rows: torch.Tensor | Sparse,
        groups: torch.Tensor,
        weights: torch.Tensor,
        count: int,
        waves: int,
    ) -> Self:
        constants = torch.zeros(count, 1).index_add(0, groups, weights[:, None])
        columns = torch.zeros(count, rows.shape[1])
        columns.index_add_(0, groups, dense(rows) * weights[:, None])
        angles = torch.empty(rows.shape[0], waves)  # no memory yet
        return cls(rows, groups, weights, count, constants, columns, angles)
