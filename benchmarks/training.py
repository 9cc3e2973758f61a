"""Training throughput beside a bare torch loop and a loader that fetches row by row."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness import Bench, Table
from labelveil.common.allocator import keep_freed_memory
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.feature_party.learning.objectives import Objective, build_objective
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.encoding import Encoded
from labelveil.feature_party.model.facts import FitSettings
from labelveil.feature_party.model.network import Ensemble, NetworkShape
from labelveil.feature_party.training.batches import MemoryParts
from labelveil.feature_party.training.fitting import Fitter

_VOCABULARIES = (10, 100, 1000)
_CELLS = 32
_BATCH = 2048
_MEMBERS = 4


def run(bench: Bench) -> Table:
    keep_freed_memory()  # as the command does
    rows = max(bench.size(200_000), 2 * _BATCH)
    table = []
    for numbers in (16, 128):
        world = World(rows, numbers)
        train, score = world.fitter()
        ours, scoring, bare = _seconds(bench, train, score, world.bare())
        # a tenth of a pass says enough of a loader that is many times slower
        loader = 10 * _seconds(bench, world.loader(0.1))[0]
        speed = world.training_rows / ours
        row = [numbers, rows, ours, speed, bare, bare / ours, scoring, bare / (ours + scoring)]
        table.append([*row, loader, loader / ours])
    return Table(
        f"One epoch of an ensemble of {_MEMBERS}, batches of {_BATCH:,} rows a member",
        [
            "numeric inputs",
            "rows",
            "Fitter [s]",
            "rows/s",
            "bare loop [s]",
            "Fitter / bare throughput",
            "scoring [s]",
            "with scoring / bare",
            "row-wise DataLoader [s]",
            "times as fast",
        ],
        table,
        "Fitter: shuffling and fetching included, after set-up; scoring is that of held-out rows at"
        " an epoch's end, which the bare loop has no counterpart to. Bare loop:"
        " the same network, loss and optimizer, as many steps, over batches that lie in memory"
        " already. DataLoader: torch's own over a TensorDataset, shuffled, one member's batch after"
        " another, a tenth of an epoch times ten. Seconds are of processor time, the least of the"
        f" repetitions, taken in turn. {torch.get_num_threads()} threads.",
    )


def _seconds(bench: Bench, *works: Callable[[], object]) -> list[float]:
    """Least processor time of each: a ratio near 1 drowns in what else a machine does meanwhile."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(bench.repeat + 1):
        for work, taken in zip(works, times, strict=True):
            begun = time.process_time()
            work()
            taken.append(time.process_time() - begun)
    return [min(taken[1:]) for taken in times]


class World:
    """Rows, a network and an objective to train it for."""

    def __init__(self, rows: int, numbers: int) -> None:
        generator = np.random.default_rng(0)
        grid = np.arange(float(_CELLS))
        channel = FiniteChannel(grid, grid, randomized_response_rows(_CELLS, 2.0))
        problem = LabelProblem.from_channel(channel, np.ones(_CELLS))
        self.objective: Objective = build_objective(
            "likelihood", problem, Support.from_problem(problem)
        )
        columns = [generator.integers(0, size, rows) for size in _VOCABULARIES]
        self.inputs = Encoded(
            generator.standard_normal((rows, numbers), dtype=np.float32),
            np.stack(columns, axis=1).astype(np.int32),
        )
        self.targets = self.objective.targets(generator.integers(0, _CELLS, rows))
        self.shape = NetworkShape(
            numbers, _VOCABULARIES, (128, 64), self.objective.outputs, _MEMBERS
        )
        self.training_rows = rows - round(rows * 0.1)

    def fitter(self) -> tuple[Callable[[], object], Callable[[], object]]:
        settings = FitSettings(
            members=_MEMBERS,
            epochs=1,
            batch_size=_BATCH,
            learning_rate=2e-3,
            optimizer="adamw",
            weight_decay=0.01,
            hidden=(128, 64),
            dropout=0.0,
            validation=0.1,
            patience=1 << 30,
            seed=0,
        )
        device = torch.device("cpu")
        parts = MemoryParts(self.inputs, self.targets, device)
        fitter = Fitter(self.objective, parts, self.shape, settings, device)
        rows = parts.part(0)
        return (lambda: fitter._train_part(0, 0, rows, 0)), lambda: fitter._out_of_fold()

    def bare(self) -> Callable[[], None]:
        numeric, categories = self._tensors()
        steps = round(self.training_rows / _BATCH)
        index = torch.randint(len(self.targets), (4, _MEMBERS, _BATCH))
        batches = [(numeric[i], categories[i], self.targets[i]) for i in index]

        step = self._step()

        def loop() -> None:
            for number in range(steps):
                step(*batches[number % len(batches)])

        return loop

    def loader(self, share: float) -> Callable[[], None]:
        rows = TensorDataset(*self._tensors(), self.targets)
        loader = DataLoader(rows, batch_size=_BATCH * _MEMBERS, shuffle=True)
        steps = max(1, round(share * self.training_rows / _BATCH))

        step = self._step()

        def loop() -> None:
            batches = iter(loader)
            for _ in range(steps):
                fetched = next(batches, None)
                if fetched is None:
                    batches = iter(loader)
                    fetched = next(batches)
                step(*(part.unflatten(0, (_MEMBERS, -1)) for part in fetched))

        return loop

    def _tensors(self) -> tuple[Tensor, Tensor]:
        numeric = torch.as_tensor(self.inputs.numeric)
        return numeric, torch.as_tensor(self.inputs.categories.astype(np.int64))

    def _step(self) -> Callable[[Tensor, Tensor, Tensor], None]:
        network = Ensemble(self.shape, torch.Generator().manual_seed(0))
        optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, betas=(0.9, 0.99), fused=True)

        def step(numeric: Tensor, categories: Tensor, targets: Tensor) -> None:
            losses = self.objective.quick_loss(network(numeric, categories), targets).mean(dim=1)
            optimizer.zero_grad(set_to_none=True)
            losses.sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step
