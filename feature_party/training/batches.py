"""Where training rows come from, and the order in which they are walked.

Rows come in *parts*: one where everything lies in memory, one a shard where it does not. All that
is drawn (the folds left out, the order of the parts, the order within one) is drawn part by part
from the seed, and no batch crosses a part's end. So the same parts train the same network wherever
they lie, and nothing of the size of the whole is ever held.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelveil.feature_party.model.encoding import Encoded
from labelveil.feature_party.model.facts import FitSettings

_AT_ONCE = 1 << 14
"""Rows whose digest is taken at once."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Encoded rows on a device: (n, F) float32 ``numeric``, (n, C) int64 ``categories``, and (n,)
    ``targets``, what the objective needs of each row."""

    numeric: Tensor
    categories: Tensor
    targets: Tensor

    @classmethod
    def on_device(cls, inputs: Encoded, targets: Tensor, device: torch.device) -> Rows:
        """Move encoded rows to a device."""
        return cls(
            torch.as_tensor(inputs.numeric, device=device),
            torch.as_tensor(inputs.categories.astype(np.int64), device=device),
            targets.to(device),
        )

    def take(self, index: Tensor) -> Rows:
        """Rows by (…) index, as (…, F), (…, C) and (…)."""
        # several times faster than numeric[index], which does not know that rows are contiguous
        flat = index.reshape(-1)
        return Rows(
            self.numeric.index_select(0, flat).view(*index.shape, -1),
            self.categories.index_select(0, flat).view(*index.shape, self.categories.shape[1]),
            self.targets.index_select(0, flat).view(index.shape),
        )


class Parts(ABC):
    """Training rows in parts, of ``sizes`` rows each."""

    sizes: tuple[int, ...]

    @abstractmethod
    def part(self, index: int) -> Rows:
        """All rows of a part, in their own order."""

    @abstractmethod
    def fingerprint(self) -> list[float | str]:
        """What identifies these rows."""

    def walk(self, parts: Sequence[int]) -> Iterator[Rows]:
        """Yield parts one after another."""
        return (self.part(index) for index in parts)


class MemoryParts(Parts):
    """Rows that lie in memory, on the device that trains: one part."""

    def __init__(self, inputs: Encoded, targets: Tensor, device: torch.device) -> None:
        self.rows = Rows.on_device(inputs, targets, device)
        self.sizes = (len(inputs),)

    def part(self, index: int) -> Rows:
        return self.rows

    def fingerprint(self) -> list[float | str]:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> list[float | str]:
        digest = hashlib.sha256()
        for values in (self.rows.targets, self.rows.numeric, self.rows.categories):
            for some in torch.split(values, _AT_ONCE):  # a copy of all may not fit beside them
                digest.update(some.cpu().numpy().tobytes())
        return [*self.sizes, digest.hexdigest()]


@dataclass(frozen=True)
class BatchPlan:
    """What is drawn from the seed: folds, and the order of every epoch, of parts of some sizes.

    Some ``members`` of an ensemble have the folds that they have among all of them.
    """

    settings: FitSettings
    sizes: tuple[int, ...]
    some: range | None = None  # the members that are meant, all of them if None

    @property
    def members(self) -> range:
        """Those that are meant."""
        return range(self.settings.members) if self.some is None else self.some

    @property
    def group(self) -> int:
        """How many members share the rows that they leave out."""
        return group_size(self.settings.members)

    def generator(
        self, purpose: str, part: int | None = None, device: torch.device | None = None
    ) -> torch.Generator:
        """A generator that depends on the seed and its purpose alone; for each part of several."""
        if part is not None and len(self.sizes) > 1:
            purpose = f"{purpose} of part {part}"
        digest = hashlib.sha256(f"{self.settings.seed} {purpose}".encode()).digest()
        generator = torch.Generator(device=device or torch.device("cpu"))
        return generator.manual_seed(int.from_bytes(digest[:7], "big"))

    def own_generator(self, purpose: str, *given: Any) -> torch.Generator:
        """The same, and another for the members that do not begin with the first."""
        first = self.members.start
        return self.generator(f"{purpose} from {first}" if first else purpose, *given)

    def left_out(self, part: int) -> int:
        """Rows v of a part that each member leaves out."""
        rows = self.sizes[part]
        return max(1, int(rows * self.settings.validation))

    def steps(self, part: int) -> int:
        """Batches that a part is cut into, evenly."""
        rows = self.sizes[part] - self.left_out(part)
        return round(rows / min(self.settings.batch_size, rows))

    @cached_property
    def epoch_steps(self) -> int:
        """Batches in all parts."""
        return sum(map(self.steps, range(len(self.sizes))))

    def folds(self, part: int) -> tuple[Tensor, Tensor]:
        """(M, t) rows to train on and (M, v) rows left out, the latter shared by a group."""
        rows, size = self.sizes[part], self.left_out(part)
        order = torch.randperm(rows, generator=self.generator("folds", part))
        training, out = [], []
        for member in self.members:
            start = (member // self.group % (rows // size)) * size
            out.append(order[start : start + size])
            training.append(torch.cat([order[:start], order[start + size :]]))
        return torch.stack(training), torch.stack(out)

    def part_order(self, epoch: int) -> list[int]:
        """Order of the parts in an epoch."""
        generator = self.generator(f"parts {epoch}")
        order: list[int] = torch.randperm(len(self.sizes), generator=generator).tolist()
        return order

    def places(self, epoch: int, part: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """Yield, for every batch of a part, its rows B and (M, B) places among those to train on.

        Each member walks the same permutation from another place: other batches for each.
        """
        rows = self.sizes[part] - self.left_out(part)
        generator = self.generator(f"order {epoch}", part)
        order = torch.randperm(rows, generator=generator).to(device)
        offsets = torch.tensor([*self.members], device=device)[:, None]
        offsets = offsets * (rows // self.settings.members)
        steps = self.steps(part)
        for step in range(steps):
            start, stop = step * rows // steps, (step + 1) * rows // steps
            yield stop - start, order[(torch.arange(start, stop, device=device) + offsets) % rows]


def group_size(members: int) -> int:
    """How many networks leave out the same fold: their number's smallest factor, or 1 of a prime,
    so that no more than one network has a single fold."""
    return next((g for g in range(2, members) if members % g == 0), 1)
