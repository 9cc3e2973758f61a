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
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelveil.common.arrays import Floats, Integers
from labelveil.feature_party.learning.objectives import Objective
from labelveil.feature_party.learning.optimizers import Optimizer
from labelveil.feature_party.model.facts import FitSettings
from labelveil.feature_party.model.model import save_tensors, undamaged
from labelveil.feature_party.model.network import Dropout, Ensemble, Learned, NetworkShape
from labelveil.feature_party.training.batches import BatchPlan, Parts, Rows
from labelveil.feature_party.training.workers import ALONE, Workers

EpochCallback = Callable[["EpochRecord"], None]

KEEP_SECONDS = 60.0
"""Between two checkpoints of one epoch, at ends of parts."""

_EVALUATION_ROWS = 1 << 14
"""Members times rows evaluated at once: hidden layers of more leave the processor's cache."""
_SMOOTHED = 3
"""Epochs whose losses are averaged: under label noise the loss of rows left out wanders from
epoch to epoch by more than the model changes, and a lucky early epoch must not end the training."""
_JUDGED = 4
"""Epochs that a loss is judged from: of many rows, whose loss wanders little, there are six."""


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


@dataclass(frozen=True, eq=False)
class Fit:
    """A trained ensemble, in its best epoch, and what it says about rows that a member did not see.

    Losses are those that the whole ensemble would have; predictions are of the members that did not
    see the row, in label units.
    """

    learned: Learned  # from encoded rows to outputs
    history: list[EpochRecord]  # one record an epoch
    rows: Integers  # (v,) training row of each out-of-fold value
    losses: Floats  # (v,)
    predictions: Floats  # (v,)
    estimates: Floats  # (v,) what the codes should say of a mean, in the prior's deviations
    marginal: Floats  # (m,) average of the predicted distributions; empty for point predictions

    def followed_by(self, other: Fit) -> Fit:
        """This one of networks and another of the members after them, with the other's history."""
        mine, theirs = self.learned, other.learned
        if not isinstance(mine, Ensemble) or not isinstance(theirs, Ensemble):
            raise TypeError("only networks have members that are trained apart")
        share = self.rows.size / (self.rows.size + other.rows.size)
        return Fit(
            mine.followed_by(theirs),
            other.history,
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.losses, other.losses]),
            np.concatenate([self.predictions, other.predictions]),
            np.concatenate([self.estimates, other.estimates]),
            share * self.marginal + (1 - share) * other.marginal,
        )


class Fitter:
    """Trains one ensemble for one objective, whose constants are moved to the device.

    ``shape`` is that of the networks to train: all members that ``settings`` has, or as many from
    the ``first`` on; it is the whole ensemble's loss that is reported. The best law must come below
    the loss ``beat`` to be of use: after a third of the epochs training ends if it would not even
    by improving to the last as it did of late.
    """

    def __init__(
        self,
        objective: Objective,
        parts: Parts,
        shape: NetworkShape,
        settings: FitSettings,
        device: torch.device,
        workers: Workers = ALONE,
        beat: float = math.inf,
        first: int = 0,
    ) -> None:
        self.objective, self.parts, self.settings = objective.to(device), parts, settings
        self.device, self.workers, self.beat = device, workers, beat
        some = range(first, first + shape.members)
        self.plan = plan = BatchPlan(settings, parts.sizes, some)
        self.network = Ensemble(shape, plan.own_generator("weights"), settings.dropout).to(device)
        self.wrapped = workers.wrap(self.network)
        # the last part's are kept: of a single part, forever
        self.folds = lru_cache(1)(lambda part: [rows.to(device) for rows in plan.folds(part)])
        inputs = [*self.network.weights, self.network.embeddings]
        groups = [(inputs, settings.weight_decay), ([*self.network.biases], 0.0)]
        self.optimizer = Optimizer(settings.optimizer, groups, settings.learning_rate)
        self.best, self.best_state, self.waited = math.inf, self._weights(), 0
        self.history: list[EpochRecord] = []
        self.parts_done, self.total = 0, torch.zeros((), device=device)

    def run(
        self, on_epoch: EpochCallback | None = None, checkpoint: Path | None = None
    ) -> list[Fit]:
        """Train until the schedule ends or nothing improves any more; a fit for every law.

        The file ``checkpoint`` keeps the state after every epoch, and about every minute where rows
        come in several parts; it is taken up if it belongs to the same data, settings and
        objective.
        """
        if checkpoint is not None:
            self._resume(checkpoint)
        while len(self.history) < self.settings.epochs and self.waited < self.settings.patience:
            self._epoch(len(self.history), checkpoint)
            if checkpoint is not None:
                self._keep(checkpoint)
            if on_epoch is not None:
                on_epoch(self.history[-1])
        self.network.load_state_dict(self.best_state)
        starts, left_out = np.concatenate([[0], np.cumsum(self.parts.sizes)]), []
        for part in range(len(self.parts.sizes)):
            folds = self.folds(part)[1][:: self.plan.group]
            left_out.append(folds.cpu().numpy() + starts[part])
        rows, fits = np.concatenate(left_out, axis=1).reshape(-1).astype(np.int64), []
        laws = zip(self.objective.components, self._out_of_fold(points=True), strict=True)
        for (_, outputs), law in laws:
            network, masses = self.network.only(outputs), law.masses / law.masses.sum()
            values = (law.losses, law.predictions, law.estimates, masses)
            arrays = (each.reshape(-1).double().cpu().numpy() for each in values)
            fits.append(Fit(network, self.history, rows, *arrays))
        return fits

    def _epoch(self, epoch: int, checkpoint: Path | None) -> None:
        order = self.plan.part_order(epoch)
        todo, kept = order[self.parts_done :], time.monotonic()
        for part, rows in zip(todo, self.parts.walk(todo), strict=True):
            before = sum(map(self.plan.steps, order[: self.parts_done]))
            self._train_part(epoch, part, rows, epoch * self.plan.epoch_steps + before)
            self.parts_done += 1
            due = time.monotonic() - kept >= KEEP_SECONDS and self.parts_done < len(order)
            if checkpoint is not None and self.workers.from_first(due):
                self._keep(checkpoint)
                kept = time.monotonic()
        training = float(self.workers.add(self.total)) / self.plan.epoch_steps
        self.total, self.parts_done = torch.zeros((), device=self.device), 0
        self._record(epoch, training)

    def _train_part(self, epoch: int, part: int, rows: Rows, step: int) -> None:
        training, settings = self.folds(part)[0], self.settings
        drop_rng = self.plan.own_generator(f"dropout {epoch}", part, self.device)
        steps = settings.epochs * self.plan.epoch_steps
        self.network.train()
        for size, places in self.plan.places(epoch, part, self.device):
            self.optimizer.learning_rate = _learning_rate(settings.learning_rate, step, steps)
            step += 1
            mine = self.workers.share(size)
            batch = rows.take(training.gather(1, places[:, mine]))
            dropout = Dropout(drop_rng, size, mine) if settings.dropout else None
            raw = self.wrapped(batch.numeric, batch.categories, dropout)
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

    def _record(self, epoch: int, training: float) -> None:
        """Score the rows left out, keep the best weights, and see whether to go on."""
        laws = [float(law.losses.mean()) for law in self._out_of_fold()]
        validation = sum(laws) / len(laws)
        recent = [record.validation for record in self.history[1 - _SMOOTHED :]]
        smoothed = (sum(recent) + validation) / (len(recent) + 1)
        better = smoothed < self.best
        if better:
            self.best, self.best_state, self.waited = smoothed, self._weights(), 0
        else:
            self.waited += 1
        ended, epochs = "", self.settings.epochs
        leading = [*(record.leading for record in self.history), min(laws)]
        if self.waited >= self.settings.patience:
            ended = f"no better for {self.waited} epochs"
        elif out_of_reach(leading, epochs, self.beat):
            ended, self.waited = "behind what is trained already", self.settings.patience
        self.history.append(
            EpochRecord(epoch + 1, epochs, training, validation, better, ended, min(laws))
        )

    @torch.no_grad()
    def _out_of_fold(self, points: bool = False) -> list[_OutOfFold]:
        """What every law says of the rows left out; points and masses only if asked for."""
        self.network.eval()
        members = len(self.plan.members)
        size = max(1, _EVALUATION_ROWS // members)
        parts = range(len(self.parts.sizes))
        groups = members // self.plan.group
        places = groups, sum(map(self.plan.left_out, parts))
        laws = [
            _OutOfFold(
                torch.zeros(places, device=self.device),
                torch.zeros(places if points else (0, 0), device=self.device),
                torch.zeros(places if points else (0, 0), device=self.device),
                torch.zeros(law.cells, dtype=torch.float64, device=self.device),
            )
            for law, _ in self.objective.components
        ]
        at = 0
        for part, rows in zip(parts, self.parts.walk(parts), strict=True):
            left_out = self.folds(part)[1]
            share = self.workers.share(left_out.shape[1])
            for start in range(share.start, share.stop, size):
                stop = min(start + size, share.stop)
                batch = rows.take(left_out[:, start:stop])
                of_laws = self.network(batch.numeric, batch.categories)
                here = slice(at + start, at + stop)
                for (law, outputs), values in zip(self.objective.components, laws, strict=True):
                    raw = of_laws[..., outputs]
                    if not points:
                        losses = law.quick_loss(raw, batch.targets)
                    else:
                        found = law.evaluate(raw, batch.targets)
                        losses = found.losses
                        values.predictions[:, here] = self._grouped(found.points).mean(dim=1)
                        values.estimates[:, here] = self._grouped(found.estimates).mean(dim=1)
                        if found.distributions is not None:
                            masses = found.distributions.sum(dim=(0, 1), dtype=torch.float64)
                            values.masses.add_(masses)
                    values.losses[:, here] = self._of_ensemble(law, raw, batch.targets, losses)
            at += left_out.shape[1]
        return [_OutOfFold(*map(self.workers.add, values)) for values in laws]

    def _grouped(self, values: Tensor) -> Tensor:
        """(M, …) values by member as (G, g, …): groups share the rows that they leave out."""
        return values.view(-1, self.plan.group, *values.shape[1:])

    def _of_ensemble(self, law: Objective, raw: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
        """(G, v) losses that the whole ensemble would have, from its members' (M, v)."""
        single = self._grouped(losses)
        alone = single.mean(dim=1)
        if self.plan.group == 1:
            return alone
        together = law.average_loss(self._grouped(raw), self._grouped(targets)[:, 0], single)
        reach = (1 - 1 / self.settings.members) / (1 - 1 / self.plan.group)
        return alone - reach * (alone - together)

    def _weights(self) -> dict[str, Tensor]:
        """A copy of what is learned so far."""
        return {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def _fingerprint(self) -> str:
        """What a checkpoint must agree on to be taken up again; the number of workers is not."""
        facts: list[Any] = [asdict(self.settings), asdict(self.network.shape)]
        facts.append(self.plan.members.start)
        facts += [self.objective.name, self.objective.head, self.parts.fingerprint()]
        facts.append("optimizer by moments")
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


def _learning_rate(peak: float, step: int, steps: int) -> float:
    """Warm up over a twentieth of all steps, then decay along a cosine to a hundredth."""
    share = min(1.0, (step + 1) / max(1, steps // 20))
    return peak * share * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps)))


class _OutOfFold(NamedTuple):
    """What one law says of rows left out: (G, v) losses, predictions and what codes should say of
    a mean; (m,) sums of masses."""

    losses: Tensor
    predictions: Tensor
    estimates: Tensor
    masses: Tensor


def out_of_reach(losses: Sequence[float], epochs: int, beat: float) -> bool:
    """Whether a loss stays above ``beat`` to the last epoch, if it goes on falling as of late.

    ``losses`` are those of rows left out after each epoch so far: noisy, so that averages of a few
    are compared. Nothing is given up in the first third of the epochs, nor in the first four.
    """
    done = len(losses)
    if done < max(epochs / 3, _JUDGED):
        return False
    few = min(_SMOOTHED, done // 2)
    smoothed = np.convolve(losses, np.full(few, 1 / few), "valid")
    pace = max(float(smoothed[-1 - few] - smoothed[-1]) / few, 0.0)
    return bool(smoothed.min() - pace * (epochs - done) > beat)
