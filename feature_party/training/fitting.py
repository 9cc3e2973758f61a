"""One training run: an ensemble, an objective, batches by index, early stopping, checkpoints.

Every member leaves out a fold of the training rows, each fold being left out by a small group of
members. Losses on rows that a member did not see, pooled over all folds, decide when to stop with
less noise than one validation split would, and no row is lost to validation altogether.

What counts is the loss of the whole ensemble, which is lower than a member's and lowest later: the
members' own errors average out. By how much is seen in each group: the loss of the average of g
members lies below that of one by (1 − 1/g) times what averaging away all of it would bring, and
that of all M members by (1 − 1/M) times as much.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.arrays import Floats, Integers
from feature_party.learning.objectives import Objective
from feature_party.model.facts import FitSettings
from feature_party.model.model import save_tensors, undamaged
from feature_party.model.network import Dropout, Ensemble, Learned, NetworkShape
from feature_party.training.batches import Plan, Rows, Source
from feature_party.training.optimizers import Optimizer
from feature_party.training.workers import ALONE, Workers

EpochCallback = Callable[["EpochRecord"], None]

_EVALUATION_ELEMENTS = 1 << 22
"""Members times rows evaluated at once."""

KEEP_SECONDS = 60.0
"""Between two checkpoints of one epoch, at ends of parts."""

_SMOOTHED = 3
"""Epochs whose losses are averaged: under label noise the loss of held-out labels wanders from
epoch to epoch by more than the model changes, and a lucky early epoch must not end the training."""


@dataclass(frozen=True)
class EpochRecord:
    """Mean losses after one epoch; the last one says why, if it ended before its time.

    Where several laws share the network, ``training`` and ``validation`` are their averages and
    ``leading`` is the lowest one's loss of rows left out.
    """

    epoch: int
    epochs: int
    training: float
    validation: float
    best: bool
    ended: str = ""
    leading: float = math.inf


@dataclass
class Fit:
    """A trained ensemble and what it says about rows that a member did not see.

    Attributes
    ----------
    learned
        From encoded rows to outputs, as it was in the best epoch.
    history
        One record an epoch.
    rows
        (v,) training row of each out-of-fold value.
    losses
        (v,) out-of-fold loss of those rows at the best epoch, as the whole ensemble would have it.
    predictions
        (v,) out-of-fold point predictions of the members that did not see the row, in label units.
    marginal
        (m,) average of the distributions predicted for those rows; empty for point predictions.
    """

    learned: Learned
    history: list[EpochRecord]
    rows: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    losses: Floats = field(default_factory=lambda: np.zeros(0))
    predictions: Floats = field(default_factory=lambda: np.zeros(0))
    marginal: Floats = field(default_factory=lambda: np.zeros(0))


class Fitter:
    """Trains one ensemble for one objective.

    Parameters
    ----------
    objective
        The loss; its constants are moved to the device. Several laws may share it.
    source
        Encoded training rows, with what the objective needs of each.
    shape
        Of the ensemble.
    settings, device
        How and where.
    workers
        Those who train together.
    members
        Size of the ensemble whose loss is told; the default is its own.
    beat
        Loss that the best law must come below to be of use: after a third of the epochs training
        ends if it would not even by improving to the last as it did of late.
    """

    def __init__(
        self,
        objective: Objective,
        source: Source,
        shape: NetworkShape,
        settings: FitSettings,
        device: torch.device,
        workers: Workers = ALONE,
        members: int | None = None,
        beat: float = math.inf,
    ) -> None:
        self.beat = beat
        self.members = members or settings.members
        self.objective = objective.to(device)
        self.source = source
        self.settings = settings
        self.device = device
        self.workers = workers
        self.plan = Plan.of(settings, source.sizes)
        self.group = self.plan.group
        weights = self.plan.generator("weights")
        self.network = Ensemble(shape, weights, settings.dropout).to(device)
        self.together = workers.wrap(self.network)
        self.folds = _Folds(self.plan, device)
        inputs = [*self.network.weights, self.network.embeddings]
        groups = [(inputs, settings.weight_decay), ([*self.network.biases], 0.0)]
        self.optimizer = Optimizer(settings.optimizer, groups, settings.learning_rate)
        self.best = math.inf
        self.best_state = _copy(self.network)
        self.waited = 0
        self.history: list[EpochRecord] = []
        self.parts_done = 0
        self.total = torch.zeros((), device=device)

    def run(
        self, on_epoch: EpochCallback | None = None, checkpoint: Path | None = None
    ) -> list[Fit]:
        """Train until the schedule ends or nothing improves any more; a fit for every law.

        Parameters
        ----------
        on_epoch
            Called after every epoch.
        checkpoint
            File that the state is kept in after every epoch, and about every minute where rows
            come in several parts; taken up from if it exists and belongs to the same data,
            settings and objective.
        """
        if checkpoint is not None:
            self._resume(checkpoint)
        while len(self.history) < self.settings.epochs and self.waited < self.settings.patience:
            record = self._epoch(len(self.history), checkpoint)
            if checkpoint is not None:
                self._keep(checkpoint)
            if on_epoch is not None:
                on_epoch(record)
        self.network.load_state_dict(self.best_state)
        rows = self._held_rows()
        return [
            Fit(
                self.network.only(outputs),
                self.history,
                rows,
                held.losses.reshape(-1).cpu().numpy().astype(np.float64),
                held.predictions.reshape(-1).cpu().numpy().astype(np.float64),
                (held.masses / held.masses.sum()).cpu().numpy(),
            )
            for (_, outputs), held in zip(
                self.objective.parts, self._held_out(points=True), strict=True
            )
        ]

    def _epoch(self, epoch: int, checkpoint: Path | None = None) -> EpochRecord:
        order = self.plan.parts(epoch)
        kept = time.monotonic()
        for part, rows in zip(
            order[self.parts_done :],
            self.source.walk(order[self.parts_done :]),
            strict=True,
        ):
            before = sum(self.plan.steps(done) for done in order[: self.parts_done])
            self._train_part(epoch, part, rows, epoch * self.plan.epoch_steps + before)
            self.parts_done += 1
            due = time.monotonic() - kept >= KEEP_SECONDS and self.parts_done < len(order)
            if checkpoint is not None and self.workers.from_first(due):
                self._keep(checkpoint)
                kept = time.monotonic()
        training = float(self.workers.add(self.total)) / self.plan.epoch_steps
        self.total, self.parts_done = torch.zeros((), device=self.device), 0
        return self._record(epoch, training)

    def _train_part(self, epoch: int, part: int, rows: Rows, step: int) -> None:
        training = self.folds.of(part)[0]
        drop_rng = None
        if self.settings.dropout:
            purpose = self.plan.named(f"dropout {epoch}", part)
            drop_rng = self.plan.generator(purpose, self.device)
        self.network.train()
        for size, places in self.plan.places(epoch, part, self.device):
            self._schedule(step)
            step += 1
            mine = self.workers.share(size)
            batch = rows.take(training.gather(1, places[:, mine]))
            dropout = None if drop_rng is None else Dropout(drop_rng, size, mine)
            raw = self.together(batch.numeric, batch.categories, dropout)
            losses = self.objective.quick_loss(raw, batch.targets)
            if self.workers.size == 1:
                losses = losses.mean(dim=1)
                total = losses.sum()
            else:
                # gradients are averaged over workers, and shares of a batch may differ by a row
                losses = losses.sum(dim=1) / size
                total = losses.sum() * self.workers.size
            self.optimizer.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.total += losses.detach().mean()

    def _record(self, epoch: int, training: float) -> EpochRecord:
        laws = [float(held.losses.mean()) for held in self._held_out()]
        validation = sum(laws) / len(laws)
        recent = [record.validation for record in self.history[1 - _SMOOTHED :]]
        smoothed = (sum(recent) + validation) / (len(recent) + 1)
        better = smoothed < self.best
        if better:
            self.best, self.best_state, self.waited = smoothed, _copy(self.network), 0
        else:
            self.waited += 1
        ended = ""
        leading = [*(record.leading for record in self.history), min(laws)]
        if self.waited >= self.settings.patience:
            ended = f"no better for {self.waited} epochs"
        elif out_of_reach(leading, self.settings.epochs, self.beat):
            ended, self.waited = "behind what is trained already", self.settings.patience
        epochs = self.settings.epochs
        record = EpochRecord(epoch + 1, epochs, training, validation, better, ended, min(laws))
        self.history.append(record)
        return record

    @torch.no_grad()
    def _held_out(self, points: bool = False) -> list[_HeldOut]:
        """What every law says out of fold of the rows; points and masses only if asked for."""
        self.network.eval()
        size = max(1, _EVALUATION_ELEMENTS // (64 * self.settings.members))
        parts = range(len(self.source.sizes))
        places = (self.settings.members // self.group, sum(map(self.plan.held, parts)))
        found = [_HeldOut.of(law, places, points, self.device) for law, _ in self.objective.parts]
        at = 0
        for part, rows in zip(parts, self.source.walk(parts), strict=True):
            held = self.folds.of(part)[1]
            share = self.workers.share(held.shape[1])
            for start in range(share.start, share.stop, size):
                stop = min(start + size, share.stop)
                batch = rows.take(held[:, start:stop])
                of_laws = self.network(batch.numeric, batch.categories)
                here = slice(at + start, at + stop)
                for (law, outputs), one in zip(self.objective.parts, found, strict=True):
                    raw = of_laws[..., outputs]
                    loss = law.loss if points else law.quick_loss
                    one.losses[:, here] = self._of_ensemble(law, raw, batch.targets, loss)
                    if points:
                        one.predictions[:, here] = self._grouped(law.points(raw)).mean(dim=1)
                        distributions = law.distributions(raw)
                        if distributions is not None:
                            one.masses.add_(distributions.sum(dim=(0, 1), dtype=torch.float64))
            at += held.shape[1]
        return [one.added(self.workers) for one in found]

    def _held_rows(self) -> Integers:
        """(G · v,) training row of each out-of-fold value."""
        starts = np.concatenate([[0], np.cumsum(self.source.sizes)])
        rows = [
            self.folds.of(part)[1][:: self.group].cpu().numpy() + starts[part]
            for part in range(len(self.source.sizes))
        ]
        return np.concatenate(rows, axis=1).reshape(-1).astype(np.int64)

    def _grouped(self, values: Tensor) -> Tensor:
        """(M, …) values by member as (G, g, …): groups share the rows that they leave out."""
        return values.view(-1, self.group, *values.shape[1:])

    def _of_ensemble(
        self,
        law: Objective,
        raw: Tensor,
        targets: Tensor,
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """(G, v) losses that the whole ensemble would have, from each group's."""
        single = loss(raw, targets)
        alone = self._grouped(single).mean(dim=1)
        if self.group == 1:
            return alone
        together = law.average_loss(
            self._grouped(raw), self._grouped(targets)[:, 0], self._grouped(single)
        )
        reach = (1 - 1 / self.members) / (1 - 1 / self.group)
        return alone - reach * (alone - together)

    def _schedule(self, step: int) -> None:
        """Warm up over a twentieth of all steps, then decay along a cosine to a hundredth."""
        total = self.settings.epochs * self.plan.epoch_steps
        warm = max(1, total // 20)
        share = min(1.0, (step + 1) / warm)
        cosine = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / total))
        self.optimizer.learning_rate = self.settings.learning_rate * share * cosine

    def _fingerprint(self) -> str:
        """What a checkpoint must agree on to be taken up again; the number of workers is not."""
        facts: list[Any] = [
            asdict(self.settings),
            asdict(self.network.shape),
            self.objective.name,
            self.objective.head,
            self.source.fingerprint(),
            "optimizer by moments",
        ]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _keep(self, path: Path) -> None:
        total = self.workers.add(self.total.clone())
        if not self.workers.first:
            return
        state = {
            "fingerprint": self._fingerprint(),
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": self.best,
            "best_state": self.best_state,
            "waited": self.waited,
            "history": [asdict(record) for record in self.history],
            "parts_done": self.parts_done,
            "total": total,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(state, path)

    def _resume(self, path: Path) -> None:
        state = None
        if self.workers.first and path.is_file():
            with undamaged(f"the checkpoint {path}", "remove it to train from the start"):
                state = torch.load(path, map_location="cpu", weights_only=True)
            if state.get("fingerprint") != self._fingerprint():
                state = None
        state = self.workers.from_first(state)  # the others need not see worker 0's disk
        if state is None:
            return
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best, self.waited = state["best"], state["waited"]
        self.best_state = {k: v.to(self.device) for k, v in state["best_state"].items()}
        self.history = [EpochRecord(**record) for record in state["history"]]
        self.parts_done = state["parts_done"]
        if self.workers.first:  # what all of them have added up so far
            self.total = state["total"].to(self.device)


@dataclass(frozen=True)
class _HeldOut:
    """What one law says out of fold: (G, v) losses and predictions, (m,) sums of masses."""

    losses: Tensor
    predictions: Tensor
    masses: Tensor

    @classmethod
    def of(
        cls, law: Objective, places: tuple[int, int], points: bool, device: torch.device
    ) -> _HeldOut:
        return cls(
            torch.zeros(places, device=device),
            torch.zeros(places if points else (0, 0), device=device),
            torch.zeros(law.cells, dtype=torch.float64, device=device),
        )

    def added(self, workers: Workers) -> _HeldOut:
        """Of all workers together."""
        parts = self.losses, self.predictions, self.masses
        return _HeldOut(*map(workers.add, parts))


def out_of_reach(losses: Sequence[float], epochs: int, beat: float) -> bool:
    """Whether a loss stays above the one to beat, if it goes on falling as it did of late.

    Parameters
    ----------
    losses
        Of rows left out after each epoch so far; noisy, so that averages of a few are compared.
    epochs
        How many there will be at most; nothing is given up in the first third.
    beat
        The loss to come below.
    """
    done = len(losses)
    if done < max(epochs / 3, 2 * _SMOOTHED):
        return False
    smoothed = np.convolve(losses, np.full(_SMOOTHED, 1 / _SMOOTHED), "valid")
    pace = max(float(smoothed[-1 - _SMOOTHED] - smoothed[-1]) / _SMOOTHED, 0.0)
    return bool(smoothed.min() - pace * (epochs - done) > beat)


class _Folds:
    """A part's folds on the device, the last part's kept: of a single part, forever."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        self.part = -1
        self.found: tuple[Tensor, Tensor] | None = None

    def of(self, part: int) -> tuple[Tensor, Tensor]:
        if self.found is None or part != self.part:
            training, held = self.plan.folds(part)
            self.part, self.found = part, (training.to(self.device), held.to(self.device))
        return self.found


def _copy(network: Ensemble) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
