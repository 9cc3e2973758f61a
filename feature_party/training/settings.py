"""What ``auto`` stands for: settings that suit the data and the machine."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch

from labelveil.common.errors import ConfigError
from labelveil.feature_party.config.sections import TrainingSection
from labelveil.feature_party.model.facts import FitSettings
from labelveil.feature_party.training.batches import group_size

Number = TypeVar("Number", int, float)

_MANY_ROWS = 100_000
_LEAST_LEFT_OUT, _MOST_LEFT_OUT = 0.1, 0.25


def resolve_settings(section: TrainingSection, rows: int) -> FitSettings:
    """Replace every ``auto`` by what suits the number of training rows."""
    members = _chosen(section.ensemble, 8 if rows < _MANY_ROWS else 4)
    # in a fold: all rows together, or what one network can do without
    folds, left_out = members // group_size(members), _LEAST_LEFT_OUT
    if folds > 1:
        left_out = max(_LEAST_LEFT_OUT, min(1 / folds, _MOST_LEFT_OUT))
    batch = int(np.clip(2 ** round(np.log2(max(rows, 1) / 64)), 64, 1024))
    epochs = int(np.clip(round(20 * (16_000 / max(rows, 1)) ** 0.5), 3, 60))
    return FitSettings(
        members=members,
        epochs=_chosen(section.epochs, epochs),
        batch_size=_chosen(section.batch_size, batch),
        learning_rate=section.learning_rate,
        optimizer=section.optimizer,
        weight_decay=_chosen(section.weight_decay, 0.01),
        hidden=tuple(section.hidden),
        dropout=section.dropout,
        validation=_chosen(section.validation, left_out),
        patience=section.patience,
        seed=section.seed,
    )


def _chosen(value: Number | str, suited: Number) -> Number:
    """What is set, or what suits where that is ``auto``."""
    return suited if isinstance(value, str) else value


def resolve_pieces(pieces: int | str, effective_labels: float) -> int:
    """Pieces that a numeric column's range is cut into: one a hundred labels' worth, at most 32.

    ``effective_labels`` is the number of true labels that say as much: n privatized labels are
    worth :attr:`LabelProblem.informativeness` n true ones. Where they afford fewer than 8 pieces,
    their noise costs more than the bends gain.
    """
    if isinstance(pieces, int):
        return pieces
    affordable = int(effective_labels / 100)
    return 0 if affordable < 8 else min(affordable, 32)


def choose_device(name: str) -> torch.device:
    """The device to train on, which must exist here; ``auto`` takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r} is unknown; use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r} is not available on this machine; use auto or cpu")
    return device
