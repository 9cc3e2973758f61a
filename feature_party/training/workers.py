"""This process among those that train together: alone, unless several are started.

Several (:mod:`labelveil.feature_party.training.distributed`) draw the same order from the seed;
each takes its share of every batch and of the rows that are left out. Worker 0 alone writes.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

T = TypeVar("T")


class Workers:
    """This process, alone: number ``rank`` of ``size`` workers."""

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this worker is the one that writes and talks."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This worker's part of ``count`` things."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network, with gradients averaged over the workers after every backward pass."""
        return network

    def add(self, values: Tensor) -> Tensor:
        """Sum of the workers' tensors, the same to the last bit on each."""
        return values

    def wait(self) -> None:
        """Until every worker is here."""

    def from_first(self, value: T) -> T:
        """What worker 0 has."""
        return value


ALONE = Workers()
