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
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feature_party.encoding import Encoded
from feature_party.learning.objectives import Objective
from feature_party.network import Ensemble, NetworkShape

EpochCallback = Callable[["EpochRecord"], None]

_EVALUATION_ELEMENTS = 1 << 22
"""Members times rows evaluated at once."""

_SMOOTHED = 3
"""Epochs whose losses are averaged: under label noise the loss of held-out labels wanders from
epoch to epoch by more than the model changes, and a lucky early epoch must not end the training."""


@dataclass(frozen=True)
class FitSettings:
    """How one ensemble is trained; every ``auto`` is already resolved.

    Attributes
    ----------
    learning_rate
        Peak of the cosine schedule.
    weight_decay
        Decoupled (AdamW) or L2 (RMSProp) coefficient.
    validation
        Share of the rows that each member leaves out.
    """

    members: int
    epochs: int
    batch_size: int
    learning_rate: float
    optimizer: str
    weight_decay: float
    hidden: tuple[int, ...]
    dropout: float
    validation: float
    patience: int
    seed: int


@dataclass(frozen=True)
class EpochRecord:
    """Mean losses after one epoch."""

    epoch: int
    epochs: int
    training: float
    validation: float
    best: bool


@dataclass
class Fit:
    """A trained ensemble and what it says about rows that a member did not see.

    Attributes
    ----------
    network
        The ensemble, with the weights of the best epoch.
    history
        One record an epoch.
    rows
        (v,) training row of each out-of-fold value.
    losses
        (v,) out-of-fold loss of those rows at the best epoch, as the whole ensemble would have it.
    predictions
        (v,) out-of-fold point predictions of the members that did not see the row, in label units.
    """

    network: Ensemble
    history: list[EpochRecord]
    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    losses: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    predictions: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))


class Fitter:
    """Trains one ensemble for one objective.

    Parameters
    ----------
    objective
        The loss; its constants are moved to the device.
    inputs
        Encoded training rows.
    targets
        (n,) what the objective needs of each row.
    shape
        Of the ensemble.
    settings, device
        How and where.
    """

    def __init__(
        self,
        objective: Objective,
        inputs: Encoded,
        targets: Tensor,
        shape: NetworkShape,
        settings: FitSettings,
        device: torch.device,
    ) -> None:
        self.objective = objective.to(device)
        self.settings = settings
        self.device = device
        self.numeric = torch.as_tensor(inputs.numeric, device=device)
        self.categories = torch.as_tensor(inputs.categories.astype(np.int64), device=device)
        self.targets = targets.to(device)
        self.network = Ensemble(shape, self._generator("weights"), settings.dropout).to(device)
        self.group = _smallest_factor(settings.members)
        self.training_rows, self.held_rows = self._folds(len(inputs))
        self.batch_size = min(settings.batch_size, self.training_rows.shape[1])
        self.steps = max(1, round(self.training_rows.shape[1] / self.batch_size))
        self.optimizer = self._optimizer()
        self.best = math.inf
        self.best_state = _copy(self.network)
        self.waited = 0
        self.history: list[EpochRecord] = []

    def run(self, on_epoch: EpochCallback | None = None, checkpoint: Path | None = None) -> Fit:
        """Train until the schedule ends or nothing improves any more.

        Parameters
        ----------
        on_epoch
            Called after every epoch.
        checkpoint
            File that the state is kept in after every epoch, and taken up from if it exists and
            belongs to the same data, settings and objective.
        """
        if checkpoint is not None:
            self._resume(checkpoint)
        while len(self.history) < self.settings.epochs and self.waited < self.settings.patience:
            record = self._epoch(len(self.history))
            if checkpoint is not None:
                self._keep(checkpoint)
            if on_epoch is not None:
                on_epoch(record)
        self.network.load_state_dict(self.best_state)
        losses, predictions = self._held_out(points=True)
        return Fit(
            self.network,
            self.history,
            self.held_rows[:: self.group].reshape(-1).cpu().numpy(),
            losses.reshape(-1).cpu().numpy().astype(np.float64),
            predictions.reshape(-1).cpu().numpy().astype(np.float64),
        )

    def _epoch(self, epoch: int) -> EpochRecord:
        order_rng, drop_rng = self._generator(f"order {epoch}"), None
        if self.settings.dropout:
            drop_rng = self._generator(f"dropout {epoch}", self.device)
        members, rows = self.training_rows.shape
        order = torch.randperm(rows, generator=order_rng).to(self.device)
        self.network.train()
        total = torch.zeros((), device=self.device)
        stride = rows // members
        offsets = torch.arange(members, device=self.device)[:, None] * stride
        for step in range(self.steps):
            self._schedule(epoch * self.steps + step)
            start = step * rows // self.steps
            stop = (step + 1) * rows // self.steps
            # each member walks the same permutation from another place: other batches for each
            places = (torch.arange(start, stop, device=self.device) + offsets) % rows
            index = self.training_rows.gather(1, order[places])
            raw = self.network(self.numeric[index], self.categories[index], drop_rng)
            losses = self.objective.loss(raw, self.targets[index]).mean(dim=1)
            self.optimizer.zero_grad(set_to_none=True)
            losses.sum().backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            total += losses.detach().mean()
        return self._record(epoch, float(total) / self.steps)

    def _record(self, epoch: int, training: float) -> EpochRecord:
        validation = float(self._held_out()[0].mean())
        recent = [record.validation for record in self.history[1 - _SMOOTHED :]]
        smoothed = (sum(recent) + validation) / (len(recent) + 1)
        better = smoothed < self.best
        if better:
            self.best, self.best_state, self.waited = smoothed, _copy(self.network), 0
        else:
            self.waited += 1
        record = EpochRecord(epoch + 1, self.settings.epochs, training, validation, better)
        self.history.append(record)
        return record

    @torch.no_grad()
    def _held_out(self, points: bool = False) -> tuple[Tensor, Tensor]:
        """(G, v) out-of-fold losses of the ensemble and, if asked for, point predictions."""
        self.network.eval()
        losses, predictions = [], []
        size = max(1, _EVALUATION_ELEMENTS // (64 * self.settings.members))
        for index in torch.split(self.held_rows, size, dim=1):
            raw = self.network(self.numeric[index], self.categories[index])
            targets = self.targets[index]
            single = self.objective.loss(raw, targets)
            losses.append(self._of_ensemble(single, raw, targets))
            if points:
                predictions.append(self._grouped(self.objective.points(raw)).mean(dim=1))
        return torch.cat(losses, 1), torch.cat(predictions, 1) if points else losses[0]

    def _grouped(self, values: Tensor) -> Tensor:
        """(M, …) values by member as (G, g, …): groups share the rows that they leave out."""
        return values.view(-1, self.group, *values.shape[1:])

    def _of_ensemble(self, single: Tensor, raw: Tensor, targets: Tensor) -> Tensor:
        """(G, v) losses that the whole ensemble would have, from each group's."""
        alone = self._grouped(single).mean(dim=1)
        if self.group == 1:
            return alone
        together = self.objective.average_loss(
            self._grouped(raw), self._grouped(targets)[:, 0], self._grouped(single)
        )
        reach = (1 - 1 / self.settings.members) / (1 - 1 / self.group)
        return alone - reach * (alone - together)

    def _folds(self, rows: int) -> tuple[Tensor, Tensor]:
        """(M, t) training rows and (M, v) held-out rows, the latter shared by a group."""
        members = self.settings.members
        held = min(max(1, round(rows * self.settings.validation)), rows - 1)
        folds = max(1, rows // held)
        order = torch.randperm(rows, generator=self._generator("folds"))
        training, out = [], []
        for member in range(members):
            start = (member // self.group % folds) * held
            out.append(order[start : start + held])
            training.append(torch.cat([order[:start], order[start + held :]]))
        return torch.stack(training).to(self.device), torch.stack(out).to(self.device)

    def _optimizer(self) -> torch.optim.Optimizer:
        settings = self.settings
        weights = [*self.network.weights, self.network.embeddings]
        groups = [
            {"params": weights, "weight_decay": settings.weight_decay},
            {"params": list(self.network.biases), "weight_decay": 0.0},
        ]
        if settings.optimizer == "rmsprop":
            return torch.optim.RMSprop(groups, lr=settings.learning_rate)
        return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.99), fused=True)

    def _schedule(self, step: int) -> None:
        """Warm up over a twentieth of all steps, then decay along a cosine to a hundredth."""
        total = self.settings.epochs * self.steps
        warm = max(1, total // 20)
        share = min(1.0, (step + 1) / warm)
        cosine = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / total))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * share * cosine

    def _generator(self, purpose: str, device: torch.device | None = None) -> torch.Generator:
        digest = hashlib.sha256(f"{self.settings.seed} {purpose}".encode()).digest()
        generator = torch.Generator(device=device or torch.device("cpu"))
        return generator.manual_seed(int.from_bytes(digest[:7], "big"))

    def _fingerprint(self) -> str:
        """What a checkpoint must agree on to be taken up again."""
        sums = [float(self.numeric.double().sum()), float(self.categories.double().sum())]
        facts: list[Any] = [
            asdict(self.settings),
            asdict(self.network.shape),
            self.objective.name,
            self.objective.head,
            [len(self.targets), float(self.targets.double().sum()), *sums],
        ]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _keep(self, path: Path) -> None:
        state = {
            "fingerprint": self._fingerprint(),
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": self.best,
            "best_state": self.best_state,
            "waited": self.waited,
            "history": [asdict(record) for record in self.history],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, path)

    def _resume(self, path: Path) -> None:
        if not path.is_file():
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state.get("fingerprint") != self._fingerprint():
            return
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best, self.best_state = state["best"], state["best_state"]
        self.waited = state["waited"]
        self.history = [EpochRecord(**record) for record in state["history"]]


def _smallest_factor(number: int) -> int:
    """Return the smallest factor above 1, or 1 for 1."""
    return next((g for g in range(2, number + 1) if number % g == 0), 1)


def _copy(network: Ensemble) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
