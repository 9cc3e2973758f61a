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

import numpy as np
import torch
from torch import Tensor

from feature_party.model.encoding import Encoded
from feature_party.model.facts import FitSettings


@dataclass(frozen=True)
class Rows:
    """Encoded rows on a device.

    Attributes
    ----------
    numeric
        (n, F) float32.
    categories
        (n, C) int64 vocabulary indices.
    targets
        (n,) what the objective needs of each row.
    """

    numeric: Tensor
    categories: Tensor
    targets: Tensor

    @classmethod
    def of(cls, inputs: Encoded, targets: Tensor, device: torch.device) -> Rows:
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


class Source(ABC):
    """Training rows in parts.

    Attributes
    ----------
    sizes
        Rows of each part.
    """

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


class MemorySource(Source):
    """Rows that lie in memory, on the device that trains.

    Parameters
    ----------
    inputs, targets
        The rows.
    device
        Where they are kept.
    sizes
        Rows of each part; the default is one part.
    """

    def __init__(
        self,
        inputs: Encoded,
        targets: Tensor,
        device: torch.device,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self.rows = Rows.of(inputs, targets, device)
        self.sizes = (len(inputs),) if sizes is None else tuple(sizes)

    def part(self, index: int) -> Rows:
        if len(self.sizes) == 1:
            return self.rows
        start = sum(self.sizes[:index])
        part = slice(start, start + self.sizes[index])
        rows = self.rows
        return Rows(rows.numeric[part], rows.categories[part], rows.targets[part])

    def fingerprint(self) -> list[float | str]:
        rows = (self.rows.targets, self.rows.numeric, self.rows.categories)
        return [*self.sizes, *(float(values.double().sum()) for values in rows)]


@dataclass(frozen=True)
class Plan:
    """What is drawn from the seed: folds, and the order of every epoch.

    Attributes
    ----------
    seed
        Chooses all of it.
    sizes
        Rows of each part.
    members, group
        Networks, and how many of them share the rows that they leave out.
    validation
        Share of a part's rows that each member leaves out.
    batch_size
        Rows a member and step, about; parts are cut evenly.
    """

    seed: int
    sizes: tuple[int, ...]
    members: int
    group: int
    validation: float
    batch_size: int

    @classmethod
    def of(cls, settings: FitSettings, sizes: Sequence[int]) -> Plan:
        """The plan of a training run."""
        members, share, batch = settings.members, settings.validation, settings.batch_size
        return cls(settings.seed, tuple(sizes), members, group_size(members), share, batch)

    def generator(self, purpose: str, device: torch.device | None = None) -> torch.Generator:
        """Return a generator that depends on the seed and its purpose alone."""
        digest = hashlib.sha256(f"{self.seed} {purpose}".encode()).digest()
        generator = torch.Generator(device=device or torch.device("cpu"))
        return generator.manual_seed(int.from_bytes(digest[:7], "big"))

    def named(self, purpose: str, part: int) -> str:
        """A purpose that is drawn for each part of several."""
        return purpose if len(self.sizes) == 1 else f"{purpose} of part {part}"

    def held(self, part: int) -> int:
        """Rows v of a part that each member leaves out."""
        rows = self.sizes[part]
        return min(max(1, int(rows * self.validation)), rows - 1)

    def steps(self, part: int) -> int:
        """Batches that a part is cut into."""
        rows = self.sizes[part] - self.held(part)
        return max(1, round(rows / min(self.batch_size, rows)))

    @cached_property
    def epoch_steps(self) -> int:
        """Batches in all parts."""
        return sum(self.steps(part) for part in range(len(self.sizes)))

    def folds(self, part: int) -> tuple[Tensor, Tensor]:
        """(M, t) rows to train on and (M, v) held-out rows, the latter shared by a group."""
        rows, held = self.sizes[part], self.held(part)
        folds = max(1, rows // held)
        order = torch.randperm(rows, generator=self.generator(self.named("folds", part)))
        training, out = [], []
        for member in range(self.members):
            start = (member // self.group % folds) * held
            out.append(order[start : start + held])
            training.append(torch.cat([order[:start], order[start + held :]]))
        return torch.stack(training), torch.stack(out)

    def parts(self, epoch: int) -> list[int]:
        """Order of the parts in an epoch."""
        generator = self.generator(f"parts {epoch}")
        order: list[int] = torch.randperm(len(self.sizes), generator=generator).tolist()
        return order

    def places(self, epoch: int, part: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """Yield, for every batch of a part, its rows B and (M, B) places among those to train on.

        Each member walks the same permutation from another place: other batches for each.
        """
        rows = self.sizes[part] - self.held(part)
        generator = self.generator(self.named(f"order {epoch}", part))
        order = torch.randperm(rows, generator=generator).to(device)
        offsets = torch.arange(self.members, device=device)[:, None] * (rows // self.members)
        steps = self.steps(part)
        for step in range(steps):
            start, stop = step * rows // steps, (step + 1) * rows // steps
            yield stop - start, order[(torch.arange(start, stop, device=device) + offsets) % rows]


def group_size(members: int) -> int:
    """How many networks leave out the same fold: their number's smallest factor above 1, or 1."""
    return next((g for g in range(2, members + 1) if members % g == 0), 1)
